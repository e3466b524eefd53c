"""Averaging by overlap cardinality: SuperFed's Algorithm 1, lines 9 to 15.

Every shared element becomes the mean of its values in those updates that hold it, each weighted by its
client's examples n_k. Elements in no update keep their value; this is known by counting, never by testing for
zero (the paper's ``replace_zeros`` would mistake a weight that is exactly zero for one that nobody trained).
With one architecture for all it is federated averaging (App. C).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

from torch import Tensor
from typing_extensions import override

from lit_fednas.aggregation.base import Aggregation
from lit_fednas.aggregation.sums import OverlapSums
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, ClientUpdate, RoundValues
from lit_fednas.supernets import Region


class OverlapAverage(Aggregation):
    """Weighted mean over the clients that hold an element.

    Args:
        weighted: Whether a client counts by its examples n_k, or all count alike.
    """

    def __init__(self, weighted: bool = True) -> None:
        self.weighted = weighted
        self._sums: dict[Any, OverlapSums] = {}  # by architecture, or one for all; their memory is reused

    def coefficient(self, task: ClientTask) -> float:
        """Returns the weight of one client's update, n_k or 1."""
        return float(task.num_examples) if self.weighted else 1.0

    def weight(self, update: ClientUpdate, name: str) -> float:
        """Returns the weight of one tensor of an update, by the tensor's name in the subnet."""
        return self.coefficient(update.task)

    def contributions(self, update: ClientUpdate) -> Iterator[tuple[str, Region, Tensor]]:
        """Yields what counts of an update: each tensor's name in the subnet, its region and its value."""
        for name, region in self._supernet.regions(update.task.arch).items():
            yield name, region, update.weights[name]

    def partially_covered(self, tasks: Sequence[ClientTask]) -> set[str]:
        """Returns the shared tensors of which a client may answer a part only; these have a weight per element."""
        return {
            region.name
            for arch in {task.arch for task in tasks}
            for region in self._supernet.regions(arch).values()
            if region.index is not None
        }

    @override
    def start(
        self, tasks: Sequence[ClientTask], values: RoundValues | None = None, by_architecture: bool = False
    ) -> None:
        self._scale = self._normaliser(tasks)
        shared, partial = self._supernet.shared_tensors(), self.partially_covered(tasks)
        needed = {None: shared}
        if by_architecture:
            needed = {}
            for arch in dict.fromkeys(task.arch for task in tasks):
                held = {region.name for region in self._supernet.regions(arch).values()}
                needed[arch] = {name: tensor for name, tensor in shared.items() if name in held}
        self._all = (shared, partial)
        self._sums = {key: self._cleared(key, tensors, partial) for key, tensors in needed.items()}

    def _cleared(self, key: Any, tensors: dict[str, Tensor], partial: Collection[str]) -> OverlapSums:
        """Returns zeroed sums, in the memory of the round before if it fits."""
        sums = self._sums.get(key)
        return sums if sums is not None and sums.reset(tensors, partial) else self.new_sums(tensors, partial)

    def new_sums(self, tensors: dict[str, Tensor], partial: Collection[str]) -> OverlapSums:
        """Returns sums of these tensors, all zero."""
        return OverlapSums(tensors, partial)

    @override
    def add(self, update: ClientUpdate) -> None:
        self._sums_of(update).add(
            (region, value, self.weight(update, name) * self._scale)
            for name, region, value in self.contributions(update)
        )

    def _sums_of(self, update: ClientUpdate) -> OverlapSums:
        """Returns the sums that an update belongs to."""
        return self._sums[update.task.arch if update.task.arch in self._sums else None]

    @override
    def sums(self) -> list[Tensor]:
        return [tensor for sums in self._sums.values() for tensor in sums.tensors]

    @override
    def finish(self, rejected: Collection[Any] = ()) -> dict[str, Tensor]:
        return self._accepted(rejected).averages(self._all[0])

    def _accepted(self, rejected: Collection[Any]) -> OverlapSums:
        """Returns the sums of all updates that were not rejected."""
        if None in self._sums:
            return self._sums[None]
        total = self.new_sums(*self._all)
        for arch, sums in self._sums.items():
            if arch not in rejected:
                total.merge(sums)
        return total

    def _normaliser(self, tasks: Sequence[ClientTask]) -> float:
        """Returns what brings the coefficients' sum to 1, so that sums stay in the range of the weights."""
        total = sum(self.coefficient(task) for task in tasks)
        if total <= 0:
            raise ConfigError(
                f"aggregation: the {len(tasks)} clients of the round have no training examples; give them data, "
                f"or set aggregation.weighted to false"
            )
        return 1.0 / total
