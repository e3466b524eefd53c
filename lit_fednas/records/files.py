"""Files that are replaced as a whole: a kill leaves the old one or the new one; and numbers as JSON has them."""

from __future__ import annotations

import csv
import errno
import io
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import Any, BinaryIO

from yaml import YAMLError

from lit_fednas.errors import ConfigError, DataError, FedNASError

try:
    import fcntl
except ImportError:  # Windows, where folders are not locked
    fcntl = None  # type: ignore[assignment]


@contextmanager
def replacing(path: Path | str, sync: bool = False, private: bool = False) -> Iterator[BinaryIO]:
    """Opens a file that replaces another once the block has ended without an error."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")  # always the same: the next one replaces what a kill has left
    if private:
        part.unlink(missing_ok=True)  # whoever can read it could read on
    try:
        opener = partial(os.open, mode=0o600) if private else None
        with naming(path), open(part, "wb", opener=opener) as file:
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Adds the file's name to errors of writing it; the system names only files that cannot be opened."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error


class FolderLock:
    """Keeps other processes from locking the same folder, until it is released or the process ends."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: int | None = None
        if fcntl is None:
            return
        self._file = opened = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ConfigError(
                f"trainer.logger: another process is training in {folder}; wait for it, or train in another folder"
            ) from None

    def release(self) -> None:
        """Lets others lock the folder; does nothing if it has been released."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def check_output(path: Path | str) -> None:
    """Validates, before any work, that a file can be written."""
    path = Path(path)
    if path.exists() and not path.is_file():
        raise ConfigError(f"output: {path} is not a file; give the path of a file")
    check_room("output", path.absolute().parent)


def check_room(field: str, folder: Path | str, size: int = 1) -> None:
    """Validates, before any work, that a folder can be written to, and its disk has room for a file."""
    path = Path(folder).absolute()
    nearest = next(one for one in (path, *path.parents) if one.exists())
    if not nearest.is_dir() or not os.access(nearest, os.W_OK | os.X_OK):
        raise ConfigError(f"{field}: {nearest} cannot be written to; give another folder")
    usage = shutil.disk_usage(nearest)
    if usage.free < size <= usage.total:  # some network drives say 0 of 0
        raise ConfigError(
            f"{field}: the disk of {folder} has {usage.free:,} bytes left, {size:,} are needed at least; free some "
            f"space, or give another place"
        )


def replace_text(path: Path | str, text: str) -> None:
    """Writes a text file."""
    with replacing(path) as file:
        file.write(text.encode())


def replace_saved(path: Path | str, value: Any, sync: bool = False, private: bool = False) -> None:
    """Writes what ``torch.load`` reads."""
    import torch  # by this alone: what reads records starts without it

    content = io.BytesIO()  # torch's writer hides why a file cannot be written, or ends the process
    torch.save(value, content)
    with replacing(path, sync, private) as file:
        file.write(content.getbuffer())


def replace_json(path: Path | str, value: Any) -> None:
    """Writes a JSON file; numbers that JSON lacks become null."""
    replace_text(path, json.dumps(plain_numbers(value), indent=1) + "\n")


def replace_table(
    path: Path | str, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], lineterminator: str = "\n"
) -> None:
    """Writes a CSV file."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator=lineterminator)
    writer.writeheader()
    writer.writerows(rows)
    replace_text(path, text.getvalue())


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Converts errors of parsing a file's content to :class:`DataError` with its name."""
    try:
        yield
    except FedNASError:
        raise
    except (ValueError, TypeError, LookupError, AttributeError, ArithmeticError, csv.Error, YAMLError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise DataError(
            f"{path}: is damaged ({shorten(reason, 90, placeholder=' ...')}); restore it, or delete it to do without it"
        ) from None


def read_json(path: Path, needed: Iterable[str] = ()) -> dict[str, Any]:
    """Reads a JSON object."""
    if not path.exists():
        return {}
    with reading(path):
        content = {**json.loads(path.read_text())}
        for key in needed:
            content[key]
        return content


def plain_numbers(value: Any) -> Any:
    """Returns a value in which numbers that JSON cannot write are ``None``, and sequences are lists."""
    if isinstance(value, Mapping):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_folder_name(field: str, name: str) -> None:
    """Validates that a name can be that of a folder."""
    if not re.fullmatch(r"[\w+][\w.,=+ -]*", name) or name.endswith(" "):
        raise ConfigError(f"{field}: {name!r} cannot name a folder; use letters, digits, - and _")
