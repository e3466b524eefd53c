"""What every data source promises."""

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from PIL import Image
from scipy.io import wavfile

import lit_fednas.data
from lit_fednas.data import (
    CIFAR10,
    CIFAR100,
    MNIST,
    ArrayFiles,
    ArraySource,
    CelebA,
    DataSource,
    Digits,
    DistortedDigits,
    FashionMNIST,
    ImageFolder,
    ImageTable,
    LazyImageFolder,
    Leaf,
    LeafImages,
    LeafText,
    ShakespeareRoles,
    SpeechFolder,
    TextFiles,
)
from lit_fednas.testing import DataSourceContract
from lit_fednas.testing.networks import tiny_examples
from tests.support import concrete_classes


def images(folder: Path, *names: str) -> Path:
    for value, name in enumerate(names):
        path = folder / f"{name}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8, 3), 9 * value, dtype=np.uint8)).save(path)
    return folder


def leaf(folder: Path, **users: tuple[list[Any], list[Any]]) -> Path:
    data = {"users": [*users], "num_samples": [len(y) for _, y in users.values()]}
    data["user_data"] = {name: {"x": x, "y": y} for name, (x, y) in users.items()}
    for split in ("train", "test"):
        (folder / split).mkdir(exist_ok=True)
        (folder / split / "all.json").write_text(json.dumps(data))
    return folder


def leaf_images(folder: Path) -> LeafImages:
    images(folder / "raw", "a", "b", "c")
    return LeafImages(leaf(folder, ann=(["a.png", "b.png"], [0, 1]), bob=(["c.png"], [1])), folder / "raw")


def table(folder: Path) -> ImageTable:
    images(folder, "a", "b", "c", "d")
    rows = "".join(f"{name}.png,{name in 'ab'},{number % 2}\n" for number, name in enumerate("abcd"))
    (folder / "table.csv").write_text(f"file,label,client\n{rows}")
    return ImageTable(folder / "table.csv")


def celeba(folder: Path) -> CelebA:
    root = folder / "celeba"
    images(root / "img_align_celeba", *(f"{number:06}" for number in range(1, 7)))
    for image in (root / "img_align_celeba").glob("*.png"):
        image.rename(image.with_suffix(".jpg"))
    names = [f"{number:06}.jpg" for number in range(1, 7)]
    (root / "list_eval_partition.txt").write_text("".join(f"{n} {i // 4}\n" for i, n in enumerate(names)))
    (root / "identity_CelebA.txt").write_text("".join(f"{n} {i % 2}\n" for i, n in enumerate(names)))
    rows = "".join(f"{n} {1 - 2 * (i % 2)}\n" for i, n in enumerate(names))
    (root / "list_attr_celeba.txt").write_text(f"6\nSmiling\n{rows}")
    return CelebA(folder, ["Smiling"], least=1, image_size=8)


def speech(folder: Path) -> SpeechFolder:
    for word, hertz in (("yes", 300), ("no", 500)):
        for speaker in ("004ae714", "00f0204f", "00000007"):
            (folder / word).mkdir(exist_ok=True)
            wave = (20_000 * np.sin(2 * np.pi * hertz * np.arange(16_000) / 16_000)).astype(np.int16)
            wavfile.write(folder / word / f"{speaker}_nohash_0.wav", 16_000, wave)
    return SpeechFolder(folder)


def text(folder: Path) -> TextFiles:
    (folder / "a.txt").write_text("to be or not to be, that is the question")
    return TextFiles(str(folder), length=5)


def roles(folder: Path) -> ShakespeareRoles:
    for split in ("train", "test"):
        with h5py.File(folder / f"shakespeare_{split}.h5", "w") as file:
            for role in ("HAMLET_GHOST", "HAMLET_HAMLET"):
                file[f"examples/{role}/snippets"] = np.array([b"Mark me.", b"I will."], dtype=object)
    return ShakespeareRoles(folder, length=6)


def arrays(folder: Path) -> ArrayFiles:
    np.savez(folder / "train.npz", inputs=np.arange(24, dtype=np.float32).reshape(8, 3), targets=np.arange(8) % 2)
    return ArrayFiles({"train": str(folder / "train.npz")})


class SmallCIFAR10(CIFAR10):
    """Without the files that must be downloaded."""

    def _open(self, train: bool, download: bool) -> Any:
        class Stub:
            data = np.arange(6 * 32 * 32 * 3).astype(np.uint8).reshape(6, 32, 32, 3)
            targets = [0, 1, 2, 3, 4, 9]  # noqa: RUF012

        return Stub()


#: Folders of images in classes.
CLASSES = ("train/cat/1", "train/cat/2", "train/dog/1", "train/dog/2", "test/dog/1", "test/cat/1")
NUMBERS: list[Any] = [[0.1, 0.2], [0.3, 0.4]]


class TestSources(DataSourceContract):
    instances = {  # noqa: RUF012
        "arrays": lambda folder: ArraySource(tiny_examples(12), test=tiny_examples(4, 1)),
        "array-files": arrays,
        "celeba": celeba,
        "cifar10": lambda folder: SmallCIFAR10(),
        "digits": lambda folder: Digits(),
        "digits-distorted": lambda folder: DistortedDigits(),
        "image-folder": lambda folder: ImageFolder(images(folder, *CLASSES)),
        "image-folder-lazy": lambda folder: LazyImageFolder(images(folder, *CLASSES)),
        "image-table": table,
        "leaf": lambda folder: Leaf(leaf(folder, ann=(NUMBERS, [0, 1]), bob=(NUMBERS, [1, 0])), input_shape=(2,)),
        "leaf-images": leaf_images,
        "leaf-text": lambda folder: LeafText(
            leaf(folder, ann=(["abcde", "bcdea"], ["f", "g"]), bob=(["cdeab"], ["h"])), length=5
        ),
        "shakespeare": roles,
        "speech": speech,
        "text": text,
    }


def test_every_source_has_an_instance(tmp_path: Path) -> None:
    covered = set()
    for name, make in TestSources.instances.items():
        (tmp_path / name).mkdir()
        covered |= set(type(make(tmp_path / name)).__mro__)
    downloaded = {CIFAR100, FashionMNIST, MNIST}  # of the same few lines as CIFAR10
    missing = concrete_classes(DataSource, lit_fednas.data) - covered - downloaded
    assert not missing, f"add instances of {missing}"
