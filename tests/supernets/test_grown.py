"""Grown models, rebuilt from a run's record."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from lit_fednas.errors import ConfigError
from lit_fednas.parts import described
from lit_fednas.records.files import replace_json
from lit_fednas.records.run import SUITE_FILE
from lit_fednas.rng import generator
from lit_fednas.supernets import (
    BaseNetworks,
    FamilyNetwork,
    GrowableCNN,
    GrowablePerceptron,
    GrownModel,
    Model,
    ModelSuite,
    Width,
    WidthSupernet,
)
from lit_fednas.supernets.growing.growth import plan
from lit_fednas.supernets.layers import Scaler
from tests.supernets.instances import rows_of

FAMILY = GrowableCNN([4, 8], norm=None)
SHAPE = (3, 8, 8)


@pytest.fixture
def suite(tmp_path) -> ModelSuite:
    """Four models; the third and the fourth come from the second."""
    net = ModelSuite(SHAPE, 5, FAMILY)
    for parent, cells in ((0, ["conv1"]), (1, ["conv1", "conv2"]), (1, ["conv2"])):
        net.add(parent, plan(net.models[parent].blueprint, cells, len(net.models)), seed=0)
    replace_json(tmp_path / SUITE_FILE, {"models": rows_of(net), "family": described(FAMILY)})
    return net


@pytest.mark.parametrize(("number", "meant"), [(0, 0), ("middle", 2), ("last", 3)])
def test_every_model_has_the_structure_that_it_had(tmp_path, suite, number, meant) -> None:
    net = FamilyNetwork(SHAPE, 5, GrownModel(str(tmp_path), number))
    shapes = {name: tensor.shape for name, tensor in net.network.state_dict().items()}
    assert shapes == {name: tensor.shape for name, tensor in suite.networks[meant].state_dict().items()}
    assert net.macs("whole") == suite.macs(Model(meant))


def test_a_grown_model_is_cut_in_width(tmp_path, suite) -> None:
    family = GrownModel(str(tmp_path), 2)
    net = WidthSupernet(SHAPE, 5, family, widths=[1, 0.5])
    assert net.units == dict(suite.models[2].blueprint.sizes)
    assert net.macs(Width(1)) == suite.macs(Model(2))
    half = net.subnet(Width(0.5))
    assert half.cells["conv1"].conv.weight.shape == (4, 3, 3, 3)
    assert half.cells["conv1_m2"].conv.weight.shape == (4, 4, 3, 3)
    bases = BaseNetworks(SHAPE, 5, family, count=4)
    assert bases.macs(bases.space.smallest) < suite.macs(Model(2)) / 4


@pytest.mark.parametrize("family", [FAMILY, GrowablePerceptron([8, 4])])
def test_half_a_layer_is_scaled_in_training_alone(family) -> None:
    """HeteroFL, section 3: in training, the outputs of layers with half the units are divided by a half."""
    net = WidthSupernet(SHAPE, 5, family, widths=[1, 0.5], scaler=True)
    assert not any(isinstance(module, Scaler) for module in net.subnet(Width(1)).modules())
    half = net.subnet(Width(0.5))
    x = torch.randn(2, *SHAPE, generator=generator(0, "x"))
    plain = WidthSupernet(SHAPE, 5, family, widths=[1, 0.5]).subnet(Width(0.5))
    plain.load_state_dict(half.state_dict())
    torch.testing.assert_close(half.eval()(x), plain.eval()(x))
    for layer in list(plain.cells.values())[:-1]:
        layer.register_forward_hook(lambda _, __, out: out / 0.5)  # a ReLU commutes with the scale
    torch.testing.assert_close(half.train()(x), plain.train()(x))


def changed(path: Path, change: Callable[[dict], None]) -> GrownModel:
    """The last model of a changed record."""
    record = json.loads((path / "suite.json").read_text())
    change(record)
    (path / "suite.json").write_text(json.dumps(record))
    return GrownModel(str(path))


@pytest.mark.parametrize(
    ("read", "words"),
    [
        (lambda path: GrownModel("no/where"), "no/where holds no suite.json"),
        (lambda path: GrownModel(str(path), 4), "family.number: .*must be 0 to 3"),
        (
            lambda path: changed(path, lambda record: record["models"][1].update(steps=[{"shrink": "conv1"}])),
            "suite.json is damaged",
        ),
        (
            lambda path: changed(path, lambda record: record["models"][3].update(parent=9)),
            "suite.json is damaged .*range",
        ),
        (
            lambda path: changed(path, lambda record: record.update(family=None)),
            "does not record its initial model",
        ),
    ],
)
@pytest.mark.usefixtures("suite")
def test_missing_or_damaged_records_are_refused(tmp_path: Path, read: Callable[[Path], GrownModel], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        read(tmp_path).blueprint(SHAPE, 5)
