"""CelebA (Liu et al., 2015) with people as clients, as FedNAS uses it (section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np

from lit_fednas.data.sources.base import Split
from lit_fednas.data.sources.dealing import Deal, check_deal, enough
from lit_fednas.data.sources.image_files import ImageFiles, file_stamps
from lit_fednas.data.sources.image_source import ImageSource
from lit_fednas.data.transforms import Augmentation
from lit_fednas.errors import ConfigError, DataError

PARTS: dict[Split, int] = {"train": 0, "val": 1, "test": 2}
"""The numbers in ``list_eval_partition.txt``."""


class CelebA(ImageSource):
    """Faces, in classes made of a few attributes, with a column ``client``: whose face it is.

    The files lie as torchvision keeps them: ``<root>/celeba`` holds the folder ``img_align_celeba`` and the
    files ``identity_CelebA.txt``, ``list_attr_celeba.txt`` and ``list_eval_partition.txt``. Nothing is
    downloaded.

    With n attributes there are 2^n classes. The first attribute is the highest bit: of (Smiling, Male,
    Mouth_Slightly_Open), class 6 = 110 in binary is a smiling man with closed mouth, ``Smiling+Male``; class 0
    is ``none``.

    FedNAS deals all images, which makes 9,343 clients of the people with at least 5 images, LEAF's bound; each
    client then splits its own 6:2:2, which is ``client_val: 0.2`` and ``client_test: 0.2`` in the data module.

    With the data module's ``in_memory`` the images are decoded once, and kept on disk with ``cache``; without,
    they are decoded whenever they are read. Mean and std, where not given, come from 1024 training images.

    Args:
        root: the folder that holds ``celeba``.
        attributes: what the classes are made of, highest bit first.
        deal: ``all`` deals all images to the clients; ``train`` deals those of the training part of
            ``list_eval_partition.txt`` and leaves its validation and test parts to the server.
        least: people with fewer images to be dealt are left out.
        image_size: the shorter side is scaled to this and the centre square cut out.
        cache: keep the decoded images on disk, next to the files or in the user's cache folder.
        augmentation: applied to training batches, in this order.
        mean: per channel on the scale [0, 1].
        std: given together with ``mean``.

    Raises:
        ConfigError: a setting cannot work.

    Example:
        >>> CelebA("data").num_classes, CelebA("data").input_shape, CelebA("data").class_names[6]
        (8, (3, 128, 128), 'Smiling+Male')
    """

    def __init__(
        self,
        root: str | Path = "data",
        attributes: Sequence[str] = ("Smiling", "Male", "Mouth_Slightly_Open"),
        deal: Deal = "all",
        least: int = 5,
        image_size: int = 128,
        cache: bool = True,
        augmentation: Sequence[Augmentation] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        folder = Path(root).expanduser() / "celeba"
        super().__init__(folder, image_size, 3, cache, augmentation, mean, std)
        if not attributes or len(set(attributes)) < len(attributes):
            raise ConfigError(f"attributes: {list(attributes)} make no classes; name one or more, each once")
        check_deal(deal, least)
        self.attributes = tuple(attributes)
        self.deal: Deal = deal
        self.least = least

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The attributes that a class has, joined by ``+``; ``none`` for class 0."""
        count = len(self.attributes)
        having = (
            [name for bit, name in enumerate(self.attributes) if label >> (count - 1 - bit) & 1]
            for label in range(2**count)
        )
        return tuple("+".join(names) or "none" for names in having)

    def files(self, split: Split) -> ImageFiles | None:
        """Returns the files of a split, in the order of their names.

        Raises:
            DataError: a file is missing or not as described above.
        """
        if self.deal == "all":
            rows = np.arange(len(self._names)) if split == "train" else np.empty(0, dtype=np.int64)
        else:
            rows = np.flatnonzero(self._parts == PARTS[split])
        if split == "train":
            rows = rows[enough(self._identities[rows], self.least)]
        if not len(rows):
            return None
        names = tuple(f"img_align_celeba/{self._names[row]}" for row in rows)
        return ImageFiles(
            self.root,
            names,
            self._labels[rows],
            file_stamps(self._folder("img_align_celeba"), [name.split("/", 1)[1] for name in names]),
            {"client": self._identities[rows]},
            f"celeba-{split}",
        )

    @cached_property
    def _names(self) -> tuple[str, ...]:
        return tuple(sorted(self._identity_lines))

    @cached_property
    def _identities(self) -> np.ndarray:
        return np.array([self._identity_lines[name] for name in self._names], dtype=np.int64)

    @cached_property
    def _identity_lines(self) -> dict[str, int]:
        return self._numbers("identity_CelebA.txt")

    @cached_property
    def _parts(self) -> np.ndarray:
        parts = self._numbers("list_eval_partition.txt")
        self._check_names(parts, "list_eval_partition.txt")
        return np.array([parts[name] for name in self._names], dtype=np.int64)

    @cached_property
    def _labels(self) -> np.ndarray:
        """Reads the attributes, 1 or -1 each, and makes the classes of them."""
        name = "list_attr_celeba.txt"
        lines = self._lines(name)
        header = lines[1].split() if len(lines) > 1 else []
        unknown = next((attribute for attribute in self.attributes if attribute not in header), None)
        if unknown is not None:
            known = ", ".join(header) or "none"
            raise DataError(f"attributes: {unknown!r} is not in {self.root / name}; give one of: {known}")
        places = [header.index(attribute) for attribute in self.attributes]
        labels: dict[str, int] = {}
        for number, line in enumerate(lines[2:], 3):
            image, *values = line.split()
            if len(values) != len(header) or not {"1", "-1"}.issuperset(values):
                raise DataError(
                    f"root: {self.root / name}, line {number}, is not 1 or -1 for each attribute; mend it"
                )
            labels[image] = int("".join("1" if values[place] == "1" else "0" for place in places), 2)
        self._check_names(labels, name)
        return np.array([labels[image] for image in self._names], dtype=np.int64)

    def _numbers(self, name: str) -> dict[str, int]:
        """Reads lines of an image's name and a number."""
        numbers: dict[str, int] = {}
        for number, line in enumerate(self._lines(name), 1):
            words = line.split()
            if len(words) != 2 or not words[1].isdecimal():
                raise DataError(f"root: {self.root / name}, line {number}, is no name and number; mend it")
            numbers[words[0]] = int(words[1])
        return numbers

    def _lines(self, name: str) -> list[str]:
        path = self.root / name
        if not path.is_file():
            raise DataError(f"root: {path} is missing; put CelebA's {name} into {self.root}")
        return path.read_text(encoding="utf-8").strip().splitlines()

    def _folder(self, name: str) -> Path:
        folder = self.root / name
        if not folder.is_dir():
            raise DataError(f"root: {folder} is missing; put CelebA's aligned images into it")
        return folder

    def _check_names(self, found: dict[str, int], file: str) -> None:
        missing = next((name for name in self._names if name not in found), None)
        if missing is not None:
            raise DataError(f"root: {self.root / file} has no line for {missing}; add it")
