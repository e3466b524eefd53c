"""Models of a suite lend each other weights: FedTrans' Model Aggregator (section 4.3, Eq. 5)."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, cast

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.ranges import PositiveShare, checked
from lit_fednas.supernets import Model, ModelSuite


@checked("soft_average")
class SoftAverage(FederatedCallback):
    """After each model's clients are averaged, models are averaged with smaller ones that are similar to them.

    Model j becomes the mean of models i, weighted by decay^t * sim(i, j), and of itself, weighted by 1 (Eq. 5). The
    models i are those before j in the suite's order by multiply-accumulates: large models are new and would disturb
    small ones, which have nearly converged (Table 1). All right-hand sides are the averages before mixing.

    Tensors are matched by their names in the networks. Where shapes differ, the corner that both have is averaged
    element by element, as in HeteroFL. Running statistics are mixed as weights are; integer buffers are unchanged.
    Deviations: a model counts by its examples of the round, in Eq. 5 all alike; the sum is divided by the same
    coefficients, decay included, as weights would shrink otherwise.

    Args:
        decay: The factor on other models' weight per round of the run, the paper's eta (Table 7); 1 for no decay.
        from_larger: Whether larger models are mixed into smaller ones, too (Table 1's "l2s").
        weighted: Whether models count by the examples of the round; if not, all alike (Eq. 5).
    """

    supernet_kind: ClassVar[type] = ModelSuite
    metric_names = ("others_share",)

    def __init__(self, decay: PositiveShare = 0.98, from_larger: bool = False, weighted: bool = True) -> None:
        self.decay, self.from_larger, self.weighted = decay, from_larger, weighted

    @override
    def on_results(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Mixes the models, and logs ``others_share``: the mean weight of other models in a model."""
        suite = cast(ModelSuite, module.supernet)
        examples = dict.fromkeys(range(len(suite.models)), 0 if self.weighted else 1)
        for result in round.survivors if self.weighted else ():
            examples[result.task.arch.number] += result.num_seen

        def mixture(averages: dict[str, Tensor]) -> dict[str, Tensor]:
            sums = [sum(self.coefficients(suite, round.number, number, examples).values()) for number in examples]
            module.log("others_share", sum(1 - 1 / total for total in sums) / len(sums))
            return self.mix(suite, round.number, averages, examples)

        round.mix(mixture)

    @torch.no_grad()
    def mix(
        self, suite: ModelSuite, round: int, averages: dict[str, Tensor], examples: Mapping[int, int]
    ) -> dict[str, Tensor]:
        """Returns the averages after Eq. 5.

        Args:
            suite: The models.
            round: The round, from 0.
            averages: The averages of the clients' weights, by the suite's names; not changed.
            examples: Each model's examples in the round, by number; 1 of each if all models count alike.
        """
        mixed = dict(averages)
        for model in suite.models:
            coefficients = self.coefficients(suite, round, model.number, examples)
            own = coefficients.pop(model.number)
            lenders = [(_tensors(suite, number), weight) for number, weight in coefficients.items() if weight > 0]
            for name, whole in _tensors(suite, model.number).items():
                lent = [(averages[names[name]], weight) for names, weight in lenders if name in names]
                if lent:
                    mixed[whole] = _mean(averages[whole], own, lent)
        return mixed

    def coefficients(self, suite: ModelSuite, round: int, number: int, examples: Mapping[int, int]) -> dict[int, float]:
        """Returns the weights of the models in the mean of model ``number``, by number: arguments as of :meth:`mix`."""
        if not examples[number]:
            return {number: 1.0}
        decayed = self.decay**round
        order = [model.number for model in suite.space.rungs]
        if not self.from_larger:
            order = order[: order.index(number) + 1]
        shares = {other: examples[other] / examples[number] for other in order}
        lent = {other: decayed * suite.similarity(other, number) * share for other, share in shares.items()}
        return {**lent, number: 1.0}


def _tensors(suite: ModelSuite, number: int) -> dict[str, str]:
    """Returns the suite's names of a model's tensors that are mixed, by their names in the network."""
    shared = suite.shared_tensors()
    regions = suite.regions(Model(number))
    return {name: region.name for name, region in regions.items() if shared[region.name].is_floating_point()}


def _mean(own: Tensor, weight: float, lent: Sequence[tuple[Tensor, float]]) -> Tensor:
    """Returns the weighted mean of a tensor and others, element by element over those that have the element."""
    total, weights = own * weight, torch.full_like(own, weight)
    for tensor, share in lent:
        corner = tuple(slice(0, min(sizes)) for sizes in zip(own.shape, tensor.shape, strict=True))
        total[corner] += share * tensor[corner]
        weights[corner] += share
    return total.div_(weights)
