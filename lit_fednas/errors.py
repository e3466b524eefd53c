"""Errors that a user can mend: one line that names the field, the value and the remedy."""

from __future__ import annotations


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
