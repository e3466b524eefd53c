"""What devices afford: tiers that limit the costs of architectures, and where limits come from."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Literal, get_args

import numpy as np
from typing_extensions import override

from lit_fednas.costs import LatencySource
from lit_fednas.errors import ConfigError
from lit_fednas.ranges import Count, Filled, PositiveFloat, PositiveShare, Range, UnitInterval, checked
from lit_fednas.records import ALL_TIERS, COST_NAMES, SearchFiles
from lit_fednas.records.files import check_folder_name
from lit_fednas.records.run import suite_of
from lit_fednas.supernets import SearchSpace, Supernet

#: Costs that follow from an architecture alone: ``lit_fednas.records.COST_NAMES`` without latency, what
#: must be in memory at once, and FedorAS' count of FLOPs.
CountedCost = Literal["macs", "parameters", "bytes", "activation_bytes", "memory_bytes", "operations"]
LIMITED_COSTS: tuple[str, ...] = (*get_args(CountedCost), "latency_ms")


@dataclass(frozen=True)
class Tier:
    """A class of devices.

    Args:
        name: The name of its files and rows; ``*`` is the tier without limits.
        at_most: The greatest value allowed, by cost.
        above: Values that must be exceeded, by cost; for tiers that are ranges.
        unsupported: Operators that its devices cannot run, in supernets of operators.

    Raises:
        ConfigError: The name cannot be a folder's, a cost is unknown, or a limit is not positive.

    Example:
        >>> Tier("phones", {"macs": 2e6}).excess({"macs": 3e6})
        0.5
    """

    name: str
    at_most: Mapping[str, float]
    above: Mapping[str, float] = field(default_factory=dict)
    unsupported: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.name != ALL_TIERS:
            check_folder_name("tiers", self.name)
        for cost, limit in [*self.at_most.items(), *self.above.items()]:
            if cost not in LIMITED_COSTS:
                raise ConfigError(f"tiers.{self.name}: {cost!r} is not a cost; choose from {', '.join(LIMITED_COSTS)}")
            if not limit > 0:
                raise ConfigError(f"tiers.{self.name}.{cost}: {limit} must be above 0")

    @property
    def limited(self) -> tuple[str, ...]:
        """Returns the costs that have a limit."""
        return tuple(dict.fromkeys([*self.at_most, *self.above]))

    def __str__(self) -> str:
        limits = [f"{name} at most {limit:g}" for name, limit in self.at_most.items()]
        limits += [f"{name} above {limit:g}" for name, limit in self.above.items()]
        limits += [f"without {name}" for name in self.unsupported]
        return " and ".join(limits) or "no limits"

    def excess(self, costs: Mapping[str, float]) -> float:
        """Returns by how much costs exceed the limits, relative to each and added up; 0 for what fits."""
        over = [max(0.0, costs[name] / limit - 1) for name, limit in self.at_most.items()]
        under = [max(0.0, np.nextafter(1.0, 2.0) - costs[name] / limit) for name, limit in self.above.items()]
        return float(sum(over) + sum(under))

    def plain(self) -> dict[str, Any]:
        """Returns the tier as ``settings.json`` has it."""
        unsupported = {"unsupported": list(self.unsupported)} if self.unsupported else {}
        return {"name": self.name, "at_most": dict(self.at_most), "above": dict(self.above), **unsupported}


#: The tier of all clients where there are no tiers.
EVERYBODY = Tier(ALL_TIERS, {})


class ArchitectureCosts:
    """The costs of architectures by name, each counted or measured once.

    Args:
        supernet: The supernet.
        latency: Measures or predicts latency; if not given, latency is unknown.
    """

    def __init__(self, supernet: Supernet, latency: LatencySource | None = None) -> None:
        self.supernet = supernet
        self.latency = latency
        self._known: dict[tuple[Any, str], float] = {}
        self._files: SearchFiles | None = None

    def cost(self, arch: Any, name: str) -> float:
        """Returns one of :data:`LIMITED_COSTS`; raises ConfigError for latency where no source of it is given."""
        if name == "memory_bytes":
            return self.cost(arch, "bytes") + self.cost(arch, "activation_bytes")
        key = (arch, name)
        if key not in self._known:
            self._known[key] = self._latency(arch) if name == "latency_ms" else self.supernet.counted(name, arch)
        return self._known[key]

    def excess(self, arch: Any, tier: Tier) -> float:
        """Returns by how much an architecture exceeds a tier's limits."""
        # each layer with an unsupported operator counts 1
        space = self.supernet.space
        genes = zip(space.choices, space.encode(arch), strict=True) if tier.unsupported else ()
        unsupported = sum(values[gene] in tier.unsupported for values, gene in genes)
        return tier.excess({name: self.cost(arch, name) for name in tier.limited}) + unsupported

    def affordable(self, arch: Any, tier: Tier) -> bool:
        """Returns whether a tier's devices can run an architecture, as far as its costs are counted."""
        counted = {name: limit for name, limit in tier.at_most.items() if name != "latency_ms"}
        return self.excess(arch, replace(tier, at_most=counted, above={})) == 0

    def all(self, arch: Any) -> dict[str, float | None]:
        """Returns all costs of ``lit_fednas.records.COST_NAMES``; latency is ``None`` where it is not known."""
        unknown = "latency_ms" if self.latency is None else ""
        return {name: None if name == unknown else self.cost(arch, name) for name in COST_NAMES}

    def recall_latencies(self, files: SearchFiles) -> None:
        """Reads the latencies that were measured before a search was stopped: new ones would differ."""
        for row in files.rows("latencies"):
            self._known[self.supernet.space.parse(row["arch"]), "latency_ms"] = row["latency_ms"]

    def keep_latencies(self, files: SearchFiles) -> None:
        """Writes all latencies so far, and from now on each new one."""
        if self.latency is not None:
            known = [(arch, value) for (arch, name), value in self._known.items() if name == "latency_ms"]
            files.write("latencies", [{"arch": str(arch), "latency_ms": value} for arch, value in known])
            self._files = files

    def prepare_latency(self, archs: Sequence[Any]) -> dict[str, Any] | None:
        """Lets the source of latencies measure what it needs, from typical architectures; returns its description."""
        if self.latency is None:
            return None
        networks = [self.supernet.skeleton(arch) for arch in archs]
        prepared = self.latency.prepare(networks, self.supernet.input_shape, self.supernet.input_dtype)
        return {"source": type(self.latency).__name__, **prepared}

    def _latency(self, arch: Any) -> float:
        if self.latency is None:
            raise ConfigError(
                "search.latency: is null, but a tier or the objective needs latency_ms; "
                "set it to lit_fednas.costs.MeasuredLatency or LatencyTable"
            )
        net = self.supernet
        milliseconds = self.latency.milliseconds(net.skeleton(arch), net.input_shape, net.input_dtype)
        if self._files is not None:
            self._files.append("latencies", [{"arch": str(arch), "latency_ms": milliseconds}])
        return milliseconds


