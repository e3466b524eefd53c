"""Tiers, which limit the costs of architectures, and the sources of their limits."""

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

#: Costs of the architecture alone, without latency; ``operations`` is FedorAS' count of FLOPs.
CountedCost = Literal["macs", "parameters", "bytes", "activation_bytes", "memory_bytes", "operations"]
LIMITED_COSTS: tuple[str, ...] = (*get_args(CountedCost), "latency_ms")


@dataclass(frozen=True)
class Tier:
    """A class of devices.

    Args:
        name: Name of the tier in files and tables; ``*`` is the tier without limits.
        at_most: Greatest allowed values, by cost.
        above: Values that must be exceeded, by cost; for tiers that are ranges.
        unsupported: Operators that the tier's devices cannot run, in supernets of operators.

    Raises:
        ConfigError: The name cannot be that of a folder, a cost is unknown, or a limit is not positive.

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
        """The costs that have a limit."""
        return tuple(dict.fromkeys([*self.at_most, *self.above]))

    def __str__(self) -> str:
        limits = [f"{name} at most {limit:g}" for name, limit in self.at_most.items()]
        limits += [f"{name} above {limit:g}" for name, limit in self.above.items()]
        limits += [f"without {name}" for name in self.unsupported]
        return " and ".join(limits) or "no limits"

    def excess(self, costs: Mapping[str, float]) -> float:
        """Returns the sum of the relative excesses over the limits; 0 if costs meet all limits."""
        over = [max(0.0, costs[name] / limit - 1) for name, limit in self.at_most.items()]
        under = [max(0.0, np.nextafter(1.0, 2.0) - costs[name] / limit) for name, limit in self.above.items()]
        return float(sum(over) + sum(under))

    def plain(self) -> dict[str, Any]:
        """Returns the tier as plain values for ``settings.json``."""
        unsupported = {"unsupported": list(self.unsupported)} if self.unsupported else {}
        return {"name": self.name, "at_most": dict(self.at_most), "above": dict(self.above), **unsupported}


#: The tier of all clients in a run without tiers.
EVERYBODY = Tier(ALL_TIERS, {})


class ArchitectureCosts:
    """The costs of a supernet's architectures, each counted or measured once; ``latency`` is optional."""

    def __init__(self, supernet: Supernet, latency: LatencySource | None = None) -> None:
        self.supernet = supernet
        self.latency = latency
        self._known: dict[tuple[Any, str], float] = {}
        self._files: SearchFiles | None = None

    def cost(self, arch: Any, name: str) -> float:
        """Returns one of :data:`LIMITED_COSTS`; raises ConfigError for latency without a source."""
        if name == "memory_bytes":
            return self.cost(arch, "bytes") + self.cost(arch, "activation_bytes")
        key = (arch, name)
        if key not in self._known:
            self._known[key] = self._latency(arch) if name == "latency_ms" else self.supernet.counted(name, arch)
        return self._known[key]

    def excess(self, arch: Any, tier: Tier) -> float:
        """Returns an architecture's excess over a tier's limits; each layer with an unsupported operator adds 1."""
        space = self.supernet.space
        genes = zip(space.choices, space.encode(arch), strict=True) if tier.unsupported else ()
        unsupported = sum(values[gene] in tier.unsupported for values, gene in genes)
        return tier.excess({name: self.cost(arch, name) for name in tier.limited}) + unsupported

    def affordable(self, arch: Any, tier: Tier) -> bool:
        """Returns whether a tier's devices can run an architecture, regardless of latency and lower limits."""
        counted = {name: limit for name, limit in tier.at_most.items() if name != "latency_ms"}
        return self.excess(arch, replace(tier, at_most=counted, above={})) == 0

    def all(self, arch: Any) -> dict[str, float | None]:
        """Returns all costs of ``lit_fednas.records.COST_NAMES``; latency is ``None`` without a source."""
        unknown = "latency_ms" if self.latency is None else ""
        return {name: None if name == unknown else self.cost(arch, name) for name in COST_NAMES}

    def recall_latencies(self, files: SearchFiles) -> None:
        """Reads the latencies of a stopped search, since new measurements would differ."""
        for row in files.rows("latencies"):
            self._known[self.supernet.space.parse(row["arch"]), "latency_ms"] = row["latency_ms"]

    def keep_latencies(self, files: SearchFiles) -> None:
        """Writes all latencies now, and each new one from now on."""
        if self.latency is not None:
            latencies = [(arch, value) for (arch, name), value in self._known.items() if name == "latency_ms"]
            files.write("latencies", [{"arch": str(arch), "latency_ms": value} for arch, value in latencies])
            self._files = files

    def prepare_latency(self, archs: Sequence[Any]) -> dict[str, Any] | None:
        """Prepares the source of latencies with typical architectures; returns its description."""
        if self.latency is None:
            return None
        networks = [self.supernet.skeleton(arch) for arch in archs]
        prepared = self.latency.prepare(networks, self.supernet.input_shape, self.supernet.input_dtype)
        return {"source": type(self.latency).__name__, **prepared}

    def _latency(self, arch: Any) -> float:
        if self.latency is None:
            raise ConfigError(
                "search.latency: null, but latency_ms is needed; set it to lit_fednas.costs.MeasuredLatency"
            )
        net = self.supernet
        milliseconds = self.latency.milliseconds(net.skeleton(arch), net.input_shape, net.input_dtype)
        if self._files is not None:
            self._files.append("latencies", [{"arch": str(arch), "latency_ms": milliseconds}])
        return milliseconds


