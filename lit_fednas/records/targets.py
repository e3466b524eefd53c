"""When a metric first reached its target: the rule, and ``targets.csv`` in a run's folder.

One row per metric and target: ``metric``, ``target``, ``round`` (the first, counted from 1; empty if it was never
reached), and ``macs``, ``bytes_down`` and ``bytes_up``, what all clients had spent by the end of that round (empty
without a ledger).
"""

from __future__ import annotations

from collections.abc import Iterable

TARGETS_FILE = "targets.csv"
TARGET_COLUMNS = ("metric", "target", "round", "macs", "bytes_down", "bytes_up")
#: Metrics are logged in float32, whose 0.7 lies 1e-8 below the target 0.7.
_TOLERANCE = 1e-6


def reaches(value: float, target: float) -> bool:
    """Whether a metric is at least the target, up to the rounding of float32; NaN never is.

    Example:
        >>> reaches(0.699999988, 0.7), reaches(0.6999, 0.7), reaches(float("nan"), 0.7)
        (True, False, False)
    """
    return value >= target - _TOLERANCE


def first_reaching(values: Iterable[tuple[int, float]], target: float) -> int | None:
    """The first round whose value reaches the target.

    Args:
        values: Rounds and their values, in the order of the rounds.
        target: What to reach.

    Returns:
        The round; ``None`` if there is none.

    Example:
        >>> first_reaching([(2, 0.4), (4, 0.6), (6, 0.5)], 0.5)
        4
    """
    return next((round for round, value in values if reaches(value, target)), None)
