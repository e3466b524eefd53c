"""Soft aggregation against Eq. 5, written out element by element, and by hand."""

from __future__ import annotations

from itertools import product

import pytest
import torch
from torch import Tensor

from lit_fednas.aggregation import OverlapAverage, SoftAverage
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.rng import generator
from lit_fednas.supernets import BatchNorm, Model, ModelSuite
from tests.aggregation.instances import aggregate, random_updates
from tests.supernets.instances import kept_instance
from tests.supernets.suites import GROWTH, grown_suite

SUITE = grown_suite(norm=BatchNorm())
BORN = [0, *(round for _, _, round in GROWTH)]
MACS = [SUITE.macs(Model(number)) for number in range(4)]


def started(suite: ModelSuite = SUITE, round: int = 0, **settings) -> SoftAverage:
    soft = SoftAverage(**settings)
    soft.start(suite, [ClientTask(round, 3, Model(0), 10)])
    return soft


def averages_of(suite: ModelSuite, seed: int = 0) -> dict[str, Tensor]:
    draws = generator(seed, "averages")
    return {
        name: torch.randn(tensor.shape, generator=draws)
        if tensor.is_floating_point()
        else torch.randint(50, tensor.shape, generator=draws).double()
        for name, tensor in suite.shared_tensors().items()
    }


def eq_5(
    averages: dict[str, Tensor], round: int, decay: float, born: list[int], from_larger: bool
) -> dict[str, Tensor]:
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
                    weight = decay ** (round - born[j]) * SUITE.similarity(i, j)
                else:
                    continue
                above += weight * float(theirs[place])
                below += weight
            target[place] = above / below
    return result


# ---- Eq. 5 --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("from_larger", [False, True])
@pytest.mark.parametrize(("since", "round"), [("start", 0), ("start", 9), ("birth", 9)])
def test_against_the_formula(from_larger, since, round):
    averages = averages_of(SUITE)
    before = {name: tensor.clone() for name, tensor in averages.items()}
    soft = started(round=round, decay=0.8, decay_from=since, from_larger=from_larger)
    mixed = soft.mix(averages)
    expected = eq_5(averages, round, 0.8, BORN if since == "birth" else [0] * 4, from_larger)
    assert mixed.keys() == before.keys()
    changed = set()
    for name, tensor in expected.items():
        torch.testing.assert_close(mixed[name], tensor, rtol=1e-5, atol=1e-6, msg=name)
        assert torch.equal(averages[name], before[name]), name
        if not torch.equal(mixed[name], averages[name]):
            changed.add(name.split(".")[1])
    assert changed == ({"0", "1", "2", "3"} if from_larger else {"1", "2", "3"})


def two() -> tuple[ModelSuite, dict[str, Tensor], float]:
    """Two models, the second with eight units where the first has four; 1 and 3 everywhere."""
    suite = grown_suite(models=2)
    averages = {
        name: torch.full_like(tensor, 3.0 if name.startswith("networks.1") else 1.0)
        for name, tensor in suite.shared_tensors().items()
    }
    return suite, averages, (40 / 80 + 222 / 438 + 1) / 3


@pytest.mark.parametrize(("round", "since", "t"), [(0, "start", 0), (5, "start", 5), (5, "birth", 3)])
def test_by_hand(round, since, t):
    """The models' weights are 1 and sim * 0.9^t; model 1 was added in round 2."""
    suite, averages, sim = two()
    mixed = started(suite, round, decay=0.9, decay_from=since).mix(averages)
    share = sim * 0.9**t
    shared = (3 + share * 1) / (1 + share)
    bias = mixed["networks.1.cells.head.classifier.bias"]
    torch.testing.assert_close(bias, torch.full_like(bias, shared))
    kernel = mixed["networks.1.cells.conv2.conv.weight"]  # [6, 8, 3, 3], and in model 0 [6, 4, 3, 3]
    torch.testing.assert_close(kernel[:, :4], torch.full((6, 4, 3, 3), shared))
    torch.testing.assert_close(kernel[:, 4:], torch.full((6, 4, 3, 3), 3.0))
    for name, tensor in mixed.items():
        if name.startswith("networks.0"):
            assert (tensor == 1).all()


