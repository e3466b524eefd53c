"""The contract of assignments: SuperFed's spatio-temporal heuristic H(t)(k)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import numpy as np

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.messages import ClientResult, ClientTask, RoundValues
from lit_fednas.parts import Part
from lit_fednas.supernets import SearchSpace, Supernet
from lit_fednas.tiers import Population


@dataclass(frozen=True)
class Round:
    """What a plan of a round is made from.

    Attributes:
        number: The round, from 0.
        cohort: The clients that take part, ascending.
        space: The supernet's architectures.
        population: All clients, their tiers and training examples.
        rng: The round's own generator.
        lr_factor: What the round multiplies the local learning rate with.
        values: What schedules gave for the round.
        max_rounds: Rounds of the whole run; -1 if it has no end.
    """

    number: int
    cohort: Sequence[int]
    space: SearchSpace[Any]
    population: Population
    rng: np.random.Generator
    lr_factor: float = 1.0
    values: RoundValues = field(default_factory=RoundValues)
    max_rounds: int = -1

    def task(self, client: int, arch: Any, group: int | None = None) -> ClientTask:
        """Returns the task of a client, which trains ``arch``, in a group of clients if they are grouped."""
        tier, sizes = self.population.tier(client), self.population.sizes
        limits = (tier.name, tier.at_most, tier.unsupported) if tier is not None else ("", {}, ())
        examples = int(sizes[client]) if len(sizes) else 0
        return ClientTask(self.number, client, arch, examples, self.lr_factor, *limits, group=group)


class Assignment(Part, ABC):
    """Decides which subnet each client trains.

    A plan is a function of the round and of the state that earlier rounds left; the state changes in
    :meth:`observe` alone. It is plain numbers and lists (:meth:`state_dict`), and saved in every checkpoint.

    Attributes:
        depends_on: What a client's architecture depends on, beside the round and chance: on the ``client`` alone, also
            on who else is or was in the ``cohort``, or on what clients report. Differential privacy asks for it.
    """

    field: ClassVar[str] = "model.assignment"
    depends_on: ClassVar[Literal["client", "cohort", "reports"]] = "reports"

    def setup(self, supernet: Supernet, population: Population) -> None:
        """Prepares for a run; called before the first round, and before a checkpoint is loaded.

        Args:
            supernet: The shared weights, and what architectures cost.
            population: The clients, their tiers and training examples.

        Raises:
            ConfigError: The parts or settings do not fit together.
        """
        self.check_supernet(supernet)
        self._supernet: Any = supernet
        self._population = population

    @abstractmethod
    def plan(self, round: Round) -> list[ClientTask]:
        """Plans a round; changes no state.

        Args:
            round: The round, with its cohort and its random generator.

        Returns:
            The tasks (:meth:`Round.task`), in the order of training. A client may have none or several.
        """

    def observe(self, results: Sequence[ClientResult]) -> None:
        """Updates the state after a round; ``results`` has one per task, in the plan's order."""

    def deployed(self, client: int) -> Any:
        """Returns the architecture that a client uses once training is over.

        Args:
            client: The client's number.

        Raises:
            ConfigError: The assignment does not define one.
        """
        raise ConfigError(
            f"{self.field}: {type(self).__name__} does not define which architecture client {client} uses once "
            f"training is over; name the architectures to evaluate, or use an assignment that does, as ByTier"
        )

    def state_dict(self) -> dict[str, Any]:
        """Returns what must be kept for the next round; plain values."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restores a saved state; here its entries are validated, which must be those of :meth:`state_dict`.

        Raises:
            CheckpointError: The state is of another assignment or does not fit the settings.
        """
        names = set(self.state_dict())
        if set(state) != names:
            raise CheckpointError(
                f"assignment: the checkpoint holds {', '.join(sorted(state)) or 'no state'}, and "
                f"{type(self).__name__} keeps {', '.join(sorted(names)) or 'none'}; use the assignment that the "
                f"run was started with"
            )
