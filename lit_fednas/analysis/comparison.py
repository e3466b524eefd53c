"""Methods beside each other: of each, the best network within each device tier, chosen by its validation data."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeAlias

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_fednas.analysis.charts import Chart, Charts, draw_stairs, say, stairs
from lit_fednas.analysis.clients import fairness_rows, fairness_table
from lit_fednas.analysis.networks import (
    COLUMNS,
    WHOSE,
    Methods,
    Tiers,
    comparable,
    networks_of,
    read_methods,
    read_tiers,
    tiers_of,
    validated,
    within,
)
from lit_fednas.analysis.page import write_page
from lit_fednas.analysis.runs import SPENT
from lit_fednas.analysis.style import RANGE, label, legend, log_axis, look, new_figure
from lit_fednas.analysis.tables import DASH, Table, csv_text, range_text, repeats
from lit_fednas.errors import DataError
from lit_fednas.formatting import GREY, axis, figure_text, heading, metric_text, scale_of, short
from lit_fednas.ranges import PositiveFloat, PositiveInt
from lit_fednas.records import ALL_TIERS
from lit_fednas.records.files import check_output, replace_text, replacing
from lit_fednas.records.run import reaches

#: What training can be given a budget of, and its column.
BUDGETS = dict(zip(("rounds", "macs", "bytes"), SPENT, strict=True))
#: A budget of training, or ``equal`` for the most that all have reached.
Limit: TypeAlias = float | Literal["equal"]
_KEYS = ["method", "result"]
_MOST_STEPS = 50  # of a curve, more or less
_SPLITS = {"val": "validation", "test": "test"}
#: What curves are drawn over in a page, and in words; the first two that are counted.
_OVER = {"spent_macs": "computation", "spent_bytes": "communication", "rounds": "rounds"}
#: What a comparison writes into a folder, the tables as far as there are any.
_PAGES = ("compare.md", "compare.png", "compare.html")
_TABLES = ("compare.csv", "targets.csv", "clients.csv", "curves.csv")


def best_within(table: pd.DataFrame, limits: Mapping[str, float], each: Sequence[str] = _KEYS) -> pd.DataFrame:
    """Returns the network of the best validation metric within limits, the cheapest of equals, for ``each``."""
    fitting = within(table, limits).dropna(subset=["val"])
    best = fitting.sort_values(["val", "macs"], ascending=[not table.attrs["higher"], True], kind="stable")
    return best.drop_duplicates(list(each)).sort_index()


def comparison_table(
    methods: Methods,
    tiers: Tiers,
    metric: str | None = None,
    budget: Mapping[str, float] | None = None,
) -> pd.DataFrame:
    """Returns the best network of every tier, method and seed, at the end or at the last validation within a budget."""
    table = networks_of(methods, metric, each_round=budget is not None)
    if budget is not None:
        table = _until(table, budget)
    parts = [({"tier": tier}, best_within(table, limits)) for tier, limits in tiers.items()]
    return _of_all(table, parts, ["tier", *WHOSE, *COLUMNS])


def target_table(methods: Methods, tiers: Tiers, targets: Sequence[float], metric: str | None = None) -> pd.DataFrame:
    """Returns what each result needed until a network within a tier reached a target; a lower bound if none did."""
    table = networks_of(methods, metric, each_round=True)
    parts = []
    for tier, limits in tiers.items():
        fitting = within(table, limits)
        for target in targets:
            reached = fitting.assign(
                reached=[reaches(value, target, table.attrs["higher"]) for value in fitting["val"]]
            )
            # of each result the first that has reached it, or else the last
            rows = pd.concat([reached[reached["reached"]], reached[::-1]]).drop_duplicates(_KEYS)
            parts.append(({"tier": tier, "target": target}, rows))
    found = _of_all(table, parts, ["tier", "target", *WHOSE, "reached", *SPENT])
    return found.assign(reached=found["reached"].eq(True))


def _of_all(
    table: pd.DataFrame, parts: Iterable[tuple[Mapping[str, Any], pd.DataFrame]], columns: Sequence[str]
) -> pd.DataFrame:
    """Returns, for each part, one row of each result of a table, empty where the part has none, with what names it."""
    results = table[list(WHOSE)].drop_duplicates(_KEYS)
    rows = [results.merge(part.drop(columns="seed"), "left", _KEYS).assign(**name) for name, part in parts]
    found = pd.concat(rows, ignore_index=True)[list(columns)]
    found.attrs.update(table.attrs)
    return found


def _until(table: pd.DataFrame, budget: Mapping[str, float]) -> pd.DataFrame:
    """Returns the networks of each result's last validation within a budget."""
    rounds = table
    for unit, most in budget.items():
        spent = rounds.groupby(_KEYS)[BUDGETS[unit]].agg(["min", "max"])
        for (method, result), (least, _) in spent[spent["min"] > most].iterrows():
            raise DataError(
                f"{unit}: {method} ({result}) had spent {least:.4g} by its first validation, and {most:.4g} are "
                f"compared; {_until_overlap(rounds[rounds['result'] == result], unit, most, spent['max'])}"
            )
        rounds = rounds[rounds[BUDGETS[unit]] <= most]
    return rounds[rounds["rounds"] == rounds.groupby(_KEYS)["rounds"].transform("max")]


