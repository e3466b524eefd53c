"""CelebA (Liu et al., 2015) with people as clients, as FedNAS uses it (section 5.1)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import compress, product
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from lit_fednas.data.sources.base import Deal, Split, of_large_clients
from lit_fednas.data.sources.images import ImageSource, LazyImages
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
        ConfigError: The attributes make no classes.

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
        self.attributes = list(attributes)
        self.deal: Deal = deal
        self.least = least

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The attributes that a class has, joined by ``+``; ``none`` for class 0."""
        all_bits = product((0, 1), repeat=len(self.attributes))
        return tuple("+".join(compress(self.attributes, bits)) or "none" for bits in all_bits)

    @override
    def files(self, split: Split) -> LazyImages | None:
        faces = self._faces
        if self.deal == "train":
            faces = faces[self._table("list_eval_partition.txt", faces.index)[0] == PARTS[split]]
        elif split != "train":
            return None
        if split == "train":
            faces = faces[of_large_clients(faces["person"].to_numpy(), self.least)]
        if not len(faces):
            return None
        names = [f"img_align_celeba/{image}" for image in faces.index]
        people = {"client": faces["person"].to_numpy()}
        return LazyImages(self, names, faces["label"].to_numpy(copy=True), people, f"celeba-{split}")

    @cached_property
    def _faces(self) -> Any:
        """Who is in each image and its class, by its name and in the order of the names."""
        faces = self._table("identity_CelebA.txt").sort_index().set_axis(["person"], axis=1)
        attributes = self._table("list_attr_celeba.txt", faces.index)
        if unknown := [attribute for attribute in self.attributes if attribute not in attributes]:
            path, known = self.root / "list_attr_celeba.txt", ", ".join(map(str, attributes.columns))
            raise DataError(f"data.source.attributes: {unknown[0]!r} is not in {path}; give one of: {known}")
        bits = attributes[self.attributes].to_numpy() > 0  # they are 1 or -1 each
        return faces.assign(label=bits @ (1 << np.arange(len(self.attributes))[::-1]))

    def _table(self, name: str, images: Sequence[str] | None = None) -> Any:
        """Returns the numbers of each image, or of ``images`` in this order."""
        import pandas as pd  # takes a while to import

        path = self.root / name
        if not path.is_file():
            raise DataError(f"data.source.root: {path} is missing; put CelebA's {name} into {self.root}")
        lines = path.read_text(encoding="utf-8").strip().splitlines()
        skipped = 2 if name == "list_attr_celeba.txt" else 0  # their number, and the attributes
        columns = (*lines, "", "")[1].split() if skipped else [0]
        words = [line.split() for line in lines[skipped:]]
        wrong_row = [""] * (len(columns) + 1)
        rows = [row if len(row) == len(wrong_row) else wrong_row for row in words]
        table = pd.DataFrame(rows, columns=["image", *columns]).set_index("image")
        table = table.apply(pd.to_numeric, errors="coerce")
        if (wrong := table.isna().any(axis=1).to_numpy()).any():
            line = skipped + 1 + int(wrong.argmax())
            raise DataError(f"data.source.root: {path}, line {line}, is not a name and {len(columns)} numbers; fix it")
        if images is not None and (missing := [image for image in images if image not in table.index]):
            raise DataError(f"data.source.root: {path} has no line for {missing[0]}; add it")
        return (table if images is None else table.loc[images]).astype(np.int64)
