"""Tests soft averaging against Eq. 5, element by element, and by hand."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from lit_fednas.assignment import ByUtility
from lit_fednas.callbacks import SoftAverage
from lit_fednas.federation import FederatedCallback, UniformCohort
from lit_fednas.rng import generator
from lit_fednas.supernets import BatchNorm, Model, ModelSuite
from tests.supernets.suites import grown_suite
from tests.support import fit, make_module, tiny_data, weights

SUITE = grown_suite(norm=BatchNorm())
EQUAL_EXAMPLES = dict.fromkeys(range(4), 1)
MACS = [SUITE.macs(Model(number)) for number in range(4)]


def averages_of(suite: ModelSuite, seed: int = 0) -> dict[str, Tensor]:
    draws = generator(seed, "averages")
    return {
        name: torch.randn(tensor.shape, generator=draws)
        if tensor.is_floating_point()
        else torch.randint(50, tensor.shape, generator=draws).double()
        for name, tensor in suite.shared_tensors().items()
    }


def eq_5(averages: dict[str, Tensor], round: int, decay: float, from_larger: bool) -> dict[str, Tensor]:
    """Returns the weighted mean of every element over the models that have it."""
    result = {name: tensor.clone() for name, tensor in averages.items()}
    for name, target in result.items():
        _, number, tensor_name = name.split(".", 2)
        if tensor_name.endswith("num_batches_tracked"):
            continue
        j = int(number)
        for position in product(*map(range, target.shape)):
            numerator = denominator = 0.0
            for i in range(4):
                other = averages.get(f"networks.{i}.{tensor_name}")
                if other is None or any(index >= size for index, size in zip(position, other.shape, strict=True)):
                    continue
                if i == j:
                    weight = 1.0
                elif MACS[i] < MACS[j] or from_larger:
                    weight = decay**round * SUITE.similarity(i, j)
                else:
                    continue
                numerator += weight * float(other[position])
                denominator += weight
            target[position] = numerator / denominator
    return result


# ---- Eq. 5 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_larger", [False, True])
@pytest.mark.parametrize("round", [0, 9])
def test_against_the_formula(from_larger, round):
    averages = averages_of(SUITE)
    old_averages = {name: tensor.clone() for name, tensor in averages.items()}
    soft = SoftAverage(decay=0.8, from_larger=from_larger)
    mixed = soft.mix(SUITE, round, averages, EQUAL_EXAMPLES)
    expected = eq_5(averages, round, 0.8, from_larger)
    assert mixed.keys() == old_averages.keys()
    changed = set()
    for name, tensor in expected.items():
        torch.testing.assert_close(mixed[name], tensor, rtol=1e-5, atol=1e-6, msg=name)
        assert torch.equal(averages[name], old_averages[name]), name
        if not torch.equal(mixed[name], averages[name]):
            changed.add(name.split(".")[1])
    assert changed == ({"0", "1", "2", "3"} if from_larger else {"1", "2", "3"})


def test_models_count_by_the_examples_of_the_round():
    """Model 0 with 30 examples counts half in model 1 with 60; untrained models are not mixed."""
    suite, soft = grown_suite(models=2), SoftAverage(decay=0.9)
    averages = {
        name: torch.full_like(tensor, 3.0 if name.startswith("networks.1") else 1.0)
        for name, tensor in suite.shared_tensors().items()
    }
    share = (40 / 80 + 222 / 438 + 1) / 3 * 0.9**5 * 30 / 60  # similarity, decay and examples
    assert soft.coefficients(suite, 5, 1, {0: 30, 1: 60}) == pytest.approx({0: share, 1: 1.0})
    bias = soft.mix(suite, 5, averages, {0: 30, 1: 60})["networks.1.cells.head.classifier.bias"]
    torch.testing.assert_close(bias, torch.full_like(bias, (3 + share) / (1 + share)))
    for examples in ({0: 0, 1: 60}, {0: 30, 1: 0}):
        for name, tensor in soft.mix(suite, 5, averages, examples).items():
            assert torch.equal(tensor, averages[name]), name


# ---- in a round ---------------------------------------------------------------------------------------


class Recording(FederatedCallback):
    """Records each round's averages before mixing, and the server's weights after its step."""

    def __init__(self) -> None:
        self.averages: list[dict[str, Tensor]] = []
        self.weights: list[dict[str, Tensor]] = []
        self.examples: list[dict[int, int]] = []

    def on_results(self, trainer, module, round):
        seen = [[r.num_seen for r in round.results if r.task.arch == Model(number)] for number in range(4)]
        self.examples.append({number: sum(counts) for number, counts in enumerate(seen)})
        round.watch(lambda averages: self.averages.append({name: value.clone() for name, value in averages.items()}))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.weights.append(weights(module))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_server_steps_to_the_mixed_averages(weighted):
    """Later callbacks see the averages before mixing."""
    soft = SoftAverage(decay=0.9, from_larger=True, weighted=weighted)
    suite, recording = grown_suite(norm=BatchNorm()), Recording()
    module = make_module(suite, ByUtility(), cohort=UniformCohort(count=6))
    fit(module, tiny_data(), max_rounds=2, callbacks=[soft, recording])
    assert len(recording.averages) == len(recording.weights) == 2
    for round, (averages, stepped) in enumerate(zip(recording.averages, recording.weights, strict=True)):
        mixed = soft.mix(suite, round, averages, recording.examples[round] if weighted else EQUAL_EXAMPLES)
        for name, tensor in stepped.items():
            assert torch.equal(tensor, mixed[name].to(tensor.dtype)), name
        assert not all(torch.equal(tensor, averages[name]) for name, tensor in mixed.items())
