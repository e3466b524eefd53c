"""Overlap averaging (SuperFed, Algorithm 1, lines 9 to 15).

Untrained elements are recognised by their count; the paper's ``replace_zeros`` would also take a trained weight of
exactly zero for an untrained one. With one architecture this is federated averaging (App. C).
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from torch import Tensor
from typing_extensions import override

from lit_fednas.aggregation.base import Aggregation
from lit_fednas.aggregation.sums import OverlapSums, TrimmedSums
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, ClientUpdate, RoundValues, nbytes
from lit_fednas.ranges import Range, checked
from lit_fednas.supernets import Region

log = logging.getLogger(__name__)

#: The share of an element's values that a mean leaves out at either end; 0.5 gives the median.
Trim = Annotated[float, Range(at_least=0, at_most=0.5)]


@checked("aggregation")
class OverlapAverage(Aggregation):
    """Weighted mean of each element over the clients that trained it; untrained elements keep their value.

    Args:
        weighted: Whether clients are weighted by their number of examples n_k; if not, all have equal weight.
        trim: The share of an element's values that its mean leaves out at either end, rounded up to whole values; 0.5
            gives the median. Above 0 it needs at least three clients, and keeps a round's updates in memory.
    """

    #: Elements that fewer clients trained keep their value.
    min_clients = 1

    def __init__(self, weighted: bool = True, trim: Trim = 0.0) -> None:
        self.weighted = weighted
        self.trim = trim
        self._sums: OverlapSums | TrimmedSums | None = None
        self._logged_memory = False

    def prepare(self, tasks: Sequence[ClientTask], values: RoundValues) -> None:
        """Prepares :meth:`coefficient` for a round, with the arguments of :meth:`start`."""

    def coefficient(self, task: ClientTask) -> float:
        """Returns the weight of one client's update, n_k or 1."""
        return float(task.num_examples) if self.weighted else 1.0

    def weight(self, update: ClientUpdate, name: str) -> float:
        """Returns the weight of one tensor of an update, by the tensor's name in the subnet."""
        return self.coefficient(update.task)

    def contributions(self, update: ClientUpdate) -> Iterator[tuple[str, Region, Tensor]]:
        """Yields the tensors of an update that count: the name in the subnet, the region and the value of each."""
        for name, region in self._supernet.regions(update.task.arch).items():
            yield name, region, update.weights[name]

    def partially_covered(self, tasks: Sequence[ClientTask]) -> set[str]:
        """Returns the names of shared tensors that some client trains in part; these have a weight per element."""
        return {
            region.name
            for arch in {task.arch for task in tasks}
            for region in self._supernet.regions(arch).values()
            if region.index is not None
        }

    @override
    def start(self, tasks: Sequence[ClientTask], values: RoundValues | None = None) -> None:
        self.prepare(tasks, values or RoundValues())
        self._shared, partial_names = self._supernet.shared_tensors(), self.partially_covered(tasks)
        total = sum(map(self.coefficient, tasks))
        if tasks and total <= 0:
            raise ConfigError(
                f"aggregation.weighted: true, and the round's {len(tasks)} clients have no examples; set it to false"
            )
        self._scale = 1.0 / total if tasks else 1.0  # the sums stay in the range of the weights
        self._sums = None  # frees the last round's memory before the next allocation
        self._sums = self._trimmed(tasks) if self.trim else OverlapSums(self._shared, partial_names, self.min_clients)

    def _trimmed(self, tasks: Sequence[ClientTask]) -> TrimmedSums:
        holders: dict[str, list[Any]] = {}  # keys of the clients that train each tensor
        for task in tasks:
            for name in {region.name for region in self._supernet.regions(task.arch).values()}:
                holders.setdefault(name, []).append(task.key)
        sums = TrimmedSums(self._shared, holders, self.trim, self.min_clients)
        if holders and not self._logged_memory:
            self._logged_memory = True
            size = nbytes(sums.values.values())
            log.info("aggregation.trim: a round's updates are kept in memory, %.1f MB", size / 1e6)
        return sums

    @override
    def add(self, update: ClientUpdate) -> None:
        assert self._sums is not None
        parts = (
            (region, value, self.weight(update, name) * self._scale)
            for name, region, value in self.contributions(update)
        )
        self._sums.add(update.task.key, parts)

    @override
    def sums(self) -> list[Tensor]:
        return [] if self._sums is None else self._sums.tensors

    @override
    def finish(self) -> dict[str, Tensor]:
        assert self._sums is not None
        averages = self._sums.averages(self._shared)
        self.untrained = self._sums.untrained()
        return averages
