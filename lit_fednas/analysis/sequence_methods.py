"""How accurate the models of a pruned sequence are, before and after fine-tuning (FedNAS, Figs. 4 and 8).

The paper's accuracy is that of the clients' own test splits, pooled (section 5.1): ``<finetune>/models.csv`` has it of
every model before fine-tuning, and after it of those that were fine-tuned. The accuracy that decided while the sequence
was made is in ``sequence.json``: of the winner's group of clients, after their local training, on their validation
splits. Those of the server's data are, after fine-tuning, in ``<finetune>/tiers.csv``; before, there as well
(validation), in the tables of the search that the fine-tuning followed, and in those of the run's own evaluation
(``subnets-val.csv``, ``subnets-test.csv``). A model is ``model: 3`` in all of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_fednas.analysis.clients import read_client_scores
from lit_fednas.analysis.methods import Methods
from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.sequence import model_within, sequence_of, sequence_table
from lit_fednas.analysis.style import RANGE, draw_line, label, legend, look, new_figure
from lit_fednas.analysis.tables import cost_range
from lit_fednas.errors import DataError
from lit_fednas.formatting import percent, short, spread, text_table
from lit_fednas.records import SEQUENCE_FILE, FinetuneFiles, SearchFiles

#: The data of each split, the most telling first.
_SPLITS = {"clients": "clients' own test", "test": "server's test", "val": "server's validation"}
_ACCURACIES = ["decides", *(f"{split}_{when}" for split in _SPLITS for when in ("before", "after"))]


def sequence_accuracies(run: Run, finetune: str = "finetune") -> pd.DataFrame:
    """Returns the accuracies of a run's models, as far as they are known.

    Args:
        run: The run.
        finetune: The name of its fine-tuning; the run need not have one.

    Returns:
        A row per model, and per tier where several tiers had the same model trained: ``number``, ``tier`` (of the
        fine-tuning; empty for a model that was not fine-tuned), ``share`` (of the initial MACs), ``decides`` (of
        the winner's group), on all clients' test splits ``clients_before`` and ``clients_after``, and on the
        server's data ``test_before``, ``test_after``, ``val_before``, ``val_after``; from 0 to 1, NaN where unknown.

    Raises:
        DataError: The run has no ``sequence.json``.
    """
    models = sequence_table(run)
    tuned = run.finetuned(finetune)
    names = {"val_accuracy_before": "val_tuned", "val_accuracy": "val_after", "test_accuracy": "test_after"}
    tuned = tuned.assign(number=_numbers(tuned["arch"])).rename(columns=names)[["number", "tier", *names.values()]]
    table = models.assign(share=models["macs"] / models["macs"][0], decides=models["accuracy"])
    table = table[["number", "share", "decides"]].merge(tuned, how="left", on="number")
    table = table.merge(client_accuracies(run, finetune), how="left", on="number")
    search = FinetuneFiles(run.folder / finetune).settings().get("search") or "search"
    before = {split: table["number"].map(_before(run, search, split)) for split in ("val", "test")}
    table = table.assign(
        tier=table["tier"].fillna(""),
        val_before=table["val_tuned"].fillna(before["val"]),
        test_before=before["test"],
    )
    return table[["number", "tier", "share", *_ACCURACIES]].astype(dict.fromkeys(_ACCURACIES, float))


def client_accuracies(run: Run, finetune: str = "finetune") -> pd.DataFrame:
    """Returns the accuracy of a sequence's models on the clients' test splits, pooled over the clients.

    Returns:
        ``number``, ``clients_before`` and ``clients_after`` (fine-tuning; NaN without), a row per tested model.
    """
    names = {"accuracy_before": "clients_before", "accuracy": "clients_after"}
    table = run.tested(finetune)
    return table.assign(number=_numbers(table["arch"])).rename(columns=names)[["number", *names.values()]]


def _numbers(archs: pd.Series) -> pd.Series:
    """Returns the numbers of models that are written as ``model: 3``; NaN for other architectures."""
    return archs.astype(str).str.extract(r"^model: (\d+)$", expand=False).astype(float)


def _before(run: Run, search: str, split: str) -> pd.Series:
    """Returns accuracies with the sequence's own weights, by model number: of the search, else of the run."""
    files = SearchFiles(run.folder / search)
    tables = [run.subnets(split)[["arch", "accuracy"]]]
    if split == "val":
        tables.append(pd.DataFrame(files.rows("evaluations"), columns=["arch", "accuracy"]))
    best = pd.DataFrame(files.rows("tiers"), columns=["arch", f"{split}_accuracy"])
    tables.append(best.rename(columns={f"{split}_accuracy": "accuracy"}))
    evaluated = pd.concat([table.astype({"accuracy": float}) for table in tables], ignore_index=True)
    return evaluated["accuracy"].groupby(_numbers(evaluated["arch"])).last()


def accuracy_figure(methods: Methods, finetune: str = "finetune") -> Figure:
    """Returns FedNAS' Figs. 4, 7 and 8: accuracy over the share of the initial MACs: mean, and range over seeds.

    The left panel has the tests that decided, of the winner's group. The right one, if there is anything for it, has
    the clients' own test splits (the server's test data, or its validation data, if no run has others): after
    fine-tuning (Fig. 4), and dashed before (Fig. 7). A run without a sequence, as one that trains a network of some
    width, has there what it evaluated in the end: ``clients.csv`` (``deployed_accuracy``), or the subnets.

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
    known = pd.concat([table for tables in accuracies.values() for table in tables]).notna().any()
    splits = [split for split in _SPLITS if known[f"{split}_before"] or known[f"{split}_after"]]
    split = next(iter(splits), "test" if others else "")
    figure = new_figure(2 if split else 1)
    for index, (name, tables) in enumerate(accuracies.items()):
        rows = pd.concat([table.drop_duplicates("number") for table in tables])
        _draw(figure.axes[0], rows, rows["number"], "decides", index, name)
    label(figure.axes[0], "share of MACs", "accuracy that decides")
    if split:
        axes = figure.axes[1]
        before: dict[str, Any] = {"linestyle": "--", "linewidth": 1.0, "markerfacecolor": "white"}
        for index, (name, tables) in enumerate(accuracies.items()):
            rows = pd.concat(tables)
            key = rows["tier"].where(rows["tier"] != "", "model " + rows["number"].astype(str))
            _draw(axes, rows, key, f"{split}_after", index, name)
            _draw(axes, rows, key, f"{split}_before", index, None, **before)
        initial = sequence_of(next(run for runs in pruned.values() for run in runs))["models"][0]["macs"]
        for index, (name, runs) in enumerate(others.items(), start=len(accuracies)):
            rows = pd.concat([_deployed(run) if split == "clients" else _evaluated(run, split) for run in runs])
            _draw(axes, rows.assign(share=rows["macs"] / initial), rows["subnet"], "accuracy", index, name)
        label(axes, "share of MACs", f"accuracy on {_SPLITS[split]} data")
        axes.set_title("fine-tuned; dashed: before", fontsize=9)
    legend(figure)
    return figure


def _draw(
    axes: Axes, rows: pd.DataFrame, key: pd.Series, value: str, index: int, name: str | None, **style: Any
) -> None:
    """Draws a column of several seeds over the share of MACs; seeds' rows of the same key are one point."""
    by_key = rows.assign(key=key).dropna(subset=[value]).groupby("key")
    line = by_key[value].agg(RANGE).set_index(by_key["share"].mean()).sort_index()
    if len(line):
        draw_line(axes, line, index, name, marker=look(index)["marker"], markersize=4, **style)


def split_methods(methods: Methods) -> tuple[dict[str, list[Run]], dict[str, list[Run]]]:
    """Returns the methods whose runs have a sequence, and the others.

    Raises:
        DataError: A method has runs with and without, or none has.
    """
    pruned: dict[str, list[Run]] = {}
    others: dict[str, list[Run]] = {}
    for name, runs in methods.items():
        without = [run for run in runs if not (run.folder / SEQUENCE_FILE).exists()]
        if without and len(without) < len(runs):
            raise DataError(f"{name}: {without[0].folder} has no {SEQUENCE_FILE}, others have; give it another label")
        (others if without else pruned)[name] = list(runs)
    if not pruned:
        raise DataError(f"{', '.join(methods)}: no run has a {SEQUENCE_FILE}; give runs with PruneByBudgets")
    return pruned, others


def _evaluated(run: Run, split: str) -> pd.DataFrame:
    """Returns the subnets of a run without a sequence."""
    table = run.subnets(split)
    if table.empty:
        raise DataError(
            f"{run.folder}: has neither {SEQUENCE_FILE} nor subnets-{split}.csv; let it evaluate its subnets"
        )
    return table


def _deployed(run: Run) -> pd.DataFrame:
    """Returns the model of a run without a sequence: its accuracy on the clients' test splits, pooled."""
    scores = read_client_scores(run.folder)
    subnets = pd.concat([run.subnets("val"), run.subnets("test")]).drop_duplicates("arch")
    (arch, *others) = scores["arch"].unique()
    macs = subnets["macs"][subnets["arch"] == arch]
    if others or macs.empty:
        fault = f"has clients with {arch} and {others[0]}" if others else f"has not evaluated {arch}"
        raise DataError(f"{run.folder}: {fault}; give runs of one model, which they have evaluated")
    accuracy = np.average(scores["accuracy"], weights=scores["num_examples"])
    return pd.DataFrame({"subnet": [arch], "macs": macs.iloc[:1], "accuracy": [accuracy]})


_COST_COLUMNS = (
    *("number", "reached", "up_mb", "down_mb", "client_macs"),
    *("decides", "before", "tuned", "after", "server"),
)
_COST_TITLES = {
    "before": "test",
    "after": "test, fine-tuned",
    "server": "server's test, fine-tuned",
    "decides": "clients (decides)",
}
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
        in :func:`~lit_fednas.analysis.sequence.sequence_table`), ``decides`` (the accuracy of the winner's group),
        ``before`` (on all clients' test splits, before fine-tuning); ``after`` (likewise, fine-tuned) and ``server``
        (on the server's test data, fine-tuned) of model ``tuned``: this very model, or if it was not fine-tuned, the
        largest that was and is within this share and not within the next smaller one. NaN where a run has not got
        so far, and where an accuracy is unknown.

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
    """Returns a :func:`cost_table` as FedNAS' Tables 3 and 4: a row per share and method, means with ranges.

    "test" is on the clients' own test splits. Behind each cost is the difference from the first method's. The means
    are over the seeds that have got so far; accuracies are left out unless all of these have them.
    """
    head = ["share", "method", "seeds", *(f"{title} (%)" for title in _COST_TITLES.values())]
    head += ["uplink per client (MB)", "Δ", "MACs per client", "Δ"]
    first = table["method"].iloc[0]
    body = []
    for (share, method), every in table.groupby(["share", "method"], sort=False):
        rows = every.dropna(subset=["number"])
        seeds = str(len(rows)) if len(rows) == len(every) else f"{len(rows)} of {len(every)}"
        base = table[(table["share"] == share) & (table["method"] == first)]
        cells = [percent(float(share)), str(method), seeds]
        for name in _COST_TITLES:
            cells.append("–" if rows[name].isna().any() else spread(100 * rows[name]))
        for name, write in (("up_mb", _megabytes), ("client_macs", short)):
            ratio = rows[name].mean() / (base[name].mean() or np.nan)
            cells += [cost_range(rows[name], write), change(ratio)]
        body.append(cells)
    return text_table(head, body, left=2, markdown=True)


def change(ratio: float) -> str:
    """Returns a ratio of costs as a difference in percent; as a factor, if it is ten times or more.

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
    """Returns a factor in two or three digits.

    Example:
        >>> times(2.24), times(19.7), times(1234.4)
        ('×2.2', '×20', '×1234')
    """
    return f"×{ratio:.1f}" if ratio < 9.95 else f"×{ratio:.0f}"


def cost_figure(table: pd.DataFrame) -> Figure:
    """Returns FedNAS' Fig. 6: a :func:`cost_table` as logarithmic bars with their ratios to the first method's.

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
    """Returns the values of one run at one share; nothing if it has not reached it.

    Of a model that several tiers had trained it is the training that came out best on the validation data, as the
    best of a tier's candidates is chosen.
    """
    model = model_within(run, share)
    if model is None:
        return {}
    accuracies = sequence_accuracies(run, finetune)
    (own, *_) = accuracies[accuracies["number"] == model["number"]].itertuples()
    values = {"reached": model["share"], **model[["number", "up_mb", "down_mb", "client_macs"]]}
    values |= {"decides": own.decides, "before": own.clients_before}
    resources = sequence_table(run).set_index("number")["share"]
    rows = accuracies.dropna(subset=["clients_after", "test_after"], how="all")
    rows = rows.assign(resource=rows["number"].map(resources))
    tuned = rows[rows["number"] == model["number"]]
    if tuned.empty:
        tuned = rows[(rows["resource"] <= share) & (rows["resource"] > below)]
        tuned = tuned[tuned["resource"] == tuned["resource"].max()]
    for _, best in tuned.sort_values("val_after", kind="stable", ascending=False).head(1).iterrows():
        values |= {"tuned": best["number"], "after": best["clients_after"], "server": best["test_after"]}
    return values


def _megabytes(number: float) -> str:
    return f"{number:.3g}" if number < 100 else f"{number:,.0f}"


def _draw_bars(axes: Axes, table: pd.DataFrame, name: str, methods: Sequence[str], shares: Sequence[float]) -> None:
    wide = 0.8 / len(methods)
    bars = table[table[name] > 0].groupby(["share", "method"], sort=False)[name].agg(RANGE)
    for index, method in enumerate(methods):
        own = bars[bars.index.get_level_values("method") == method].droplevel("method")
        xs = [shares.index(share) + (index - (len(methods) - 1) / 2) * wide for share in own.index]
        axes.bar(xs, own["mean"], 0.92 * wide, color=look(index)["color"], label=method)
        for x, (share, mean, low, high) in zip(xs, own.itertuples(), strict=True):
            if low < high:
                axes.plot([x, x], [low, high], color="black", linewidth=0.8)
            if index and (share, methods[0]) in bars.index:
                text = times(mean / bars.loc[(share, methods[0]), "mean"])
                axes.annotate(text, (x, high), (0, 2), textcoords="offset points", **_ABOVE)
    if len(bars):
        axes.set_yscale("log")
        low, high = bars["min"].min(), bars["max"].max()
        axes.set_ylim(low / 3, high * 2 * (high / low) ** 0.15)  # room for the texts above the bars
    axes.grid(visible=False, axis="x")
    axes.set_xticks(range(len(shares)), [percent(share) for share in shares])
