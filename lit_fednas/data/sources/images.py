"""Sources of image files: folders ``train/<class>/<image>``, and tables of images."""

from __future__ import annotations

import json
import os
import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from tqdm.contrib.concurrent import thread_map
from typing_extensions import override

from lit_fednas.data.examples import ExampleDataset, Examples
from lit_fednas.data.sources.base import (
    SPLITS,
    DataSource,
    Split,
    cached,
    file_stamps,
    files_in,
    kind_of,
    named_classes,
    require_separate,
)
from lit_fednas.data.sources.decoding import is_image, read_image, steps_of
from lit_fednas.data.sources.tables import filled, read_table, require_columns
from lit_fednas.data.tasks import require_few
from lit_fednas.data.transforms import Augmentation, Normalize
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import PositiveInt, checked

#: Raise this when decoding changes, so that older cache files are not read.
CACHE_VERSION = 2
#: Number of training images from which mean and std are computed.
SAMPLE = 1024
#: Labels that are numbers; longer digit strings are names.
_NUMBER = "[0-9]{1,9}"
#: Control characters, which are in a cell only after an unclosed quote.
_BREAK = r"[\x00-\x1f]"


@checked("data.source")
class ImageSource(DataSource):
    """Image files below a folder; a subclass lists them with their classes.

    ``load`` decodes a split once, and keeps it on disk as one uint8 array. ``dataset``, with ``in_memory: false`` in
    the data module, decodes an image whenever it is read and writes nothing. Mean and std come from 1024 training
    images, spread evenly.

    Args:
        root: The folder.
        image_size: Height and width in pixels of the centre square, after scaling the shorter side to it; None keeps
            the images, which must all have the same size.
        channels: 3 for colour, 1 for grey.
        cache: Whether decoded images are kept on disk, next to the files or in the user's cache folder.
        augmentation: Applied to training batches, in this order.
        mean: Mean per channel on the scale [0, 1]; None computes mean and std from training images.
        std: Standard deviation per channel, if ``mean`` is given.
        classes: The names of all classes, in order; None takes those of the data, alphabetically. Required on devices
            with their own data, which may lack some.
    """

    def __init__(
        self,
        root: str | Path,
        image_size: PositiveInt | None = None,
        channels: Literal[1, 3] = 3,
        cache: bool = True,
        augmentation: Sequence[Augmentation] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        classes: Sequence[str] | None = None,
    ) -> None:
        self.classes = classes
        if (mean is None) is not (std is None):
            raise ConfigError(f"data.source.mean: {mean} and std {std} do not belong together; give both or neither")
        if mean is not None and len(mean) != channels:
            raise ConfigError(f"data.source.mean: {mean} is not one value per channel; give {channels}")
        if mean is not None and std is not None:
            self.normalization = Normalize(mean, std)
        self.root = Path(root).expanduser()
        self.image_size = image_size
        self.channels = channels
        self.cache = cache
        self.augmentation = tuple(augmentation)
        self.preprocessing = steps_of(image_size, channels)

    @abstractmethod
    def list_files(self, split: Split) -> LazyImages | None:
        """Returns the files of a split, with their classes; None if the source lacks the split."""

    @cached_property
    def splits(self) -> dict[Split, LazyImages | None]:
        """The files of all splits."""
        return {split: self.list_files(split) for split in SPLITS}

    @cached_property
    def input_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """(C, H, W); that of the first training image if ``image_size`` is None."""
        if self.image_size is not None:
            return (self.channels, self.image_size, self.image_size)
        return read_image(self.root / self._train_files().names[0], None, self.channels).shape

    @cached_property
    def normalization(self) -> Normalize:  # type: ignore[override]
        """The default, which is computed from training images."""
        images = self._train_files()
        rows = np.unique(np.linspace(0, len(images) - 1, SAMPLE).round().astype(int))
        return Normalize.of(torch.from_numpy(np.stack([images.image(row) for row in rows])))

    @override
    def prepare(self, in_memory: bool = True) -> None:
        if self.cache and in_memory:  # otherwise images are decoded on access
            for split in SPLITS:
                self.load(split)

    @override
    def load(self, split: Split) -> Examples | None:
        images = self.splits[split]
        if images is None:
            return None
        return Examples(torch.from_numpy(images.decoded()), images.targets, images.columns)

    @override
    def dataset(self, split: Split) -> ExampleDataset | None:
        return self.splits[split]

    def _train_files(self) -> LazyImages:
        files = self.splits["train"]
        if files is None:
            raise DataError(f"data.source: {type(self).__name__} has no training examples; give some")
        return files


