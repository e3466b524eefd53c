"""Methods beside each other: the runs of each, which differ in their seeds, and which metrics are compared."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path

import pandas as pd

from lit_fednas.analysis.runs import Run
from lit_fednas.errors import DataError
from lit_fednas.records import ROUNDS_FILE

#: What a run's clients spend, as ``rounds.jsonl`` counts it.
COSTS = ("macs", "bytes_down", "bytes_up")

#: Runs that differ in their seeds, by method.
Methods = Mapping[str, Sequence[Run]]
#: For each model that is compared: the name of its metric, by method.
Metrics = Mapping[str, Mapping[str, str]]


def read_methods(words: Sequence[str]) -> dict[str, list[Run]]:
    """Finds the runs of methods that are given as ``label=pattern,pattern``.

    Args:
        words: One per method. A pattern names runs' folders, or folders that hold runs, with ``*`` for any name.

    Raises:
        DataError: A word is not of that form, a pattern finds no run, or a method has two runs of one seed.
    """
    methods: dict[str, list[Run]] = {}
    for word in words:
        name, equals, patterns = word.partition("=")
        if not (name and equals and patterns):
            raise DataError(f"{word}: is not of the form label=runs/name*/version_*")
        if name in methods:
            raise DataError(f"{word}: {name} is duplicated; join its folders by commas")
        folders = [folder for pattern in patterns.split(",") for folder in _runs(pattern)]
        methods[name] = [Run(folder) for folder in dict.fromkeys(folders)]
        _check_seeds(name, methods[name])
    return methods


def read_metrics(words: Sequence[str], methods: Methods) -> dict[str, dict[str, str]]:
    """Reads ``model=metric``, for all methods, and ``method:model=metric``, for one that logs another name.

    Args:
        words: One per model, and one per exception.
        methods: The methods.

    Raises:
        DataError: A word is not of that form, or a method or model is unknown or has no metric.

    Example:
        >>> read_metrics(["small=val/a/accuracy", "B:small=val/b/accuracy"], {"A": [], "B": []})
        {'small': {'A': 'val/a/accuracy', 'B': 'val/b/accuracy'}}
    """
    metrics: dict[str, dict[str, str]] = {}
    own: dict[tuple[str, str], str] = {}
    for word in words:
        name, equals, metric = word.partition("=")
        if not (name and equals and metric):
            raise DataError(f"{word}: is not of the form model=val/name/accuracy")
        method, colon, model = name.partition(":")
        if colon and method not in methods:
            raise DataError(f"{word}: {method} is not a method; choose from {', '.join(methods)}")
        if colon:
            own[method, model] = metric
        else:
            metrics[name] = dict.fromkeys(methods, metric)
    for (method, model), metric in own.items():
        metrics.setdefault(model, {})[method] = metric
    for model, names in metrics.items():
        missing = [method for method in methods if method not in names]
        if missing:
            raise DataError(
                f"{model}: has no metric for {missing[0]}; add {model}=... or {missing[0]}:{model}=..."
            )
    return metrics


def validations(run: Run, metrics: Sequence[str]) -> pd.DataFrame:
    """Returns the rounds of a run that have all of the metrics, with what its clients had spent by then.

    Args:
        run: The run.
        metrics: Names as they were logged.

    Returns:
        ``rounds`` (as many as were trained: the first is 1), the metrics, and the cumulated ``macs``,
        ``bytes_down`` and ``bytes_up`` (NaN if the run has not counted them).

    Raises:
        DataError: The run has never logged a metric, or has no round with all of them.
    """
    table = run.rounds
    for metric in metrics:
        if metric not in table or table[metric].isna().all():
            known = [name for name in table if name.startswith(("val/", "test/"))]
            raise DataError(f"{run.folder}: has not logged {metric}; choose from {', '.join(known) or 'nothing'}")
    spent = run.clients.groupby("round")[list(COSTS)].sum(min_count=1)
    if spent.notna().any(axis=None):
        spent = spent.reindex(table["round"]).fillna(0)  # nobody took part, or all of them failed
    else:
        spent = spent.reindex(table["round"])
    rounds = table[["round", *metrics]].set_index("round").join(spent.cumsum())
    rounds = rounds.dropna(subset=list(metrics)).reset_index()
    if rounds.empty:
        raise DataError(
            f"{run.folder}: has no round with all of {', '.join(metrics)}; give those of one validation"
        )
    return rounds.rename(columns={"round": "rounds"}).assign(rounds=lambda rows: rows["rounds"] + 1)


def each_run(methods: Methods, metrics: Metrics) -> Iterator[tuple[str, str, Run, pd.DataFrame]]:
    """Yields all models, methods and runs: their names, the run, and its validations with the ``accuracy``."""
    for model, names in metrics.items():
        for method, runs in methods.items():
            for run in runs:
                rounds = validations(run, [names[method]])
                yield model, method, run, rounds.rename(columns={names[method]: "accuracy"})


def _runs(pattern: str) -> list[Path]:
    """Returns the runs that a pattern names, and those in the folders that it names."""
    named = [Path(name) for name in sorted(glob(pattern))]
    folders = []
    for folder in named:
        inner = sorted(path.parent for path in folder.glob(f"*/{ROUNDS_FILE}"))
        folders += [folder] if (folder / ROUNDS_FILE).exists() else inner
    if not folders:
        raise DataError(f"{pattern}: finds no run; give folders that hold {ROUNDS_FILE}, or folders of such")
    return folders


def _check_seeds(name: str, runs: Sequence[Run]) -> None:
    """Validates that seeds differ: a run that was stopped and started again would count twice."""
    seeds: dict[int, Run] = {}
    for run in runs:
        seed = run.settings.get("seed_everything")
        if seed is None:
            continue
        if seed in seeds:
            raise DataError(f"{name}: {seeds[seed].folder} and {run.folder} have the same seed {seed}; give one")
        seeds[seed] = run
