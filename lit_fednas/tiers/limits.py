"""What devices afford: tiers limit the costs of architectures, counted or measured once; each client has a tier."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

import numpy as np

from lit_fednas.costs import LatencySource, peak_activation_bytes
from lit_fednas.errors import ConfigError
from lit_fednas.records import ALL_TIERS, COST_NAMES, SearchFiles
from lit_fednas.records.files import check_folder_name
from lit_fednas.supernets import OWN, Supernet, labels_of

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
        labels: The label set that its clients have.

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
    labels: str = OWN

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


class ArchitectureCosts:
    """The costs of architectures by name, each counted or measured once.

    Args:
        supernet: The supernet.
        latency: Measures or predicts latency; if not given, latency is unknown.

    Example:
        >>> from lit_fednas.supernets import ElasticResNet
        >>> net = ElasticResNet((1, 8, 8), 4, stem_width=4, stage_widths=[8], depths=[0], ratios=[0.5])
        >>> costs = ArchitectureCosts(net).all(net.space.largest)
        >>> costs["macs"], costs["bytes"], costs["latency_ms"]
        (59680, 3872, None)
    """

    def __init__(self, supernet: Supernet, latency: LatencySource | None = None) -> None:
        self.supernet = supernet
        self.latency = latency
        self._known: dict[tuple[Any, str], float] = {}
        self._files: SearchFiles | None = None
        self._counters: dict[str, Callable[[Any], float]] = {
            "macs": supernet.macs,
            "parameters": lambda arch: supernet.cost(arch).parameters,
            "bytes": lambda arch: supernet.cost(arch).bytes,
            "activation_bytes": lambda arch: peak_activation_bytes(
                supernet.skeleton(arch), supernet.input_shape, supernet.input_dtype
            ),
            "memory_bytes": lambda arch: self.cost(arch, "bytes") + self.cost(arch, "activation_bytes"),
            "operations": supernet.operations,
            "latency_ms": self._latency,
        }

    def cost(self, arch: Any, name: str) -> float:
        """Returns one cost of an architecture, one of :data:`LIMITED_COSTS`.

        Raises:
            ConfigError: Latency is asked for, and no source of it is given.
        """
        key = (arch, name)
        if key not in self._known:
            self._known[key] = self._counters[name](arch)
        return self._known[key]

    def excess(self, arch: Any, tier: Tier) -> float:
        """Returns by how much an architecture exceeds a tier's limits.

        Each layer with an unsupported operator counts 1, and so does a classifier of other labels than the tier's.
        """
        choices = self.supernet.space.chosen(arch) if tier.unsupported else ()
        unsupported = sum(choice in tier.unsupported for choice in choices)
        others = int(labels_of(arch) != tier.labels)
        return tier.excess({name: self.cost(arch, name) for name in tier.limited}) + unsupported + others

    def affordable(self, arch: Any, tier: Tier) -> bool:
        """Returns whether a tier's devices can run an architecture, as far as its costs are counted."""
        counted = {name: limit for name, limit in tier.at_most.items() if name != "latency_ms"}
        return self.excess(arch, replace(tier, at_most=counted, above={}, labels=labels_of(arch))) == 0

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


@dataclass(frozen=True, eq=False)
class Population:
    """All clients, and the tier of each.

    Attributes:
        num_clients: Their number.
        tiers: From the least to the most capable; empty without tiers.
        places: For each client the position of its tier among them, int ``[clients]``; empty without tiers.
        sizes: Training examples of each client, int ``[clients]``; empty where nothing depends on them.

    Example:
        >>> small, large = Tier("small", {"macs": 1e6}), Tier("large", {"macs": 2e6})
        >>> population = Population(3, (small, large), (0, 1, 0))
        >>> population.tier(1).name, population.eligible("large"), population.eligible("small")
        ('large', [1], [0, 1, 2])
    """

    num_clients: int
    tiers: tuple[Tier, ...] = ()
    places: Sequence[int] | np.ndarray = ()
    sizes: Sequence[int] | np.ndarray = ()

    def __post_init__(self) -> None:
        for name in ("places", "sizes"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.int64))

    def tier(self, client: int) -> Tier | None:
        """Returns a client's tier, if there are tiers."""
        return self.tiers[self.places[client]] if self.tiers else None

    def eligible(self, tier: str) -> list[int]:
        """Returns the clients that can run a tier's models: those of that tier and above (FedorAS, section 3.3).

        A tier above that lacks an operator which this tier's models may have cannot run them.

        Raises:
            ConfigError: The tier is unknown.
        """
        least = self._position(tier)
        lacking = set(self.tiers[least].unsupported)
        able = [place >= least and lacking.issuperset(tier.unsupported) for place, tier in enumerate(self.tiers)]
        return np.flatnonzero(np.array(able)[self.places]).tolist()

    def members(self, tier: str) -> list[int]:
        """Returns the clients of a tier.

        Raises:
            ConfigError: The tier is unknown.
        """
        return np.flatnonzero(np.asarray(self.places) == self._position(tier)).tolist()

    def _position(self, tier: str) -> int:
        names = [known.name for known in self.tiers]
        if tier not in names:
            known = ", ".join(names) or "none; set model.tiers"
            raise ConfigError(f"model.tiers: has no tier {tier!r}; there are: {known}")
        return names.index(tier)