@dataclass(eq=False)
class LazyImages:
    """One split of a source's image files, decoded on access: uint8 [C, H, W] and its class."""

    source: ImageSource
    names: Sequence[str]  # relative to the source's root
    classes: Sequence[int] | np.ndarray
    columns: dict[str, np.ndarray]
    label: str  # begins the name of the cache file

    def __post_init__(self) -> None:
        self.targets = torch.as_tensor(self.classes, dtype=torch.int64)
        self.stamps = file_stamps(self.source.root, self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(np.ascontiguousarray(self.image(index))), self.targets[index]

    def image(self, row: int) -> np.ndarray:
        """Decodes one file to uint8 [C, H, W]."""
        path, shape = self.source.root / self.names[row], self.source.input_shape
        image = read_image(path, self.source.image_size, shape[0])
        if image.shape != shape:
            size, first = image.shape[1:], shape[1:]
            raise DataError(f"data.source: {path} is {size}, the first image {first} (height, width); set image_size")
        return image

    def decode(self) -> np.ndarray:
        """Decodes all files to uint8 [N, C, H, W]; raises DataError with the name of a file that fails."""
        images = np.empty((len(self), *self.source.input_shape), dtype=np.uint8)

        def decode(row: int) -> None:
            images[row] = self.image(row)

        bar = {"desc": f"Decoding {self.label}", "unit": "img", "disable": None}
        thread_map(decode, range(len(self)), max_workers=min(32, os.cpu_count() or 1), **bar)
        return images

    def decoded(self) -> np.ndarray:
        """Returns all decoded files from the source's cache, if it has one; decodes a changed folder again."""
        if not self.source.cache:
            return self.decode()
        shape = self.source.input_shape
        content = json.dumps([CACHE_VERSION, shape, self.names, self.stamps])
        stem = "-".join([self.label, "x".join(map(str, shape))])
        return cached(self.source.root, stem, content, (len(self), *shape), self.decode)


class ImageFolder(ImageSource):
    """Images in one folder per class.

    By default, the classes are the folders under ``root/train``, in alphabetical order. ``root/val``, ``root/test``
    and ``root/metadata.csv`` are optional. The column ``file`` of the latter holds paths such as
    ``train/cat/0001.jpg``; its other columns become natural groupings for ``ByColumn``. The arguments are those of
    :class:`ImageSource`.
    """

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The configured classes, or else the names of the folders under ``train``."""
        return named_classes(self.classes, class_folders(self.root, "train"), self.root / "train")

    @override
    def list_files(self, split: Split) -> LazyImages | None:
        classes = self.class_names  # raises DataError without training classes
        if not os.path.lexists(self.root / split):
            return None
        require_separate({name: [self.root / name] for name in SPLITS})
        omissions = self.left_out[split] = Counter()
        folders = (path.name for path in self.root.iterdir() if path.is_dir() and path.name[0] != ".")
        omissions.update(f"folder {name}" for name in folders if split == "train" and name not in SPLITS)
        names: list[str] = []
        targets: list[int] = []
        for name in class_folders(self.root, split, omissions):
            folder = self.root / split / name
            if name not in classes:
                raise DataError(f"data.source.root: {folder} is not a class of train; rename or remove the folder")
            entries = files_in(folder, is_image, omissions)
            if not entries:
                raise DataError(f"data.source.root: {folder} holds no images; add some or remove the folder")
            names.extend(f"{split}/{name}/{entry}" for entry in entries)
            targets.extend([classes.index(name)] * len(entries))
        return LazyImages(self, names, targets, _metadata(self.root / "metadata.csv", names), split)


class ImageTable(ImageSource):
    """Images listed in a CSV file, with a row per image: its file, class and client.

    The examples have a column ``client`` for the partition ``ByColumn("client")``. If the table has a column
    ``split``, its rows of ``val`` and ``test`` go to the server; otherwise all rows go to the clients. Labels that are
    all whole numbers are classes from 0; others are names, in alphabetical order.

    Args:
        table: The CSV file, with a header.
        root: The folder to which the names of files are relative; None is the table's folder.
        file: The name of the column with the files' names.
        label: The name of the column with the classes.
        client: The name of the column that becomes ``client``.
        split: The name of the column with ``train``, ``val`` or ``test``; None uses ``split``, if the table has it.
        images: Settings of :class:`ImageSource`.
    """

    def __init__(
        self,
        table: str | Path,
        root: str | Path | None = None,
        file: str = "file",
        label: str = "label",
        client: str = "client",
        split: str | None = None,
        **images: Any,
    ) -> None:
        self.table = Path(table).expanduser()
        self.columns = {"file": file, "label": label, "client": client, **({"split": split} if split else {})}
        super().__init__(self.table.parent if root is None else root, **images)

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The configured classes, or else all labels in alphabetical order or the numbers from 0 to the largest."""
        labels = self._rows["label"]
        names: Sequence[Any] = named_classes(self.classes, labels.unique(), self.table)
        if self.classes is not None:  # configured classes may be many
            return tuple(names)
        if labels.str.fullmatch(_NUMBER).all():
            names = range(int(labels.astype(int).max()) + 1)
        require_few(len(names), len(labels), f"data.source.label: {self.columns['label']!r} of {self.table}")
        return tuple(map(str, names))

    @override
    def list_files(self, split: Split) -> LazyImages | None:
        rows = self._rows[self._rows["split"] == split]
        if not len(rows):
            return None
        numbers = {name: number for number, name in enumerate(self.class_names)}
        targets = [numbers[label] for label in rows["label"]]
        clients = {"client": rows["client"].to_numpy().astype(str)}
        return LazyImages(self, rows["file"].tolist(), targets, clients, f"{self.table.stem}-{split}")

    @cached_property
    def _rows(self) -> Any:
        """The table, with the columns ``file``, ``label``, ``client`` and ``split``."""
        table = read_rows(self.table, self.columns, "table")
        rows = table[list(self.columns.values())].set_axis(list(self.columns), axis=1)
        if "split" not in rows:
            rows["split"] = table.get("split", "train")
        if rows["label"].str.fullmatch(_NUMBER).all():
            rows["label"] = rows["label"].map(lambda label: str(int(label)))  # 07 is class 7
        if (invalid := rows[~rows["split"].isin(SPLITS)]).size:
            file, split = invalid.iloc[0][["file", "split"]]
            raise DataError(f"data.source.table: {self.table}: {file} has split {split!r}; give train, val or test")
        return rows


def class_folders(root: Path, split: str, omissions: Counter[str] | None = None) -> tuple[str, ...]:
    """Returns the sorted class folders of a split, and counts other entries as omissions."""
    folder = root / split
    if not folder.is_dir():
        raise DataError(f"data.source.root: {folder} is not a folder; put the images in {folder}/<class>")
    names = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            names.append(path.name)
        elif not path.exists():
            raise DataError(f"data.source.root: {path} is a broken link; correct or remove it")
        elif omissions is not None:
            omissions[f"{kind_of(path.name)} beside the classes"] += 1
    if not names:
        raise DataError(f"data.source.root: {folder} has no class folders; make one per class, or remove it")
    return tuple(names)


def _metadata(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the columns of ``metadata.csv`` in the order of ``names``; empty if the file does not exist."""
    if not os.path.lexists(path):
        return {}
    rows = read_rows(path, {"file": "file"}, "root", check_all=True).set_index("file")
    if missing := [name for name in names if name not in rows.index]:
        raise DataError(f"data.source.root: {path} has no row for {missing[0]}; add one per image")
    return {column: rows.loc[names, column].to_numpy().astype(str) for column in rows.columns}


def read_rows(path: Path, columns: Mapping[str, str], field: str, check_all: bool = False) -> Any:
    """Returns a table of text with a row per image; ``columns`` (by setting), or all, must have no empty cells."""
    field = f"data.source.{field}"
    rows = read_table(path, field)
    for name in rows:
        if (broken := rows[name].str.contains(_BREAK, na=False)).any() or re.search(_BREAK, name):
            row = int(np.argmax(broken))
            raise DataError(f"{field}: {path} has a line break in {name!r} of row {row}; close the quotes before it")
    for setting, name in columns.items():
        require_columns(rows, path, f"data.source.{setting}", [name])
    for name in rows if check_all else columns.values():
        filled(rows[name], path, field)
    files = rows[columns["file"]].map(os.path.normpath)
    if (duplicates := files[files.duplicated()]).size:
        raise DataError(f"{field}: {path} lists {duplicates.iloc[0]} twice; give each image one row")
    return rows