class TierSource(ABC):
    """The source of a run's tiers and their limits."""

    @abstractmethod
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        """Returns the tiers, from the least to the most capable; ``rng`` samples architectures."""


@checked("tiers")
@dataclass(frozen=True)
class Budgets(TierSource):
    """Tiers with given limits.

    Args:
        budgets: Limits by tier and cost: ``macs`` of one example, ``parameters``, ``bytes``, ``activation_bytes``,
            ``memory_bytes`` (bytes and activations), ``operations`` (FedorAS' count of FLOPs), ``latency_ms``.
        ranges: Whether a tier's architectures must exceed the limits of the tier below, as in FedorAS.

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
    """Tiers with the costs of named architectures as limits.

    Args:
        archs: Architecture of each tier, least capable first: ``smallest``, ``largest``, or the space's text for one.
        cost: The limited cost.
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
                    f"tiers.archs.{name}: {text!r} costs less than {tiers[-1].name}'s; order tiers by {self.cost}"
                )
            tiers.append(tier)
        return tiers


@checked("tiers")
@dataclass(frozen=True)
class EvenBudgets(TierSource):
    """Tiers ``budget01``, ``budget02``, ... with evenly spaced limits, as on DeepFedNAS' path.

    Args:
        count: Number of tiers.
        least: First limit; by default the cost of the smallest architecture.
        most: Last limit; by default the cost of the largest architecture.
        cost: The limited cost.
    """

    count: Count = 60
    least: PositiveFloat | None = None
    most: PositiveFloat | None = None
    cost: CountedCost = "macs"

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        low = self.least or costs.cost(space.smallest, self.cost)
        high = self.most or costs.cost(space.largest, self.cost)
        if low > high:
            raise ConfigError(f"tiers.least: {low:g} {self.cost} is above tiers.most, {high:g}; lower it")
        limits = np.linspace(low, high, self.count).tolist()
        return [Tier(f"budget{number:02}", {self.cost: limit}) for number, limit in enumerate(limits, 1)]


