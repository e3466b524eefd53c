"""A file that was exported computes what the network computes, by itself."""

from __future__ import annotations

import copy
import logging
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import lit_fednas
from lit_fednas import export
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.export import BatchStatistics, export_network, export_tier
from lit_fednas.federation.evaluation import recalibrated
from lit_fednas.records import SearchFiles
from lit_fednas.rng import generator
from lit_fednas.search.tier_models import save_tier_model
from lit_fednas.supernets import Supernet
from tests.search.test_tier_models import model_of
from tests.supernets.instances import INSTANCES, batch, instance, kept_instance

FORMATS = ("torch-export", "onnx")
#: The same, where a file of ONNX is a matter of seconds and another test of it is quick.
ONNX_SLOW = ("torch-export", pytest.param("onnx", marks=pytest.mark.slow))

#: What every test of a format runs on, besides the contract.
NAME = "elastic"
#: One of each kind of layer; the contract of the others takes minutes.
QUICK = ("early-exit", "path-cnn-labels", "rolling", "suite-vit", "widths-mobilenet")


def subnet(net: Supernet, which: str, again: bool) -> nn.Module:
    network = net.subnet(getattr(net.space, which)).eval()
    return recalibrated(network, [batch(net, 16), 1 + batch(net, 16)]) if again else network


def draws(net: Supernet, count: int) -> Tensor:
    return torch.randn(count, *net.input_shape, generator=generator(7, "export"))


def read(path: Path, format: str) -> Callable[[Tensor], Tensor]:
    """A file as its format's own tools read it."""
    if format == "torch-export":
        return torch.export.load(path).module()
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(None, {"inputs": inputs.numpy()})[0])


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelno > logging.DEBUG]


def exported(net: Supernet, network: nn.Module, path: Path, format: Any) -> export.Exported:
    return export_network(network, net.input_shape, path, format, batch(net, 12))


# ---- every supernet -----------------------------------------------------------------------------------------


def cases() -> list[Any]:
    """Every instance's largest as it is and its smallest with recalibrated norms; most are slow."""
    found = []
    for format in FORMATS:
        for name in INSTANCES:
            for which, again in (("largest", False), ("smallest", True)):
                quick = name == NAME or (name in QUICK and format == FORMATS[0] and not again)
                marks = [] if quick else [pytest.mark.slow]
                label = f"{format}-{name}-{which}" + ("-recalibrated" if again else "")
                found.append(pytest.param(format, name, which, again, marks=marks, id=label))
    return found


@pytest.mark.parametrize(("format", "name", "which", "again"), cases())
def test_a_file_computes_what_the_network_does(tmp_path, format, name, which, again):
    net = instance(name).eval()
    network = subnet(net, which, again)
    made = exported(net, network, tmp_path / "network", format)
    run = read(made.path, format)
    for size in (1, 2, 5, 20):
        inputs = draws(net, size)
        expected = network(inputs) if again else net(inputs, getattr(net.space, which))
        torch.testing.assert_close(run(inputs), expected.detach(), rtol=1e-4, atol=1e-4)
    assert made.difference < 1e-4
    assert (made.agreement, made.num_examples, made.format) == (1.0, 12, format)
    assert made.bytes == made.path.stat().st_size > 4 * sum(weight.numel() for weight in network.parameters())
    assert [path.name for path in tmp_path.iterdir()] == ["network"]  # the weights are inside


# ---- batch statistics ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("affine", [False, True])
@pytest.mark.parametrize(
    ("kind", "shape"),
    [(nn.BatchNorm1d, ()), (nn.BatchNorm1d, (5,)), (nn.BatchNorm2d, (4, 3)), (nn.BatchNorm3d, (2, 2, 2))],
)
def test_batch_statistics_are_those_of_batch_norm(kind, shape, affine):
    norm = kind(6, affine=affine, track_running_stats=False, eps=0.1).eval()
    source = generator(0, "norm")
    if affine:
        with torch.no_grad():
            norm.weight.copy_(torch.randn(6, generator=source))
            norm.bias.copy_(torch.randn(6, generator=source))
    inputs = 3 + 2 * torch.randn(7, 6, *shape, generator=source)
    expected = functional.batch_norm(inputs, None, None, norm.weight, norm.bias, training=True, eps=0.1)
    torch.testing.assert_close(BatchStatistics(norm)(inputs), expected, rtol=1e-5, atol=1e-5)


