"""Image files: listing those of a folder, decoding them, and the cache of decoded arrays."""

from __future__ import annotations

import csv
import json
import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageOps, UnidentifiedImageError
from torch import Tensor
from tqdm.contrib.concurrent import thread_map

from lit_fednas.data.sources.cache import cached
from lit_fednas.errors import DataError, require_different

log = logging.getLogger(__name__)

#: What was said of images already.
_SAID: set[str] = set()

#: Raise this when decoding changes, so that older cache files are not read.
CACHE_VERSION = 1
SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """The image files of one split, in a fixed order.

    Attributes:
        root: The folder that the names start from.
        names: Paths relative to ``root``, with forward slashes.
        targets: The class of each file, int64 [N].
        columns: Natural groupings, each [N].
        label: Distinguishes these files from others below ``root``, such as those of another split; the cache
            keeps one file per label and image size.
        stamps: Size and modification time of each file.

    Raises:
        DataError: A file is missing; names the first.
    """

    root: Path
    names: tuple[str, ...]
    targets: np.ndarray
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    label: str = "images"
    stamps: tuple[tuple[int, int], ...] = field(init=False)

    def __post_init__(self) -> None:
        stamps = []
        for name in self.names:
            try:
                status = (self.root / name).stat()
            except OSError as error:
                raise DataError(f"data.source: {self.root / name} is missing; add it or correct its name") from error
            stamps.append((status.st_size, status.st_mtime_ns))
        object.__setattr__(self, "stamps", tuple(stamps))


def class_folders(root: Path, split: str) -> tuple[str, ...]:
    """Returns the sorted class folders of a split; raises ``DataError`` if it has none."""
    entries = (path for path in (root / split).iterdir() if not path.name.startswith("."))
    names = sorted(path.name for path in entries if path.is_dir() or not path.exists())
    if not names:
        raise DataError(f"data.source.root: {root / split} has no class folders; make one per class, or remove it")
    return tuple(names)


def train_classes(root: Path) -> tuple[str, ...]:
    """Returns the classes, which are the folders under ``train``."""
    if not root.is_dir():
        raise DataError(f"data.source.root: {root} is not a folder; give the folder that holds train/<class>/<image>")
    if not (root / "train").is_dir():
        raise DataError(f"data.source.root: {root} has no folder train; put the images in {root / 'train'}/<class>")
    return class_folders(root, "train")


def list_images(root: Path, split: str, classes: Sequence[str]) -> ImageFiles | None:
    """Returns the files of a split; None where its folder does not exist."""
    if not (root / split).is_dir():
        return None
    names: list[str] = []
    targets: list[int] = []
    for folder in class_folders(root, split):
        if folder not in classes:
            raise DataError(
                f"data.source.root: {root / split / folder} is not a class of train; rename or remove the folder"
            )
        if not (root / split / folder).exists():
            raise DataError(
                f"data.source.root: {root / split / folder} is a link that leads nowhere; correct or remove it"
            )
        paths = [path for path in (root / split / folder).iterdir() if not path.name.startswith(".")]
        if others := sorted(path for path in paths if not path.is_file()):
            raise DataError(
                f"data.source.root: {others[0]} is not a file; images lie in the class's folder itself, move it away"
            )
        entries = sorted(path.name for path in paths if path.suffix.lower() in SUFFIXES)
        if not entries:
            raise DataError(f"data.source.root: {root / split / folder} holds no images; add some or remove the folder")
        names.extend(f"{split}/{folder}/{entry}" for entry in entries)
        targets.extend([classes.index(folder)] * len(entries))
    columns = read_metadata(root / "metadata.csv", names)
    return ImageFiles(root, tuple(names), np.array(targets, dtype=np.int64), columns, split)