@checked("tiers")
@dataclass(frozen=True)
class CumulativeCostTiers(TierSource):
    """Tiers ``tier1``, ``tier2``, ... from the costs of sampled architectures (FedorAS, App. E.4).

    Samples are sorted by cost, and their shares of the total cost are added up from the cheapest. The highest tier
    begins where the sum reaches ``high``, and ends at the largest architecture. The range below is divided evenly. With
    ``low``, the first tier ends where the sum reaches ``low`` (for Speech Commands and Shakespeare).

    Args:
        count: Number of tiers.
        high: The paper's rho (rho_H).
        low: The paper's rho_L; ``None`` starts the range below ``high`` at the smallest architecture.
        cost: The limited cost.
        samples: Number of sampled architectures.
        ranges: Whether a tier's architectures must exceed the tier below; otherwise cheaper ones fit too (Eq. 6).
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
                f"tiers.low: {self.low} must be below high, {self.high}, and count at least 3; or set it to null"
            )

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        sampled = np.array([costs.cost(space.sample(rng), self.cost) for _ in range(self.samples)], dtype=float)
        # the space's own bounds need not have the extreme values of this cost
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
        """Returns the upper limit of each tier, ascending, from the costs of samples and of the space's bounds.

        Example:
            >>> source = CumulativeCostTiers(count=3, high=0.6)  # shares 0.1, 0.3, 0.6, 1 of the sum
            >>> source.bounds(np.array([4.0, 1.0, 2.0, 3.0]), smallest=1, largest=5)
            [2.0, 3.0, 5.0]
        """
        ascending = np.sort(sampled)
        shares = np.cumsum(ascending) / ascending.sum()

        def cost_at(share: float) -> float:
            count = int(np.searchsorted(shares, share + 1e-12, side="right"))
            return float(ascending[max(0, count - 1)])

        if self.count == 1:
            return [float(largest)]
        high = cost_at(self.high)
        if self.low is None:
            lower = np.linspace(smallest, high, self.count)[1:]
        else:
            lower = np.linspace(cost_at(self.low), high, self.count - 1)
        return [*lower.tolist(), float(largest)]


@checked("tiers")
@dataclass(frozen=True)
class Capacities(TierSource):
    """Tiers ``level1``, ``level2``, ... by equal factors: the first can just run the smallest architecture.

    FedTrans, section 5.1: "The initial model's complexity corresponds to the client with the lowest computation
    and communication capacities", and "the disparity between the most capable and least capable devices exceeds
    29x". The paper draws capacities from a trace of phones, which spreads over orders of magnitude like these levels.
    The smallest architecture of a growing supernet is its first model, so limits stay constant.

    Args:
        ratio: Limit of the most capable level, relative to that of the least capable.
        levels: Number of levels.
        cost: The limited cost; not latency, which needs a named device.
    """

    ratio: Annotated[float, Range(above=1)] = 29
    levels: Annotated[int, Range(at_least=2, at_most=10**6)] = 8
    cost: CountedCost = "macs"

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        lowest = float(costs.cost(space.smallest, self.cost))
        factors = [self.ratio ** (level / (self.levels - 1)) for level in range(self.levels)]
        return [Tier(f"level{level}", {self.cost: lowest * factor}) for level, factor in enumerate(factors, 1)]


@dataclass(frozen=True)
class TiersOfRun(TierSource):
    """The tiers of a run that has grown its models, for methods with other networks on the same devices.

    With that run's ``seed_everything``, clients and ``allocation``, every client has the same tier as there.

    Args:
        run: Folder of the run, with its ``suite.json``.

    Raises:
        ConfigError: When training begins: the run has no grown models, or no tiers.
    """

    run: str

    @override
    def tiers(self, space: SearchSpace[Any], costs: ArchitectureCosts, rng: np.random.Generator) -> list[Tier]:
        rows = suite_of(self.run, "model.tiers.source.run").get("tiers")
        if not rows:
            raise ConfigError(f"model.tiers.source.run: {self.run} has no tiers in its suite.json; name another run")
        return [Tier(**{**row, "unsupported": tuple(row["unsupported"])}) for row in rows]
