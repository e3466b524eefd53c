"""Image files: listing those of a folder, decoding them into one uint8 array, and the cache of decoded arrays."""

from __future__ import annotations

import csv
import hashlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError
from tqdm.contrib.concurrent import thread_map

from lit_fednas.errors import DataError
from lit_fednas.records.files import replacing

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
                raise DataError(f"image: {self.root / name} is missing; add it or correct its name") from error
            stamps.append((status.st_size, status.st_mtime_ns))
        object.__setattr__(self, "stamps", tuple(stamps))

    def __len__(self) -> int:
        return len(self.names)


def class_folders(root: Path, split: str) -> tuple[str, ...]:
    """Returns the sorted class folders of a split; none where the split does not exist."""
    folder = root / split
    entries = folder.iterdir() if folder.is_dir() else ()
    return tuple(sorted(path.name for path in entries if path.is_dir() and not path.name.startswith(".")))


def train_classes(root: Path) -> tuple[str, ...]:
    """Returns the classes, which are the folders under ``train``.

    Raises:
        DataError: ``root`` or ``train`` is missing, or holds no class folder.
    """
    if not root.is_dir():
        raise DataError(f"root: {root} is not a folder; give the folder that holds train/<class>/<image>")
    if not (root / "train").is_dir():
        raise DataError(f"root: {root} has no folder train; put the images in {root / 'train'}/<class>")
    names = class_folders(root, "train")
    if not names:
        raise DataError(f"root: {root / 'train'} has no class folders; make one per class")
    return names


def list_images(root: Path, split: str, classes: Sequence[str]) -> ImageFiles | None:
    """Lists the files of a split; None where there is no such folder.

    Raises:
        DataError: A folder has no images or is not a class of ``train``, or files lack a row in ``metadata.csv``.
    """
    if not (root / split).is_dir():
        return None
    names: list[str] = []
    targets: list[int] = []
    for folder in class_folders(root, split):
        if folder not in classes:
            raise DataError(f"root: {root / split / folder} is not a class of train; rename or remove the folder")
        entries = sorted(path.name for path in (root / split / folder).iterdir() if _is_image(path))
        if not entries:
            raise DataError(f"root: {root / split / folder} holds no images; add some or remove the folder")
        names.extend(f"{split}/{folder}/{entry}" for entry in entries)
        targets.extend([classes.index(folder)] * len(entries))
    if not names:
        raise DataError(f"root: {root / split} has no class folders; fill or remove it")
    columns = read_metadata(root / "metadata.csv", names)
    return ImageFiles(root, tuple(names), np.array(targets, dtype=np.int64), columns, split)


def read_metadata(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Reads the columns of ``metadata.csv`` in the order of ``names``; none where there is no such file.

    Raises:
        DataError: There is no column ``file``, or a name has no row.
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


def read_image(path: Path, image_size: int | None, channels: int) -> np.ndarray:
    """Decodes one file to uint8 [C, H, W].

    With ``image_size`` the shorter side is scaled to it and the centre square is cut out.

    Raises:
        DataError: The file cannot be decoded.
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
        DataError: The file is not an image.
    """
    try:
        with Image.open(path) as image:
            return image.height, image.width
    except (OSError, UnidentifiedImageError) as error:
        raise DataError(f"image: {path} cannot be decoded ({error}); replace or remove the file") from error


def decode_all(files: ImageFiles, shape: tuple[int, ...], image_size: int | None) -> np.ndarray:
    """Decodes all files into one array [N, C, H, W], in a thread pool, with a progress bar.

    Raises:
        DataError: A file cannot be decoded, or is not of ``shape``; names the first such file.
    """
    images = np.empty((len(files), *shape), dtype=np.uint8)

    def decode(row: int) -> None:
        images[row] = checked_image(files, row, shape, image_size)

    bar = {"desc": f"Decoding {files.label}", "unit": "img", "disable": None}
    thread_map(decode, range(len(files)), max_workers=min(32, os.cpu_count() or 1), **bar)
    return images


def checked_image(files: ImageFiles, row: int, shape: tuple[int, ...], image_size: int | None) -> np.ndarray:
    """Decodes one file to uint8 [C, H, W] and validates its shape.

    Raises:
        DataError: The file cannot be decoded, or is not of ``shape``.
    """
    path = files.root / files.names[row]
    image = read_image(path, image_size, shape[0])
    if image.shape != shape:
        size, first = image.shape[1:], shape[1:]
        raise DataError(f"image: {path} is {size}, the first one {first} (height, width); set image_size")
    return image


class ImageCache:
    """Keeps the decoded images of one folder: one uint8 ``.npy`` file per split and size, renewed as files change.

    The files are in ``<root>/.lit_fednas_cache``, or in the user's cache folder where the root cannot be
    written; where neither can, nothing is kept. A file's name holds a digest of the image size and of every
    image's name, size and modification time, so that a changed folder is decoded anew.

    Args:
        root: The image folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def images(self, files: ImageFiles, shape: tuple[int, ...], decode: Callable[[], np.ndarray]) -> np.ndarray:
        """Returns the images from the cache, or decodes and keeps them.

        Args:
            files: The image files.
            shape: The shape of one image.
            decode: Decodes all files to uint8 [N, C, H, W].
        """
        stem, digest = self._names(files, shape)
        for folder in self._folders():
            images = _read(folder / f"{stem}-{digest}.npy", (len(files), *shape))
            if images is not None:
                return images
        images = decode()
        any(_written(folder, stem, digest, images) for folder in self._folders())
        return images

    def _folders(self) -> tuple[Path, Path]:
        own = hashlib.sha256(str(self.root.resolve()).encode()).hexdigest()[:16]
        user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return self.root / ".lit_fednas_cache", user / "lit_fednas" / own

    def _names(self, files: ImageFiles, shape: tuple[int, ...]) -> tuple[str, str]:
        content = json.dumps([CACHE_VERSION, shape, files.names, files.stamps])
        stem = "-".join([files.label, "x".join(map(str, shape))])
        return stem, hashlib.sha256(content.encode()).hexdigest()[:32]


def _read(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Reads a cache file; None where it is missing or damaged."""
    try:
        images = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return images if images.shape == shape and images.dtype == np.uint8 else None


def _written(folder: Path, stem: str, digest: str, images: np.ndarray) -> bool:
    """Writes a cache file if it can be written, and removes those of the folder's earlier states."""
    try:
        with replacing(folder / f"{stem}-{digest}.npy") as file:
            np.save(file, images, allow_pickle=False)
    except OSError:
        return False
    for old in folder.glob(f"{stem}-*.npy"):
        if old.name != f"{stem}-{digest}.npy":
            old.unlink(missing_ok=True)
    return True


def _is_image(path: Path) -> bool:
    return not path.name.startswith(".") and path.suffix.lower() in SUFFIXES and path.is_file()
