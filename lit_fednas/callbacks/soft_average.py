"""FedTrans' Model Aggregator, which averages weights over the models of a suite (section 4.3, Eq. 5)."""

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
    """Averages each model with similar smaller models, after its clients' updates are averaged.

    Model j becomes the mean of itself, with weight 1, and of smaller models i, with weight decay^t * sim(i, j) (Eq. 5).
    Models are ordered by multiply-accumulates. Larger models are excluded because they are new and would disturb small,
    nearly converged models (Table 1). All means use the averages before mixing.

    Tensors are matched by their names in the networks. If shapes differ, the common corner is averaged, as in HeteroFL.
    Running statistics are mixed like weights; integer buffers are unchanged. Deviations: models are weighted by their
    examples in the round (equally in Eq. 5), and the sum is divided by the coefficients including decay, as weights
    would shrink otherwise.

    Args:
        decay: Factor per round of the other models' weights, the paper's eta (Table 7); 1 for no decay.
        from_larger: Whether larger models are also mixed into smaller ones (Table 1's "l2s").
        weighted: Whether models are weighted by their examples in the round; if not, equally (Eq. 5).
    """

    supernet_kind: ClassVar[type] = ModelSuite
    metric_names = ("others_share",)

    def __init__(self, decay: PositiveShare = 0.98, from_larger: bool = False, weighted: bool = True) -> None:
        self.decay, self.from_larger, self.weighted = decay, from_larger, weighted

    @override
    def on_results(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Mixes the models, and logs ``others_share``, the mean share of other models in a model."""
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
        """Returns the averages after mixing (Eq. 5); ``examples`` are by model, and 1 for equal weights."""
        mixed = dict(averages)
        for model in suite.models:
            coefficients = self.coefficients(suite, round, model.number, examples)
            weight_of_itself = coefficients.pop(model.number)
            sources = [(_tensors(suite, number), weight) for number, weight in coefficients.items() if weight > 0]
            for name, suite_name in _tensors(suite, model.number).items():
                terms = [(averages[names[name]], weight) for names, weight in sources if name in names]
                if terms:
                    mixed[suite_name] = _mean(averages[suite_name], weight_of_itself, terms)
        return mixed

    def coefficients(self, suite: ModelSuite, round: int, number: int, examples: Mapping[int, int]) -> dict[int, float]:
        """Returns the weights of models in the mean of model ``number``, by the models' numbers."""
        if not examples[number]:
            return {number: 1.0}
        decay = self.decay**round
        order = [model.number for model in suite.space.rungs]
        if not self.from_larger:
            order = order[: order.index(number) + 1]
        ratios = {other: examples[other] / examples[number] for other in order}
        coefficients = {other: decay * suite.similarity(other, number) * ratio for other, ratio in ratios.items()}
        return {**coefficients, number: 1.0}


def _tensors(suite: ModelSuite, number: int) -> dict[str, str]:
    """Returns the suite's names of a model's floating-point tensors, by their names in the network."""
    shared = suite.shared_tensors()
    regions = suite.regions(Model(number))
    return {name: region.name for name, region in regions.items() if shared[region.name].is_floating_point()}


def _mean(tensor: Tensor, weight: float, terms: Sequence[tuple[Tensor, float]]) -> Tensor:
    """Returns the weighted mean of a tensor and others; an element's mean is over the tensors that have it."""
    total, weights = tensor * weight, torch.full_like(tensor, weight)
    for other, share in terms:
        corner = tuple(slice(0, min(sizes)) for sizes in zip(tensor.shape, other.shape, strict=True))
        total[corner] += share * other[corner]
        weights[corner] += share
    return total.div_(weights)
