"""A suite of models: lineage, weights, and structure in checkpoints."""

import json

import pytest
import torch

from lit_fednas.errors import CheckpointError
from lit_fednas.rng import generator
from lit_fednas.supernets import GroupNorm, GrowableCNN, Model, ModelSuite
from lit_fednas.supernets.growing.growth import Deepen, Widen, grow, plan
from lit_fednas.supernets.growing.suite import similarity
from tests.support import seeded


def suite(models: int = 1, hidden=(4, 8), seed: int = 0, **settings) -> ModelSuite:
    net = seeded(ModelSuite, (3, 8, 8), 5, GrowableCNN(hidden, GroupNorm(2)), seed=seed)
    for number in range(1, models):
        cells = ["conv1", "conv2"][number % 2 :]
        net.add(number - 1, plan(net.models[-1].blueprint, cells, number), seed=7, round=10 * number, **settings)
    return net


def x() -> torch.Tensor:
    return torch.randn(4, 3, 8, 8, generator=generator(0, "x"))


def test_a_new_model_computes_what_its_parent_does_and_changes_nothing_else() -> None:
    net = suite()
    old_weights = {name: tensor.clone() for name, tensor in net.shared_tensors().items()}
    answer = net(x(), Model(0))
    for number in range(1, 5):
        steps = plan(net.models[-1].blueprint, ["conv1", "conv2"], number)
        assert net.add(number - 1, steps, seed=0) == Model(number)
        torch.testing.assert_close(net(x(), Model(number)), answer, rtol=1e-4, atol=1e-5)
    for name, tensor in old_weights.items():
        assert torch.equal(net.shared_tensors()[name], tensor), name
    macs = [net.macs(arch) for arch in net.space.each()]
    assert macs == sorted(set(macs))
    assert net.space.smallest == Model(0)
    assert net.space.largest == Model(4)


def test_without_warm_up_the_weights_are_new_and_the_structure_is_the_same() -> None:
    warm, cold = suite(2), suite(2, warm_up=False)
    assert warm.structure() == cold.structure()
    name = "networks.1.cells.conv1.conv.weight"
    assert not torch.allclose(warm.shared_tensors()[name], cold.shared_tensors()[name])
    assert torch.equal(cold.shared_tensors()[name], suite(2, warm_up=False).shared_tensors()[name]), "by its seed"


def test_structure_is_restored_with_all_weights() -> None:
    whole = suite(4)
    structure = json.loads(json.dumps(whole.structure()))
    for other in (suite(seed=5), suite(2, seed=5)):  # a new suite and one with another history
        other.restore(structure)
        other.load_state_dict(whole.state_dict())
        assert other.structure() == whole.structure()
        assert [model.round for model in other.models] == [None, 10, 20, 30]
        assert other.fingerprint == whole.fingerprint
        for arch in whole.space.each():
            assert torch.equal(other(x(), arch), whole(x(), arch))
    with pytest.raises(CheckpointError, match=r"conv1 4, conv2 8, head.*family with conv1 6"):
        suite(hidden=(6, 8)).restore(structure)


def test_lineage_and_similarity() -> None:
    net = suite(3)
    net.add(0, plan(net.models[0].blueprint, ["conv2"], 3), seed=0)  # another branch
    assert [net.ancestors(number) for number in range(4)] == [{0}, {0, 1}, {0, 1, 2}, {0, 3}]
    assert net.similarity(0, 1) > net.similarity(0, 2)
    # not related: cells of only one model reduce the similarity
    net.add(1, plan(net.models[1].blueprint, ["conv2"], 4, order="deepen"), seed=0)
    net.add(1, plan(net.models[1].blueprint, ["conv1"], 5, order="deepen"), seed=0)
    cells = 5  # conv1, conv2, head and an inserted one each
    assert net.similarity(4, 5) == pytest.approx((3 - 2) / cells)


# 1 channel, 3x3 kernels with a bias, 4 classes: conv1 has 36 + 4 parameters, conv2 216 + 6, the head 24 + 4
FIRST = GrowableCNN([4, 6], norm=None).blueprint((1, 8, 8), 4)
WIDE = grow(FIRST, Widen("conv1", {"conv1.out": 8}))  # conv1 72 + 8, conv2 432 + 6
WIDE_CONV2 = grow(FIRST, Widen("conv2", {"conv2.out": 12}))  # conv2 432 + 12, head 48 + 4
DEEP = grow(FIRST, Deepen("conv1", ("new",)))
DEEP_BOTH = grow(DEEP, Deepen("conv2", ("newer",)))
OTHER = grow(grow(FIRST, Deepen("conv1", ("other",))), Deepen("conv2", ("another",)))


ALIKE = (40 / 80 + 222 / 438 + 1) / 4  # similarity of four cells


@pytest.mark.parametrize(
    ("model", "other", "related", "expected"),
    [
        (FIRST, WIDE, True, (40 / 80 + 222 / 438 + 1) / 3),
        (FIRST, WIDE_CONV2, True, (1 + 222 / 444 + 28 / 52) / 3),
        (FIRST, DEEP, True, (1 + 0 + 1 + 1) / 4),
        (FIRST, DEEP_BOTH, True, 3 / 5),
        (WIDE, grow(WIDE, Deepen("conv2", ("a", "b"))), True, 3 / 5),
        (FIRST, grow(WIDE, Deepen("conv1", ("a",))), True, ALIKE),
        (WIDE, DEEP, True, ALIKE),
        (WIDE, DEEP, False, ALIKE - 1 / 4),  # cells of only one branch reduce the similarity
        (WIDE, WIDE_CONV2, False, similarity(WIDE, WIDE_CONV2)),  # the same cells
        (DEEP_BOTH, OTHER, True, 3 / 7),
        (DEEP_BOTH, OTHER, False, 0),  # not below zero: three cells are equal, and each model has two others
    ],
)
def test_similarity_by_hand(model, other, related, expected):
    assert similarity(model, other, related) == pytest.approx(expected, abs=1e-12)
    assert similarity(other, model, related) == similarity(model, other, related)
    assert similarity(model, model) == similarity(other, other) == 1
