"""What networks are measured by, in tables: metrics by name, and whether higher is better."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeAlias

from lit_fednas.errors import ConfigError
from lit_fednas.records.files import read_json

#: Whether higher is better, by metric; the first counts most. None where it is not known.
Directions: TypeAlias = Mapping[str, bool | None]

#: Of classes; where a folder's files do not say what its metrics are, it is these.
OF_CLASSES: Directions = {"accuracy": True, "loss": False}

#: Metrics are logged in float32, whose 0.7 is 1e-8 below the target 0.7.
_TOLERANCE = 1e-6


def reaches(value: float, target: float, higher: bool = True) -> bool:
    """Returns whether a metric is at least (or, without ``higher``, at most) the target; NaN never is.

    Example:
        >>> reaches(0.699999988, 0.7), reaches(0.6999, 0.7), reaches(float("nan"), 0.7)
        (True, False, False)
        >>> reaches(7.9, 8.0, higher=False), reaches(8.1, 8.0, higher=False)
        (True, False)
    """
    return value >= target - _TOLERANCE if higher else value <= target + _TOLERANCE


def expanded(columns: Iterable[str], metrics: Iterable[str], metric: str) -> Iterator[str]:
    """Yields columns, ``{each}`` in a name replaced by each metric, and ``{metric}`` by the one that counts.

    Example:
        >>> list(expanded(["tier", "val_{each}", "best_{metric}"], ["perplexity", "loss"], "loss"))
        ['tier', 'val_perplexity', 'val_loss', 'best_loss']
    """
    metrics = list(metrics)
    for column in columns:
        if "{each}" in column:
            yield from (column.format(each=name) for name in metrics)
        else:
            yield column.format(metric=metric)


def chosen(metric: str | None, directions: Directions, field: str) -> tuple[str, bool]:
    """Returns the metric by which the best is known, and whether higher is better."""
    metric = metric or next(iter(directions))
    known = ", ".join(name for name, higher in directions.items() if higher is not None)
    if metric not in directions:
        raise ConfigError(f"{field}: {metric!r} is not measured here; choose from {known}")
    higher = directions[metric]
    if higher is None:
        raise ConfigError(
            f"{field}: {metric!r} does not say whether higher is better (its higher_is_better is None); choose "
            f"from {known}"
        )
    return metric, higher


def error(value: float, higher: bool) -> float:
    """Returns what is to be minimised: the value, or what it lacks to one where higher is better."""
    return 1 - value if higher else value


def directions_of(folder: Path) -> Directions:
    """Returns the metrics of a run, a search or a fine-tuning, from the files in its folder."""
    for name in ("settings.json", "inputs.json"):
        if found := read_json(folder / name).get("metrics"):
            return dict(found)
    return OF_CLASSES
