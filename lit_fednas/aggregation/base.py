"""How the clients' updates become the next global weights.

An aggregation is a running sum: ``start`` with the round's tasks, ``add`` each update as its client ends, and
``finish`` with the average. So the server holds one sum, whatever the size of the cohort. Under several ranks
each rank adds its own clients, and the sums of all are added before ``finish``.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from torch import Tensor

from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, ClientUpdate
from lit_fednas.supernets import Supernet


class Aggregation(ABC):
    """The rule that merges a round's updates."""

    @abstractmethod
    def start(self, supernet: Supernet, tasks: Sequence[ClientTask]) -> None:
        """Begins a round.

        Args:
            supernet: The global weights as they were sent.
            tasks: All tasks of the round, of every rank.
        """

    @abstractmethod
    def add(self, update: ClientUpdate) -> None:
        """Adds one client's update; keeps no reference to its tensors."""

    @abstractmethod
    def sums(self) -> list[Tensor]:
        """The running sums, to be added over the ranks in place."""

    def withhold(self, arch: Any) -> None:
        """Takes back all updates of an architecture, which shares no weights with others of the round.

        Raises:
            ConfigError: The aggregation cannot; so it is unless a subclass does.
        """
        raise ConfigError(
            f"model.aggregation: {type(self).__name__} cannot leave out updates that it has added; use "
            "OverlapAverage"
        )

    @abstractmethod
    def finish(self) -> dict[str, Tensor]:
        """Ends the round.

        Returns:
            The new value of every shared tensor, by the supernet's names, in tensors that the caller may
            overwrite. Elements that no client trained have their old value.
        """

    def mix(self, averages: dict[str, Tensor]) -> dict[str, Tensor]:
        """Lets models that lie side by side lend each other weights, once the clients' updates are averaged.

        Args:
            averages: As :meth:`finish` returned them; may be overwritten.

        Returns:
            What the server steps towards; the averages themselves, if not overridden.
        """
        return averages

    def metrics(self) -> dict[str, float]:
        """Numbers to log for the round that has just ended."""
        return {}
