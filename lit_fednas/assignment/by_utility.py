"""FedTrans' Client Manager (section 4.2), which draws each client's model from the suite by utilities."""

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
    """Draws each client's model by utilities that its training losses change, as the paper describes.

    A client has a utility for every model of the suite, initially 0; an added model starts with its parent's utility
    (Alg. 1, line 19). The client's model is drawn from the models within its tier's limits, by the softmax of their
    utilities (Eq. 2 and 3). After the round the losses are standardised over the round's survivors (the paper does not
    define the set). The utilities of a client's compatible models decrease by its loss times their similarity to the
    trained model (Eq. 4).

    Raises:
        ConfigError: Before training: the supernet is not a suite, or a tier cannot afford the first model.
    """

    supernet_kind: ClassVar[type] = ModelSuite
    state_names: ClassVar[tuple[str, ...]] = ("known_utilities",)

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        self._suite: ModelSuite = self._supernet
        self.known_utilities: dict[int, list[float]] = {}  # lists by the model's number
        first = Model(self._suite.models[0].number)
        for tier in population.tiers:
            if self._costs.excess(first, tier) > 0:
                limits = ", ".join(
                    f"{name} {limit:g} (the model's: {self._costs.cost(first, name):g})"
                    for name, limit in tier.at_most.items()
                )
                raise ConfigError(
                    f"model.tiers: tier {tier.name!r} cannot afford the first model: {limits}; raise its limits, "
                    f"or use a smaller model.supernet.family"
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
        """Returns the compatible model with the highest utility (section 5.1), and among ties with the most MACs."""
        utilities = self.utilities(client)
        models = map(Model, self._compatible(client))
        return max(models, key=lambda model: (utilities[model.number], self._costs.cost(model, "macs"), model))

    def utilities(self, client: int) -> list[float]:
        """Returns a new list of a client's utilities, by the model's number."""
        utilities = list(self.known_utilities.get(client, ()))
        # Models added since the client's last round inherit their parent's utility here (Alg. 1, line 19).
        for model in self._suite.models[len(utilities) :]:
            utilities.append(0.0 if model.parent is None else utilities[model.parent])
        return utilities

    def _compatible(self, client: int) -> list[int]:
        """Returns the numbers of the models within the limits of a client's tier (Alg. 1, line 7)."""
        tier = self._population.tier(client)
        numbers = [model.number for model in self._suite.models]
        return [number for number in numbers if self._costs.excess(Model(number), tier) == 0]


@checked("assignment")
@dataclass(eq=False)
class ByOwnUtility(ByUtility):
    """Draws each client's model by comparing the losses of the client's models with each other.

    Losses standardised over a round's clients measure the difficulty of a client's data rather than the fit of a model.
    Here each client has a moving average of its training loss for every model that it has trained. After a round the
    averages of the client's other models change in proportion to their similarity (as in Eq. 4), since all models
    learn in the meantime. Utilities are these averages, standardised over the client's models and negated; an untrained
    model has the highest utility.

    After training a client uses the model with the best accuracy on its validation data (``client.validate``), or else
    with the lowest loss. A client that never trained uses the best model of its tier's clients, or the first model.

    Args:
        momentum: The weight of the previous average when a client trains the model again.

    Raises:
        ConfigError: ``momentum`` is out of range; before training: the errors of :class:`ByUtility`.
    """

    state_names = ("losses", "accuracies")

    momentum: ShareBelowOne = 0.5

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        # Moving averages by client, then by the model's number.
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
            change = self._move(losses, trained, result.loss)
            for number in losses.keys() - {trained}:
                losses[number] += self._suite.similarity(number, trained) * change
            if "accuracy" in result.tested:
                self._move(self.accuracies.setdefault(client, {}), trained, result.tested["accuracy"])

    def _move(self, averages: dict[int, float], number: int, value: float) -> float:
        """Moves a model's average towards a value, and returns the change."""
        previous = averages.get(number, value)
        averages[number] = self.momentum * previous + (1 - self.momentum) * value
        return averages[number] - previous

    @override
    def utilities(self, client: int) -> list[float]:
        losses = self.losses.get(client, {})
        scores = dict(zip(losses, standardised(list(losses.values())), strict=True))
        highest = -min(scores.values(), default=0.0)
        return [-scores[number] if number in scores else highest for number in range(len(self._suite.models))]

    @override
    def deployed(self, client: int) -> Model:
        if accuracies := self.accuracies.get(client):
            return Model(max(accuracies, key=lambda number: (accuracies[number], number)))
        losses = self.losses.get(client) or self._tiers_losses().get(self._population.tier(client).name)
        return Model(min(losses, key=lambda number: (losses[number], -number))) if losses else Model(0)

    def _tiers_losses(self) -> dict[str, dict[int, float]]:
        """Returns the mean of the clients' average losses, by tier, then by model."""
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
    """Returns losses with mean 0 and standard deviation 1; zeros if all losses are equal."""
    if not losses or min(losses) == max(losses):  # dividing by a deviation near 0 would amplify rounding errors
        return [0.0] * len(losses)
    values = np.array(losses, dtype=float)  # scipy's zscore returns NaN for nearly equal values
    return ((values - values.mean()) / values.std()).tolist()
