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
#: Mean and std come from this many training images.
SAMPLE = 1024
#: Labels that are numbers; longer ones are names.
_NUMBER = "[0-9]{1,9}"
#: Nothing in a table of images holds one; quotes that nobody closes do.
_BREAK = r"[\x00-\x1f]"


@checked("data.source")
class ImageSource(DataSource):
    """Image files below a folder; a subclass says which, and what they show.

    ``load`` decodes a split once, and keeps it on disk as one uint8 array. ``dataset``, with ``in_memory: false`` in
    the data module, decodes whenever an image is read and writes nothing. Mean and std come from 1024 training images,
    spread evenly.

    Args:
        root: The folder.
        image_size: The shorter side is scaled to this and the centre square cut out; None takes the images as
            they are, which must then all be of one size.
        channels: 3 for colour, 1 for grey.
        cache: Whether decoded images are kept on disk, next to the files or in the user's cache folder.
        augmentation: Applied to training batches, in this order.
        mean: Per channel on the scale [0, 1]; None computes mean and std from training images.
        std: Given together with ``mean``.
        classes: The names of all classes, in their order; None is those of the data, in alphabetical order. Devices
            with data of their own need it, as they may lack some.
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
            raise ConfigError(f"data.source.mean: {mean} are not one per channel; give {channels}")
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
        """Returns the files of a split, with their classes; None where the source has no such split."""

    @cached_property
    def splits(self) -> dict[Split, LazyImages | None]:
        """The files of all splits."""
        return {split: self.list_files(split) for split in SPLITS}

    @cached_property
    def input_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """(C, H, W); that of the first training image where ``image_size`` is None."""
        if self.image_size is not None:
            return (self.channels, self.image_size, self.image_size)
        return read_image(self.root / self._train_files().names[0], None, self.channels).shape

    @cached_property
    def normalization(self) -> Normalize:  # type: ignore[override]
        """As given, or else computed from training images, once."""
        images = self._train_files()
        rows = np.unique(np.linspace(0, len(images) - 1, SAMPLE).round().astype(int))
        return Normalize.of(torch.from_numpy(np.stack([images.image(row) for row in rows])))

    @override
    def prepare(self, in_memory: bool = True) -> None:
        if self.cache and in_memory:  # else images are decoded when they are read
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
    label: str  # of its cache file

    def __post_init__(self) -> None:
        self.targets = torch.as_tensor(self.classes, dtype=torch.int64)
        self.stamps = file_stamps(self.source.root, self.names)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(np.ascontiguousarray(self.image(index))), self.targets[index]

    def image(self, row: int) -> np.ndarray:
        """Returns one decoded file, uint8 [C, H, W]."""
        path, shape = self.source.root / self.names[row], self.source.input_shape
        image = read_image(path, self.source.image_size, shape[0])
        if image.shape != shape:
            size, first = image.shape[1:], shape[1:]
            raise DataError(f"data.source: {path} is {size}, the first one {first} (height, width); set image_size")
        return image

    def decode(self) -> np.ndarray:
        """Returns all decoded files, uint8 [N, C, H, W]; names the first that cannot be decoded."""
        images = np.empty((len(self), *self.source.input_shape), dtype=np.uint8)

        def decode(row: int) -> None:
            images[row] = self.image(row)

        bar = {"desc": f"Decoding {self.label}", "unit": "img", "disable": None}
        thread_map(decode, range(len(self)), max_workers=min(32, os.cpu_count() or 1), **bar)
        return images

    def decoded(self) -> np.ndarray:
        """Returns all decoded files from the source's cache, if it has one; a changed folder is decoded anew."""
        if not self.source.cache:
            return self.decode()
        shape = self.source.input_shape
        content = json.dumps([CACHE_VERSION, shape, self.names, self.stamps])
        stem = "-".join([self.label, "x".join(map(str, shape))])
        return cached(self.source.root, stem, content, (len(self), *shape), self.decode)


