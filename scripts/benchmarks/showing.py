"""Pieces of printed tables."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.measuring import quartiles


def between(values: Sequence[float], digits: int = 3) -> str:
    """The quartiles as text."""
    lower, upper = quartiles(values)
    return f"{lower:.{digits}f}-{upper:.{digits}f}"


def counted(count: int, what: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{count} {what}{'' if count == 1 else 's'}"