def test_only_norms_by_the_batch_make_predictions_depend_on_it(tmp_path, caplog):
    net = kept_instance(NAME)
    inputs = draws(net, 16)
    alone = []
    for again in (False, True):
        made = exported(net, subnet(net, "smallest", again), tmp_path / "network.pt2", "torch-export")
        run = read(made.path, made.format)
        alone.append(torch.allclose(run(inputs)[:8], run(inputs[:8]), atol=1e-5))
    assert alone == [False, True]
    (warning,) = said(caplog)
    assert "a prediction depends on its batch" in warning
    assert "model.evaluation.recalibrate_batches" in warning


@pytest.mark.parametrize("name", ["elastic-groupnorm", "elastic-batchnorm", "plain", "smallcnn"])
def test_no_warning_for_other_networks(tmp_path, caplog, name):
    net = kept_instance(name)
    exported(net, subnet(net, "largest", False), tmp_path / "network.pt2", "torch-export")
    assert said(caplog) == []


def test_small_batches_of_batch_statistics_are_not_compared(tmp_path):
    """Torch refuses one example at one pixel, and two are a matter of rounding."""
    norm = nn.BatchNorm1d(3, affine=False, track_running_stats=False)
    network = nn.Sequential(nn.Linear(4, 3), norm)
    with torch.no_grad():
        network[0].weight.copy_(torch.eye(3, 4))
    examples = torch.randn(8, 4, generator=generator(0, "export"))
    made = export_network(network, [4], tmp_path / "network.pt2", "torch-export", examples)
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        network(examples[:1])
    assert made.agreement == 1.0


# ---- the file -----------------------------------------------------------------------------------------------

ALONE = """
import sys
sys.modules["lit_fednas"] = None  # importing it, or anything in it, is an error
import torch
inputs, expected = torch.load(sys.argv[1], weights_only=True)
for path in sys.argv[2:]:
    network = torch.export.load(path).module()
    for size in (8, 9, 20):
        torch.testing.assert_close(network(inputs[:size]), expected[size], rtol=1e-4, atol=1e-4)
    assert not network(inputs).requires_grad
    print("ran", path)
assert sys.modules["lit_fednas"] is None
"""


