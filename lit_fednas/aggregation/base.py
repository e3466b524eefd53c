"""The contract of aggregations, which merge the clients' updates into the next global weights."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from torch import Tensor

from lit_fednas.messages import ClientTask, ClientUpdate, RoundValues
from lit_fednas.parts import Part
from lit_fednas.supernets import Supernet


class Aggregation(Part, ABC):
    """The rule that merges a round's updates into a running sum, so that memory does not depend on the cohort's size.

    A round is :meth:`start` with its tasks, :meth:`add` as each client ends, and :meth:`finish`. Each rank adds its own
    clients; the :meth:`sums` of all ranks are added before :meth:`finish`.

    Attributes:
        untrained: Boolean masks by tensor name, true for elements that no client trained in the finished round; a mask
            broadcasts to its tensor's shape. The server optimizer does not move these elements. Set in :meth:`finish`;
            an empty mapping lets all elements move.
    """

    field: ClassVar[str] = "model.aggregation"
    untrained: Mapping[str, Tensor] = MappingProxyType({})

    def setup(self, supernet: Supernet) -> None:
        """Prepares for a run, or raises ``ConfigError`` if the aggregation does not work with the supernet."""
        self.check_supernet(supernet)
        self._supernet = supernet

    @abstractmethod
    def start(self, tasks: Sequence[ClientTask], values: RoundValues | None = None) -> None:
        """Begins a round with the tasks of all ranks (empty without clients) and the values set by schedules."""

    @abstractmethod
    def add(self, update: ClientUpdate) -> None:
        """Adds one client's update; keeps no reference to its tensors."""

    @abstractmethod
    def sums(self) -> list[Tensor]:
        """Returns the running sums, which the engine adds over the ranks in place."""

    @abstractmethod
    def finish(self) -> dict[str, Tensor]:
        """Returns the new value of every shared tensor, by the supernet's names; the caller may overwrite the tensors.

        Elements that no client trained keep their value.
        """