def _until_overlap(rows: pd.DataFrame, unit: str, most: float, ends: pd.Series) -> str:
    """Returns what makes a budget contain a validation of a result, given its rows and where all results end."""
    first = rows.loc[rows["rounds"].idxmin()]
    every = int(first["rounds"] * most / first[BUDGETS[unit]])
    ended = dict.fromkeys(method for method, _ in ends[ends == most].index)  # none at a number that is given
    longer = f"train {', '.join(ended)} {first[BUDGETS[unit]] / most:.2g} times as long" if ended else "give more"
    setting = "check_val_every_n_rounds of trainer or finetune"
    return f"validate every {every} rounds ({setting}), or {longer}" if every else longer


def least_spent(methods: Methods, unit: str) -> float:
    """Returns the budget that every result has reached: the least that one had spent by its last validation."""
    spent = networks_of(methods, each_round=True).groupby(_KEYS)[BUDGETS[unit]].max()
    if spent.isna().any():
        raise DataError(f"{unit}: a run's records do not count them; train it again with the present version")
    return float(spent.min())


def comparison_rows(table: pd.DataFrame, title: str = "Networks", without_curve: Sequence[str] = ()) -> Table:
    """Returns a :func:`comparison_table` as it is shown: a row per method and tier; accuracies in percent."""
    metric = table.attrs["metric"]
    rows, keys, tiers = [], [], []
    for (tier, method), every in table.groupby(["tier", "method"], sort=False):
        found = every.dropna(subset=["arch"])
        keys.append((method, *zip(found["result"], found["arch"], strict=True)))
        tiers.append(_named(tier) if len(found) else "")
        seeds = str(len(found)) if len(found) == len(every) else f"{len(found)} of {len(every)}"
        rated = {heading(f"{split}_{metric}"): range_text(metric, found[split]) for split in ("val", "test")}
        costs = {title: range_text(name, found[name]) for title, name in (("MACs", "macs"), ("size", "bytes"))}
        rows.append({"tier": _named(tier), "method": method, **rated, **costs, "seeds": seeds, **_spent(found)})
    # a tier that deploys the network of an earlier tier says so, in a column that is left out if no tier does
    if any(again := [as_in if tier else "" for as_in, tier in zip(repeats(keys, tiers), tiers, strict=True)]):
        rows = [{**row, "network": as_in} for row, as_in in zip(rows, again, strict=True)]
    untested = table["test"].isna() & table["arch"].notna() & table["test"].notna().any()
    remarks = {
        "No network within the tier": _names(table[table["arch"].isna()]),
        "Not tested ('lit-fednas search' with these tiers tests them)": _names(table[untested]),
        "No curve, as a run has logged no validation while it trained": ", ".join(without_curve),
    }
    notes = [f"{what}: {which}." for what, which in remarks.items() if which]
    split = _split(table)
    means = table.groupby(["tier", "method"], sort=False)[split].mean()
    # nothing is marked in a tier in which all methods are equal
    best = means.groupby(level="tier").rank(ascending=not table.attrs["higher"], method="min") == 1
    several = means.groupby(level="tier").transform("nunique") > 1
    mark = f"The best of its tier, by {_SPLITS[split]} {metric}"
    return replace(_shown(rows, table, 2, title, notes), marked=[*(best & several).to_numpy().nonzero()[0]], mark=mark)


