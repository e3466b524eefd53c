"""Atomic writing and validated reading of files: after a kill, a file is either the old or the new one."""

import csv
import errno
import hashlib
import io
import json
import math
import os
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from reprlib import repr
from textwrap import shorten
from typing import Any, BinaryIO

from yaml import YAMLError

from lit_fednas.errors import ConfigError, DataError, FedNASError
from lit_fednas.records.forms import check_form

try:
    import fcntl
except ImportError:  # Windows, where folders are not locked
    fcntl = None  # type: ignore[assignment]

#: Marks files that a command writes to a path of the user's choice; of several files, at least one holds it.
MARK = b"lit_fednas"
#: The remedy for a damaged file.
RESTORE = "restore it, or delete it to do without it"
#: The checksums of a folder's records, in the format of ``sha256sum --check``.
SUMS_FILE = "SHA256SUMS"
_SUM = re.compile(r"([0-9a-f]{64}) [ *](.+)")
_FORMULA = re.compile(r"'*[=+\-@\t\r\n]")
_FOLDER = re.compile(r"[\w+]([\w.,=+ -]*[\w,=+-])?")
_MAX_NAME = 200  # bytes; some systems allow 255, and files inside or beside the folder have longer names
_UNREADABLE = ValueError, TypeError, LookupError, AttributeError, ArithmeticError
_TAKEN = re.compile(
    r"checkpoints|wandb|sha256sums|(study|compare|report|curves|targets|clients|results|config|metrics|rounds|ledger|"
    r"inputs|partition|suite|sequence|subnets-\w+)\.\w+",
    re.IGNORECASE,
)


@contextmanager
def replacing(path: Path | str, sync: bool = False, private: bool = False) -> Iterator[BinaryIO]:
    """Opens a new file that replaces ``path`` if the block raises no error; of two processes, the later one wins."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.part")  # a constant name, so that the next call replaces a killed one's file
    part.unlink(missing_ok=True)  # never writes through a link, or into a file that another process can read
    status = None
    try:
        opener = partial(os.open, mode=0o600 if private else 0o666)
        with naming(path), open(part, "xb", opener=opener) as file:
            status = os.fstat(file.fileno())
            yield file
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if _is_file(part, status):
            sealed = unseal(path)
            os.replace(part, path)
            if sealed:
                seal(path.parent, path.name)
    finally:
        if _is_file(part, status):
            part.unlink()


def _is_file(path: Path, status: os.stat_result | None) -> bool:
    """Returns whether a path still is the opened file, not a later one of another process."""
    return status is not None and os.path.lexists(path) and os.path.samestat(os.lstat(path), status)


@contextmanager
def naming(path: Path | str) -> Iterator[None]:
    """Adds the file's name to errors of writing; the system names only files that cannot be opened."""
    try:
        yield
    except OSError as error:
        if error.filename is not None:
            raise
        raise OSError(error.errno or errno.EIO, error.strerror or str(error), str(path)) from error


def seal(folder: Path, *names: str) -> None:
    """Saves the checksums of records that lack one; :func:`replacing` renews them later."""
    lines = _sums(folder)
    unsealed = [name for name in names if name not in lines and (folder / name).is_file()]
    if unsealed:
        _save_sums(folder, lines | {name: f"{_sum(folder / name)}  {name}" for name in unsealed})


def unseal(path: Path) -> bool:
    """Removes the checksum of a record that will change; returns whether there was one."""
    lines = _sums(path.parent)
    if is_sealed := lines.pop(path.name, None) is not None:
        _save_sums(path.parent, lines)
    return is_sealed


def check_sum(path: Path) -> None:
    """Validates a record against its saved checksum, if there is one."""
    line = _sums(path.parent).get(path.name)
    if line is not None and line[:64] != _sum(path):
        raise DataError(f"{path}: has another checksum; restore it, or delete its line in {SUMS_FILE} to accept it")


