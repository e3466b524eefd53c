"""Methods beside each other: the runs of each, which differ in their seeds, what is compared, and its curves."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from glob import glob
from pathlib import Path

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.style import GREY, RANGE, draw_line, label, legend, new_figure
from lit_fednas.analysis.tables import stairs
from lit_fednas.errors import DataError
from lit_fednas.formatting import axis
from lit_fednas.records import ROUNDS_FILE

#: What a run's clients spend, as ``rounds.jsonl`` counts it.
COSTS = ("macs", "bytes_down", "bytes_up")

#: Runs that differ in their seeds, by method.
Methods = Mapping[str, Sequence[Run]]
#: For each model that is compared: the name of its metric, by method.
Metrics = Mapping[str, Mapping[str, str]]


def read_methods(words: Sequence[str]) -> dict[str, list[Run]]:
    """Returns the runs of methods that are given as ``label=pattern,pattern``, by label.

    Args:
        words: One per method. A pattern names runs' folders, or folders that hold runs, with ``*`` for any name.

    Raises:
        DataError: A word is not of that form, a pattern finds no run, or a method has two runs of one seed.
    """
    methods: dict[str, list[Run]] = {}
    for word in words:
        name, patterns = pair(word, "label=runs/name*/version_*")
        if name in methods:
            raise DataError(f"{word}: {name} is duplicated; join its folders by commas")
        folders = [folder for pattern in patterns.split(",") for folder in _runs(pattern)]
        methods[name] = [Run(folder) for folder in dict.fromkeys(folders)]
        _check_seeds(name, methods[name])
    return methods


def read_metrics(words: Sequence[str], methods: Methods) -> dict[str, dict[str, str]]:
    """Returns the metrics that are given as ``model=metric``, and as ``method:model=metric`` for an exception.

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
    exceptions: dict[str, dict[str, str]] = {}
    for word in words:
        name, metric = pair(word, "model=val/name/accuracy")
        method, colon, model = name.partition(":")
        if colon and method not in methods:
            raise DataError(f"{word}: {method} is not a method; choose from {', '.join(methods)}")
        if colon:
            exceptions.setdefault(model, {})[method] = metric
        else:
            metrics[name] = dict.fromkeys(methods, metric)
    metrics |= {model: {**metrics.get(model, {}), **names} for model, names in exceptions.items()}
    for model, names in metrics.items():
        missing = [method for method in methods if method not in names]
        if missing:
            raise DataError(f"{model}: has no metric for {missing[0]}; add {model}=... or {missing[0]}:{model}=...")
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
    spent = run.clients.groupby("round")[list(COSTS)].sum(min_count=1).reindex(table["round"])
    if spent.notna().any(axis=None):
        spent = spent.fillna(0)  # nobody took part, or all of them failed
    rounds = table.set_index("round")[list(metrics)].join(spent.cumsum()).dropna(subset=list(metrics))
    if rounds.empty:
        raise DataError(f"{run.folder}: has no round with all of {', '.join(metrics)}; give those of one validation")
    return rounds.set_index(rounds.index + 1).rename_axis("rounds").reset_index()


def each_run(methods: Methods, metrics: Metrics) -> Iterator[tuple[str, str, Run, pd.DataFrame]]:
    """Yields all models, methods and runs: their names, the run, and its validations with the ``accuracy``."""
    for model, names in metrics.items():
        for method, runs in methods.items():
            for run in runs:
                rounds = validations(run, [names[method]])
                yield model, method, run, rounds.rename(columns={names[method]: "accuracy"})


def curves_figure(methods: Methods, metrics: Metrics, macs: float | None = None) -> Figure:
    """Returns curves of accuracy, a panel per model and a line per method: mean over the seeds, and range.

    Over the rounds that all seeds have validated, as FedHeN's Figures 1 to 3; or with a budget, over cumulative
    MACs, where a validation counts until the next, from where all seeds have one to where the first of them ends.

    Args:
        methods: Runs that differ in their seeds, by method.
        metrics: Each model's metric.
        macs: The budget, drawn as a dashed line.

    Raises:
        DataError: A run has never logged a metric.
    """
    figure = new_figure(len(metrics), in_row=3)
    panels = dict(zip(metrics, figure.axes, strict=True))
    curves: dict[tuple[str, str], list[pd.Series]] = {}
    for model, method, _, rows in each_run(methods, metrics):
        curve = 100 * rows.set_index("rounds" if macs is None else "macs")["accuracy"]
        curves.setdefault((model, method), []).append(curve)
    ends = [float(one.index[-1]) for seeds in curves.values() for one in seeds]
    scale, text = (1.0, "round") if macs is None else axis("total_macs", max(macs, *ends))
    style = {} if macs is None else {"drawstyle": "steps-post"}
    for (model, method), seeds in curves.items():
        joined = pd.concat(seeds, axis=1, join="inner").sort_index() if macs is None else stairs(seeds)
        line = joined.agg(RANGE, axis=1)
        draw_line(panels[model], line.set_index(line.index / scale), list(methods).index(method), method, **style)
    for model, axes in panels.items():
        axes.set_title(model, fontsize=9)
        if macs is None:
            tested = all(name.startswith("test/") for name in metrics[model].values())
            label(axes, text, f"{'test' if tested else 'validation'} accuracy (%)")
            axes.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
        else:
            axes.axvline(macs / scale, color=GREY, linewidth=0.9, linestyle=(0, (4, 3)))
            label(axes, text, "accuracy (%)")
            axes.set_xlim(left=0)
    legend(figure)
    return figure


def pair(word: str, form: str) -> tuple[str, str]:
    """Splits ``name=value``; raises ``DataError``, which names the form, for another word."""
    name, _, value = word.partition("=")
    if not (name and value):
        raise DataError(f"{word}: is not of the form {form}")
    return name, value


def _runs(pattern: str) -> list[Path]:
    """Returns the runs that a pattern names, and those in the folders that it names."""
    folders: list[Path] = []
    for folder in map(Path, sorted(glob(pattern))):
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
        if seed is not None and seeds.setdefault(seed, run) is not run:
            raise DataError(f"{name}: {seeds[seed].folder} and {run.folder} have the same seed {seed}; give one")
