"""The contract of aggregations: how the clients' updates become the next global weights."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import ClassVar

from torch import Tensor

from lit_fednas.messages import ClientTask, ClientUpdate, RoundValues
from lit_fednas.parts import Part
from lit_fednas.supernets import Supernet


class Aggregation(Part, ABC):
    """The rule that merges a round's updates, as a running sum: the server holds one, whatever the size of the cohort.

    A round is :meth:`start` with its tasks, :meth:`add` as each client ends, and :meth:`finish`. Each rank adds its own
    clients; the :meth:`sums` of all ranks are added before :meth:`finish`.

    Attributes:
        untrained: Masks of the elements that no client of the finished round trained, by tensor: true where no update
            counted, in the tensor's shape or one that expands to it. The server optimizer does not move them. An
            aggregation that does not set it in :meth:`finish` leaves none at rest.
    """

    field: ClassVar[str] = "model.aggregation"
    untrained: Mapping[str, Tensor] = MappingProxyType({})

    def setup(self, supernet: Supernet) -> None:
        """Prepares for a run.

        Raises:
            ConfigError: The aggregation does not work with the supernet.
        """
        self.check_supernet(supernet)
        self._supernet = supernet

    @abstractmethod
    def start(self, tasks: Sequence[ClientTask], values: RoundValues | None = None) -> None:
        """Begins a round.

        Args:
            tasks: All tasks of the round, of every rank; none if no client takes part.
            values: What schedules gave for the round, if there are any.
        """

    @abstractmethod
    def add(self, update: ClientUpdate) -> None:
        """Adds one client's update; keeps no reference to its tensors."""

    @abstractmethod
    def sums(self) -> list[Tensor]:
        """Returns the running sums, to be added over the ranks in place."""

    @abstractmethod
    def finish(self) -> dict[str, Tensor]:
        """Ends the round.

        Returns:
            The new value of every shared tensor, by the supernet's names, in tensors that the caller may
            overwrite. Elements that no client trained have their old value.
        """
