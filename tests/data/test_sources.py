import csv
import io
import os
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from sklearn.datasets import load_digits
from torch.nn import functional

from lit_fednas.data import (
    IID,
    MNIST,
    ArrayFiles,
    ArraySource,
    DigitPairs,
    Digits,
    DistortedDigits,
    Examples,
    FederatedDataModule,
    ImageFolder,
    ImageTable,
)
from lit_fednas.data.sources import images as image_sources
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.rng import generator
from tests.data.files import SmallCIFAR10, images, load, write_image

SIZE = (6, 4)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    names = ("train/cat/1.png", "train/cat/2.png", "train/dog/1.png", "train/dog/10.png", "test/dog/1.png")
    return images(tmp_path, *names, size=SIZE)


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

    def test_image_size_scales_the_shorter_side_and_crops_the_centre(self, tmp_path: Path) -> None:
        write_image(tmp_path / "train" / "a" / "y.png", 7, (40, 30))
        pixels = np.zeros((8, 16, 3), dtype=np.uint8)
        pixels[:, 4:12] = 200
        Image.fromarray(pixels).save(tmp_path / "train" / "a" / "x.png")
        source = ImageFolder(tmp_path, image_size=8)
        assert source.input_shape == (3, 8, 8)
        assert (load(source).inputs[0] == 200).all()
        assert (load(source).inputs[1, 0] == 7).all()

    def test_mean_and_std_are_those_of_a_sample_of_the_training_images(
        self, root: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = ImageFolder(root)
        pixels = load(source).inputs.double() / 255
        assert source.normalization.mean == pytest.approx(pixels.mean(dim=(0, 2, 3)).tolist())
        assert source.normalization.std == pytest.approx(pixels.std(dim=(0, 2, 3), correction=0).tolist())
        assert ImageFolder(root, mean=[0.1] * 3, std=[0.2] * 3).normalization.mean == (0.1,) * 3
        monkeypatch.setattr(image_sources, "SAMPLE", 2)
        write_image(root / "train" / "cat" / "1.png", 60, SIZE)
        assert ImageFolder(root).normalization.mean[0] == pytest.approx(45 / 255)
        source = ImageFolder(root)
        source.load("train")
        assert source.normalization.mean[0] == pytest.approx(45 / 255)

    def test_metadata_becomes_columns(self, root: Path) -> None:
        names = ["train/dog/10", "train/dog/1", "train/cat/2", "train/cat/1", "test/dog/1"]
        with (root / "metadata.csv").open("w", newline="") as stream:
            csv.writer(stream).writerows([["file", "site"], *([f"{n}.png", f"s{i}"] for i, n in enumerate(names))])
        assert load(ImageFolder(root)).columns["site"].tolist() == ["s3", "s2", "s1", "s0"]
        assert load(ImageFolder(root), "test").columns["site"].tolist() == ["s4"]
        write_image(root / "train" / "cat" / "3.png", 1, SIZE)
        with pytest.raises(DataError, match=r"data\.source\.root: .* no row for train/cat/3\.png"):
            load(ImageFolder(root))


@pytest.mark.parametrize("kind", ["folder", "images", "table"])
def test_a_class_may_be_missing_if_all_are_listed(tmp_path: Path, kind: str) -> None:
    """Classes keep the order of the list; both examples are cows."""
    rows = [f"some/train/cow/{number}.png" for number in (0, 1)]
    images(tmp_path, *rows, size=SIZE)
    (tmp_path / "images.csv").write_text("file,label,client\n" + "".join(f"{row},cow,a\n" for row in rows))
    (tmp_path / "table.csv").write_text("x,target\n1,cow\n2,cow\n")
    make = {
        "folder": partial(ImageFolder, tmp_path / "some"),
        "images": partial(ImageTable, tmp_path / "images.csv"),
        "table": partial(ArrayFiles, {"train": str(tmp_path / "table.csv")}),
    }[kind]
    source = make(classes=["emu", "ant", "cow"])
    assert (source.class_names, source.num_classes) == (("emu", "ant", "cow"), 3)
    assert load(source).targets.tolist() == [2, 2]
    assert load(make()).targets.tolist() == [0, 0]
    large = make(classes=["cow", *map(str, range(200))])  # listed classes may be many, and the last ones missing
    assert (large.num_classes, load(large).targets.tolist()) == (201, [0, 0])
    with pytest.raises(DataError, match=r"^data\.source\.classes: .* has 'cow', which is not listed"):
        load(make(classes=["emu", "ant"]))
    with pytest.raises(ConfigError, match=r"^data\.source\.classes: 'cow' is listed twice"):
        load(make(classes=["cow", "cow"]))


class TestFaults:
    def test_missing_folders_and_classes(self, root: Path) -> None:
        with pytest.raises(DataError, match="nowhere/train is not a folder"):
            ImageFolder(root / "nowhere").load("train")
        write_image(root / "test" / "cow" / "1.png", 1, SIZE)
        with pytest.raises(DataError, match="cow is not a class of train"):
            ImageFolder(root).load("test")
        (root / "train" / "emu").mkdir()
        with pytest.raises(DataError, match="emu holds no images"):
            ImageFolder(root).load("train")

    @pytest.mark.parametrize("make", [os.mkfifo, os.mkdir, lambda path: path.symlink_to("gone")])
    def test_entries_that_are_no_files_are_refused(self, root: Path, make: Any) -> None:
        make(root / "train" / "cat" / "3.png")
        with pytest.raises(DataError, match=r"root: .*cat/3\.png is not a file"):
            ImageFolder(root).load("train")

    def test_the_first_different_size_is_named(self, root: Path) -> None:
        for name in ("dog/1", "dog/10"):
            write_image(root / "train" / f"{name}.png", 1, (5, 5))
        with pytest.raises(DataError, match=r"dog/1\.png is \(5, 5\), the first image \(4, 6\).*image_size"):
            ImageFolder(root).load("train")
        assert load(ImageFolder(root, image_size=4)).inputs.shape == (4, 3, 4, 4)
        with pytest.raises(DataError, match=r"dog/1\.png"):
            ImageFolder(root).dataset("train")[2]  # type: ignore[index]


class TestCache:
    @pytest.fixture
    def decoded(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """The splits that are decoded wholly."""
        log: list[str] = []
        decode = image_sources.LazyImages.decode
        monkeypatch.setattr(image_sources.LazyImages, "decode", lambda split: log.append(split.label) or decode(split))
        return log

    def test_the_cache_is_used(self, root: Path, decoded: list[str]) -> None:
        whole = load(ImageFolder(root, cache=False))
        assert not (root / ".lit_fednas_cache").exists()
        decoded.clear()
        ImageFolder(root).prepare()
        assert torch.equal(load(ImageFolder(root)).inputs, whole.inputs)
        assert decoded == ["train", "test"]

    def test_a_changed_folder_or_size_is_decoded_again(self, root: Path, decoded: list[str]) -> None:
        path = root / "train" / "dog" / "1.png"
        ImageFolder(root).load("train")
        write_image(root / "train" / "dog" / "2.png", 99, SIZE)  # a new file
        assert len(load(ImageFolder(root))) == 5
        stamp = path.stat()
        write_image(path, 77, SIZE)  # another content, maybe with the same size
        os.utime(path, ns=(stamp.st_atime_ns, stamp.st_mtime_ns + 1))
        assert 77 in load(ImageFolder(root)).inputs[:, 0, 0, 0]
        assert decoded == ["train"] * 3
        assert len(list((root / ".lit_fednas_cache").iterdir())) == 1  # outdated files are removed
        for size in (4, 2, 4, 2):
            assert load(ImageFolder(root, image_size=size)).inputs.shape == (5, 3, size, size)
        assert decoded == ["train"] * 5

    def test_a_damaged_file_is_decoded_again(self, root: Path, decoded: list[str]) -> None:
        whole = load(ImageFolder(root)).inputs
        (path,) = (root / ".lit_fednas_cache").iterdir()
        buffer = io.BytesIO()
        np.save(buffer, np.zeros((4, 3, 2, 2), dtype=np.uint8))  # another shape
        content = path.read_bytes()
        flipped = content[:300] + bytes([content[300] ^ 1]) + content[301:]  # a pixel
        for damaged in (b"", b"\x93NUMPY rubbish", content[:-5], flipped, buffer.getvalue()):
            decoded.clear()
            path.write_bytes(damaged)
            for _ in range(2):
                assert torch.equal(load(ImageFolder(root)).inputs, whole)
            assert decoded == ["train"]

    def test_a_link_instead_of_the_cache_is_not_followed(
        self, root: Path, tmp_path: Path, decoded: list[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Another user may have planted it: nothing is read, written or removed there."""
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "users"))
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "train-old.npz").touch()
        (root / ".lit_fednas_cache").symlink_to(elsewhere)
        assert len(load(ImageFolder(root))) == 4
        assert [path.name for path in elsewhere.iterdir()] == ["train-old.npz"]
        (cache_file,) = (tmp_path / "users").rglob("*.npz")
        (root / ".lit_fednas_cache").unlink()
        (root / ".lit_fednas_cache").mkdir()
        (root / ".lit_fednas_cache" / cache_file.name).symlink_to(cache_file.rename(elsewhere / "train-old.npz"))
        decoded.clear()
        assert len(load(ImageFolder(root))) == 4
        assert decoded == ["train"]


@pytest.mark.parametrize(("copies", "error"), [(10**9, "copies: 1000000000 must be .* at most 1e"), (10**6, "memory")])
def test_too_many_distorted_digits_are_refused_at_once(copies: int, error: str) -> None:
    with pytest.raises((ConfigError, RuntimeError), match=error):
        DistortedDigits(copies, size=100).load("train")


def test_splits_of_the_digits_cover_the_whole_once() -> None:
    train, test = Digits().load("train"), Digits().load("test")
    everything = torch.cat([train.inputs, test.inputs]).flatten(1).float() * 16 / 255
    expected = load_digits().data
    assert sorted(map(tuple, everything.round().int().tolist())) == sorted(map(tuple, expected.astype(int)))
    share = np.bincount(test.targets) / np.bincount(load_digits().target)
    assert share == pytest.approx([0.2] * 10, abs=0.005)


class TestDistortedDigits:
    def test_without_distortion_they_are_the_enlarged_digits(self) -> None:
        for split in ("train", "test"):
            digits, enlarged = Digits().load(split), DistortedDigits(2, strength=0, noise=0).load(split)
            expected = functional.interpolate(digits.inputs / 255, size=(12, 12), mode="bilinear")
            inner = (..., slice(1, -1), slice(1, -1))  # the distortion pads with black
            assert torch.allclose(enlarged.inputs[inner] / 255, expected.repeat(2, 1, 1, 1)[inner], atol=0.51 / 255)
            assert torch.equal(enlarged.targets, digits.targets.repeat(2))

    def test_three_channels_repeat_the_grey_one_after_normalisation(self) -> None:
        sources = DistortedDigits(1), DistortedDigits(1, channels=3)
        grey, colour = (source.normalization(source.load("test").inputs[:5]) for source in sources)
        assert torch.equal(colour, grey.repeat(1, 3, 1, 1))

    def test_a_validation_split_shares_no_digit_with_training(self):
        source = DistortedDigits(2, strength=0, noise=0, val=0.25)
        train, val = ({image.numpy().tobytes() for image in source.load(split).inputs} for split in ("train", "val"))
        assert not train & val
        whole = {image.numpy().tobytes() for image in DistortedDigits(1, strength=0, noise=0).load("train").inputs}
        assert train | val == whole
        assert len(source.load("val").inputs) == 2 * round(0.25 * 1438)


class TestDigitPairs:
    @pytest.mark.parametrize(("split", "size"), [("train", 8), ("val", 8), ("test", 8), ("test", 5)])
    def test_each_pixel_is_the_larger_one_of_two_digits(self, split: Any, size: int) -> None:
        """Both digits are of the same split."""
        digits, pairs = (load(kind(1, size=size, val=0.25), split) for kind in (DistortedDigits, DigitPairs))
        partners = torch.randperm(len(digits), generator=generator(0, f"digit-pairs-{split}")).tolist()
        assert len(pairs) == len(digits) == {"train": 1078, "val": 360, "test": 359}[split]
        for number in (0, 1, 100, len(pairs) - 1):
            image = [[0] * {8: 12, 5: 7}[size] for _ in range(size)]
            for first, example in ((0, number), ({8: 4, 5: 2}[size], partners[number])):
                for row, column in product(range(size), repeat=2):
                    pixel = int(digits.inputs[example, 0, row, column])
                    image[row][first + column] = max(image[row][first + column], pixel)
            assert pairs.inputs[number, 0].tolist() == image
            class_name = f"{digits.targets[number]}{digits.targets[partners[number]]}"
            assert DigitPairs().class_names[pairs.targets[number]] == class_name
            assert pairs.targets[number] == int(class_name)

    def test_they_are_the_same_in_every_run(self) -> None:
        """The process's seed does not change them."""
        torch.manual_seed(5)
        pairs = load(DigitPairs(2, val=0.25), "val")
        assert pairs.targets[:8].tolist() == [54, 78, 30, 93, 51, 54, 25, 4]
        row = [90, 184, 247, 255, 138, 150, 196, 105, 24, 0, 0, 16]
        assert pairs.inputs[0, 0, 3].tolist() == pytest.approx(row, abs=1)  # pixels are rounded floats
        assert DigitPairs(1).load("val") is None


def few(targets: Sequence[int] = (0, 2), width: int = 3) -> Examples:
    return Examples(torch.zeros(len(targets), width), torch.tensor(targets, dtype=torch.int64))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"test": few([3])}, r"data\.source: test has targets 3\.\.3"),
        ({"class_names": ["a"]}, "class_names: 1 names for 3"),
        ({"class_names": ["a", "b", "a"]}, "data.source: two classes are 'a'"),
        ({"class_names": ["a", "b", " a"]}, "two classes are 'a', apart from white space; rename one"),
        (
            {"train": Examples(torch.tensor([[0.0], [torch.nan], [0.0], [0.0]]), torch.arange(4))},
            "data.source: example 1 of train holds NaN or infinity",
        ),
        ({"train": few([0, 20231105])}, "task: the targets of train would be 20,231,106 classes of 2 examples"),
    ],
)
def test_arrays_that_do_not_fit_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises((ConfigError, DataError), match=message):
        FederatedDataModule(ArraySource(**{"train": few(), **settings}), IID(), num_clients=2).setup("fit")


def test_missing_torchvision_files_name_folder_and_remedy(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere .*set download: true"):
        MNIST(tmp_path / "nowhere").prepare()


def test_torchvision_arrays_become_channels_first() -> None:
    examples = load(SmallCIFAR10())
    assert examples.inputs.shape == (6, 3, 32, 32)
    assert examples.targets.tolist() == [0, 1, 2, 3, 4, 9]
    assert examples.inputs[1, :, 5, 7].tolist() == SmallCIFAR10.data[1, 5, 7].tolist()
