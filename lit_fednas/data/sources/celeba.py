"""CelebA (Liu et al., 2015) with people as clients, as FedNAS uses it (section 5.1)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property
from itertools import compress, product
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from lit_fednas.data.sources.base import Deal, Split, of_large_clients
from lit_fednas.data.sources.image_files import ImageFiles
from lit_fednas.data.sources.images import ImageSource
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import PositiveInt, checked

#: The numbers in ``list_eval_partition.txt``.
PARTS: dict[Split, int] = {"train": 0, "val": 1, "test": 2}


@checked("data.source")
class CelebA(ImageSource):
    """Faces, in classes made of a few attributes, with a column ``client``: the person.

    The files are laid out as by torchvision: ``<root>/celeba`` holds the folder ``img_align_celeba`` and the files
    ``identity_CelebA.txt``, ``list_attr_celeba.txt`` and ``list_eval_partition.txt``. Nothing is downloaded.

    n attributes make 2^n classes. The first attribute is the highest bit: of (Smiling, Male, Mouth_Slightly_Open),
    class 6 = 110 in binary is a smiling man with closed mouth, ``Smiling+Male``; class 0 is ``none``.

    FedNAS deals all images, which makes 9,343 clients of the people with at least 5 images, LEAF's bound; each
    client then splits its own 6:2:2, which is ``client_val: 0.2`` and ``client_test: 0.2`` in the data module.

    Args:
        root: The folder that holds ``celeba``.
        attributes: What the classes are made of, highest bit first.
        deal: ``all`` deals all images to the clients; ``train`` deals those of the training part of
            ``list_eval_partition.txt`` and leaves its validation and test parts to the server.
        least: People with fewer images to be dealt are left out.
        image_size: The shorter side is scaled to this and the centre square cut out.
        images: Further settings of :class:`ImageSource`.

    Raises:
        ConfigError: A setting is out of range, or the attributes make no classes.

    Example:
        >>> CelebA("data").num_classes, CelebA("data").input_shape, CelebA("data").class_names[6]
        (8, (3, 128, 128), 'Smiling+Male')
    """

    def __init__(
        self,
        root: str | Path = "data",
        attributes: Sequence[str] = ("Smiling", "Male", "Mouth_Slightly_Open"),
        deal: Deal = "all",
        least: PositiveInt = 5,
        image_size: int = 128,
        **images: Any,
    ) -> None:
        super().__init__(Path(root) / "celeba", image_size, **images)
        if not attributes or len(set(attributes)) < len(attributes):
            raise ConfigError(
                f"data.source.attributes: {list(attributes)} make no classes; name one or more, each once"
            )
        self.attributes = tuple(attributes)
        self.deal: Deal = deal
        self.least = least

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The attributes that a class has, joined by ``+``; ``none`` for class 0."""
        all_bits = product((0, 1), repeat=len(self.attributes))
        return tuple("+".join(compress(self.attributes, bits)) or "none" for bits in all_bits)

    @override
    def files(self, split: Split) -> ImageFiles | None:
        people = np.array(list(self._people.values()))
        if self.deal == "all":
            rows = np.arange(len(people) if split == "train" else 0)
        else:
            rows = np.flatnonzero(self._parts == PARTS[split])
        if split == "train":
            rows = rows[of_large_clients(people[rows], self.least)]
        if not len(rows):
            return None
        folder = self.root / "img_align_celeba"
        if not folder.is_dir():
            raise DataError(f"data.source.root: {folder} is missing; put CelebA's aligned images into it")
        images = np.array(list(self._people))[rows]
        names = tuple(f"img_align_celeba/{image}" for image in images.tolist())
        return ImageFiles(self.root, names, self._labels[rows], {"client": people[rows]}, f"celeba-{split}")

    @cached_property
    def _people(self) -> dict[str, int]:
        """Who is in each image, by its name, in the order of the names."""
        return {image: person for image, (person,) in sorted(self._table("identity_CelebA.txt").items())}

    @cached_property
    def _parts(self) -> np.ndarray:
        """The part of each image, int64 [N]."""
        return self._in_order("list_eval_partition.txt", self._table("list_eval_partition.txt"))[:, 0]

    @cached_property
    def _labels(self) -> np.ndarray:
        """The class of each image, int64 [N]: the bits of its attributes, which are 1 or -1 each."""
        name = "list_attr_celeba.txt"
        header = (*self._lines(name), "", "")[1].split()
        unknown = next((attribute for attribute in self.attributes if attribute not in header), None)
        if unknown is not None:
            known = ", ".join(header) or "none"
            raise DataError(f"data.source.attributes: {unknown!r} is not in {self.root / name}; give one of: {known}")
        values = self._in_order(name, self._table(name, "-?1", len(header), skip=2))
        bits = values[:, [header.index(attribute) for attribute in self.attributes]] > 0
        return bits @ (1 << np.arange(len(self.attributes))[::-1])

    def _table(self, name: str, value: str = r"\d+", columns: int = 1, skip: int = 0) -> dict[str, list[int]]:
        """Reads lines of an image's name and ``columns`` numbers that match ``value``, after ``skip`` others."""
        table: dict[str, list[int]] = {}
        pattern = re.compile(rf"\S+(\s+{value}){{{columns}}}\s*")
        for number, line in enumerate(self._lines(name)[skip:], skip + 1):
            if not pattern.fullmatch(line):
                raise DataError(
                    f"data.source.root: {self.root / name}, line {number}, is not a name and {columns} numbers; fix it"
                )
            image, *words = line.split()
            table[image] = [int(word) for word in words]
        return table

    def _lines(self, name: str) -> list[str]:
        path = self.root / name
        if not path.is_file():
            raise DataError(f"data.source.root: {path} is missing; put CelebA's {name} into {self.root}")
        return path.read_text(encoding="utf-8").strip().splitlines()

    def _in_order(self, name: str, table: dict[str, list[int]]) -> np.ndarray:
        """Returns a table's numbers in the order of the images' names, int64 [N, columns]."""
        missing = next((image for image in self._people if image not in table), None)
        if missing is not None:
            raise DataError(f"data.source.root: {self.root / name} has no line for {missing}; add it")
        return np.array([table[image] for image in self._people], dtype=np.int64)
