"""An exported file computes the network's outputs without the package."""

import copy
import subprocess
import sys
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import PIL.ImageOps
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

import lit_fednas
from lit_fednas import export
from lit_fednas.data import IID, ArraySource, Examples, FederatedDataModule, ImageFolder, Normalize
from lit_fednas.errors import CheckpointError, ConfigError, DataError
from lit_fednas.export import FromRaw, export_network, export_tier
from lit_fednas.federation.evaluation import normalises_over_batches, recalibrated
from lit_fednas.records import SearchFiles
from lit_fednas.records.files import check_output
from lit_fednas.rng import generator
from lit_fednas.search.tier_models import load_tier_network, save_tier_model
from lit_fednas.supernets import Supernet
from lit_fednas.testing.networks import batch
from tests.search.test_tier_models import model_of
from tests.supernets.instances import instance, kept_instance
from tests.support import assert_same, make_module

#: The supernet in the tests of every format.
NAME = "elastic"
#: Supernets with all kinds of layers: the largest network as a program, the smallest as ONNX with recalibrated norms.
PROGRAMS = (NAME, "rolling", "suite-vit")
NETWORKS = ("cells", "early-exit", "elastic-transformer-text", "path-cnn", "suite-vit", "widths-mobilenet")
CASES = [pytest.param("torch-export", name, "largest", False, id=f"program-{name}") for name in PROGRAMS]
CASES += [pytest.param("onnx", name, "smallest", True, id=f"onnx-{name}", marks=pytest.mark.slow) for name in NETWORKS]


def subnet(net: Supernet, arch_name: str, is_recalibrated: bool = True) -> nn.Module:
    """Returns the smallest or largest network, with statistics of two batches if recalibrated or without statistics."""
    network = net.subnet(getattr(net.space, arch_name)).eval()
    is_recalibrated = is_recalibrated or normalises_over_batches(network)
    return recalibrated(network, [batch(net, 16), 1 + batch(net, 16)]) if is_recalibrated else network


def read(path: Path, format: str) -> Callable[[Tensor], Tensor]:
    """Returns the file's network, loaded by the format's own library."""
    if format == "torch-export":
        return torch.export.load(path).module()
    import onnxruntime

    session = onnxruntime.InferenceSession(path.read_bytes(), providers=["CPUExecutionProvider"])
    return lambda inputs: torch.from_numpy(session.run(None, {"inputs": inputs.numpy()})[0])


def exported(net: Supernet, network: nn.Module, path: Path, format: Any) -> export.Exported:
    return export_network(network, path, format, batch(net, 12))


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, export.Exported]:
    """Returns a network and its program. Read only."""
    net = kept_instance(NAME)
    network = subnet(net, "smallest")
    return network, exported(net, network, tmp_path_factory.mktemp("kept") / "network", "torch-export")


@pytest.mark.parametrize(("format", "name", "arch_name", "is_recalibrated"), CASES)
def test_a_file_computes_the_networks_outputs(tmp_path, format, name, arch_name, is_recalibrated):
    net = instance(name).eval()
    network = subnet(net, arch_name, is_recalibrated)
    file = exported(net, network, tmp_path / "network", format)
    run = read(file.path, format)
    for size in (1, 2, 5, 20):
        inputs = batch(net, size, seed=7)
        as_it_is = not is_recalibrated and not normalises_over_batches(net.subnet(net.space.smallest))
        expected = net(inputs, getattr(net.space, arch_name)) if as_it_is else network(inputs)
        torch.testing.assert_close(run(inputs), expected.detach(), rtol=1e-4, atol=1e-4)
    assert file.difference < 1e-4
    assert (file.agreement, file.num_examples, file.format) == (1.0, 12, format)
    assert file.bytes == file.path.stat().st_size > 4 * sum(weight.numel() for weight in network.parameters())
    assert [path.name for path in tmp_path.iterdir()] == ["network"]  # the file includes the weights


