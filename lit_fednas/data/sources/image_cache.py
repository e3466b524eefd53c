"""The cache of decoded images: one uint8 ``.npy`` file per split and size, renewed as the files change."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lit_fednas.data.sources.image_files import ImageFiles
from lit_fednas.records.files import replacing

VERSION = 1
"""Raise this when decoding changes, so that older files are not read."""


class ImageCache:
    """Keeps the decoded images of one folder.

    The files lie in ``<root>/.lit_fednas_cache``, or in the user's cache folder where the root cannot be
    written; where neither can, nothing is kept. A file's name holds a digest of the image size and of every
    image's name, size and modification time, so that a changed folder is decoded anew.

    Args:
        root: the image folder.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def images(self, files: ImageFiles, shape: tuple[int, ...], decode: Callable[[], np.ndarray]) -> np.ndarray:
        """Returns the images from the cache, or decodes and keeps them."""
        stem, digest = self._names(files, shape)
        for folder in self._folders():
            images = _read(folder / f"{stem}-{digest}.npy", (len(files), *shape))
            if images is not None:
                return images
        images = decode()
        writable = next(filter(_writable, self._folders()), None)
        if writable is not None:
            _write(writable, stem, digest, images)
        return images

    def _folders(self) -> tuple[Path, Path]:
        own = hashlib.sha256(str(self.root.resolve()).encode()).hexdigest()[:16]
        user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        return self.root / ".lit_fednas_cache", user / "lit_fednas" / own

    def _names(self, files: ImageFiles, shape: tuple[int, ...]) -> tuple[str, str]:
        content = json.dumps([VERSION, shape, files.names, files.stamps])
        stem = "-".join([files.label, "x".join(map(str, shape))])
        return stem, hashlib.sha256(content.encode()).hexdigest()[:32]


def _read(path: Path, shape: tuple[int, ...]) -> np.ndarray | None:
    """Reads a cache file; None where it is missing or damaged."""
    try:
        images = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return images if images.shape == shape and images.dtype == np.uint8 else None


def _write(folder: Path, stem: str, digest: str, images: np.ndarray) -> None:
    """Writes a cache file in one step, then drops those of the folder's earlier states.

    A disk that is full is no reason to fail: the images are there, and are decoded again next time.
    """
    try:
        with replacing(folder / f"{stem}-{digest}.npy") as file:
            np.save(file, images, allow_pickle=False)
    except OSError:
        return
    for old in folder.glob(f"{stem}-*.npy"):
        if old.name != f"{stem}-{digest}.npy":
            old.unlink(missing_ok=True)


def _writable(folder: Path) -> bool:
    """Makes the folder where it can be made, and tries whether it can be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
