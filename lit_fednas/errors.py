"""Errors that a user can fix: one line that names the field, the value and the remedy."""

import sys
import traceback
from collections import Counter
from collections.abc import Collection, Sequence
from difflib import get_close_matches
from pathlib import Path

#: Packages in whose files the author of a method does not look for his mistakes.
LIBRARIES = {"lit_fednas", "lightning", "jsonargparse", "torch", "torchmetrics", "torchvision", "numpy", "wandb"}
LIBRARIES |= sys.stdlib_module_names


class FedNASError(ValueError):
    """Base of all errors that the command line prints as one line, without a traceback."""


class ConfigError(FedNASError):
    """A setting cannot work: names the field, its value and what to put there instead."""


class DataError(FedNASError):
    """The data are missing, unreadable, or too few for what was asked."""


class CheckpointError(FedNASError):
    """A checkpoint cannot be read, or belongs to another run."""


class ClientError(RuntimeError):
    """A client's training failed and the policy is to stop; names the round and the client."""


class RankError(RuntimeError):
    """Another process of the run has failed or ended; names it and the reason, as far as it is known."""


def place_of(error: BaseException) -> str:
    """Returns file, line and function where an error left the code of a method's author; empty if it was not there."""
    place = ""
    for frame, line in traceback.walk_tb(error.__traceback__):
        if frame.f_globals.get("__name__", "").partition(".")[0] not in LIBRARIES:
            place = f"{Path(frame.f_code.co_filename).name}, line {line}, in {frame.f_code.co_qualname}"
    return place


def in_one_line(error: BaseException) -> str:
    """Returns an error's type, its message, and :func:`place_of` it."""
    place = place_of(error)
    return f"{type(error).__name__}: {error}{f' ({place})' if place else ''}"


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Returns the end of an error about an unknown name: the closest known one, as ``; did you mean search?``."""
    near = get_close_matches(word, known, n=1) if word not in known else []
    return f"; did you mean {near[0]}?" if near else ""


def require_different(names: Sequence[str], field: str, path: Path) -> None:
    """Validates that the columns of a table have different names; those without a name are not compared."""
    for name, count in Counter(names).items():
        if name and count > 1:
            raise DataError(f"{field}: {path} has {count} columns {name!r}; rename or remove all but one")