@pytest.mark.parametrize(("format", "has_norm"), [("onnx", True), ("torch-export", False)])
def test_a_file_takes_raw_images(tmp_path, format, has_norm):
    """The reference scales and normalises in numpy."""
    net = kept_instance(NAME)
    network = subnet(net, "smallest")
    images = torch.randint(256, (9, 3, 8, 8), generator=generator(0, "images"), dtype=torch.uint8)
    mean, std = ([0.5, 0.25, 0.1], [0.2, 0.1, 0.5]) if has_norm else ([0.0] * 3, [1.0] * 3)
    path = tmp_path / "network"
    export_network(network, path, format, images, Normalize(mean, std) if has_norm else None)
    prepared = (images.numpy() / 255 - np.reshape(mean, (3, 1, 1))) / np.reshape(std, (3, 1, 1))
    expected = network(torch.from_numpy(prepared).float()).detach()
    torch.testing.assert_close(read(path, format)(images), expected, rtol=1e-4, atol=1e-4)


ALONE = """
import sys
sys.modules["lit_fednas"] = None  # importing it, or anything in it, is an error
import torch
inputs, expected = torch.load(sys.argv[1], weights_only=True)
network = torch.export.load(sys.argv[2]).module()
for size in (8, 9, 20):
    torch.testing.assert_close(network(inputs[:size]), expected[size], rtol=1e-4, atol=1e-4)
assert not network(inputs).requires_grad
print("ran")
"""


@pytest.mark.slow
def test_a_program_of_torch_runs_without_the_package(program, tmp_path):
    network, file = program
    inputs = batch(kept_instance(NAME), 20, seed=7)
    with torch.no_grad():
        torch.save((inputs, {size: network(inputs[:size]) for size in (8, 9, 20)}), tmp_path / "expected.pt")
    command = [sys.executable, "-I", "-c", ALONE, str(tmp_path / "expected.pt"), str(file.path)]
    process = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120, check=False)
    assert process.stdout == "ran\n", process.stderr


def test_equal_files_without_examples_or_paths(program, tmp_path):
    network, file = program
    content = file.path.read_bytes()
    network = copy.deepcopy(network).train()
    other = exported(kept_instance(NAME), network, tmp_path / "other", file.format)
    assert other.path.read_bytes() == content
    assert all(module.training for module in network.modules())
    assert_same(network.state_dict(), program[0].state_dict())
    assert batch(kept_instance(NAME), 12)[0, 0].numpy().tobytes() not in content
    assert str(Path(lit_fednas.__file__).parents[1]).encode() not in content
    assert not any(str(exported_file.path.parent).encode() in content for exported_file in (file, other))


def test_the_logits_are_compared_in_batches_of_every_size():
    def compare(run: Callable[[Tensor], Tensor], examples: Tensor) -> tuple[float, float]:
        return export._compare(run, nn.Identity(), examples, "onnx")

    logits = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.5, 0.49998], [0.0, 0.25]])
    shift = torch.tensor([-6e-5, 0.0])
    assert compare(lambda x: x + shift, logits) == (pytest.approx(6e-5, rel=1e-2), 0.75)  # the third changes sides

    large = torch.tensor([[100.0, -300.0], [2.0, 1.0]])
    with pytest.raises(ConfigError, match=r"differ by 0\.031 in a batch of 1, more than 0\.03"):
        compare(lambda x: x + 0.031, large)
    with pytest.raises(ConfigError, match=r"in a batch of 2,"):
        compare(lambda x: x + (len(x) == 2), torch.zeros(4, 2))


def test_a_file_with_other_outputs_is_removed(tmp_path, monkeypatch):
    net = kept_instance(NAME)
    path = tmp_path / "network"
    path.write_text("the old one")
    monkeypatch.setattr(FromRaw, "forward", lambda self, x: self.network(x.float()))  # the normalisation is lost
    images = torch.full((1, 3, 8, 8), 200, dtype=torch.uint8)
    with pytest.raises(ConfigError, match=r"logits of onnx differ .* nothing was written"):
        export_network(subnet(net, "smallest"), path, "onnx", images)
    assert [remaining.name for remaining in tmp_path.iterdir()] == ["network"]
    assert path.read_text() == "the old one"


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    net = kept_instance(NAME)
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(ConfigError, match=r"onnx needs onnxruntime; pip install 'lit-fednas\[export\]'"):
        export_network(subnet(net, "smallest"), tmp_path / "network", "onnx", batch(net, 12))
    assert list(tmp_path.iterdir()) == []


