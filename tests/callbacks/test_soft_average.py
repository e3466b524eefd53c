"""Soft averaging against Eq. 5, written out element by element, and by hand."""

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
ALIKE = dict.fromkeys(range(4), 1)
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
    """For every element of every model: the weighted sum over the models that have it, by the sum of weights."""
    result = {name: tensor.clone() for name, tensor in averages.items()}
    for name, target in result.items():
        _, number, own = name.split(".", 2)
        if own.endswith("num_batches_tracked"):
            continue
        j = int(number)
        for place in product(*map(range, target.shape)):
            above = below = 0.0
            for i in range(4):
                theirs = averages.get(f"networks.{i}.{own}")
                if theirs is None or any(at >= size for at, size in zip(place, theirs.shape, strict=True)):
                    continue
                if i == j:
                    weight = 1.0
                elif MACS[i] < MACS[j] or from_larger:
                    weight = decay**round * SUITE.similarity(i, j)
                else:
                    continue
                above += weight * float(theirs[place])
                below += weight
            target[place] = above / below
    return result


# ---- Eq. 5 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_larger", [False, True])
@pytest.mark.parametrize("round", [0, 9])
def test_against_the_formula(from_larger, round):
    averages = averages_of(SUITE)
    before = {name: tensor.clone() for name, tensor in averages.items()}
    soft = SoftAverage(decay=0.8, from_larger=from_larger)
    mixed = soft.mix(SUITE, round, averages, ALIKE)
    expected = eq_5(averages, round, 0.8, from_larger)
    assert mixed.keys() == before.keys()
    changed = set()
    for name, tensor in expected.items():
        torch.testing.assert_close(mixed[name], tensor, rtol=1e-5, atol=1e-6, msg=name)
        assert torch.equal(averages[name], before[name]), name
        if not torch.equal(mixed[name], averages[name]):
            changed.add(name.split(".")[1])
    assert changed == ({"0", "1", "2", "3"} if from_larger else {"1", "2", "3"})


def test_models_count_by_the_examples_of_the_round():
    """Model 0 with 30 examples counts half in model 1, which has 60; what was not trained neither gives nor takes."""
    suite, soft = grown_suite(models=2), SoftAverage(decay=0.9)
    averages = {
        name: torch.full_like(tensor, 3.0 if name.startswith("networks.1") else 1.0)
        for name, tensor in suite.shared_tensors().items()
    }
    share = (40 / 80 + 222 / 438 + 1) / 3 * 0.9**5 * 30 / 60  # the similarity, and the decay
    assert soft.coefficients(suite, 5, 1, {0: 30, 1: 60}) == pytest.approx({0: share, 1: 1.0})
    bias = soft.mix(suite, 5, averages, {0: 30, 1: 60})["networks.1.cells.head.classifier.bias"]
    torch.testing.assert_close(bias, torch.full_like(bias, (3 + share) / (1 + share)))
    for examples in ({0: 0, 1: 60}, {0: 30, 1: 0}):
        for name, tensor in soft.mix(suite, 5, averages, examples).items():
            assert torch.equal(tensor, averages[name]), name


# ---- in a round ---------------------------------------------------------------------------------------


class Recording(FederatedCallback):
    """Notes each round's averages within the models, and what the server steps to."""

    def __init__(self) -> None:
        self.averages: list[dict[str, Tensor]] = []
        self.weights: list[dict[str, Tensor]] = []
        self.examples: list[dict[int, int]] = []

    def on_results(self, trainer, module, round):
        seen = [[one.num_seen for one in round.results if one.task.arch == Model(number)] for number in range(4)]
        self.examples.append({number: sum(of) for number, of in enumerate(seen)})
        round.watch(lambda averages: self.averages.append({name: one.clone() for name, one in averages.items()}))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.weights.append(weights(module))


@pytest.mark.parametrize("weighted", [False, True])
def test_the_server_steps_to_the_mixed_averages(weighted):
    """Callbacks after it still see the averages within the models."""
    soft = SoftAverage(decay=0.9, from_larger=True, weighted=weighted)
    suite, recording = grown_suite(norm=BatchNorm()), Recording()
    module = make_module(suite, ByUtility(), cohort=UniformCohort(count=6))
    fit(module, tiny_data(), max_rounds=2, callbacks=[soft, recording])
    assert len(recording.averages) == len(recording.weights) == 2
    for round, (averages, stepped) in enumerate(zip(recording.averages, recording.weights, strict=True)):
        mixed = soft.mix(suite, round, averages, recording.examples[round] if weighted else ALIKE)
        for name, tensor in stepped.items():
            assert torch.equal(tensor, mixed[name].to(tensor.dtype)), name
        assert not all(torch.equal(tensor, averages[name]) for name, tensor in mixed.items())
