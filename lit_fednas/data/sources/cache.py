"""The cache of what is computed from many files: one ``.npy`` file."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import numpy as np

from lit_fednas.records.files import replacing


def cached(
    root: Path,
    stem: str,
    content: str,
    shape: tuple[int, ...],
    compute: Callable[[], np.ndarray],
    dtype: type[np.generic] = np.uint8,
) -> np.ndarray:
    """Returns an array from the cache, or computes and keeps it.

    The file lies in ``<root>/.lit_fednas_cache``, or in the user's cache folder where the root cannot be written; where
    neither can, nothing is kept.

    Args:
        root: The folder that the array is computed from.
        stem: Begins the name of the file; older files of this stem are removed.
        content: All that the array depends on; the file's name holds a digest of it.
        shape: That of the array; a file with another one is damaged, and computed anew.
        compute: Returns the array.
        dtype: As ``shape``.
    """
    name = f"{stem}-{_digest(content)[:32]}.npy"
    user = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "lit_fednas"
    folders = (root / ".lit_fednas_cache", user / _digest(str(root.resolve()))[:16])
    for folder in folders:
        array = _read(folder / name, shape, dtype)
        if array is not None:
            return array
    array = compute()
    any(_written(folder / name, stem, array) for folder in folders)
    return array


def _digest(text: str) -> str:
    """Returns the SHA-256 of a text, in hexadecimal digits."""
    return hashlib.sha256(text.encode()).hexdigest()


def _read(path: Path, shape: tuple[int, ...], dtype: type[np.generic]) -> np.ndarray | None:
    """Reads a cache file; None where it is missing or damaged."""
    try:
        array = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError):
        return None
    return array if array.shape == shape and array.dtype == dtype else None


def _written(path: Path, stem: str, array: np.ndarray) -> bool:
    """Writes a cache file if it can be written, and removes those of the folder's earlier states."""
    try:
        with replacing(path) as file:
            np.save(file, array, allow_pickle=False)
    except OSError:
        return False
    for old in path.parent.glob(f"{stem}-*.npy"):
        if old != path:
            old.unlink(missing_ok=True)
    return True
