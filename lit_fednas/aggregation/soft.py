"""Models of a suite lend each other weights: FedTrans' Model Aggregator (section 4.3, Eq. 5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from lit_fednas.aggregation.overlap import OverlapAverage
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.supernets import Model, ModelSuite, Supernet


class SoftAverage(OverlapAverage):
    """Each model's clients are averaged first; then models are averaged with smaller ones that are like them.

    :meth:`finish` gives the averages within the models, and :meth:`mix` applies Eq. 5 to them: model j becomes
    the mean of models i, weighted by decay^t * sim(i, j), and of itself, weighted by 1. The models i are those
    before j in the suite's order by multiply-accumulates: large models are new and would disturb small ones, which
    have nearly converged (Table 1). All right-hand sides are the averages before mixing.

    Eq. 5 has the decay in the numerator alone, so that weights would shrink from round to round; here the sum is
    divided by the same coefficients, decay included. Tensors are matched by their names in the networks. Where
    shapes differ, model i is cropped as in HeteroFL: the corner that both have is averaged element by element, and
    model i does not count for elements that it does not have. Running statistics are mixed as weights are; integer
    buffers are left alone.

    Args:
        weighted: Whether a client counts by its examples n_k, or all count alike.
        decay: What other models' weight is multiplied with each round, the paper's eta (Table 7); 1 for no decay.
        decay_from: Since when the rounds t are counted: since the run's ``start``, as Eq. 5 has it ("round t"), or
            since the ``birth`` of model j, the round in which it was added.
        from_larger: Whether larger models are mixed into smaller ones, too (Table 1's "l2s").

    Raises:
        ConfigError: The decay is not above 0 and at most 1, or ``decay_from`` is unknown; in :meth:`start`, if the
            supernet is no suite of models.

    Example:
        >>> from lit_fednas.supernets.growing.growth import plan
        >>> suite = ModelSuite((3, 8, 8), 10)
        >>> _ = suite.add(0, plan(suite.models[0].blueprint, ["conv1"], 1), seed=0)
        >>> soft = SoftAverage()
        >>> soft.start(suite, [ClientTask(round=0, client=0, arch=Model(1), num_examples=5)])
        >>> {number: round(weight, 2) for number, weight in soft.coefficients(1).items()}
        {0: 0.75, 1: 1.0}
    """

    def __init__(
        self,
        weighted: bool = True,
        decay: float = 0.98,
        decay_from: Literal["start", "birth"] = "start",
        from_larger: bool = False,
    ) -> None:
        super().__init__(weighted)
        if not 0 < decay <= 1:
            raise ConfigError(
                f"aggregation.decay: {decay} must be above 0 and at most 1; for models that are not mixed use "
                f"OverlapAverage"
            )
        if decay_from not in ("start", "birth"):
            raise ConfigError(f"aggregation.decay_from: {decay_from!r} is unknown; set it to start or birth")
        self.decay = decay
        self.decay_from = decay_from
        self.from_larger = from_larger
        self._others_share: float | None = None

    def start(self, supernet: Supernet, tasks: Sequence[ClientTask]) -> None:
        """Begins a round of a suite, whose number is that of the tasks."""
        if not isinstance(supernet, ModelSuite):
            raise ConfigError(
                f"model.aggregation: SoftAverage mixes models that grow, of which {type(supernet).__name__} has "
                f"none; use OverlapAverage, or the supernet ModelSuite"
            )
        super().start(supernet, tasks)
        self._suite = supernet
        self._round = tasks[0].round
        self._others_share = None

    @torch.no_grad()
    def mix(self, averages: dict[str, Tensor]) -> dict[str, Tensor]:
        """Applies Eq. 5.

        Args:
            averages: What :meth:`finish` has returned, or of the same names and shapes; it is not changed.

        Returns:
            The same names; tensors that were mixed are new, the others are those given.
        """
        mixed = dict(averages)
        shares = []
        for model in self._suite.models:
            coefficients = self.coefficients(model.number)
            own = coefficients.pop(model.number)
            lenders = [(self._tensors(number), weight) for number, weight in coefficients.items() if weight > 0]
            shares.append(1 - own / (own + sum(weight for _, weight in lenders)))
            for name, whole in self._tensors(model.number).items():
                lent = [(averages[theirs[name]], weight) for theirs, weight in lenders if name in theirs]
                if lent:
                    mixed[whole] = _mean(averages[whole], own, lent)
        self._others_share = sum(shares) / len(shares)
        return mixed

    def coefficients(self, number: int) -> dict[int, float]:
        """The weights of the models in a model's mean, by their numbers, in the suite's order by size.

        Args:
            number: Of model j.

        Returns:
            decay^t * sim(i, j) for each model i that is mixed into it, 1 for itself.
        """
        born = self._suite.models[number].round
        since = 0 if self.decay_from == "start" or born is None else born
        decayed = self.decay ** (self._round - since)
        order = [model.number for model in self._suite.space.rungs]
        if not self.from_larger:
            order = order[: order.index(number) + 1]
        return {
            other: 1.0 if other == number else decayed * self._suite.similarity(other, number) for other in order
        }

    def metrics(self) -> dict[str, float]:
        """The weight of other models in a model's mean, averaged over the models; nothing if none were mixed."""
        return {} if self._others_share is None else {"others_share": self._others_share}

    def _tensors(self, number: int) -> dict[str, str]:
        """A model's tensors that are mixed: their names in the suite, by those in the network."""
        shared = self._suite.shared_tensors()
        regions = self._suite.regions(Model(number))
        return {name: region.name for name, region in regions.items() if shared[region.name].is_floating_point()}


def _mean(own: Tensor, weight: float, lent: Sequence[tuple[Tensor, float]]) -> Tensor:
    """A weighted mean, element by element, over those that have the element.

    Args:
        own: The tensor whose elements are wanted.
        weight: Its weight.
        lent: Others of as many dimensions, and their weights.
    """
    total, weights = own * weight, torch.full_like(own, weight)
    for tensor, share in lent:
        corner = tuple(slice(0, min(sizes)) for sizes in zip(own.shape, tensor.shape, strict=True))
        total[corner] += share * tensor[corner]
        weights[corner] += share
    return total.div_(weights)
