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

_NUM_TEST_PLANS = 4


@dataclass(frozen=True)
class Round:
    """The data from which an assignment plans a round.

    Attributes:
        number: The number of the round, from 0.
        cohort: The participating clients, ascending.
        space: The supernet's architectures.
        population: All clients, their tiers and numbers of training examples.
        rng: The round's generator.
        lr_factor: The factor of the local learning rate in the round.
        values: The values that schedules set for the round.
        max_rounds: The number of rounds of the run; -1 if it has no end.
        progress: The share of the run's rounds or budget (``cost_ledger``) that is used up before the round; ``None``
            if the run has no end.
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
        """Returns the task in which ``client`` trains ``arch``, as a member of ``group`` if clients are grouped.

        ``steps`` is the number of local optimizer steps, at least 1; ``client.steps`` or ``client.epochs`` by default.
        """
        tier, sizes = self.population.tier(client), self.population.sizes
        limits = tier.name if self.population.tiers else "", tier.at_most, tier.unsupported
        examples = int(sizes[client]) if len(sizes) else 0
        return ClientTask(self.number, client, arch, examples, self.lr_factor, *limits, group, steps)


class Assignment(Part, ABC):
    """Chooses the subnet that each client trains.

    A plan is a function of the round, which it does not change, and of the state after earlier rounds. Only
    :meth:`observe` changes the state, which every checkpoint contains (:meth:`state_dict`).

    Attributes:
        state_names: The names of the attributes that hold the state; dictionaries among them are by client.
        depends_on: The data on which a client's architecture depends beside the round and chance: only the ``client``,
            also the other clients of past and present cohorts (``cohort``), or also the clients' ``statistics``.
            Differential privacy restricts it.
        pool: The :class:`Pool` of architectures that clients draw from, or ``None``; a search begins with them.
        pools: The pool within the tiers' limits (:class:`PoolOfTiers`) after :meth:`setup`; its ``largest`` is the
            architecture that ``MaxNet`` prefers.
    """

    field: ClassVar[str] = "model.assignment"
    depends_on: ClassVar[Literal["client", "cohort", "statistics"]] = "statistics"
    pool: Any = None
    pools: Any = None

    def setup(self, supernet: Supernet, population: Population) -> None:
        """Prepares for a run before a checkpoint is loaded; raises ``ConfigError`` if the parts are incompatible."""
        self.check_supernet(supernet)
        self._supernet: Any = supernet
        self._population = population
        self._costs = ArchitectureCosts(supernet)

    @abstractmethod
    def plan(self, round: Round) -> list[ClientTask]:
        """Returns the round's tasks (:meth:`Round.task`) in the order of training; any number per client."""

    def observe(self, results: Sequence[ClientResult]) -> None:
        """Updates the state after a round; ``results`` has one entry per task, in the plan's order."""

    def deployed(self, client: int) -> Any:
        """Returns the architecture that a client uses after training; raises ``ConfigError`` if it is undefined."""
        raise ConfigError(
            f"{self.field}: {type(self).__name__} does not define the architecture that client {client} uses after "
            f"training; name the architectures to evaluate, or use another assignment, such as ByTier"
        )

    def check_limits(self, tasks: Sequence[ClientTask]) -> None:
        """Raises ``ConfigError`` if limits are enforced and a task exceeds the limits of its client's tier."""
        for task in tasks if self._population.enforced else ():
            tier = self._population.tier(task.client)
            # In a subspace of paths the objective trains only paths within the limits.
            if getattr(task.arch, "is_path", True) and not self._costs.affordable(task.arch, tier):
                raise ConfigError(
                    f"{self.field}: {type(self).__name__} gives client {task.client} of tier {tier.name} the "
                    f"architecture {task.arch}, which exceeds its limits ({tier}); choose an assignment within the "
                    f"limits, such as ByTier or CostWeighted, or set model.tiers.enforced to false"
                )

    def check_first_plans(self, seed: int) -> None:
        """Validates plans for the first client of each tier, so that errors are raised before training."""
        _, firsts = np.unique(self._population.places, return_index=True)
        for number in range(_NUM_TEST_PLANS if len(firsts) else 0):
            rng, space = numpy_generator(seed, "first-plans", number), self._supernet.space
            self.check_limits(self.plan(Round(number, sorted(firsts.tolist()), space, self._population, rng)))

    @override
    def load_state_dict(self, state: dict[str, Any], /) -> None:
        by_client = [state[name] for name in self.state_names if isinstance(state.get(name), dict)]
        for client in chain.from_iterable(by_client):
            if not 0 <= client < self._population.num_clients:
                raise CheckpointError(
                    f"{self.field}: the checkpoint has client {client}, the data have {self._population.num_clients} "
                    f"clients; set data.num_clients to the run's value"
                )
        super().load_state_dict(state)