def target_rows(table: pd.DataFrame) -> Table:
    """Returns a :func:`target_table` as it is shown; ``>`` marks a mean that is a lower bound."""
    metric, rows = table.attrs["metric"], []
    for (tier, target, method), every in table.groupby(["tier", "target", "method"], sort=False):
        bound = "" if every.dropna(subset=["rounds"])["reached"].all() else "> "
        spent = _spent(every.dropna(subset=["rounds"]))
        row = {"tier": _named(tier), heading(metric): f"{scale_of(metric)[0] * float(target):g}", "method": method}
        row["reached"] = f"{int(every['reached'].sum())} of {len(every)}"
        rows.append({**row, **{name: cell if cell == DASH else f"{bound}{cell}" for name, cell in spent.items()}})
    return _shown(rows, table, 1, "Training until a network within the tier reached a target")


def _shown(
    rows: Sequence[Mapping[str, str]], frame: pd.DataFrame, left: int, title: str, notes: Sequence[str] = ()
) -> Table:
    return Table(list(rows[0]), [list(row.values()) for row in rows], left, title, notes, frame)


def _split(table: pd.DataFrame) -> str:
    """Returns the data by which networks are shown: the test's where all were tested."""
    found = table.dropna(subset=["arch"])
    return "test" if len(found) and found["test"].notna().all() else "val"


def _spent(rows: pd.DataFrame) -> dict[str, str]:
    titles = zip(SPENT, ("rounds", "training MACs", "training bytes"), strict=True)
    return {title: range_text(name, rows[name]) for name, title in titles}


def _named(tier: Any) -> str:
    return "any" if tier == ALL_TIERS else str(tier)


def _names(rows: pd.DataFrame) -> str:
    """Returns the tiers of each method, in a few words."""
    groups = rows.groupby("method", sort=False)["tier"]
    return ", ".join(f"{method} ({', '.join(map(_named, dict.fromkeys(tiers)))})" for method, tiers in groups)


def _curves(methods: Methods, metric: str) -> tuple[pd.DataFrame | None, list[str]]:
    """Returns the networks at each validation, and the methods of which a whole run has logged none."""
    searches = {method for method, results in methods.items() for each in results if each.part in each.run.searches}
    runs = {method: results for method, results in methods.items() if method not in searches}
    silent = [method for method, results in runs.items() if not all(validated(each, metric) for each in results)]
    logged = {method: results for method, results in runs.items() if method not in silent}
    return networks_of(logged, metric, each_round=True) if logged else None, silent


