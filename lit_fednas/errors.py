"""Errors that a user can fix, in one line with the field, the value and the remedy."""

import sys
import traceback
from collections import Counter
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path

#: Packages that cannot contain the mistakes of a method's author.
LIBRARIES = {"lit_fednas", "lightning", "jsonargparse", "torch", "torchmetrics", "torchvision", "numpy", "wandb"}
LIBRARIES |= sys.stdlib_module_names


class FedNASError(ValueError):
    """The base of all errors that the command line prints in one line, without a traceback."""


class ConfigError(FedNASError):
    """A setting that cannot work; the message has the field, its value and a remedy."""


class DataError(FedNASError):
    """Data that are missing, unreadable or too few."""


class CheckpointError(FedNASError):
    """A checkpoint that cannot be read, or belongs to another run."""


class ClientError(RuntimeError):
    """A client's failed training, if the policy is to stop; the message has the round and the client."""


class RankError(RuntimeError):
    """The failure or end of another process of the run; the message has the process and the reason, if known."""


def place_of(error: BaseException) -> str:
    """Returns file, line and function where an error left the code of a method's author; empty for other errors."""
    location = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] not in LIBRARIES:
            location = f"{Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_qualname}"
    return location


def in_one_line(error: BaseException) -> str:
    """Returns an error's type, message and :func:`place_of`."""
    location = place_of(error)
    return f"{type(error).__name__}: {error}{f' ({location})' if location else ''}"


def did_you_mean(word: str, choices: Collection[str]) -> str:
    """Returns the end of an error about an unknown word, with the closest choice: ``; did you mean search?``."""
    matches = get_close_matches(word, choices, n=1) if word not in choices else []
    return f"; did you mean {matches[0]}?" if matches else ""


def require_different(names: Sequence[str], field: str, path: Path) -> None:
    """Validates that a table's columns have different names, except for columns without a name."""
    for name, count in Counter(names).items():
        if name and count > 1:
            raise DataError(f"{field}: {path} has {count} columns {name!r}; rename or remove all but one")
