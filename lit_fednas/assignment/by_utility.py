"""FedTrans' Client Manager (section 4.2): each client's model of the suite, drawn by utilities."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from scipy.special import softmax
from typing_extensions import override

from lit_fednas.assignment.base import Assignment, Round
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.ranges import ShareBelowOne, checked
from lit_fednas.supernets import Model, ModelSuite, Supernet
from lit_fednas.tiers import Population


class ByUtility(Assignment):
    """Draws each client's model by its utilities, which its training losses change, as the paper describes.

    A client has a utility for every model of the suite, 0 at first; a model that is added later starts with that
    of the model it comes from (Alg. 1, line 19). The client's model is drawn among those within its tier's limits,
    by the softmax of their utilities (Eq. 2 and 3). After the round the survivors' losses are standardised (over
    the round's survivors, which the paper leaves open), and the utilities of a client's compatible models go down
    by its loss times their similarity to the model that it trained (Eq. 4).

    Raises:
        ConfigError: Before training: the supernet is not a suite, or a tier cannot afford the first model.
    """

    supernet_kind: ClassVar[type] = ModelSuite
    state_names: ClassVar[tuple[str, ...]] = ("known_utilities",)

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        self._suite: ModelSuite = self._supernet
        self.known_utilities: dict[int, list[float]] = {}  # by client, then by the model's number
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
        tasks = []
        for client in round.cohort:
            numbers, utilities = self._compatible(client), self.utilities(client)
            chances = softmax([utilities[number] for number in numbers])  # Eq. 3
            tasks.append(round.task(client, Model(numbers[int(round.rng.choice(len(numbers), p=chances))])))
        return tasks

    @override
    def observe(self, results: Sequence[ClientResult]) -> None:
        survivors = [result for result in results if result.ok]
        losses = standardised([result.loss for result in survivors])
        for result, loss in zip(survivors, losses, strict=True):
            client, trained = result.task.client, result.task.arch.number
            utilities = self.utilities(client)
            for number in self._compatible(client):  # Eq. 4
                utilities[number] -= loss * self._suite.similarity(number, trained)
            self.known_utilities[client] = utilities

    @override
    def deployed(self, client: int) -> Model:
        """Returns the compatible model of the highest utility (section 5.1); of equals the one with the most MACs."""
        utilities = self.utilities(client)
        models = map(Model, self._compatible(client))
        return max(models, key=lambda model: (utilities[model.number], self._costs.cost(model, "macs"), model))

    def utilities(self, client: int) -> list[float]:
        """Returns a client's utility for each model, by its number; a list that the caller may change."""
        utilities = list(self.known_utilities.get(client, ()))
        # models that were added since its last round inherit only now (Alg. 1, line 19): utilities stay between rounds
        for model in self._suite.models[len(utilities) :]:
            utilities.append(0.0 if model.parent is None else utilities[model.parent])
        return utilities

    def _compatible(self, client: int) -> list[int]:
        """Returns the models within the limits of a client's tier (Alg. 1, line 7); the suite may have grown."""
        tier = self._population.tier(client)
        numbers = [model.number for model in self._suite.models]
        return [number for number in numbers if self._costs.excess(Model(number), tier) == 0]


@checked("assignment")
@dataclass(eq=False)
class ByOwnUtility(ByUtility):
    """Draws each client's model by how it compares with the client's other models.

    Losses that are standardised over a round's clients tell how hard a client's data are, not which model suits it.
    Here a client keeps a moving average of its training loss with every model that it has tried; when it trains one,
    the others move along by their similarity (as in Eq. 4), since all models learn in the meantime. Utilities are these
    averages, standardised over the client's models and negated; an untried model has the utility of the best.

    A client uses the model of the best accuracy on its own validation data (``client.validate``), else of the lowest
    loss. A client that was in no round uses the best model of its tier's clients, or else the first model.

    Args:
        momentum: What is left of an average when a client trains the model again.

    Raises:
        ConfigError: ``momentum`` is out of range; before training: as :class:`ByUtility`.
    """

    state_names = ("losses", "accuracies")

    momentum: ShareBelowOne = 0.5

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        # moving averages by client, then by the model's number
        self.losses: dict[int, dict[int, float]] = {}
        self.accuracies: dict[int, dict[int, float]] = {}
        self._of_tiers: dict[str, dict[int, float]] | None = None

    @override
    def observe(self, results: Sequence[ClientResult]) -> None:
        self._of_tiers = None
        for result in results:
            if not result.ok:
                continue
            client, trained = result.task.client, result.task.arch.number
            losses = self.losses.setdefault(client, {})
            moved = self._move(losses, trained, result.loss)
            for number in losses.keys() - {trained}:
                losses[number] += self._suite.similarity(number, trained) * moved
            if "accuracy" in result.tested:
                self._move(self.accuracies.setdefault(client, {}), trained, result.tested["accuracy"])

    def _move(self, averages: dict[int, float], number: int, value: float) -> float:
        """Moves a model's average towards a value, and returns by how much."""
        before = averages.get(number, value)
        averages[number] = self.momentum * before + (1 - self.momentum) * value
        return averages[number] - before

    @override
    def utilities(self, client: int) -> list[float]:
        losses = self.losses.get(client, {})
        tried = dict(zip(losses, standardised(list(losses.values())), strict=True))
        best = -min(tried.values(), default=0.0)
        return [-tried[number] if number in tried else best for number in range(len(self._suite.models))]

    @override
    def deployed(self, client: int) -> Model:
        if accuracies := self.accuracies.get(client):
            return Model(max(accuracies, key=lambda number: (accuracies[number], number)))
        losses = self.losses.get(client) or self._tiers_losses().get(self._population.tier(client).name)
        return Model(min(losses, key=lambda number: (losses[number], -number))) if losses else Model(0)

    def _tiers_losses(self) -> dict[str, dict[int, float]]:
        """Returns the mean of the clients' averages, by tier, then by model."""
        if self._of_tiers is None:
            losses_of: dict[str, dict[int, list[float]]] = defaultdict(lambda: defaultdict(list))
            for client, losses in sorted(self.losses.items()):
                for number, loss in losses.items():
                    losses_of[self._population.tier(client).name][number].append(loss)
            self._of_tiers = {
                tier: {number: sum(values) / len(values) for number, values in models.items()}
                for tier, models in losses_of.items()
            }
        return self._of_tiers

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._of_tiers = None


def standardised(losses: Sequence[float]) -> list[float]:
    """Returns losses with mean 0 and standard deviation 1; zeros if they are all equal."""
    if not losses or min(losses) == max(losses):  # a deviation of rounding errors would make large numbers of them
        return [0.0] * len(losses)
    values = np.array(losses, dtype=float)  # scipy's zscore has NaN where they differ by a rounding error
    return ((values - values.mean()) / values.std()).tolist()