class TierSource(ABC):
    """What the tiers of a run can afford."""

    @abstractmethod
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        """Returns the tiers, from the least to the most capable.

        Args:
            space: The architectures.
            costs: Their costs.
            rng: For architectures that are sampled.
        """


@checked("tiers")
@dataclass(frozen=True)
class Budgets(TierSource):
    """Tiers as numbers.

    Args:
        budgets: Per tier: the greatest value allowed, by cost: ``macs`` of one example, ``parameters``, ``bytes``,
            ``activation_bytes``, ``memory_bytes`` (the last two added), ``operations`` (FedorAS' count of FLOPs),
            ``latency_ms``.
        ranges: Whether a tier's architectures must be above the limits of the tier before it, as FedorAS' are.

    Example:
        >>> str(Budgets({"t1": {"macs": 2e6}, "t2": {"macs": 3e6}}, ranges=True).tiers(None, None, None)[1])
        'macs at most 3e+06 and macs above 2e+06'
    """

    budgets: Annotated[dict[str, Annotated[dict[str, float], Filled]], Filled]
    ranges: bool = False

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        below = [{}, *self.budgets.values()] if self.ranges else [{}] * len(self.budgets)
        return [Tier(name, limits, above) for (name, limits), above in zip(self.budgets.items(), below, strict=False)]


@checked("tiers")
@dataclass(frozen=True)
class ArchitectureTiers(TierSource):
    """Tiers by what they can just run: each affords as much as its architecture costs.

    Args:
        archs: Per tier, least capable first: ``smallest``, ``largest``, or an architecture as the space writes it.
        cost: What is limited.
    """

    archs: Annotated[dict[str, str], Filled]
    cost: str = "macs"

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        tiers: list[Tier] = []
        for name, text in self.archs.items():
            tier = Tier(name, {self.cost: float(costs.cost(space.named(text), self.cost))})
            if tiers and tier.at_most[self.cost] < tiers[-1].at_most[self.cost]:
                raise ConfigError(
                    f"tiers.archs.{name}: {text!r} costs {tier.at_most[self.cost]:g} {self.cost}, less than "
                    f"{tiers[-1].name}'s {tiers[-1].at_most[self.cost]:g}; list tiers from the least capable on"
                )
            tiers.append(tier)
        return tiers


@checked("tiers")
@dataclass(frozen=True)
class EvenBudgets(TierSource):
    """Tiers, called ``budget01``, ``budget02``, ..., whose limits are equally far apart, as on DeepFedNAS' path.

    Args:
        count: Number of tiers.
        least: The first limit; what the smallest architecture costs, if not given.
        most: The last limit; what the largest architecture costs, if not given.
        cost: What is limited.
    """

    count: Count = 60
    least: PositiveFloat | None = None
    most: PositiveFloat | None = None
    cost: CountedCost = "macs"

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        least = self.least or costs.cost(space.smallest, self.cost)
        most = self.most or costs.cost(space.largest, self.cost)
        if least > most:
            raise ConfigError(f"tiers.least: {least:g} {self.cost} is more than the most, {most:g}; lower it")
        limits = np.linspace(least, most, self.count).tolist()
        return [Tier(f"budget{number:02}", {self.cost: limit}) for number, limit in enumerate(limits, 1)]


