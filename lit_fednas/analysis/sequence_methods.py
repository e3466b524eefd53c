"""How accurate the models of a pruned sequence are, before and after fine-tuning (FedNAS, Figs. 4 and 8).

The accuracy that the clients' validation data gave while the sequence was made is in ``sequence.json``. Those of
the server's data are, after fine-tuning, in ``<finetune>/tiers.csv``; before, there as well (validation), in the
tables of the search that the fine-tuning followed, and in those of the run's own evaluation (``subnets-val.csv``,
``subnets-test.csv``). A model is ``model: 3`` in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_fednas.analysis.methods import Methods
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.sequence import number_within, sequence_of, sequence_table
from lit_fednas.analysis.style import draw_line, label, legend, look, new_figure
from lit_fednas.errors import DataError
from lit_fednas.formatting import percent, short, spread, text_table
from lit_fednas.records import SEQUENCE_FILE, FinetuneFiles, SearchFiles
from lit_fednas.records.tiers import FINETUNED_COLUMNS

_COLUMNS = ("val_before", "val_after", "test_before", "test_after")


def sequence_accuracies(run: Run, finetune: str = "finetune") -> pd.DataFrame:
    """Returns the accuracies of a run's models, as far as they are known.

    Args:
        run: The run.
        finetune: The name of its fine-tuning; the run need not have one.

    Returns:
        A row per model, and per tier where several tiers had the same model trained: ``number``, ``tier`` (of the
        fine-tuning; empty for a model that was not fine-tuned), ``share`` (of the initial MACs), ``clients`` (on
        the clients' validation data), and on the server's data ``val_before``, ``val_after``, ``test_before``,
        ``test_after``; from 0 to 1, NaN where unknown.

    Raises:
        DataError: The run has no ``sequence.json``.
    """
    models = sequence_of(run)["models"]
    tuned = _finetuned(run, finetune)
    search = _search_name(run, finetune)
    before = {split: _before(run, search, split) for split in ("val", "test")}
    rows = []
    for model in models:
        number = model["number"]
        own: list[Mapping[str, Any]] = [row for row in tuned if row["number"] == number]
        for row in own or [{}]:
            values = {
                "val_before": row.get("val_before"),
                "val_after": row.get("val_after"),
                "test_before": before["test"].get(number),
                "test_after": row.get("test_after"),
            }
            if values["val_before"] is None or pd.isna(values["val_before"]):
                values["val_before"] = before["val"].get(number)
            share = model["macs"] / models[0]["macs"]
            beside = {"tier": row.get("tier", ""), "share": share, "clients": model["accuracy"]}
            rows.append({"number": number, **beside, **values})
    table = pd.DataFrame(rows, columns=["number", "tier", "share", "clients", *_COLUMNS])
    return table.astype(dict.fromkeys(("clients", *_COLUMNS), float))


def accuracy_figure(methods: Methods, finetune: str = "finetune") -> Figure:
    """Draws FedNAS' Figs. 4 and 8: accuracy over the share of the initial MACs: mean, and range over seeds.

    The left panel has the clients' validation data. The right one, if there is anything for it, has the server's
    test data (its validation data, if there are no others): after fine-tuning, and dashed before. A run without a
    sequence, as one that trains networks of several widths, has there the subnets that it evaluated in the end.

    Points are means of the models of the same number, and where they were fine-tuned, of the same tier: seeds need
    not choose the same models for it.

    Args:
        methods: Runs that differ in their seeds, by method.
        finetune: The name of their fine-tuning.

    Raises:
        DataError: No run has a sequence; a method has runs with and without; or one without has not evaluated any
            subnets.
    """
    pruned, others = split_methods(methods)
    accuracies = {name: [sequence_accuracies(run, finetune) for run in runs] for name, runs in pruned.items()}
    every = [table for tables in accuracies.values() for table in tables]
    split = next((one for one in ("test", "val") if any(_any_of(table, one) for table in every)), "")
    split = split or ("test" if others else "")
    figure = new_figure(2 if split else 1)
    axes = figure.axes[0]
    for place, (name, tables) in enumerate(accuracies.items()):
        rows = pd.concat([table.drop_duplicates("number") for table in tables])
        _draw(axes, _over_seeds(rows, rows["number"].astype(str), "clients"), place, name)
    label(axes, "share of MACs", "accuracy on clients' validation data")
    if split:
        axes = figure.axes[1]
        label(axes, "share of MACs", f"{'test' if split == 'test' else 'validation'} accuracy")
        _draw_server(axes, accuracies, split)
        initial = sequence_of(next(run for runs in pruned.values() for run in runs))["models"][0]["macs"]
        for place, (name, runs) in enumerate(others.items(), start=len(accuracies)):
            rows = pd.concat([_evaluated(run, split, initial) for run in runs])
            _draw(axes, _over_seeds(rows, rows["subnet"], "accuracy"), place, name)
        axes.set_title("fine-tuned; dashed: before", fontsize=9)
    legend(figure)
    return figure


def split_methods(methods: Methods) -> tuple[dict[str, list[Run]], dict[str, list[Run]]]:
    """Splits methods into those whose runs have a sequence, and the others.

    Raises:
        DataError: A method has runs with and without, or none has.
    """
    pruned: dict[str, list[Run]] = {}
    others: dict[str, list[Run]] = {}
    for name, runs in methods.items():
        without = [run for run in runs if not (run.folder / SEQUENCE_FILE).exists()]
        if without and len(without) < len(runs):
            raise DataError(
                f"{name}: {without[0].folder} has no {SEQUENCE_FILE}, others have; give it another label"
            )
        (others if without else pruned)[name] = list(runs)
    if not pruned:
        raise DataError(f"{', '.join(methods)}: no run has a {SEQUENCE_FILE}; give runs with PruneByBudgets")
    return pruned, others


def _any_of(table: pd.DataFrame, split: str) -> bool:
    """Returns whether any accuracy on a split is known."""
    return bool(table[[f"{split}_before", f"{split}_after"]].notna().any(axis=None))


def _finetuned(run: Run, finetune: str) -> list[dict[str, Any]]:
    """Returns a row per tier: its model's number and accuracies."""
    table = run.finetuned(finetune)
    rows = []
    for _, row in table[[name for name in FINETUNED_COLUMNS if name in table]].iterrows():
        number = _number(str(row["arch"]))
        if number is not None:
            accuracies = {"val_before": row["val_accuracy_before"], "val_after": row["val_accuracy"]}
            rows.append({"number": number, "tier": row["tier"], **accuracies, "test_after": row["test_accuracy"]})
    return rows


def _search_name(run: Run, finetune: str) -> str:
    """Returns the search whose tiers were fine-tuned."""
    settings = FinetuneFiles(run.folder / finetune).settings()
    return settings.get("search") or "search"


def _before(run: Run, search: str, split: str) -> dict[int, float]:
    """Accuracies with the sequence's own weights, by the model's number: of the search, else of the run."""
    files = SearchFiles(run.folder / search)
    evaluated = run.subnets(split)
    evaluated_archs = list(zip(evaluated["arch"], evaluated["accuracy"], strict=True))
    if split == "val":
        evaluated_archs += [(row["arch"], row["accuracy"]) for row in files.rows("evaluations")]
    evaluated_archs += [(row["arch"], row[f"{split}_accuracy"]) for row in files.rows("tiers")]
    numbers = ((_number(str(arch)), accuracy) for arch, accuracy in evaluated_archs)
    return {number: accuracy for number, accuracy in numbers if number is not None and not pd.isna(accuracy)}


def _number(arch: str) -> int | None:
    match = re.fullmatch(r"model: (\d+)", arch)
    return int(match[1]) if match else None


def _evaluated(run: Run, split: str, initial: float) -> pd.DataFrame:
    """Returns the subnets of a run without a sequence: ``subnet``, ``share``, ``accuracy``."""
    table = run.subnets(split)
    if table.empty:
        raise DataError(
            f"{run.folder}: has neither {SEQUENCE_FILE} nor subnets-{split}.csv; let it evaluate its subnets"
        )
    return table.assign(share=table["macs"] / initial)[["subnet", "share", "accuracy"]]


def _over_seeds(rows: pd.DataFrame, key: Iterable[str], value: str) -> pd.DataFrame:
    """Returns ``share``, and ``mean``, ``low``, ``high`` of a column, by ascending share; a row per key."""
    known = rows.assign(key=list(key)).dropna(subset=[value])
    by_key = known.groupby("key")
    columns = {"share": by_key["share"].mean(), "mean": by_key[value].mean()}
    bounds = {"low": by_key[value].min(), "high": by_key[value].max()}
    return pd.DataFrame({**columns, **bounds}).sort_values("share")


def _draw_server(axes: Axes, accuracies: Mapping[str, list[pd.DataFrame]], split: str) -> None:
    for place, (name, tables) in enumerate(accuracies.items()):
        rows = pd.concat(tables)
        key = [row.tier or f"model {row.number}" for row in rows.itertuples()]
        _draw(axes, _over_seeds(rows, key, f"{split}_after"), place, name)
        _draw(axes, _over_seeds(rows, key, f"{split}_before"), place, None)


def _draw(axes: Axes, line: pd.DataFrame, place: int, name: str | None) -> None:
    """Draws a method's line with its range; dashed and hollow without a name, as before fine-tuning."""
    if line.empty:
        return
    style = {"marker": look(place)["marker"], "markersize": 4}
    if name is None:
        style |= {"linestyle": "--", "linewidth": 1.0, "markerfacecolor": "white"}
    draw_line(axes, line["share"], line["mean"], (line["low"], line["high"]), place, name, **style)


_COST_COLUMNS = ("number", "reached", "up_mb", "down_mb", "client_macs", "accuracy", "tuned", "test_accuracy")
_ABOVE: dict[str, Any] = {"fontsize": 6.5, "ha": "center", "va": "bottom", "rotation": 90}
_MOST_PERCENT = 9  # times more from which on a factor is easier to read than percent


def cost_table(methods: Methods, shares: Sequence[float], finetune: str = "finetune") -> pd.DataFrame:
    """Returns each run at each share of the initial resource: its cost until then, and its accuracy.

    Args:
        methods: Runs that differ in their seeds, by method; each with a sequence.
        shares: Of the initial resource, above 0 and below 1.
        finetune: The name of a fine-tuning, which a run need not have.

    Returns:
        ``method``, ``run``, ``share``, ``number`` (of the first model within the share), ``reached`` (what it
        takes of the initial resource), ``up_mb``, ``down_mb`` and ``client_macs`` (of a client on the average, as
        in :func:`~lit_fednas.analysis.sequence.sequence_table`), ``accuracy`` (on the clients' validation data),
        ``test_accuracy`` (after fine-tuning) of model ``tuned``: this very model, or if it was not fine-tuned, the
        largest that was and is within this share and not within the next smaller one. NaN where a run has not got
        so far.

    Raises:
        DataError: A run has no ``sequence.json``, or a share is out of range.
    """
    wrong = [share for share in shares if not 0 < share < 1]
    if wrong:
        raise DataError(f"--shares: {wrong[0]} is out of range; give shares above 0 and below 1")
    descending = sorted(set(shares), reverse=True)
    rows = []
    for share, below in zip(descending, [*descending[1:], 0.0], strict=True):
        for method, runs in methods.items():
            for run in runs:
                values = _at(run, share, below, finetune)
                rows.append({"method": method, "run": run.name, "share": share, **values})
    return pd.DataFrame(rows, columns=["method", "run", "share", *_COST_COLUMNS])


def cost_markdown(table: pd.DataFrame) -> str:
    """Writes a :func:`cost_table` as FedNAS' Tables 3 and 4: a row per share and method, means with ranges.

    Behind each cost is the difference from the first method's. The means are over the seeds that have got so far;
    fine-tuned accuracies are left out unless all of these have them.
    """
    head = ["share", "method", "seeds", "accuracy (%)", "fine-tuned (%)"]
    head += ["uplink per client (MB)", "Δ", "MACs per client", "Δ"]
    first = table["method"].iloc[0]
    body = []
    for (share, method), every in table.groupby(["share", "method"], sort=False):
        rows = every.dropna(subset=["number"])
        seeds = str(len(rows)) if len(rows) == len(every) else f"{len(rows)} of {len(every)}"
        base = table[(table["share"] == share) & (table["method"] == first)]
        costs = []
        for name, unit in (("up_mb", _megabytes), ("client_macs", short)):
            costs += [_costs(rows[name], unit), change(_quotient(rows[name].mean(), base[name].mean()))]
        accuracies = [_accuracies(rows[name]) for name in ("accuracy", "test_accuracy")]
        body.append([percent(float(share)), str(method), seeds, *accuracies, *costs])
    return text_table(head, body, left=2, markdown=True)


def change(ratio: float) -> str:
    """Writes a ratio of costs as a difference in percent; as a factor, if it is ten times or more.

    Example:
        >>> change(0.21), change(2.0), change(19.7), change(1.0), change(float("nan"))
        ('-79%', '+100%', '×20', '0%', '–')
    """
    if np.isnan(ratio):
        return "–"
    percents = round(100 * (ratio - 1))
    if ratio >= 1 + _MOST_PERCENT:
        return times(ratio)
    return f"{percents:+d}%" if percents else "0%"


def times(ratio: float) -> str:
    """Writes a factor in two or three digits.

    Example:
        >>> times(2.24), times(19.7), times(1234.4)
        ('×2.2', '×20', '×1234')
    """
    return f"×{ratio:.1f}" if ratio < 9.95 else f"×{ratio:.0f}"


def cost_figure(table: pd.DataFrame) -> Figure:
    """Draws FedNAS' Fig. 6: a :func:`cost_table` as logarithmic bars with their ratios to the first method's.

    A whisker goes from the least to the most expensive seed.
    """
    methods, shares = list(dict.fromkeys(table["method"])), list(dict.fromkeys(table["share"]))
    figure = new_figure(2)
    width = max(3.6, 0.9 + 0.2 * len(methods) * len(shares) + 0.25 * len(shares))
    figure.set_size_inches(2 * width, 3.2)
    panels = (("up_mb", "uplink per client (MB)"), ("client_macs", "MACs per client (forward passes)"))
    for axes, (name, text) in zip(figure.axes, panels, strict=True):
        _draw_bars(axes, table, name, methods, shares)
        label(axes, "share of the initial resource", text)
    legend(figure)
    return figure


def _at(run: Run, share: float, below: float, finetune: str) -> dict[str, float]:
    """Returns the values of one run at one share; nothing if it has not reached it."""
    number = number_within(sequence_of(run), share)
    if number is None:
        return {}
    row = sequence_table(run).set_index("number").loc[number]
    tuned, test = _fine_tuned(run, number, share, below, finetune)
    values = {"number": number, "reached": row["share"], "tuned": tuned, "test_accuracy": test}
    return {**values, **{name: row[name] for name in ("up_mb", "down_mb", "client_macs", "accuracy")}}


def _fine_tuned(run: Run, number: int, share: float, below: float, finetune: str) -> tuple[float, float]:
    """Returns which model stands for a share after fine-tuning, and its test accuracy; NaN if there is none.

    Of a model that several tiers had trained it is the training that came out best on the validation data, as the
    best of a tier's candidates is chosen.
    """
    resources = sequence_table(run).set_index("number")["share"]
    rows = sequence_accuracies(run, finetune).dropna(subset=["test_after"])
    rows = rows.assign(resource=rows["number"].map(resources))
    own = rows[rows["number"] == number]
    if own.empty:
        own = rows[(rows["resource"] <= share) & (rows["resource"] > below)]
        own = own[own["resource"] == own["resource"].max()]
    if own.empty:
        return np.nan, np.nan
    best = own.sort_values("val_after", ascending=False, kind="stable").iloc[0]
    return float(best["number"]), float(best["test_after"])


def _quotient(cost: float, base: float) -> float:
    return cost / base if base else np.nan


def _accuracies(values: pd.Series) -> str:
    return "–" if values.empty or values.isna().any() else spread(list(100 * values))


def _costs(values: pd.Series, unit: Callable[[float], str]) -> str:
    """Writes a mean, and the least and greatest where they differ."""
    if values.empty:
        return "–"
    mean = unit(values.mean())
    return mean if values.nunique() == 1 else f"{mean} ({unit(values.min())} to {unit(values.max())})"


def _megabytes(number: float) -> str:
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"


def _draw_bars(
    axes: Axes, table: pd.DataFrame, name: str, methods: Sequence[str], shares: Sequence[float]
) -> None:
    wide = 0.8 / len(methods)
    costs = table.dropna(subset=[name])
    by_bar = costs[costs[name] > 0].groupby(["share", "method"])[name]
    low, mean, high = by_bar.min(), by_bar.mean(), by_bar.max()
    for place, method in enumerate(methods):
        bars = [(spot, share) for spot, share in enumerate(shares) if (share, method) in mean.index]
        xs = [spot + (place - (len(methods) - 1) / 2) * wide for spot, _ in bars]
        heights = [mean[share, method] for _, share in bars]
        axes.bar(xs, heights, 0.92 * wide, color=look(place)["color"], label=method)
        for x, (_, share) in zip(xs, bars, strict=True):
            bounds = [low[share, method], high[share, method]]
            if bounds[0] < bounds[1]:
                axes.plot([x, x], bounds, color="black", linewidth=0.8)
            if place and (share, methods[0]) in mean.index:
                text = times(mean[share, method] / mean[share, methods[0]])
                axes.annotate(text, (x, bounds[1]), (0, 2), textcoords="offset points", **_ABOVE)
    if len(mean):
        axes.set_yscale("log")
        reach = (high.max() / low.min()) ** 0.15  # for what stands above the bars
        axes.set_ylim(low.min() / 3, high.max() * 2 * reach)
    axes.grid(visible=False, axis="x")
    axes.set_xticks(range(len(shares)), [percent(share) for share in shares])