def test_larger_models_are_cropped():
    suite, averages, sim = two()
    wide = averages["networks.1.cells.conv1.conv.weight"]  # [8, 1, 3, 3], and in model 0 [4, 1, 3, 3]
    wide[4:] = 1000.0
    mixed = started(suite, from_larger=True).mix(averages)
    narrow = mixed["networks.0.cells.conv1.conv.weight"]
    torch.testing.assert_close(narrow, torch.full((4, 1, 3, 3), (1 + 3 * sim) / (1 + sim)))
    torch.testing.assert_close(mixed["networks.1.cells.conv1.conv.weight"][4:], wide[4:])


def test_weights_do_not_shrink():
    """As printed, with the decay in the numerator alone, equal weights would not stay what they are."""
    same = {name: torch.full_like(tensor, 2.5) for name, tensor in averages_of(SUITE).items()}
    for tensor in started(round=40, decay=0.5).mix(same).values():
        torch.testing.assert_close(tensor, torch.full_like(tensor, 2.5))


def test_late_rounds_leave_models_alone():
    averages = averages_of(SUITE)
    for name, tensor in started(round=5000).mix(averages).items():
        torch.testing.assert_close(tensor, averages[name], rtol=1e-6, atol=1e-7)


def test_one_model_is_left_alone():
    suite = grown_suite(models=1)
    averages = averages_of(suite)
    mixed = started(suite, from_larger=True).mix(averages)
    assert all(torch.equal(mixed[name], tensor) for name, tensor in averages.items())


def test_a_suite_that_has_grown_since():
    """The next round mixes the new model, too."""
    suite = grown_suite(models=1)
    soft = SoftAverage()
    for round in range(2):
        soft.start(suite, [ClientTask(round, 0, Model(0), 10)])
        mixed = soft.mix(soft.finish())
        assert mixed.keys() == suite.shared_tensors().keys()
        if round == 0:
            suite.add(*GROWTH[0][:2], seed=0, round=round)
    share = 0.98 * suite.similarity(0, 1)
    name = "cells.conv1.conv.weight"
    old, wide = (suite.shared_tensors()[f"networks.{number}.{name}"] for number in (0, 1))
    torch.testing.assert_close(mixed[f"networks.1.{name}"][:4], (wide[:4] + share * old) / (1 + share))


# ---- in a round ---------------------------------------------------------------------------------------


def test_finish_averages_within_the_models():
    updates = random_updates(SUITE, 6, largest=True, seed=0)
    for weighted in (True, False):
        plain = aggregate(OverlapAverage(weighted), SUITE, updates)
        soft = SoftAverage(weighted)
        found = aggregate(soft, SUITE, updates)
        assert all(torch.equal(found[name], tensor) for name, tensor in plain.items())
        assert soft.metrics() == {}


def test_share_of_the_others():
    suite, averages, sim = two()
    soft = started(suite)
    assert soft.metrics() == {}
    soft.mix(averages)
    assert soft.metrics() == {"others_share": pytest.approx((0 + sim / (1 + sim)) / 2)}
    soft.start(suite, [ClientTask(1, 0, Model(0), 10)])
    assert soft.metrics() == {}  # as long as nothing is mixed


# ---- settings -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"decay": 0.0}, r"aggregation.decay: 0.0 must be above 0 and at most 1"),
        ({"decay": 1.5}, r"aggregation.decay: 1.5 must be"),
        ({"decay_from": "death"}, r"aggregation.decay_from: 'death' is unknown"),
    ],
)
def test_errors(settings, text):
    with pytest.raises(ConfigError, match=text):
        SoftAverage(**settings)


def test_nothing_but_suites():
    net = kept_instance("plain")
    with pytest.raises(ConfigError, match=r"model.aggregation: SoftAverage .* PlainNetwork has none; use Overlap"):
        SoftAverage().start(net, [ClientTask(0, 0, "whole", 10)])