def read_metadata(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the columns of ``metadata.csv`` in the order of ``names``; none where the file does not exist."""
    if not path.is_file():
        return {}
    fields, listed = read_rows(path, {"file": "file"}, "root")
    rows = {row["file"]: row for row in listed}
    missing = next((name for name in names if name not in rows), None)
    if missing is not None:
        raise DataError(f"data.source.root: {path} has no row for {missing}; add one per image")
    groupings = (column for column in fields if column != "file")
    return {column: np.array([rows[name][column] for name in names]) for column in groupings}


def read_rows(path: Path, columns: Mapping[str, str], field: str) -> tuple[list[str], list[dict[str, str]]]:
    """Reads a CSV file with a row for each image; cells without the space around them."""
    rows: dict[str, dict[str, str]] = {}
    try:
        with path.open(newline="", encoding="utf-8-sig") as stream:
            reader = csv.DictReader(stream, restval="")
            fields = list(reader.fieldnames or [])
            for setting, column in columns.items():
                if column not in fields:
                    known = ", ".join(fields)
                    raise DataError(
                        f"data.source.{setting}: {path} has no column {column!r}; add it, or name one of: {known}"
                    )
            require_different(fields, f"data.source.{field}", path)
            for line in reader:
                if None in line:
                    raise DataError(
                        f"data.source.{field}: {path}, line {reader.line_num}, has more cells than there are columns; "
                        "quote cells that hold a comma"
                    )
                row = {name: line[name].strip() for name in fields}
                for column in columns.values():
                    if not row[column]:
                        raise DataError(
                            f"data.source.{field}: {path}, line {reader.line_num}, has no {column!r}; fill it in"
                        )
                if rows.setdefault(row[columns["file"]], row) is not row:
                    raise DataError(
                        f"data.source.{field}: {path} lists {row[columns['file']]} twice; give each image one row"
                    )
    except UnicodeDecodeError as error:
        raise DataError(f"data.source.{field}: {path} is not UTF-8 text ({error.reason}); save it as UTF-8") from None
    return fields, list(rows.values())


def read_image(path: Path, image_size: int | None, channels: int) -> np.ndarray:
    """Returns one decoded file, uint8 [C, H, W].

    With ``image_size`` the shorter side is scaled to it and the centre square is cut out.

    Raises:
        DataError: The file cannot be decoded, has more than 8 bits per channel, or is of one pixel.
    """
    mode = "L" if channels == 1 else "RGB"
    try:
        with Image.open(path) as image:
            if image.mode[0] in "IF":
                raise DataError(f"data.source: {path} has more than 8 bits per channel ({image.mode}); convert it to 8")
            if image.size == (1, 1):
                raise DataError(f"data.source: {path} is of one pixel; replace or remove the file")
            if image.has_transparency_data:
                _say_once(path, "an alpha channel, which is left out")
            if getattr(image, "is_animated", False):
                _say_once(path, "several frames, of which the first is used")
            if image_size is not None:
                image.draft(mode, (2 * image_size, 2 * image_size))  # large JPEGs decode at a reduced scale
            picture = image.convert(mode)
    except (OSError, UnidentifiedImageError, SyntaxError, Image.DecompressionBombError) as error:
        raise DataError(f"data.source: {path} cannot be decoded ({error}); replace or remove the file") from error
    if image_size is not None and picture.size != (image_size, image_size):
        picture = ImageOps.fit(picture, (image_size, image_size), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.moveaxis(pixels, 2, 0)


def _say_once(path: Path, what: str) -> None:
    if what not in _SAID:
        _SAID.add(what)
        log.warning("image: %s has %s; it is not said of others", path, what)


@dataclass(eq=False)
class LazyImages:
    """One split of image files, decoded on access: uint8 [C, H, W] and its class.

    Args:
        files: The files.
        shape: That of every image.
        image_size: As for :func:`read_image`.
    """

    files: ImageFiles
    shape: tuple[int, ...]
    image_size: int | None

    def __post_init__(self) -> None:
        self.targets, self.columns = torch.from_numpy(self.files.targets), self.files.columns

    def __len__(self) -> int:
        return len(self.files.names)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.from_numpy(np.ascontiguousarray(self.image(index))), self.targets[index]

    def image(self, row: int) -> np.ndarray:
        """Returns one decoded file, uint8 [C, H, W].

        Raises:
            DataError: The file cannot be decoded, or is not of ``shape``.
        """
        path = self.files.root / self.files.names[row]
        image = read_image(path, self.image_size, self.shape[0])
        if image.shape != self.shape:
            size, first = image.shape[1:], self.shape[1:]
            raise DataError(f"data.source: {path} is {size}, the first one {first} (height, width); set image_size")
        return image

    def decode(self) -> np.ndarray:
        """Returns all decoded files, uint8 [N, C, H, W]; uses a thread pool and shows a progress bar.

        Raises:
            DataError: A file cannot be decoded, or is not of ``shape``; names the first such file.
        """
        images = np.empty((len(self), *self.shape), dtype=np.uint8)

        def decode(row: int) -> None:
            images[row] = self.image(row)

        bar = {"desc": f"Decoding {self.files.label}", "unit": "img", "disable": None}
        thread_map(decode, range(len(self)), max_workers=min(32, os.cpu_count() or 1), **bar)
        return images

    def decoded(self, cache: bool) -> np.ndarray:
        """Returns all decoded files, uint8 [N, C, H, W]; with ``cache`` from the cache, or kept there.

        The cache has one file per split and size, whose name holds a digest of the image size and of every image's
        name, size and modification time, so that a changed folder is decoded anew.

        Raises:
            DataError: As for :meth:`decode`.
        """
        if not cache:
            return self.decode()
        stem = "-".join([self.files.label, "x".join(map(str, self.shape))])
        content = json.dumps([CACHE_VERSION, self.shape, self.files.names, self.files.stamps])
        return cached(self.files.root, stem, content, (len(self), *self.shape), self.decode)