def test_a_program_of_torch_runs_without_the_package(tmp_path):
    net = kept_instance(NAME)
    inputs = draws(net, 20)
    network = subnet(net, "largest", False)
    with torch.no_grad():
        torch.save((inputs, {size: network(inputs[:size]) for size in (8, 9, 20)}), tmp_path / "expected.pt")
    made = exported(net, network, tmp_path / "network.pt2", "torch-export")
    command = [sys.executable, "-I", "-c", ALONE, str(tmp_path / "expected.pt"), str(made.path)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert found.stdout.split() == ["ran", str(made.path)], found.stderr


@pytest.mark.parametrize("format", ONNX_SLOW)
def test_equal_files_quietly_and_without_examples_or_paths(tmp_path, capfd, caplog, recwarn, format):
    net = kept_instance(NAME)
    network = subnet(net, "smallest", True)
    made = [exported(net, network, tmp_path / str(place) / f"{place}", format) for place in range(2)]
    contents = [one.path.read_bytes() for one in made]
    assert contents[0] == contents[1]
    assert batch(net, 12)[0, 0].numpy().tobytes() not in contents[0]
    assert str(Path(lit_fednas.__file__).parents[1]).encode() not in contents[0]
    assert str(tmp_path).encode() not in contents[0]
    assert capfd.readouterr() == ("", "")
    assert [str(warning.message) for warning in recwarn] == []
    assert said(caplog) == []


def test_onnx_names_its_ends_and_leaves_the_batch_open(tmp_path):
    import onnx

    net = kept_instance(NAME)
    made = exported(net, subnet(net, "smallest", False), tmp_path / "network.onnx", "onnx")
    graph = onnx.load(str(made.path), load_external_data=False).graph
    ends = {}
    for end in (*graph.input, *graph.output):
        ends[end.name] = [size.dim_param or size.dim_value for size in end.type.tensor_type.shape.dim]
    assert ends == {"inputs": ["batch", 3, 8, 8], "logits": ["batch", 5]}
    assert not any(tensor.external_data for tensor in graph.initializer)
    assert "BatchNormalization" not in {node.op_type for node in graph.node}


@pytest.mark.parametrize("again", [False, True])
def test_the_network_is_left_as_it_is(tmp_path, again):
    net = kept_instance(NAME)
    network = subnet(net, "smallest", again).train()
    before = copy.deepcopy(network)
    exported(net, network, tmp_path / "network.pt2", "torch-export")
    assert str(network) == str(before)
    assert all(module.training for module in network.modules())
    assert all(weight.requires_grad for weight in network.parameters())
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, before.state_dict()[name]), name


# ---- the comparison -----------------------------------------------------------------------------------------


def compare(run: Callable[[Tensor], Tensor], examples: Tensor, sizes: Sequence[int]) -> tuple[float, float]:
    return export._compare(run, nn.Identity(), examples, sizes, "onnx")


def test_difference_and_agreement_by_hand():
    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.49998], [0.0, 0.25]])
    shift = torch.tensor([-6e-5, 0.0])
    difference, agreement = compare(lambda x: x + shift, logits, (1,))
    assert difference == pytest.approx(6e-5, rel=1e-2)
    assert agreement == 0.75  # the third changes sides
    assert compare(lambda x: x + 6e-5 * (len(x) == 1), logits, (1,)) == (pytest.approx(6e-5, rel=1e-2), 1.0)


def test_a_difference_is_allowed_in_proportion():
    large = torch.tensor([[100.0, -300.0], [2.0, 1.0]])
    assert compare(lambda x: x + 0.029, large, ())[0] == pytest.approx(0.029, rel=1e-3)
    with pytest.raises(ConfigError, match=r"differ by 0\.031 in a batch of 2, at most 0\.03 is allowed"):
        compare(lambda x: x + 0.031, large, ())
    with pytest.raises(ConfigError, match=r"at most 0\.0001 is allowed"):
        compare(lambda x: x + 1.1e-4, large / 1000, ())


def test_every_size_is_compared():
    for wrong in (1, 2, 4):
        with pytest.raises(ConfigError, match=f"in a batch of {wrong},"):
            compare(lambda x, wrong=wrong: x + (len(x) == wrong), torch.zeros(4, 2), (1, 2))


@pytest.mark.parametrize("format", FORMATS)
def test_a_file_that_differs_is_not_left_behind(tmp_path, monkeypatch, format):
    net = kept_instance(NAME)
    path = tmp_path / "network"
    path.write_text("the old one")
    monkeypatch.setattr(BatchStatistics, "forward", lambda self, x: 1.01 * x)
    with pytest.raises(ConfigError, match=f"the logits of {format} differ .* nothing was written"):
        exported(net, subnet(net, "smallest", False), path, format)
    assert [found.name for found in tmp_path.iterdir()] == ["network"]
    assert path.read_text() == "the old one"


