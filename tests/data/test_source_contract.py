"""The contract of data sources, for every source."""

from pathlib import Path
from typing import Any

import numpy as np

import lit_fednas.data
from lit_fednas.data import (
    CIFAR100,
    MNIST,
    ArrayFiles,
    ArraySource,
    CelebA,
    DataSource,
    DigitPairs,
    Digits,
    DistortedDigits,
    FashionMNIST,
    ImageFolder,
    ImageTable,
    Leaf,
    ShakespeareRoles,
    SpeechFolder,
    TextFiles,
)
from lit_fednas.testing import DataSourceContract
from lit_fednas.testing.networks import tiny_examples
from tests.data.files import SmallCIFAR10, celeba, images, leaf, recordings, roles
from tests.support import concrete_classes


def table(folder: Path) -> ImageTable:
    images(folder, "a.png", "b.png", "c.png", "d.png")
    rows = "".join(f"{name}.png,{name in 'ab'},{number % 2}\n" for number, name in enumerate("abcd"))
    (folder / "table.csv").write_text(f"file,label,client\n{rows}")
    return ImageTable(folder / "table.csv")


def text(folder: Path) -> TextFiles:
    (folder / "a.txt").write_text("to be or not to be, that is the question")
    return TextFiles(str(folder), length=5)


def arrays(folder: Path) -> ArrayFiles:
    np.savez(folder / "train.npz", inputs=np.arange(24, dtype=np.float32).reshape(8, 3), targets=np.arange(8) % 2)
    return ArrayFiles({"train": str(folder / "train.npz")})


#: Images in folders of classes.
CLASSES = [f"{name}.png" for name in ("train/cat/1", "train/cat/2", "train/dog/1", "test/dog/1", "test/cat/1")]
NUMBERS: list[Any] = [[0.1, 0.2], [0.3, 0.4]]


class TestSources(DataSourceContract):
    instances = {  # noqa: RUF012
        "arrays": lambda folder: ArraySource(tiny_examples(12), test=tiny_examples(4, 1)),
        "array-files": arrays,
        "celeba": lambda folder: CelebA(celeba(folder), least=1, image_size=8),
        "cifar10": lambda folder: SmallCIFAR10(),
        "digit-pairs": lambda folder: DigitPairs(channels=3),
        "digits": lambda folder: Digits(),
        "digits-distorted": lambda folder: DistortedDigits(channels=3),
        "image-folder": lambda folder: ImageFolder(images(folder, *CLASSES)),
        "image-table": table,
        "leaf": lambda folder: Leaf(leaf(folder, ann=(NUMBERS, [0, 1]), bob=(NUMBERS, [1, 0])), input_shape=(2,)),
        "shakespeare": lambda folder: ShakespeareRoles(roles(folder), length=6),
        "speech": lambda folder: SpeechFolder(recordings(folder)),
        "text": text,
    }


def test_every_source_has_an_instance(tmp_path: Path) -> None:
    covered = set()
    for name, make in TestSources.instances.items():
        (tmp_path / name).mkdir()
        covered |= set(type(make(tmp_path / name)).__mro__)
    downloaded = {CIFAR100, FashionMNIST, MNIST}  # they share the code of CIFAR10
    missing = concrete_classes(DataSource, lit_fednas.data) - covered - downloaded
    assert not missing, f"add instances of {missing}"
