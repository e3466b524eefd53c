"""A suite of models: lineage, weights, structure in and out of checkpoints."""

import json

import pytest
import torch

from lit_fednas.errors import CheckpointError
from lit_fednas.rng import generator
from lit_fednas.supernets import GroupNorm, GrowableCNN, Model, ModelSuite
from lit_fednas.supernets.growing.growth import Deepen, Widen, grown, plan
from lit_fednas.supernets.growing.suite import similarity
from tests.support import seeded


def suite(models: int = 1, hidden=(4, 8), seed: int = 0, **settings) -> ModelSuite:
    made = seeded(ModelSuite, (3, 8, 8), 5, GrowableCNN(hidden, GroupNorm(2)), seed=seed)
    for number in range(1, models):
        cells = ["conv1", "conv2"][number % 2 :]
        made.add(number - 1, plan(made.models[-1].blueprint, cells, number), seed=7, round=10 * number, **settings)
    return made


def x() -> torch.Tensor:
    return torch.randn(4, 3, 8, 8, generator=generator(0, "x"))


def test_a_new_model_computes_what_its_parent_does_and_changes_nothing_else() -> None:
    made = suite()
    before = {name: tensor.clone() for name, tensor in made.shared_tensors().items()}
    answer = made(x(), Model(0))
    for number in range(1, 5):
        steps = plan(made.models[-1].blueprint, ["conv1", "conv2"], number)
        assert made.add(number - 1, steps, seed=0) == Model(number)
        torch.testing.assert_close(made(x(), Model(number)), answer, rtol=1e-4, atol=1e-5)
    for name, tensor in before.items():
        assert torch.equal(made.shared_tensors()[name], tensor), name
    macs = [made.macs(arch) for arch in made.space.each()]
    assert macs == sorted(set(macs))
    assert made.space.smallest == Model(0)
    assert made.space.largest == Model(4)


def test_without_warm_up_the_weights_are_new_and_the_structure_is_the_same() -> None:
    warm, cold = suite(2), suite(2, warm_up=False)
    assert warm.structure() == cold.structure()
    name = "networks.1.cells.conv1.conv.weight"
    assert not torch.allclose(warm.shared_tensors()[name], cold.shared_tensors()[name])
    assert torch.equal(cold.shared_tensors()[name], suite(2, warm_up=False).shared_tensors()[name]), "by its seed"


def test_structure_comes_back_with_all_weights() -> None:
    whole = suite(4)
    structure = json.loads(json.dumps(whole.structure()))
    for other in (suite(seed=5), suite(2, seed=5)):  # a fresh one, and one that went another way
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
    made = suite(3)
    made.add(0, plan(made.models[0].blueprint, ["conv2"], 3), seed=0)  # another branch
    assert [made.ancestors(number) for number in range(4)] == [{0}, {0, 1}, {0, 1, 2}, {0, 3}]
    assert made.similarity(0, 1) > made.similarity(0, 2)
    # not related: the cells that one alone has count against it
    made.add(1, plan(made.models[1].blueprint, ["conv2"], 4, order="deepen"), seed=0)
    made.add(1, plan(made.models[1].blueprint, ["conv1"], 5, order="deepen"), seed=0)
    cells = 5  # conv1, conv2, head and an inserted one each
    assert made.similarity(4, 5) == pytest.approx((3 - 2) / cells)


# 1 channel, 3x3 kernels with a bias, 4 classes: conv1 has 36 + 4 parameters, conv2 216 + 6, the head 24 + 4
FIRST = GrowableCNN([4, 6], norm=None).blueprint((1, 8, 8), 4)
WIDE = grown(FIRST, Widen("conv1", {"conv1.out": 8}))  # conv1 72 + 8, conv2 432 + 6
WIDE_CONV2 = grown(FIRST, Widen("conv2", {"conv2.out": 12}))  # conv2 432 + 12, head 48 + 4
DEEP = grown(FIRST, Deepen("conv1", ("new",)))
DEEP_BOTH = grown(DEEP, Deepen("conv2", ("newer",)))
OTHER = grown(grown(FIRST, Deepen("conv1", ("other",))), Deepen("conv2", ("another",)))


ALIKE = (40 / 80 + 222 / 438 + 1) / 4  # of four cells


@pytest.mark.parametrize(
    ("one", "other", "related", "expected"),
    [
        (FIRST, WIDE, True, (40 / 80 + 222 / 438 + 1) / 3),
        (FIRST, WIDE_CONV2, True, (1 + 222 / 444 + 28 / 52) / 3),
        (FIRST, DEEP, True, (1 + 0 + 1 + 1) / 4),
        (FIRST, DEEP_BOTH, True, 3 / 5),
        (WIDE, grown(WIDE, Deepen("conv2", ("a", "b"))), True, 3 / 5),
        (FIRST, grown(WIDE, Deepen("conv1", ("a",))), True, ALIKE),
        (WIDE, DEEP, True, ALIKE),
        (WIDE, DEEP, False, ALIKE - 1 / 4),  # what only one of two branches has counts against them
        (WIDE, WIDE_CONV2, False, similarity(WIDE, WIDE_CONV2)),  # the same cells: neither has lost anything
        (DEEP_BOTH, OTHER, True, 3 / 7),
        (DEEP_BOTH, OTHER, False, 0),  # not below zero: three are the same, and each has two that the other has not
    ],
)
def test_similarity_by_hand(one, other, related, expected):
    assert similarity(one, other, related) == pytest.approx(expected, abs=1e-12)
    assert similarity(other, one, related) == similarity(one, other, related)
    assert similarity(one, one) == similarity(other, other) == 1