class ImageFolder(ImageSource):
    """Images in one folder per class.

    The classes are the folders under ``root/train``, in alphabetical order, if none are given. ``root/val`` and
    ``root/test`` are optional. So is ``root/metadata.csv``, whose column ``file`` holds paths such as
    ``train/cat/0001.jpg`` and whose other columns become natural groupings for ``ByColumn``. The arguments are those
    of :class:`ImageSource`.
    """

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """As given, or the names of the folders under ``train``."""
        return named_classes(self.classes, class_folders(self.root, "train"), self.root / "train")

    @override
    def list_files(self, split: Split) -> LazyImages | None:
        classes = self.class_names  # which there must be
        if not os.path.lexists(self.root / split):
            return None
        require_separate({name: [self.root / name] for name in SPLITS})
        left_out = self.left_out[split] = Counter()
        others = (path.name for path in self.root.iterdir() if path.is_dir() and path.name[0] != ".")
        left_out.update(f"folder {name}" for name in others if split == "train" and name not in SPLITS)
        names: list[str] = []
        targets: list[int] = []
        for name in class_folders(self.root, split, left_out):
            folder = self.root / split / name
            if name not in classes:
                raise DataError(f"data.source.root: {folder} is not a class of train; rename or remove the folder")
            entries = files_in(folder, is_image, left_out)
            if not entries:
                raise DataError(f"data.source.root: {folder} holds no images; add some or remove the folder")
            names.extend(f"{split}/{name}/{entry}" for entry in entries)
            targets.extend([classes.index(name)] * len(entries))
        return LazyImages(self, names, targets, _metadata(self.root / "metadata.csv", names), split)


class ImageTable(ImageSource):
    """Images listed in a CSV file, one row each: its file, its class and the client it belongs to.

    The examples have a column ``client``, so that ``ByColumn("client")`` makes one client of each. Where the table
    has a column ``split``, its rows of ``val`` and ``test`` go to the server; without one, all rows go to the
    clients. Labels that are all whole numbers are classes from 0; others are names, in alphabetical order.

    Args:
        table: The CSV file, with a header.
        root: The folder that the names of files start from; None is the table's own.
        file: The name of the column with the files' names.
        label: The name of the column with the classes.
        client: The name of the column that becomes ``client``.
        split: The name of the column with ``train``, ``val`` or ``test``; None is ``split``, if the table has it.
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
        """As given, the labels of all splits in alphabetical order, or the numbers from 0 to the greatest."""
        labels = self._rows["label"]
        names: Sequence[Any] = named_classes(self.classes, labels.unique(), self.table)
        if self.classes is not None:  # stated, not counted
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
        if (wrong := rows[~rows["split"].isin(SPLITS)]).size:
            file, split = wrong.iloc[0][["file", "split"]]
            raise DataError(f"data.source.table: {self.table}: {file} has split {split!r}; give train, val or test")
        return rows


def class_folders(root: Path, split: str, left_out: Counter[str] | None = None) -> tuple[str, ...]:
    """Returns the sorted class folders of a split, and counts what lies beside them."""
    folder = root / split
    if not folder.is_dir():
        raise DataError(f"data.source.root: {folder} is not a folder; put the images in {folder}/<class>")
    names = []
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.name.startswith("."):
            names.append(path.name)
        elif not path.exists():
            raise DataError(f"data.source.root: {path} is a link that leads nowhere; correct or remove it")
        elif left_out is not None:
            left_out[f"{kind_of(path.name)} beside the classes"] += 1
    if not names:
        raise DataError(f"data.source.root: {folder} has no class folders; make one per class, or remove it")
    return tuple(names)


def _metadata(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the columns of ``metadata.csv`` in the order of ``names``; none where the file does not exist."""
    if not os.path.lexists(path):
        return {}
    rows = read_rows(path, {"file": "file"}, "root", every=True).set_index("file")
    if missing := [name for name in names if name not in rows.index]:
        raise DataError(f"data.source.root: {path} has no row for {missing[0]}; add one per image")
    return {column: rows.loc[names, column].to_numpy().astype(str) for column in rows.columns}


def read_rows(path: Path, columns: Mapping[str, str], field: str, every: bool = False) -> Any:
    """Returns a table of text, a row per image; cells of ``columns`` (by setting), or of ``every`` one, are filled."""
    field = f"data.source.{field}"
    rows = read_table(path, field)
    for name in rows:
        if (broken := rows[name].str.contains(_BREAK, na=False)).any() or re.search(_BREAK, name):
            row = int(np.argmax(broken))
            raise DataError(f"{field}: {path} has a line break in {name!r} of row {row}; close the quotes before it")
    for setting, name in columns.items():
        require_columns(rows, path, f"data.source.{setting}", [name])
    for name in rows if every else columns.values():
        filled(rows[name], path, field)
    files = rows[columns["file"]].map(os.path.normpath)
    if (twice := files[files.duplicated()]).size:
        raise DataError(f"{field}: {path} lists {twice.iloc[0]} twice; give each image one row")
    return rows
