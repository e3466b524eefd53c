"""The contract of assignments: SuperFed's spatio-temporal heuristic H(t)(k)."""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar, Literal

import numpy as np
from typing_extensions import override

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.messages import ClientResult, ClientTask, RoundValues
from lit_fednas.parts import Part
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import SearchSpace, Supernet
from lit_fednas.tiers import ArchitectureCosts, Population

_PROBED = 4  # plans before the first round


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
        progress: The share of the run that was over before the round, of its rounds or of its budget (``cost_ledger``);
            ``None`` if it has no end.
    """

    number: int
    cohort: Sequence[int]
    space: SearchSpace[Any]
    population: Population
    rng: np.random.Generator
    lr_factor: float = 1.0
    values: RoundValues = field(default_factory=RoundValues)
    max_rounds: int = -1
    progress: float | None = None

    def task(self, client: int, arch: Any, group: int | None = None, steps: int | None = None) -> ClientTask:
        """Returns the task of a client, which trains ``arch``.

        Args:
            client: The client.
            arch: The architecture.
            group: The group of clients that it belongs to, if they are grouped.
            steps: Of the local optimizer, at least 1; as ``client.steps`` or ``client.epochs`` say if not given.
        """
        tier, sizes = self.population.tier(client), self.population.sizes
        limits = tier.name if self.population.tiers else "", tier.at_most, tier.unsupported
        examples = int(sizes[client]) if len(sizes) else 0
        return ClientTask(self.number, client, arch, examples, self.lr_factor, *limits, group, steps)


class Assignment(Part, ABC):
    """Decides which subnet each client trains.

    A plan is a function of the round, which it does not change, and of the state that earlier rounds left; the state
    changes in :meth:`observe` alone, and is saved in every checkpoint (:meth:`state_dict`).

    Attributes:
        state_names: The names of the attributes that are the state; dictionaries among them are by client.
        depends_on: What a client's architecture depends on, beside the round and chance: on the ``client`` alone, also
            on who else is or was in the ``cohort``, or on what clients report. Differential privacy asks for it.
        pool: The :class:`Pool` of architectures that clients draw from, or ``None``; a search begins with them.
        pools: The pool within the tiers' limits (:class:`PoolOfTiers`) after :meth:`setup`; rounds are given its
            ``largest``, to which ``MaxNet`` gives most weight.
    """

    field: ClassVar[str] = "model.assignment"
    depends_on: ClassVar[Literal["client", "cohort", "reports"]] = "reports"
    pool: Any = None
    pools: Any = None

    def setup(self, supernet: Supernet, population: Population) -> None:
        """Prepares for a run; called before the first round, and before a checkpoint is loaded.

        Raises:
            ConfigError: The parts or settings do not fit together.
        """
        self.check_supernet(supernet)
        self._supernet: Any = supernet
        self._population = population
        self._costs = ArchitectureCosts(supernet)

    @abstractmethod
    def plan(self, round: Round) -> list[ClientTask]:
        """Returns the round's tasks (:meth:`Round.task`), in the order of training: none, one or several per client."""

    def observe(self, results: Sequence[ClientResult]) -> None:
        """Updates the state after a round; ``results`` has one per task, in the plan's order."""

    def deployed(self, client: int) -> Any:
        """Returns the architecture that a client uses once training is over.

        Raises:
            ConfigError: The assignment does not define one.
        """
        raise ConfigError(
            f"{self.field}: {type(self).__name__} does not define which architecture client {client} uses once "
            f"training is over; name the architectures to evaluate, or use an assignment that does, as ByTier"
        )

    def check_limits(self, tasks: Sequence[ClientTask]) -> None:
        """Validates that every task is within the limits of its client's tier, unless these are not enforced.

        Raises:
            ConfigError: One is not.
        """
        for task in tasks if self._population.enforced else ():
            tier = self._population.tier(task.client)
            # of a subspace of paths the objective trains those that are within the limits
            if getattr(task.arch, "is_path", True) and not self._costs.affordable(task.arch, tier):
                raise ConfigError(
                    f"{self.field}: {type(self).__name__} gives client {task.client} of tier {tier.name} the "
                    f"architecture {task.arch}, which exceeds its limits ({tier}); choose an assignment that keeps to "
                    f"them, as ByTier or CostWeighted, or set model.tiers.enforced to false"
                )

    def check_first_plans(self, seed: int) -> None:
        """Validates what the first client of each tier would be given in some rounds, before there is one."""
        _, firsts = np.unique(self._population.places, return_index=True)
        for number in range(_PROBED if len(firsts) else 0):
            rng, space = numpy_generator(seed, "first-plans", number), self._supernet.space
            self.check_limits(self.plan(Round(number, sorted(firsts.tolist()), space, self._population, rng)))

    @override
    def load_state_dict(self, state: dict[str, Any], /) -> None:
        by_client = [state[name] for name in self.state_names if isinstance(state.get(name), dict)]
        for client in chain.from_iterable(by_client):
            if not 0 <= client < self._population.num_clients:
                raise CheckpointError(
                    f"{self.field}: the checkpoint knows client {client}, the data have {self._population.num_clients} "
                    f"clients; set data.num_clients as the run had it"
                )
        super().load_state_dict(state)
