"""The files of an image folder: finding them, and decoding them into one uint8 array."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from tqdm.auto import tqdm

from lit_fednas.errors import DataError

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


@dataclass(frozen=True, eq=False)
class ImageFiles:
    """The image files of one split, in a fixed order.

    Attributes:
        root: the folder that the names start from.
        names: paths relative to ``root``, with forward slashes.
        targets: the class of each file, int64 [N].
        stamps: size and modification time of each file.
        columns: natural groupings, each [N].
        label: tells these files from others below ``root``, such as those of another split; the cache keeps
            one file per label and image size.
    """

    root: Path
    names: tuple[str, ...]
    targets: np.ndarray
    stamps: tuple[tuple[int, int], ...]
    columns: dict[str, np.ndarray] = field(default_factory=dict)
    label: str = "images"

    def __len__(self) -> int:
        return len(self.names)


def class_folders(root: Path, split: str) -> tuple[str, ...]:
    """Returns the sorted class folders of a split; none where the split does not exist."""
    folder = root / split
    if not folder.is_dir():
        return ()
    return tuple(sorted(entry.name for entry in os.scandir(folder) if _visible(entry) and entry.is_dir()))


def train_classes(root: Path) -> tuple[str, ...]:
    """Returns the classes, which are the folders under ``train``.

    Raises:
        DataError: ``root`` or ``train`` is missing, or holds no class folder.
    """
    if not root.is_dir():
        raise DataError(f"root: {root} is no folder; give the folder that holds train/<class>/<image>")
    if not (root / "train").is_dir():
        raise DataError(f"root: {root} has no folder train; put the images in {root / 'train'}/<class>")
    names = class_folders(root, "train")
    if not names:
        raise DataError(f"root: {root / 'train'} has no class folders; make one per class")
    return names


def list_images(root: Path, split: str, classes: Sequence[str]) -> ImageFiles | None:
    """Lists the files of a split; None where there is no such folder.

    Raises:
        DataError: a folder has no images, is no class of ``train``, or files lack a row in ``metadata.csv``.
    """
    if not (root / split).is_dir():
        return None
    names: list[str] = []
    targets: list[int] = []
    stamps: list[tuple[int, int]] = []
    for folder in class_folders(root, split):
        if folder not in classes:
            raise DataError(f"root: {root / split / folder} is no class of train; rename or remove the folder")
        entries = sorted(
            (entry for entry in os.scandir(root / split / folder) if _is_image(entry)), key=lambda e: e.name
        )
        if not entries:
            raise DataError(f"root: {root / split / folder} holds no images; add some or remove the folder")
        for entry in entries:
            status = entry.stat()
            names.append(f"{split}/{folder}/{entry.name}")
            targets.append(classes.index(folder))
            stamps.append((status.st_size, status.st_mtime_ns))
    if not names:
        raise DataError(f"root: {root / split} has no class folders; fill or remove it")
    columns = read_metadata(root / "metadata.csv", names)
    return ImageFiles(root, tuple(names), np.array(targets, dtype=np.int64), tuple(stamps), columns, split)


def read_metadata(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Reads the columns of ``metadata.csv`` in the order of ``names``; none where there is no such file.

    Raises:
        DataError: there is no column ``file``, or a name has no row.
    """
    if not path.is_file():
        return {}
    with path.open(newline="", encoding="utf-8-sig") as stream:
        reader = csv.DictReader(stream)
        fields = list(reader.fieldnames or [])
        if "file" not in fields:
            raise DataError(f"metadata: {path} has columns {fields}; add the column 'file' (train/cat/0001.jpg)")
        rows = {row["file"]: row for row in reader}
    missing = next((name for name in names if name not in rows), None)
    if missing is not None:
        raise DataError(f"metadata: {path} has no row for {missing}; add one per image")
    return {
        column: np.array([rows[name][column] or "" for name in names]) for column in fields if column != "file"
    }


def file_stamps(root: Path, names: Sequence[str]) -> tuple[tuple[int, int], ...]:
    """Returns size and modification time of each file.

    Raises:
        DataError: a file is missing; names the first.
    """
    stamps = []
    for name in names:
        try:
            status = (root / name).stat()
        except OSError as error:
            raise DataError(f"image: {root / name} is missing; put it there, or mend its name") from error
        stamps.append((status.st_size, status.st_mtime_ns))
    return tuple(stamps)


def read_image(path: Path, image_size: int | None, channels: int) -> np.ndarray:
    """Decodes one file to uint8 [C, H, W].

    With ``image_size`` the shorter side is scaled to it and the centre square is cut out.

    Raises:
        DataError: the file cannot be decoded.
    """
    mode = "L" if channels == 1 else "RGB"
    try:
        with Image.open(path) as image:
            if image_size is not None:
                image.draft(mode, (2 * image_size, 2 * image_size))  # large JPEGs decode at a reduced scale
            picture = image.convert(mode)
    except (OSError, UnidentifiedImageError, SyntaxError) as error:
        raise DataError(f"image: {path} cannot be decoded ({error}); replace or remove the file") from error
    if image_size is not None and picture.size != (image_size, image_size):
        picture = ImageOps.fit(picture, (image_size, image_size), Image.Resampling.BILINEAR)
    pixels = np.asarray(picture, dtype=np.uint8)
    return pixels[None] if channels == 1 else np.moveaxis(pixels, 2, 0)


def read_size(path: Path) -> tuple[int, int]:
    """Returns height and width from the header of one file.

    Raises:
        DataError: the file is no image.
    """
    try:
        with Image.open(path) as image:
            return image.height, image.width
    except (OSError, UnidentifiedImageError) as error:
        raise DataError(f"image: {path} cannot be decoded ({error}); replace or remove the file") from error


def decode_all(files: ImageFiles, shape: tuple[int, ...], image_size: int | None) -> np.ndarray:
    """Decodes all files into one array [N, C, H, W], in a thread pool, with a progress bar.

    Raises:
        DataError: a file cannot be decoded, or is not of ``shape``; names the first such file.
    """
    images = np.empty((len(files), *shape), dtype=np.uint8)

    def decode(row: int) -> None:
        images[row] = checked_image(files, row, shape, image_size)

    workers = min(32, os.cpu_count() or 1)
    with ThreadPoolExecutor(workers) as pool:
        results = pool.map(decode, range(len(files)))
        try:
            for _ in tqdm(results, total=len(files), desc=f"Decoding {files.label}", unit="img", disable=None):
                pass
        except DataError:
            pool.shutdown(cancel_futures=True)
            raise
    return images


def checked_image(files: ImageFiles, row: int, shape: tuple[int, ...], image_size: int | None) -> np.ndarray:
    """Decodes one file, and insists on its shape.

    Raises:
        DataError: the file cannot be decoded, or is not of ``shape``.
    """
    path = files.root / files.names[row]
    image = read_image(path, image_size, shape[0])
    if image.shape != shape:
        found, first = image.shape[1:], shape[1:]
        raise DataError(f"image: {path} is {found}, the first one {first} (height, width); set image_size")
    return image


def _visible(entry: os.DirEntry[str]) -> bool:
    return not entry.name.startswith(".")


def _is_image(entry: os.DirEntry[str]) -> bool:
    return _visible(entry) and Path(entry.name).suffix.lower() in SUFFIXES and entry.is_file()
