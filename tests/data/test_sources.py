import csv
import io
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.nn import functional

from lit_fednas.data import (
    CIFAR10,
    CIFAR100,
    IID,
    MNIST,
    ArraySource,
    Digits,
    DistortedDigits,
    Examples,
    FashionMNIST,
    FederatedDataModule,
    ImageFolder,
    LazyImageFolder,
)
from lit_fednas.data.sources import image_files, image_source
from lit_fednas.data.sources.image_files import LazyImages
from lit_fednas.errors import ConfigError, DataError


def write_image(path: Path, value: int, size: tuple[int, int] = (6, 4)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.full((size[1], size[0], 3), value, dtype=np.uint8)
    pixels[..., 1] = 2 * value
    Image.fromarray(pixels).save(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for index, name in enumerate(["train/cat/1", "train/cat/2", "train/dog/1", "train/dog/10", "test/dog/1"]):
        write_image(tmp_path / f"{name}.png", 10 * index)
    return tmp_path


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Records which splits are decoded."""
    log: list[str] = []
    real = LazyImages.decode

    def spy(images: LazyImages) -> np.ndarray:
        log.append(images.files.names[0].split("/")[0])
        return real(images)

    monkeypatch.setattr(LazyImages, "decode", spy)
    return log


def load(source: ImageFolder, split: str = "train") -> Examples:
    examples = source.load(split)  # type: ignore[arg-type]
    assert examples is not None
    return examples


class TestImageFolder:
    def test_shapes_order_and_values(self, root: Path) -> None:
        source = ImageFolder(root)
        assert (source.num_classes, source.class_names) == (2, ("cat", "dog"))
        assert source.input_shape == (3, 4, 6)
        train = load(source)
        assert train.inputs.dtype == torch.uint8
        assert train.targets.tolist() == [0, 0, 1, 1]
        assert train.inputs[:, 0, 0, 0].tolist() == [0, 10, 20, 30]
        assert train.inputs[:, 1, 3, 5].tolist() == [0, 20, 40, 60]
        assert load(source, "test").targets.tolist() == [1]
        assert source.load("val") is None
        assert load(ImageFolder(root, channels=1)).inputs.shape == (4, 1, 4, 6)

    def test_image_size_scales_the_shorter_side_and_cuts_the_centre(self, tmp_path: Path) -> None:
        write_image(tmp_path / "train" / "a" / "y.png", 7, (40, 30))
        pixels = np.zeros((8, 16, 3), dtype=np.uint8)
        pixels[:, 4:12] = 200
        Image.fromarray(pixels).save(tmp_path / "train" / "a" / "x.png")
        source = ImageFolder(tmp_path, image_size=8)
        assert source.input_shape == (3, 8, 8)
        assert (load(source).inputs[0] == 200).all()
        assert (load(source).inputs[1, 0] == 7).all()

    def test_mean_and_std_are_those_of_the_training_images_and_lazily_of_a_sample(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = ImageFolder(root)
        pixels = load(ImageFolder(root)).inputs.double() / 255
        assert source.normalization.mean == pytest.approx(pixels.mean(dim=(0, 2, 3)).tolist())
        assert source.normalization.std == pytest.approx(pixels.std(dim=(0, 2, 3), correction=0).tolist())
        assert ImageFolder(root, mean=[0.1] * 3, std=[0.2] * 3).normalization.mean == (0.1,) * 3
        monkeypatch.setattr(image_source, "SAMPLE", 2)
        write_image(root / "train" / "cat" / "1.png", 60)
        assert ImageFolder(root).normalization.mean[0] == pytest.approx(30 / 255)
        assert LazyImageFolder(root).normalization.mean[0] == pytest.approx(45 / 255)

    def test_metadata_becomes_columns(self, root: Path) -> None:
        names = ["train/dog/10", "train/dog/1", "train/cat/2", "train/cat/1", "test/dog/1"]
        with (root / "metadata.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows([["file", "site"], *([f"{n}.png", f"s{i}"] for i, n in enumerate(names))])
        assert load(ImageFolder(root)).columns["site"].tolist() == ["s3", "s2", "s1", "s0"]
        assert load(ImageFolder(root), "test").columns["site"].tolist() == ["s4"]
        write_image(root / "train" / "cat" / "3.png", 1)
        with pytest.raises(DataError, match=r"data\.source\.root: .* no row for train/cat/3\.png"):
            load(ImageFolder(root))
        (root / "metadata.csv").write_text("name,site\n")
        with pytest.raises(DataError, match="no column 'file'; add it"):
            load(ImageFolder(root))

    @pytest.mark.parametrize(
        ("rows", "encoding", "message"),
        [
            ("{rows}\n ,s7\n", "utf-8", r"metadata\.csv, line 8, has no 'file'; fill it in"),
            ("{rows}x,s7,s8\n", "utf-8", r"metadata\.csv, line 7, has more cells than there are columns"),
            ("site,{rows}", "utf-8", r"metadata\.csv has 2 columns 'site'; rename or remove"),
            ("{rows}", "utf-16", r"metadata\.csv is not UTF-8 text"),
        ],
    )
    def test_metadata_that_cannot_be_right(self, root: Path, rows: str, encoding: str, message: str) -> None:
        names = sorted(path.relative_to(root).as_posix() for path in root.rglob("*.png"))
        listed = "file,site\n" + "".join(f"{name},s1\n" for name in names)
        (root / "metadata.csv").write_bytes(rows.format(rows=listed).encode(encoding))
        with pytest.raises(DataError, match=message):
            load(ImageFolder(root))


class TestFaults:
    def test_missing_folders_and_classes(self, tmp_path: Path) -> None:
        root = tmp_path / "images"
        for told, next_folder in (
            ("images is not a folder", root),
            ("has no folder train", root / "train"),
            ("has no class folders", root / "train" / "emu"),
            ("emu holds no images", root / "train" / "emu" / "notes"),
        ):
            with pytest.raises(DataError, match=told):
                ImageFolder(root).load("train")
            next_folder.mkdir()
        (root / "train" / "emu" / "notes").rmdir()
        write_image(root / "train" / "emu" / "1.png", 1)
        with pytest.raises(DataError, match=r"data\.source: ImageFolder has 1 class"):
            _ = FederatedDataModule(ImageFolder(root), IID(), num_clients=2).num_classes
        write_image(root / "test" / "cow" / "1.png", 1)
        with pytest.raises(DataError, match="cow is not a class of train"):
            ImageFolder(root).load("test")

    @pytest.mark.parametrize("name", ["cat/deeper", "cat/nowhere.png", "cat/loop.png", "cat/pipe.png", "emu"])
    def test_what_would_be_passed_over_is_refused(self, root: Path, name: str) -> None:
        path = root / "train" / name
        if name == "cat/deeper":
            write_image(path / "1.png", 1)
        elif name == "cat/pipe.png":  # whose reader would wait for ever
            os.mkfifo(path)
        else:
            path.symlink_to(path.name if "loop" in name else "gone")
        with pytest.raises(DataError, match=f"root: .*{name} (is not a file|is a link that leads nowhere)"):
            ImageFolder(root).load("train")

    def test_a_class_that_test_lacks_is_said(self, root: Path, caplog: pytest.LogCaptureFixture) -> None:
        data = FederatedDataModule(ImageFolder(root), IID(), num_clients=2)
        data.setup("fit")
        assert not caplog.messages
        data.test_dataloader()
        assert caplog.messages == ["data.source: test has no example of 1 of 2 classes: cat"]

    def test_first_odd_size_is_named(self, root: Path) -> None:
        for name in ("dog/1", "dog/10"):
            write_image(root / "train" / f"{name}.png", 1, (5, 5))
        with pytest.raises(DataError, match=r"dog/1\.png is \(5, 5\), the first one \(4, 6\).*image_size"):
            ImageFolder(root).load("train")
        assert load(ImageFolder(root, image_size=4)).inputs.shape == (4, 3, 4, 4)
        with pytest.raises(DataError, match=r"dog/1\.png"):
            LazyImageFolder(root).dataset("train")[2]  # type: ignore[index]

    def test_broken_image_is_named(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        path = root / "train" / "dog" / "1.png"

        def refused(message: str) -> None:
            with pytest.raises(DataError, match=rf"dog/1\.png {message}"):
                ImageFolder(root, image_size=4).load("train")

        path.write_bytes(b"no image")
        refused("cannot be decoded")
        write_image(path, 1, (1, 1))
        refused("is of one pixel")
        write_image(path, 1, (9, 9))
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 40)  # as 20000x20000 pixels exceed the true one, twice
        refused(r"cannot be decoded \(Image size \(81 pixels\)")

    def test_what_is_left_out_of_images_is_said_once(
        self, root: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(image_files, "_SAID", set())
        first, second = (Image.new("L", (6, 4), shade) for shade in (5, 250))
        for number in (3, 4):
            first.save(root / "train" / "cat" / f"{number}.gif", save_all=True, append_images=[second])
            Image.new("RGBA", (6, 4), (9, 9, 9, 0)).save(root / "train" / "dog" / f"{number}.png")
        assert (load(ImageFolder(root, cache=False)).inputs[2:4] == 5).all()
        alpha, frames = sorted(message.partition(" has ")[2] for message in caplog.messages)
        assert alpha.startswith("an alpha channel, which is left out")
        assert frames.startswith("several frames, of which the first is used")


class TestCache:
    def test_is_used(self, root: Path, decoded: list[str]) -> None:
        whole = load(ImageFolder(root, cache=False))
        assert not (root / ".lit_fednas_cache").exists()
        decoded.clear()
        ImageFolder(root).prepare()
        assert torch.equal(load(ImageFolder(root)).inputs, whole.inputs)
        assert decoded == ["train", "test"]

    def test_a_changed_folder_or_size_is_decoded_anew(self, root: Path, decoded: list[str]) -> None:
        path = root / "train" / "dog" / "1.png"
        ImageFolder(root).load("train")
        write_image(root / "train" / "dog" / "2.png", 99)  # a new file
        assert len(load(ImageFolder(root))) == 5
        stamp = path.stat()
        write_image(path, 77)  # another content, perhaps of the same size
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
        assert 77 in load(ImageFolder(root)).inputs[:, 0, 0, 0]
        assert decoded == ["train"] * 3
        assert len(list((root / ".lit_fednas_cache").iterdir())) == 1  # earlier states are dropped
        for size in (4, 2, 4, 2):
            assert load(ImageFolder(root, image_size=size)).inputs.shape == (5, 3, size, size)
        assert decoded == ["train"] * 5

    def test_a_damaged_file_is_decoded_anew(self, root: Path, decoded: list[str]) -> None:
        whole = load(ImageFolder(root)).inputs
        (path,) = (root / ".lit_fednas_cache").iterdir()
        buffer = io.BytesIO()
        np.save(buffer, np.zeros((4, 3, 2, 2), dtype=np.uint8))  # of another shape
        for damaged in (b"", b"\x93NUMPY rubbish", path.read_bytes()[:-5], buffer.getvalue()):
            decoded.clear()
            path.write_bytes(damaged)
            for _ in range(2):
                assert torch.equal(load(ImageFolder(root)).inputs, whole)
            assert decoded == ["train"]

    def test_goes_to_the_users_folder_where_the_root_cannot_be_written(
        self, root: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        home = root / "home"
        monkeypatch.setenv("XDG_CACHE_HOME", str(home))
        (root / ".lit_fednas_cache").write_text("a file where the folder would be")
        for _ in range(2):
            load(ImageFolder(root))
        assert decoded == ["train"]
        assert len(list(home.rglob("*.npy"))) == 1


def test_lazy_images_are_decoded_on_access(root: Path, decoded: list[str]) -> None:
    """That they equal the array is in the sources' contract."""
    source = LazyImageFolder(root)
    dataset = source.dataset("train")
    assert dataset is not None
    assert source.normalization.mean == pytest.approx(ImageFolder(root, cache=False).normalization.mean)
    decoded.clear()
    assert [int(dataset[row][0][0, 0, 0]) for row in range(4)] == [0, 10, 20, 30]
    assert not decoded
    assert source.dataset("val") is None


def test_splits_of_the_digits_cover_the_whole_once() -> None:
    train, test = Digits().load("train"), Digits().load("test")
    everything = torch.cat([train.inputs, test.inputs]).flatten(1).float() * 16 / 255
    expected = load_digits().data
    assert sorted(map(tuple, everything.round().int().tolist())) == sorted(map(tuple, expected.astype(int)))
    share = np.bincount(test.targets) / np.bincount(load_digits().target)
    assert share == pytest.approx([0.2] * 10, abs=0.005)


@pytest.mark.parametrize("source", [Digits(), DistortedDigits()], ids=["plain", "distorted"])
def test_the_normalization_of_the_digits_is_that_of_their_pixels(source: Digits) -> None:
    pixels = source.load("train").inputs.double() / 255
    assert source.normalization.mean[0] == pytest.approx(pixels.mean().item(), abs=2e-3)
    assert source.normalization.std[0] == pytest.approx(pixels.std().item(), abs=2e-3)


class TestDistortedDigits:
    def test_without_distortion_they_are_the_digits_enlarged(self) -> None:
        for split in ("train", "test"):
            plain, found = Digits().load(split), DistortedDigits(2, strength=0, noise=0).load(split)
            larger = functional.interpolate(plain.inputs / 255, size=(12, 12), mode="bilinear")
            inner = (..., slice(1, -1), slice(1, -1))  # beyond the edge there is black
            assert torch.allclose(found.inputs[inner] / 255, larger.repeat(2, 1, 1, 1)[inner], atol=0.51 / 255)
            assert torch.equal(found.targets, plain.targets.repeat(2))
        assert DistortedDigits().load("val") is None

    def test_a_validation_split_shares_no_digit_with_training(self):
        source = DistortedDigits(2, strength=0, noise=0, val=0.25)
        train, val = ({image.numpy().tobytes() for image in source.load(split).inputs} for split in ("train", "val"))
        assert not train & val
        whole = {image.numpy().tobytes() for image in DistortedDigits(1, strength=0, noise=0).load("train").inputs}
        assert train | val == whole
        assert len(source.load("val").inputs) == 2 * round(0.25 * 1438)

    def test_every_version_is_another(self) -> None:
        first, second, third = DistortedDigits(3).load("train").inputs.float().chunk(3)
        plain = DistortedDigits(1, strength=0, noise=0).load("train").inputs.float()
        for one, other in ((first, second), (second, third), (first, plain)):
            assert (one - other).abs().mean((1, 2, 3)).min() > 3

    def test_digits_are_moved_within_the_image(self) -> None:
        """Of the mass of a digit most stays in the picture, and its centre moves by what the docstring says."""
        plain = DistortedDigits(1, strength=0, noise=0).load("train").inputs.double()
        moved = DistortedDigits(1, strength=1, noise=0).load("train").inputs.double()
        assert (moved.sum((1, 2, 3)) / plain.sum((1, 2, 3))).quantile(0.05) > 0.5
        places = torch.arange(12, dtype=torch.float64)
        shift = (moved.sum(2) @ places / moved.sum((2, 3)) - plain.sum(2) @ places / plain.sum((2, 3))).abs()
        assert 0.3 < shift.mean() < 1.5
        assert shift.max() < 4


def few(targets: Sequence[int] = (0, 2), width: int = 3) -> Examples:
    return Examples(torch.zeros(len(targets), width), torch.tensor(targets, dtype=torch.int64))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test": few([3])}, r"test: has targets 3\.\.3"),
        ({"val": few(width=4)}, r"val: has inputs of shape \(4,\)"),
        ({"train": few([])}, "train: has no examples"),
        ({"class_names": ["a"]}, "class_names: 1 names for 3"),
    ],
)
def test_arrays_that_do_not_belong_together(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        ArraySource(**{"train": few(), **settings})


@pytest.mark.parametrize(("split", "value"), [("train", float("nan")), ("test", float("inf"))])
def test_inputs_that_are_not_finite_are_refused(split: str, value: float) -> None:
    splits = {name: few([0, 1, 2] * 4) for name in ("train", "test")}
    splits[split].inputs[7, 1] = value
    data = FederatedDataModule(ArraySource(**splits), IID(), num_clients=2)
    if split == "test":
        data.setup("fit")  # which does not read the test split
    with pytest.raises(DataError, match=f"data.source: example 7 of {split} holds NaN or infinity"):
        data.test_dataloader() if split == "test" else data.setup("fit")


@pytest.mark.parametrize("source", [MNIST, FashionMNIST, CIFAR10, CIFAR100])
def test_missing_torchvision_files_name_folder_and_remedy(source: type[MNIST], tmp_path: Path) -> None:
    data = source(tmp_path / "nowhere")
    assert len(data.class_names) == data.num_classes
    assert len(data.normalization.mean) == data.input_shape[0]
    with pytest.raises(DataError, match=r"nowhere .*set download: true"):
        data.prepare()


@pytest.mark.parametrize(("source", "shape"), [(MNIST, (2, 28, 28)), (CIFAR10, (2, 32, 32, 3))])
def test_torchvision_arrays_become_channels_first(
    source: type[MNIST], shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Stub:
        data = np.arange(np.prod(shape)).astype(np.uint8).reshape(shape)
        targets = [1, 0]  # noqa: RUF012 - as torchvision has it

    if source is MNIST:
        Stub.data = torch.from_numpy(Stub.data)
    monkeypatch.setattr(source, "_open", lambda self, train, download: Stub())
    examples = source("x").load("train")
    assert examples is not None
    assert examples.inputs.shape == (2, *source.input_shape)
    assert examples.inputs.is_contiguous()
    assert examples.targets.tolist() == [1, 0]
    assert examples.inputs[1, :, 5, 7].tolist() == np.atleast_1d(Stub.data[1, 5, 7]).tolist()


@pytest.mark.parametrize("mode", ["I;16", "I", "F"])
def test_images_of_more_than_eight_bits_are_refused(root: Path, mode: str) -> None:
    """PIL would cut all that is above 255."""
    Image.new(mode, (8, 8), 60_000).save(root / "train" / "cat" / ("0.png" if mode == "I;16" else "0.tiff"))
    with pytest.raises(DataError, match=r"cat/0\.\w+ has more than 8 bits per channel"):
        ImageFolder(root, image_size=8).load("train")