def test_what_is_no_number_does_not_agree(tmp_path):
    net = kept_instance(NAME)
    network = subnet(net, "smallest", True)
    with torch.no_grad():
        network.classifier.bias[0] = float("nan")
    with pytest.raises(ConfigError, match="differ by nan"):
        exported(net, network, tmp_path / "network.pt2", "torch-export")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("count", "shape"), [(7, (3, 8, 8)), (8, (3, 8, 9)), (8, (8, 8)), (0, (3, 8, 8))])
def test_examples_that_will_not_do(tmp_path, count, shape):
    network = subnet(kept_instance(NAME), "smallest", True)
    with pytest.raises(ConfigError, match=r"export\.examples: .* 8 or more of shape \[3, 8, 8\]"):
        export_network(network, (3, 8, 8), tmp_path / "x", "torch-export", torch.zeros(count, *shape))


def test_a_package_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    net = kept_instance(NAME)
    with pytest.raises(ConfigError, match=r"onnx needs onnxruntime, .* pip install 'lit-fednas\[export\]'"):
        exported(net, subnet(net, "smallest", True), tmp_path / "network.onnx", "onnx")
    exported(net, subnet(net, "smallest", True), tmp_path / "network.pt2", "torch-export")


# ---- a tier -------------------------------------------------------------------------------------------------


@pytest.fixture
def files(tmp_path: Path) -> SearchFiles:
    return SearchFiles(tmp_path / "search")


def searched(files: SearchFiles, name: str, again: bool) -> Supernet:
    """A supernet whose smallest architecture is the tier ``small``."""
    net = instance(name)
    model = model_of(net, net.space.smallest, recalibrated=again)
    save_tier_model(files, model, subnet(net, "smallest", again))
    return net


@pytest.mark.parametrize(
    ("format", "file"),
    [("torch-export", "network.pt2"), pytest.param("onnx", "network.onnx", marks=pytest.mark.slow)],
)
def test_a_tiers_file_lies_beside_its_weights(files, format, file):
    net = searched(files, NAME, False)
    made = export_tier(net, files, "small", format, batch(net, 8))
    assert made.path == files.folder / "tiers" / "small" / file
    inputs = draws(net, 9)
    expected = net.eval()(inputs, net.space.smallest).detach()
    torch.testing.assert_close(read(made.path, format)(inputs), expected, rtol=1e-4, atol=1e-4)


def test_a_tiers_file_goes_where_it_is_told(files, tmp_path):
    net = searched(files, NAME, True)
    made = export_tier(net, files, "small", "torch-export", batch(net, 8), tmp_path / "new" / "net.pt2")
    assert made.path == tmp_path / "new" / "net.pt2"
    assert made.path.exists()
    assert not (files.tier_folder("small") / "network.pt2").exists()


@pytest.mark.parametrize(
    ("name", "again", "changed", "refused"),
    [
        (NAME, False, "network.stages.0.0.block.conv1.weight", True),
        (NAME, True, "network.stages.0.0.block.conv1.weight", True),
        ("elastic-batchnorm", False, "network.norm.running_mean", True),
        ("elastic-batchnorm", True, "network.norm.running_mean", False),
        (NAME, False, "network.stages.0.1.block.conv1.weight", False),  # a block that the smallest does not have
    ],
)
def test_the_checkpoint_must_be_the_one_that_was_searched(files, name, again, changed, refused):
    net = searched(files, name, again)
    with torch.no_grad():
        net.shared_tensors()[changed][0] += 1e-3
    if refused:
        own = changed.removeprefix("network.")
        with pytest.raises(CheckpointError, match=f"tier 'small': its {own} is not .* the one that was searched"):
            export_tier(net, files, "small", "torch-export", batch(net, 8))
        assert not (files.tier_folder("small") / "network.pt2").exists()
        return
    made = export_tier(net, files, "small", "torch-export", batch(net, 8))
    expected = subnet(instance(name), "smallest", again)(draws(net, 9)).detach()  # the tier's weights, as they were
    torch.testing.assert_close(read(made.path, made.format)(draws(net, 9)), expected, rtol=1e-4, atol=1e-4)
