"""Image files: what a folder or a table lists, and decoding."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from lit_fednas.data.sources.tables import filled, read_table, require_columns
from lit_fednas.errors import DataError

log = logging.getLogger(__name__)

#: What was said of images already.
_SAID: set[str] = set()

SUFFIXES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".pgm", ".png", ".ppm", ".tif", ".tiff", ".webp"})


def class_folders(root: Path, split: str) -> tuple[str, ...]:
    """Returns the sorted class folders of a split."""
    folder = root / split
    if not folder.is_dir():
        raise DataError(f"data.source.root: {folder} is not a folder; put the images in {folder}/<class>")
    entries = (path for path in folder.iterdir() if not path.name.startswith("."))
    names = sorted(path.name for path in entries if path.is_dir() or not path.exists())
    if not names:
        raise DataError(f"data.source.root: {folder} has no class folders; make one per class, or remove it")
    return tuple(names)


def list_images(root: Path, split: str, classes: Sequence[str]) -> tuple[list[str], list[int], dict[str, np.ndarray]]:
    """Returns the files of a split, relative to ``root``, their classes and natural groupings."""
    names: list[str] = []
    targets: list[int] = []
    for name in class_folders(root, split):
        folder = root / split / name
        if name not in classes:
            raise DataError(f"data.source.root: {folder} is not a class of train; rename or remove the folder")
        if not folder.exists():
            raise DataError(f"data.source.root: {folder} is a link that leads nowhere; correct or remove it")
        paths = sorted(path for path in folder.iterdir() if not path.name.startswith("."))
        if others := [path for path in paths if not path.is_file()]:
            raise DataError(
                f"data.source.root: {others[0]} is not a file; images lie in the class's folder itself, move it away"
            )
        entries = [path.name for path in paths if path.suffix.lower() in SUFFIXES]
        if not entries:
            raise DataError(f"data.source.root: {folder} holds no images; add some or remove the folder")
        names.extend(f"{split}/{name}/{entry}" for entry in entries)
        targets.extend([classes.index(name)] * len(entries))
    return names, targets, _metadata(root / "metadata.csv", names)


def _metadata(path: Path, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Returns the columns of ``metadata.csv`` in the order of ``names``; none where the file does not exist."""
    if not path.is_file():
        return {}
    rows = read_rows(path, {"file": "file"}, "root").set_index("file")
    if missing := [name for name in names if name not in rows.index]:
        raise DataError(f"data.source.root: {path} has no row for {missing[0]}; add one per image")
    return {column: rows.loc[names, column].to_numpy().astype(str) for column in rows.columns}


def read_rows(path: Path, columns: Mapping[str, str], field: str) -> Any:
    """Returns a table of text with a row for each image; of ``columns``, by setting, each cell must be filled."""
    field = f"data.source.{field}"
    rows = read_table(path, field).fillna("").apply(lambda column: column.str.strip())
    for setting, name in columns.items():
        require_columns(rows, path, f"data.source.{setting}", [name])
        filled(rows[name].mask(rows[name] == ""), path, field)
    files = rows[columns["file"]]
    if (twice := files[files.duplicated()]).size:
        raise DataError(f"{field}: {path} lists {twice.iloc[0]} twice; give each image one row")
    return rows


def read_image(path: Path, image_size: int | None, channels: int) -> np.ndarray:
    """Returns one decoded file, uint8 [C, H, W], scaled and cut to a square of ``image_size``."""
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
