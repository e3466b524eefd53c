"""Who trains which part of the supernet in a round: SuperFed's spatio-temporal heuristic H(t)(k)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.messages import ClientResult
from lit_fednas.supernets import SearchSpace, Supernet
from lit_fednas.tiers import Population


class Part(NamedTuple):
    """What one client does in a round.

    Attributes:
        client: The client.
        arch: The architecture that it trains.
        group: The group of clients that it trains in, where clients are grouped.
    """

    client: int
    arch: Any
    group: int | None = None


class Assignment(ABC):
    """Gives every client of a round's cohort an architecture.

    What it remembers from round to round is its :meth:`state_dict`, plain numbers and lists: it is saved in
    every checkpoint, and put back when a round is interrupted.
    """

    def setup(self, supernet: Supernet, population: Population) -> None:  # noqa: B027 - optional
        """Called once before the first round (and before a checkpoint is loaded).

        Args:
            supernet: What can be trained, and what it costs.
            population: The clients and their tiers.

        Raises:
            ConfigError: A setting cannot work with them.
        """

    @abstractmethod
    def assign(
        self, round: int, cohort: Sequence[int], space: SearchSpace[Any], rng: np.random.Generator
    ) -> list[Any]:
        """Assigns an architecture to each client of the cohort.

        Args:
            round: The round, from 0.
            cohort: The clients' numbers.
            space: The supernet's architectures.
            rng: The round's own generator.

        Returns:
            One architecture per client, in the cohort's order.
        """

    def parts(
        self, round: int, cohort: Sequence[int], space: SearchSpace[Any], rng: np.random.Generator
    ) -> list[Part]:
        """Who trains what in a round: one architecture per client of the cohort, if not overridden.

        A client may have several parts, each of another architecture, or none.

        Args:
            round: As in :meth:`assign`.
            cohort: As in :meth:`assign`.
            space: As in :meth:`assign`.
            rng: As in :meth:`assign`.
        """
        if not cohort:
            return []
        return [
            Part(client, arch) for client, arch in zip(cohort, self.assign(round, cohort, space, rng), strict=True)
        ]

    def withheld(self, results: Sequence[ClientResult]) -> set[Any]:
        """Called when all clients of a round have answered, before their updates are used.

        Args:
            results: How it went for each.

        Returns:
            The architectures whose updates the server does not ask for; none, if not overridden. They must share
            no weights with those whose updates it uses.
        """
        return set()

    def observe(self, results: Sequence[ClientResult]) -> None:  # noqa: B027 - optional
        """Called after the round with how it went for each client."""

    def deployed(self, client: int) -> Any:
        """The architecture that a client uses once training is over.

        Args:
            client: The client's number.

        Raises:
            ConfigError: The assignment does not say; so it is unless a subclass does.
        """
        raise ConfigError(
            f"model.assignment: {type(self).__name__} does not say which architecture client {client} uses once "
            f"training is over; name the architectures to evaluate, or use an assignment that says it, as ByTier"
        )

    def state_dict(self) -> dict[str, Any]:
        """What must be kept for the next round."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Takes a saved state back.

        Raises:
            CheckpointError: The state does not fit the settings.
        """
        if state:
            raise CheckpointError(
                f"assignment: the checkpoint holds {sorted(state)}, which {type(self).__name__} does not keep; "
                f"use the assignment that the run was started with"
            )