@dataclass(frozen=True)
class Comparison:
    """What a comparison shows."""

    methods: Methods
    tiers: Tiers
    curves: pd.DataFrame | None  # the networks at each validation, of the methods that log them while they train
    tables: Mapping[str, Table]  # by the name of the CSV file: ``compare``, and ``targets`` and ``clients`` if any
    left_out: Sequence[str] = ()  # what cannot be compared, and why

    def text(self, markdown: bool = False) -> str:
        """Returns all tables as text."""
        mark = "## " if markdown else ""
        left_out = ["\n".join(f"left out: {line}" for line in self.left_out)] if self.left_out else []
        tables = [f"{mark}{table.title}\n\n{table.text(markdown)}" for table in self.tables.values()]
        return "\n\n".join([*tables, *left_out])

    def write(self, folder: Path) -> list[str]:
        """Writes text, picture, page, and a CSV file per table into a folder; returns the files' names."""
        text, picture, page = _PAGES
        replace_text(folder / text, self.text(markdown=True) + "\n")
        with replacing(folder / picture) as file:
            self.figure().savefig(file, dpi=150)
        sections: dict[str, Sequence[Any]] = {table.title: [replace(table, title="")] for table in self.tables.values()}
        sections["Fronts and curves"] = self.charts()
        notes = [f"Left out: {line}" for line in self.left_out]
        write_page(f"{len(self.methods)} methods compared", sections, folder / page, notes=notes)
        content = {f"{name}.csv": table.csv() for name, table in self.tables.items()}
        if self.curves is not None:
            content["curves.csv"] = csv_text(self.curves)
        for name, values in content.items():
            replace_text(folder / name, values)
        return [*_PAGES, *content]

    def figure(self) -> Figure:
        """Returns the front of every method, and its curve of each tier over computation: mean and range over seeds."""
        figure = new_figure(1 if self.curves is None else 1 + len(self.tiers), in_row=2)
        self._draw_fronts(figure.axes[0])
        if self.curves is not None:
            spent = "spent_macs" if self.curves["spent_macs"].notna().any() else "rounds"
            self._draw_curves(figure.axes[1:], self.curves, spent)
        legend(figure)
        return figure

    def charts(self) -> list[Charts]:
        """Returns the panels of a page: fronts, and curves of each tier over computation, communication and rounds."""
        figure = new_figure()
        self._draw_fronts(figure.axes[0])
        legend(figure)
        front, charts = Chart("The best network of each tier", figure), []
        counted = [] if self.curves is None else [spent for spent in _OVER if self.curves[spent].notna().any()]
        for spent in counted[:2]:
            figure = new_figure(len(self.tiers), in_row=3)
            self._draw_curves(figure.axes, self.curves, spent)
            legend(figure)
            charts.append(Chart(f"The best network of each tier over {_OVER[spent]}", figure))
        return [Charts([front]), *([Charts(charts)] if charts else [])]

    def _draw_fronts(self, axes: Axes) -> None:
        """Draws each method's networks, beside lines at those that were trained alone."""
        table = self.tables["compare"].frame
        found, split, metric = table.dropna(subset=["arch"]), _split(table), table.attrs["metric"]
        scale, text = axis("macs", found["macs"].max() if len(found) else 1.0)
        times, unit = scale_of(metric)
        for index, method in enumerate(self.methods):
            groups = found[found["method"] == method].groupby("tier", sort=False)
            line = (groups[split].agg(RANGE) * times).set_index(groups["macs"].mean() / scale).sort_index()
            axes.vlines(line.index, line["min"], line["max"], color=look(index)["color"], linewidth=0.9, alpha=0.6)
            axes.plot(line.index, line["mean"], **look(index), markersize=4.5, linewidth=1.2, label=figure_text(method))
            if all(result.trained_alone for result in self.methods[method]):
                for y in line["mean"].unique():
                    axes.axhline(y, color=look(index)["color"], linewidth=0.9, linestyle=":")
            for tier, rows in groups:
                x, y = rows["macs"].mean(), rows[split].mean()
                words = f"{method}, {_named(tier)}\n{metric} {metric_text(metric, y, '%')}, {short(x)} MACs"
                say(axes, x / scale, times * y, words)
        for tier, limits in self.tiers.items():
            if "macs" in limits:
                axes.axvline(x := limits["macs"] / scale, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
                above = axes.get_xaxis_transform()
                axes.text(x, 1.01, figure_text(tier, 12), fontsize=7, ha="center", transform=above)
        label(axes, text, f"{_SPLITS[split]} {metric}{unit}")
        log_axis(axes)

    def _draw_curves(self, panels: Sequence[Axes], curves: pd.DataFrame, spent: str) -> None:
        """Draws the best network of a tier in each panel, over what training had taken, of the runs that count it."""
        metric, names = curves.attrs["metric"], list(self.methods)
        times, unit = scale_of(metric)
        counted = curves.groupby(_KEYS)[spent].transform(lambda values: values.notna().all()).astype(bool)
        scale, text = axis(spent, curves[counted][spent].max() if counted.any() else 1.0)
        for axes, (tier, limits) in zip(panels, self.tiers.items(), strict=True):
            for method, rows in best_within(curves[counted], limits, [*_KEYS, "rounds"]).groupby("method", sort=False):
                lines = [times * run.set_index(spent)["val"] for _, run in rows.groupby("result")]
                steps = stairs(lines)
                steps = steps[:: -(len(steps) // _MOST_STEPS + 1)][::-1]  # with the last
                draw_stairs(axes, steps, names.index(method), method, scale=scale)
            label(axes, text, f"validation {metric}{unit}")
            axes.set_title("" if tier == ALL_TIERS else f"within {figure_text(tier)}", fontsize=9)


def compared(
    methods: Methods,
    tiers: Tiers | None = None,
    metric: str | None = None,
    targets: Sequence[float] | None = None,
    **limits: Limit | None,
) -> Comparison:
    """Compares methods; the arguments are those of :func:`compare`, read, ``limits`` those of training."""
    methods, left_out = comparable(methods)
    tiers = tiers_of(methods) if tiers is None else tiers
    given = {unit: limit for unit, limit in limits.items() if limit is not None}
    budget = {unit: least_spent(methods, unit) if limit == "equal" else limit for unit, limit in given.items()}
    units = {"macs": "MACs", "bytes": "B"}
    spent = ", ".join(short(most, units.get(unit, unit)) for unit, most in budget.items())
    title = f"Networks at the last validation within {spent} of all clients' training" if budget else "Networks"
    table = comparison_table(methods, tiers, metric, budget or None)
    curves, without_curve = _curves(methods, table.attrs["metric"])
    tables = {"compare": comparison_rows(table, title, without_curve)}
    if targets:
        tables["targets"] = target_rows(target_table(methods, tiers, targets, metric))
    folders = {method: [result.clients_folder for result in results] for method, results in methods.items()}
    rated = {method: [*filter(None, places)] for method, places in folders.items() if any(places)}
    if rated:
        clients = fairness_table(rated)
        shown = fairness_rows(clients[clients["tier"] == ALL_TIERS], "method", "runs")
        tables["clients"] = replace(shown, title="Clients, on their own data", frame=clients)
    return Comparison(methods, tiers, curves, tables, left_out)


def compare(
    methods: list[str],
    tiers: Path | None = None,
    metric: str | None = None,
    macs: PositiveFloat | Literal["equal"] | None = None,
    bytes: PositiveFloat | Literal["equal"] | None = None,
    rounds: PositiveInt | Literal["equal"] | None = None,
    targets: list[float] | None = None,
    markdown: bool = False,
    output: Path | None = None,
    overwrite: bool = False,
) -> None:
    """Shows methods beside each other: the best network of every device tier, and what training cost.

    Of every run, the best network within each tier's budgets is taken by its validation metric: of evaluated subnets,
    exits, grown or pruned models, and of searches.

    Args:
        methods: "label=pattern,pattern" of the folders of a method's runs, which differ in their seeds; without a
            label, runs are methods by the names of their folders. A pattern may also name one search or one
            fine-tuning in a run.
        tiers: A YAML file of budgets by tier, such as {small: {macs: 0.8e+6}}; those of the searches if not given.
        metric: By which networks are chosen; the task's first if not given.
        macs: The networks at the last validation within so many MACs of training; "equal" for the most that all
            methods have reached.
        bytes: The same of bytes, both ways.
        rounds: The same of rounds.
        targets: Of the metric: what training took until a network within the tier reached them.
        markdown: Whether to print tables of Markdown.
        output: A folder for compare.md, compare.html, compare.png and CSV files.
        overwrite: Whether to replace such files that this command has not written.
    """
    if output is not None:
        check_output(*(output / name for name in (*_PAGES, *_TABLES)), overwrite=overwrite)
    limits = None if tiers is None else read_tiers(tiers)
    given = read_methods(methods)
    comparison = compared(given, limits, metric, targets, macs=macs, bytes=bytes, rounds=rounds)
    print(comparison.text(markdown))
    if output is not None:
        print(f"\nwritten in {output}: {', '.join(comparison.write(output))}")
