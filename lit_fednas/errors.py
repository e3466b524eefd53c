"""Errors that a user can mend: one line that names the field, the value and the remedy."""

from __future__ import annotations

from collections.abc import Collection
from difflib import get_close_matches


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
    """Another process of the run has failed or is gone; says which and why, as far as it is known."""


def did_you_mean(word: str, known: Collection[str]) -> str:
    """Returns the end of an error about an unknown name: the known ones that are most like it, if any are.

    Example:
        >>> did_you_mean("serch", ["fit", "search"])
        '; did you mean search?'
    """
    near = get_close_matches(word, known, n=1) if word not in known else []
    return f"; did you mean {near[0]}?" if near else ""