def exported_tier(
    folder: Path, net: Supernet, changed: str | None = None, is_recalibrated: bool = False, source: Any = None
) -> export.Exported:
    """Exports the smallest architecture of a search before the tensor ``changed`` changed."""
    files = SearchFiles(folder / "search")
    arch = net.space.smallest
    network = net.subnet(arch).eval()
    network = recalibrated(network, [batch(net, 16)]) if is_recalibrated else network
    save_tier_model(files, model_of(net, arch, recalibrated=is_recalibrated), network)
    if changed is not None:
        with torch.no_grad():
            net.shared_tensors()[changed][0] += 1e-3
    images = torch.randint(256, (60, 3, 8, 8), generator=generator(0, "images"), dtype=torch.uint8)
    examples = Examples(images, torch.arange(60) % net.num_classes)
    names = "abcdef"[: net.num_classes]
    source = source or ArraySource(examples, class_names=names, normalization=Normalize([0.5] * 3, [0.2] * 3))
    data = FederatedDataModule(source, IID(), num_clients=2, server_val=0)
    data.setup()
    return export_tier(make_module(net), data, files, "small", "torch-export", folder / "new" / "net.pt2")


@pytest.mark.parametrize(
    ("name", "is_recalibrated", "changed", "refused"),
    [
        (NAME, True, "network.stages.0.0.block.conv1.weight", True),
        ("elastic-batchnorm", False, "network.norm.running_mean", True),
        ("elastic-batchnorm", True, "network.norm.running_mean", False),
        (NAME, False, "network.stages.0.1.block.conv1.weight", False),  # a block that is not in the smallest network
    ],
)
def test_the_checkpoint_must_be_that_of_the_search(tmp_path, name, is_recalibrated, changed, refused):
    net = instance(name)
    tensor_name = changed.removeprefix("network.")
    words = rf"name: .* was of other weights .*{tensor_name} of .small. differs.* then add --name search-2"
    refusal = pytest.raises(CheckpointError, match=words)
    with refusal if refused else nullcontext():
        exported_tier(tmp_path, net, changed, is_recalibrated)
    assert (tmp_path / "new").exists() != refused


def test_a_file_describes_the_resizing_of_images(tmp_path):
    """Original images, resized with Pillow by the file's description, give the network's logits."""
    net, draws = instance(NAME), np.random.default_rng(0)
    for number in range(4 * net.num_classes):
        path = tmp_path / "train" / f"class{number % net.num_classes}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(draws.integers(0, 256, (20, 30, 3), dtype=np.uint8)).save(path)
    source = ImageFolder(tmp_path, image_size=8)
    tier_file = exported_tier(tmp_path, net, is_recalibrated=True, source=source)
    stated = tier_file.metadata["preprocessing"]
    assert (stated["size"], stated["interpolation"]) == ("8x8", "bilinear, antialiased")
    names = [tmp_path / name for name in source.splits["train"].names]
    resized = [eval(stated["in Pillow"], {**vars(PIL), "image": Image.open(name)}) for name in names]
    raw = torch.from_numpy(np.stack([np.moveaxis(np.asarray(image), 2, 0) for image in resized]))
    assert torch.equal(raw, source.load("train").inputs)
    mean, std = (torch.tensor(tier_file.metadata[name]).view(3, 1, 1) for name in ("mean", "std"))
    network = load_tier_network(net, SearchFiles(tmp_path / "search"), "small")[1].eval()
    with torch.no_grad():
        expected = network((raw / 255 - mean) / std)
    torch.testing.assert_close(read(tier_file.path, "torch-export")(raw), expected, rtol=1e-4, atol=1e-4)
    for cache in (tmp_path / ".lit_fednas_cache").glob("train-*.npz"):
        array = np.load(cache)["array"]
        np.savez(cache, array=array[:, :, ::-1])  # mirrors the images in the cache
    with pytest.raises(DataError, match="inputs are not those of the files; restore these, or remove"):
        exported_tier(tmp_path, net, is_recalibrated=True, source=ImageFolder(tmp_path, image_size=8))


def test_a_file_describes_its_inputs_and_classes(tmp_path):
    net = instance("path-cnn")
    metadata = exported_tier(tmp_path, net).metadata
    assert metadata["class_names"] == list("abcdef"[: net.num_classes])
    assert metadata["test_accuracy"] is None  # the source has no test split
    assert (metadata["input_type"], metadata["mean"], metadata["preprocessing"]) == ("uint8", [0.5] * 3, {})
    check_output(tmp_path / "new" / "net.pt2")  # recognises the package's file