@checked("tiers")
@dataclass(frozen=True)
class CumulativeCostTiers(TierSource):
    """Tiers from the space itself, called ``tier1``, ``tier2``, ... (FedorAS, App. E.4).

    Architectures are sampled and sorted by cost. Their shares of the total cost are added up from the cheapest on;
    the highest tier begins where the sum reaches ``high``, and ends at the largest architecture. The range below
    is divided evenly. With ``low`` the first tier likewise ends where the sum reaches ``low`` (the paper's rho_L,
    for Speech Commands and Shakespeare).

    Args:
        count: Number of tiers.
        high: The paper's rho (rho_H).
        low: The paper's rho_L; if not given, the range below ``high`` starts at the smallest architecture.
        cost: What is shared out.
        samples: Architectures that are sampled.
        ranges: Whether a tier's architectures must be above the tier below; else any cheaper one fits too (Eq. 6).
    """

    count: Count = 3
    high: PositiveShare = 0.95
    low: UnitInterval | None = None
    cost: str = "macs"
    samples: Count = 10_000
    ranges: bool = False

    def __post_init__(self) -> None:
        if self.low is not None and (self.low >= self.high or self.count < 3):
            raise ConfigError(
                f"tiers.low: {self.low} must be below high, {self.high}, and needs a count of at least 3, not "
                f"{self.count}; set it to null for none"
            )

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        sampled = np.array([costs.cost(space.sample(rng), self.cost) for _ in range(self.samples)], dtype=float)
        # the space's own bounds need not be those by this cost
        smallest = min(costs.cost(space.smallest, self.cost), sampled.min())
        largest = max(costs.cost(space.largest, self.cost), sampled.max())
        tiers: list[Tier] = []
        floor = 0.0
        for bound in self.bounds(sampled, smallest, largest):
            if bound > floor:
                above = {self.cost: floor} if self.ranges and floor else {}
                tiers.append(Tier(f"tier{len(tiers) + 1}", {self.cost: bound}, above))
                floor = bound
        return tiers

    def bounds(self, sampled: np.ndarray, smallest: float, largest: float) -> list[float]:
        """Returns the upper limit of each tier, ascending.

        Args:
            sampled: Costs of sampled architectures, ``[samples]``.
            smallest: Cost of the smallest architecture.
            largest: Cost of the largest architecture.

        Example:
            >>> source = CumulativeCostTiers(count=3, high=0.6)  # shares 0.1, 0.3, 0.6, 1 of the sum
            >>> source.bounds(np.array([4.0, 1.0, 2.0, 3.0]), smallest=1, largest=5)
            [2.0, 3.0, 5.0]
        """
        ascending = np.sort(sampled)
        shares = np.cumsum(ascending) / ascending.sum()

        def reached(share: float) -> float:
            within = int(np.searchsorted(shares, share + 1e-12, side="right"))
            return float(ascending[max(0, within - 1)])

        if self.count == 1:
            return [float(largest)]
        high = reached(self.high)
        if self.low is None:
            lower = np.linspace(smallest, high, self.count)[1:]
        else:
            lower = np.linspace(reached(self.low), high, self.count - 1)
        return [*lower.tolist(), float(largest)]


@checked("tiers")
@dataclass(frozen=True)
class Capacities(TierSource):
    """Levels of capability: the least capable device can just run the smallest architecture.

    FedTrans, section 5.1: "The initial model's complexity corresponds to the client with the lowest computation
    and communication capacities", and "the disparity between the most capable and least capable devices exceeds
    29x". The paper draws every client's capacity from a trace of phones; here levels, called ``level1``,
    ``level2``, ..., are apart by equal factors, as such traces spread over orders of magnitude rather than evenly.

    Where a supernet grows while it is trained, the smallest architecture is its first model, so a level affords the
    same at any time.

    Args:
        ratio: What the most capable devices afford, relative to the least capable.
        levels: Their number.
        cost: What is limited; not latency, which needs a named device.
    """

    ratio: Annotated[float, Range(above=1)] = 29
    levels: Annotated[int, Range(at_least=2, at_most=10**6)] = 8
    cost: CountedCost = "macs"

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        least = float(costs.cost(space.smallest, self.cost))
        factors = [self.ratio ** (level / (self.levels - 1)) for level in range(self.levels)]
        return [Tier(f"level{level}", {self.cost: least * factor}) for level, factor in enumerate(factors, 1)]


@dataclass(frozen=True)
class TiersOfRun(TierSource):
    """The tiers of a run that has grown its models, so that methods with other networks have the same devices.

    Which client belongs to which is drawn as in that run with its ``seed_everything``, clients and ``allocation``.

    Args:
        run: The run's folder, which holds ``suite.json``.

    Raises:
        ConfigError: The run has grown no models, or did not write its tiers; raised when training begins.
    """

    run: str

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        rows = suite_of(self.run, "model.tiers.source.run").get("tiers")
        if not rows:
            raise ConfigError(f"model.tiers.source.run: {self.run} has no tiers in its suite.json; name another run")
        return [Tier(**{**row, "unsupported": tuple(row["unsupported"])}) for row in rows]
