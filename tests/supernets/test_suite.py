"""A suite of models: lineage, weights, structure in and out of checkpoints."""

import json

import pytest
import torch

from lit_fednas.errors import CheckpointError
from lit_fednas.rng import generator
from lit_fednas.supernets import GroupNorm, GrowableCNN, Model, ModelSuite
from lit_fednas.supernets.growing.growth import plan
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
    grown = suite(4)
    structure = json.loads(json.dumps(grown.structure()))
    for other in (suite(seed=5), suite(2, seed=5)):  # a fresh one, and one that went another way
        other.restore(structure)
        other.load_state_dict(grown.state_dict())
        assert other.structure() == grown.structure()
        assert [model.round for model in other.models] == [None, 10, 20, 30]
        assert other.fingerprint == grown.fingerprint
        for arch in grown.space.each():
            assert torch.equal(other(x(), arch), grown(x(), arch))
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
