"""The costs of architectures, each counted or measured once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from lit_fednas.costs import LatencySource, peak_activation_bytes
from lit_fednas.errors import ConfigError
from lit_fednas.records import COST_NAMES, SearchFiles
from lit_fednas.supernets import Supernet, labels_of

if TYPE_CHECKING:
    from lit_fednas.tiers.limits import Tier

#: What a tier may limit: the costs, what must lie in memory at once, and FedorAS' count of FLOPs.
LIMITED_COSTS = (*COST_NAMES, "memory_bytes", "operations")


class ArchitectureCosts:
    """What an architecture costs, by name.

    Args:
        supernet: The supernet.
        latency: How latency is found; without it, it is not known.

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
            "macs": lambda arch: self.supernet.macs(arch),
            "parameters": lambda arch: self.supernet.cost(arch).parameters,
            "bytes": lambda arch: self.supernet.cost(arch).bytes,
            "activation_bytes": self._activation_bytes,
            "memory_bytes": lambda arch: self.cost(arch, "bytes") + self.cost(arch, "activation_bytes"),
            "operations": lambda arch: self.supernet.operations(arch),
            "latency_ms": self._latency,
        }

    def cost(self, arch: Any, name: str) -> float:
        """One cost of an architecture.

        Raises:
            ConfigError: Latency is asked for and nothing says how it is found.
        """
        key = (arch, name)
        if key not in self._known:
            self._known[key] = self._counters[name](arch)
        return self._known[key]

    def excess(self, arch: Any, tier: Tier) -> float:
        """By how much an architecture breaks a tier's limits.

        Each layer with an unsupported operator counts 1, and so does a classifier of other labels than the tier's.
        """
        choices = self.supernet.space.chosen(arch) if tier.unsupported else ()
        unsupported = sum(choice in tier.unsupported for choice in choices)
        others = int(labels_of(arch) != tier.labels)
        return tier.excess({name: self.cost(arch, name) for name in tier.limited}) + unsupported + others

    def all(self, arch: Any) -> dict[str, float | None]:
        """All costs of :data:`~lit_fednas.records.COST_NAMES`; latency is ``None`` where it is not known."""
        known = [name for name in COST_NAMES if name != "latency_ms" or self.latency is not None]
        return {name: self.cost(arch, name) if name in known else None for name in COST_NAMES}

    def recall_latencies(self, files: SearchFiles) -> None:
        """Takes the latencies that were measured before a search was stopped: they would come out differently."""
        for row in files.rows("latencies"):
            arch = self.supernet.space.parse(row["arch"])
            self._known[arch, "latency_ms"] = row["latency_ms"]

    def keep_latencies(self, files: SearchFiles) -> None:
        """Writes all latencies so far, and from now on each that is found."""
        if self.latency is None:
            return
        known = [(arch, value) for (arch, name), value in self._known.items() if name == "latency_ms"]
        files.write("latencies", [{"arch": str(arch), "latency_ms": value} for arch, value in known])
        self._files = files

    def prepare_latency(self, archs: Sequence[Any]) -> dict[str, Any] | None:
        """Lets the source of latencies measure what it needs.

        Args:
            archs: Architectures to measure, as many as the source may want to learn from.

        Returns:
            How latency is found, or ``None`` if it is not.
        """
        if self.latency is None:
            return None
        networks = [self.supernet.skeleton(arch) for arch in archs]
        return {"source": type(self.latency).__name__, **self.latency.prepare(networks, self.supernet.input_shape)}

    def _activation_bytes(self, arch: Any) -> float:
        return peak_activation_bytes(self.supernet.skeleton(arch), self.supernet.input_shape)

    def _latency(self, arch: Any) -> float:
        if self.latency is None:
            raise ConfigError(
                "search.latency: is null, but a tier or the objective needs latency_ms; "
                "set it to lit_fednas.costs.MeasuredLatency or LatencyTable"
            )
        found = self.latency.milliseconds(self.supernet.skeleton(arch), self.supernet.input_shape)
        if self._files is not None:
            self._files.append("latencies", [{"arch": str(arch), "latency_ms": found}])
        return found
