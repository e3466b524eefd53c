"""How accurate the models of a pruned sequence are, before and after fine-tuning (FedNAS, Figs. 4 and 8).

The accuracy that the clients' validation data gave while the sequence was made is in ``sequence.json``. Those of
the server's data are, after fine-tuning, in ``<finetune>/tiers.csv``; before, there as well (validation), in the
tables of the search that the fine-tuning followed, and in those of the run's own evaluation (``subnets-val.csv``,
``subnets-test.csv``). A model is ``model: 3`` in all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_fednas.analysis.methods import Methods
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.sequence import sequence_of
from lit_fednas.analysis.style import label, legend, look, new_figure
from lit_fednas.errors import DataError
from lit_fednas.records import SEQUENCE_FILE, FinetuneFiles, SearchFiles
from lit_fednas.records.tiers import FINETUNED_COLUMNS

_COLUMNS = ("val_before", "val_after", "test_before", "test_after")


def sequence_accuracies(run: Run, finetune: str = "finetune") -> pd.DataFrame:
    """The accuracies of a run's models, as far as they are known.

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
    """FedNAS' Figs. 4 and 8: accuracy over the share of the initial MACs, per method: mean, and range over seeds.

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
    found = {name: [sequence_accuracies(run, finetune) for run in runs] for name, runs in pruned.items()}
    every = [table for tables in found.values() for table in tables]
    split = next((one for one in ("test", "val") if any(_any_of(table, one) for table in every)), "")
    split = split or ("test" if others else "")
    figure = new_figure(2 if split else 1)
    axes = figure.axes[0]
    for place, (name, tables) in enumerate(found.items()):
        rows = pd.concat([table.drop_duplicates("number") for table in tables])
        _draw(axes, _spread(rows, rows["number"].astype(str), "clients"), place, name)
    label(axes, "share of MACs", "accuracy on clients' validation data")
    if split:
        axes = figure.axes[1]
        label(axes, "share of MACs", f"{'test' if split == 'test' else 'validation'} accuracy")
        _draw_server(axes, found, split)
        initial = sequence_of(next(run for runs in pruned.values() for run in runs))["models"][0]["macs"]
        for place, (name, runs) in enumerate(others.items(), start=len(found)):
            rows = pd.concat([_evaluated(run, split, initial) for run in runs])
            _draw(axes, _spread(rows, rows["subnet"], "accuracy"), place, name)
        axes.set_title("fine-tuned; dashed: before", fontsize=9)
    legend(figure)
    return figure


def split_methods(methods: Methods) -> tuple[dict[str, list[Run]], dict[str, list[Run]]]:
    """The methods whose runs have a sequence, and the others.

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
    """Whether any accuracy on a split is known."""
    return bool(table[[f"{split}_before", f"{split}_after"]].notna().any(axis=None))


def _finetuned(run: Run, finetune: str) -> list[dict[str, Any]]:
    """A row per tier: its model's number and accuracies."""
    table = run.finetuned(finetune)
    rows = []
    for _, row in table[[name for name in FINETUNED_COLUMNS if name in table]].iterrows():
        number = _number(str(row["arch"]))
        if number is not None:
            accuracies = {"val_before": row["val_accuracy_before"], "val_after": row["val_accuracy"]}
            rows.append({"number": number, "tier": row["tier"], **accuracies, "test_after": row["test_accuracy"]})
    return rows


def _search_name(run: Run, finetune: str) -> str:
    """The search whose tiers were fine-tuned."""
    settings = FinetuneFiles(run.folder / finetune).settings()
    return settings.get("search") or "search"


def _before(run: Run, search: str, split: str) -> dict[int, float]:
    """Accuracies with the sequence's own weights, by the model's number: of the search, else of the run."""
    files = SearchFiles(run.folder / search)
    evaluated = run.subnets(split)
    found = list(zip(evaluated["arch"], evaluated["accuracy"], strict=True))
    if split == "val":
        found += [(row["arch"], row["accuracy"]) for row in files.rows("evaluations")]
    found += [(row["arch"], row[f"{split}_accuracy"]) for row in files.rows("tiers")]
    numbers = ((_number(str(arch)), accuracy) for arch, accuracy in found)
    return {number: accuracy for number, accuracy in numbers if number is not None and not pd.isna(accuracy)}


def _number(arch: str) -> int | None:
    match = re.fullmatch(r"model: (\d+)", arch)
    return int(match[1]) if match else None


def _evaluated(run: Run, split: str, initial: float) -> pd.DataFrame:
    """The subnets of a run without a sequence: ``subnet``, ``share``, ``accuracy``."""
    table = run.subnets(split)
    if table.empty:
        raise DataError(
            f"{run.folder}: has neither {SEQUENCE_FILE} nor subnets-{split}.csv; let it evaluate its subnets"
        )
    return table.assign(share=table["macs"] / initial)[["subnet", "share", "accuracy"]]


def _spread(rows: pd.DataFrame, key: Iterable[str], value: str) -> pd.DataFrame:
    """``share``, and ``mean``, ``low`` and ``high`` of a column, by ascending share; a row per key."""
    known = rows.assign(key=list(key)).dropna(subset=[value])
    by_key = known.groupby("key")
    columns = {"share": by_key["share"].mean(), "mean": by_key[value].mean()}
    bounds = {"low": by_key[value].min(), "high": by_key[value].max()}
    return pd.DataFrame({**columns, **bounds}).sort_values("share")


def _draw_server(axes: Axes, found: Mapping[str, list[pd.DataFrame]], split: str) -> None:
    for place, (name, tables) in enumerate(found.items()):
        rows = pd.concat(tables)
        key = [row.tier or f"model {row.number}" for row in rows.itertuples()]
        _draw(axes, _spread(rows, key, f"{split}_after"), place, name)
        _draw(axes, _spread(rows, key, f"{split}_before"), place, None)


def _draw(axes: Axes, line: pd.DataFrame, place: int, name: str | None) -> None:
    """A method's line with its range; dashed and hollow without a name, as before fine-tuning."""
    if line.empty:
        return
    style = {**look(place), "linewidth": 1.4, "markersize": 4}
    if name is None:
        style |= {"linestyle": "--", "linewidth": 1.0, "markerfacecolor": "white"}
    axes.plot(line["share"], line["mean"], **style, label=name)
    if (line["high"] > line["low"]).any():
        filled = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
        axes.fill_between(line["share"], line["low"], line["high"], **filled)