def _sum(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _sums(folder: Path) -> dict[str, str]:
    """Returns the lines of checksums by file name; the key of a line of another tool is the line itself."""
    if not os.path.lexists(path := folder / SUMS_FILE):
        return {}
    with reading(path):
        lines = path.read_text(encoding="utf-8").splitlines()
    return {match[2] if (match := _SUM.fullmatch(line)) else line: line for line in lines}


def _save_sums(folder: Path, lines: Mapping[str, str]) -> None:
    replace_text(folder / SUMS_FILE, "".join(f"{line}\n" for line in lines.values()))


class FolderLock:
    """Locks the folder that the setting ``field`` names, until it is released or the process ends."""

    def __init__(self, folder: Path, field: str = "trainer.logger") -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file: int | None = None
        if fcntl is None:
            return
        self._file = descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.release()
            raise ConfigError(f"{field}: another process writes into {folder}; wait for it, or give another") from None

    def release(self) -> None:
        """Unlocks the folder; does nothing if it is already unlocked."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


@contextmanager
def locked(folder: Path, field: str) -> Iterator[None]:
    """Locks the folder that a setting names, and removes it if it stays empty."""
    lock = FolderLock(folder, field)
    try:
        yield
    finally:
        with suppress(OSError):  # the folder holds files
            folder.rmdir()
        lock.release()


@contextmanager
def changing(path: Path) -> Iterator[None]:
    """Lets only one process at a time enter such a block for the same file, if the file exists."""
    with open(path, "r+b") if path.is_file() else nullcontext() as file:  # some network drives lock only writable files
        if file is not None and fcntl is not None:
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def check_output(*paths: Path, overwrite: bool = False) -> None:
    """Validates, before any work, that files can be written; if some exist, at least one must be ours."""
    present = [path for path in paths if path.exists()]
    for path in present:
        if not path.is_file():
            raise ConfigError(f"output: {path} is not a file; give the path of a file")
    if present and not overwrite and not any(MARK in path.read_bytes() for path in present):
        raise ConfigError(f"output: {present[0]} exists and is not from this command; move it, or add --overwrite")
    check_room("output", paths[0].absolute().parent)


def check_room(field: str, folder: Path | str, size: int = 1) -> None:
    """Validates, before any work, that a folder can be written to and its disk has room for ``size`` bytes."""
    path = Path(folder).absolute()
    existing = next(parent for parent in (path, *path.parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise ConfigError(f"{field}: {existing} cannot be written to; give another folder")
    usage = shutil.disk_usage(existing)
    if usage.free < size <= usage.total:  # some network drives report a total of 0 bytes
        raise ConfigError(f"{field}: the disk of {folder} has {usage.free:,} of {size:,} bytes needed; free more")


def replace_text(path: Path | str, text: str, private: bool = False) -> None:
    """Writes a text file."""
    with replacing(path, private=private) as file:
        file.write(text.encode())


def replace_saved(path: Path | str, value: Any, sync: bool = False, private: bool = False) -> None:
    """Writes a value for ``torch.load``."""
    import torch  # imported here, because readers of records start faster without it

    content = io.BytesIO()  # torch's file writer hides the reason of an error, or ends the process
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
    replace_text(path, table_text([columns, *([row.get(name) for name in columns] for row in rows)], lineterminator))


def table_text(rows: Iterable[Iterable[Any]], lineterminator: str = "\n") -> str:
    """Returns the lines of a CSV file; :func:`as_cell` escapes texts that look like formulas."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator=lineterminator).writerows(map(as_cell, row) for row in rows)
    return text.getvalue()


def as_cell(value: Any) -> Any:
    """Returns a value for a CSV file; a text that a spreadsheet would take for a formula gets an apostrophe.

    Example:
        >>> [as_cell(value) for value in ("=1+1", "-1.5", -1.5, "'=1", "'a")], from_cell("'=1+1")
        (["'=1+1", '-1.5', -1.5, "''=1", "'a"], '=1+1')
    """
    if not isinstance(value, str) or not _FORMULA.match(value):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def from_cell(value: Any) -> Any:
    """Inverts :func:`as_cell`."""
    return value[1:] if isinstance(value, str) and value.startswith("'") and _FORMULA.match(value) else value


@contextmanager
def reading(path: Path | str) -> Iterator[None]:
    """Converts errors of parsing to :class:`DataError` with the file's path; refuses folders and pipes."""
    if os.path.lexists(path) and not os.path.isfile(path):
        raise DataError(f"{path}: is not a file; restore it, or move it away to do without it")
    try:
        yield
    except FedNASError:
        raise
    except (*_UNREADABLE, RecursionError, csv.Error, YAMLError) as error:
        reason = f"{type(error).__name__}: {' '.join(str(error).split())}"
        raise DataError(f"{path}: is damaged ({shorten(reason, 90, placeholder=' ...')}); {RESTORE}") from None


def read_json(path: Path, form: Any = dict) -> dict[str, Any]:
    """Reads a JSON object of a form (``lit_fednas.records.forms``); empty if the file is missing."""
    if not os.path.lexists(path):
        return {}
    with reading(path):
        content: dict[str, Any] = parse_json(path.read_text(encoding="utf-8"))
        check_form(content, form)
        check_sum(path)
        return content


def parse_json(text: str) -> Any:
    """Parses a text in JSON; refuses duplicate keys and numbers that are not finite."""
    return json.loads(text, object_pairs_hook=_unique_keys, parse_constant=_refuse_constant)


def _refuse_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(content := dict(pairs)) < len(pairs):
        raise ValueError(f"a key of {repr([*content])} is duplicated")
    return content


def read_table(path: Path, needed: Iterable[str] = (), grows: bool = False) -> list[dict[str, str]]:
    """Reads the texts of a CSV file of this package; a file that ``grows`` may repeat rows and end within a line."""
    with reading(path):
        content = path.read_bytes()
        whole = content[: content.rfind(b"\n") + 1]
        if whole != content and not grows:
            raise ValueError("its last line is cut short")
        head, *rows = list(csv.reader(io.StringIO(whole.decode("utf-8-sig"), newline=""), strict=True)) or [[]]
        names = [*map(from_cell, head)]
        if len(set(names)) < len(names) or "" in names:
            raise ValueError("the name of a column is empty or duplicated")
        if missing := [name for name in needed if name not in names]:
            raise ValueError(f"it has no column {missing[0]}")
        for number, row in enumerate(rows, start=1):
            if len(row) != len(names):
                raise ValueError(f"row {number} has {len(row)} cells of {len(names)}")
        if not grows and len(set(map(tuple, rows))) < len(rows):
            raise ValueError("a row is duplicated")
        check_sum(path)
        return [dict(zip(names, map(from_cell, row), strict=True)) for row in rows]


def plain_numbers(value: Any) -> Any:
    """Returns a value with ``None`` for numbers that JSON cannot write, and lists for sequences."""
    if isinstance(value, Mapping):
        return {key: plain_numbers(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain_numbers(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def check_folder_name(field: str, name: str) -> None:
    """Validates that a name can name a folder on any system and is none that runs and studies use."""
    if not _FOLDER.fullmatch(name) or len(name.encode()) > _MAX_NAME or _TAKEN.fullmatch(name):
        raise ConfigError(f"{field}: {name!r:.99} cannot name a folder; use up to {_MAX_NAME} letters, digits, - and _")


def check_folder_names(field: str, names: Iterable[str]) -> None:
    """Validates that names can name folders beside each other, also on systems that ignore case."""
    spellings: dict[str, str] = {}
    for name in names:
        check_folder_name(field, name)
        if (other := spellings.get(name.casefold())) is not None:
            raise ConfigError(f"{field}: {other!r} and {name!r} are one folder, at least on some systems; change one")
        spellings[name.casefold()] = name
