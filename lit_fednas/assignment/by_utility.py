"""Every client trains a model that has been useful to it: FedTrans' Client Manager (section 4.2, Eq. 2 to 4)."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax
from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.supernets import Model, ModelSuite, Supernet
from lit_fednas.tiers import ArchitectureCosts, Population


class ByUtility(Assignment):
    """Draws each client's model by its utilities, which its training losses change.

    A client has a utility for every model of the suite, 0 at first; a model that is added later starts with that
    of the model it comes from (Alg. 1, line 19). The client's model is drawn among the compatible ones, those
    within its tier's limits, with probabilities that are the softmax of their utilities (Eq. 2 and 3). After the
    round the survivors' losses are standardised, to mean 0 and standard deviation 1, and the utilities of a
    client's compatible models go down by its loss times their similarity to the model that it trained (Eq. 4).

    The paper does not say over what losses are standardised: here over the round's survivors, with the deviation
    of all of them (not of a sample). With equal losses, or only one, nothing moves.

    Args:
        similar: Whether similar models learn with the trained one (Eq. 4); if not, its utility moves alone.

    Raises:
        ConfigError: Before training: the supernet is not a suite, or a tier cannot afford the first model.
    """

    supernet_kind: ClassVar[type] = ModelSuite

    def __init__(self, similar: bool = True) -> None:
        self.similar = similar
        self._utilities: dict[int, list[float]] = {}  # by client, then by the model's number

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        """Validates that every client can train the first model, and forgets all utilities."""
        super().setup(supernet, population)
        self._suite: ModelSuite = self._supernet
        self._costs = ArchitectureCosts(supernet)
        self._utilities = {}
        first = Model(self._suite.models[0].number)
        for tier in population.tiers:
            if self._costs.excess(first, tier) > 0:
                limits = ", ".join(
                    f"{name} {limit:g} (the model's: {self._costs.cost(first, name):g})"
                    for name, limit in tier.at_most.items()
                )
                raise ConfigError(
                    f"model.tiers: tier {tier.name!r} cannot afford the first model: {limits}; raise its limits, "
                    f"or give a smaller model.supernet.family"
                )

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        """Draws a compatible model for each client (Eq. 2)."""
        tasks = []
        for client in round.cohort:
            numbers, utilities = self._compatible(client), self.utilities(client)
            chances = softmax([utilities[number] for number in numbers])  # Eq. 3
            tasks.append(round.task(client, Model(numbers[int(round.rng.choice(len(numbers), p=chances))])))
        return tasks

    @override
    def observe(self, results: Sequence[ClientResult]) -> None:
        """Updates the utilities of the round's survivors (Eq. 4)."""
        survivors = [result for result in results if result.ok]
        similarity = functools.cache(self._similarity)  # the same pairs of models recur
        losses = standardised([result.loss for result in survivors])
        for result, loss in zip(survivors, losses, strict=True):
            client, trained = result.task.client, result.task.arch.number
            utilities = self.utilities(client)
            for number in self._compatible(client):
                utilities[number] -= loss * similarity(number, trained)
            self._utilities[client] = utilities

    @override
    def deployed(self, client: int) -> Model:
        """Returns the compatible model of the highest utility, as the paper evaluates its clients (section 5.1).

        Of models with equal utility it is the one with the most multiply-accumulates: a model that the client has
        not tried has its parent's utility, began as the function that its parent computes, and can learn more.
        """
        utilities = self.utilities(client)
        numbers = self._compatible(client)
        macs = {number: self._costs.cost(Model(number), "macs") for number in numbers}
        return Model(max(numbers, key=lambda number: (utilities[number], macs[number], number)))

    def utilities(self, client: int) -> list[float]:
        """Returns a client's utility for each model, by its number; a list that the caller may change.

        Models that were added since the client's last round have their parent's (Alg. 1, line 19). A client's
        utilities stay as they are between its rounds, so it does not matter that they inherit only now.
        """
        utilities = list(self._utilities.get(client, ()))
        for model in self._suite.models[len(utilities) :]:
            utilities.append(0.0 if model.parent is None else utilities[model.parent])
        return utilities

    @override
    def state_dict(self) -> dict[str, Any]:
        """Returns the utilities of the clients that have taken part in a round, by model."""
        return {"utilities": {client: list(utilities) for client, utilities in self._utilities.items()}}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        restored = {int(client): list(map(float, utilities)) for client, utilities in state["utilities"].items()}
        for client, utilities in restored.items():
            if not 0 <= client < self._population.num_clients:
                raise CheckpointError(
                    f"assignment: the checkpoint has utilities of client {client}, the data have "
                    f"{self._population.num_clients} clients; set data.num_clients as the run had it"
                )
            if len(utilities) > len(self._suite.models) or not all(map(math.isfinite, utilities)):
                raise CheckpointError(
                    f"assignment: the checkpoint's utilities of client {client}, {utilities}, are not those of "
                    f"{len(self._suite.models)} models; use the checkpoint of this run's models"
                )
        self._utilities = restored

    def _similarity(self, number: int, trained: int) -> float:
        return self._suite.similarity(number, trained) if self.similar else float(number == trained)

    def _compatible(self, client: int) -> list[int]:
        """Returns the models within the limits of a client's tier (Alg. 1, line 7); the suite may have grown."""
        tier = self._population.tier(client)
        numbers = [model.number for model in self._suite.models]
        return [n for n in numbers if tier is None or self._costs.excess(Model(n), tier) == 0]


def standardised(losses: Sequence[float]) -> list[float]:
    """Returns losses with mean 0 and standard deviation 1; zeros if they are all equal.

    Example:
        >>> standardised([1.0, 2.0, 3.0, 2.0])
        [-1.414213562373095, 0.0, 1.414213562373095, 0.0]
    """
    if not losses or min(losses) == max(losses):  # a deviation of rounding errors would make large numbers of them
        return [0.0] * len(losses)
    values = np.array(losses, dtype=float)
    return [float(value) for value in (values - values.mean()) / values.std()]
