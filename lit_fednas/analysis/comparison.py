"""The comparison of methods by their best network within each device tier, chosen on validation data."""

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
    ORIGIN,
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

#: The column of each unit of a training budget.
BUDGETS = dict(zip(("rounds", "macs", "bytes"), SPENT, strict=True))
#: A training budget, or ``equal`` for the largest that all results have reached.
Limit: TypeAlias = float | Literal["equal"]
_KEYS = ["method", "result"]
_MAX_STEPS = 50  # approximate maximum number of steps in a curve
_SPLITS = {"val": "validation", "test": "test"}
#: The columns on the x axes of a page's curves, and their names; the first two with records are drawn.
_OVER = {"spent_macs": "computation", "spent_bytes": "communication", "rounds": "rounds"}
#: The files of a comparison; tables without rows are not written.
_PAGES = ("compare.md", "compare.png", "compare.html")
_TABLES = ("compare.csv", "targets.csv", "clients.csv", "curves.csv")


def best_within(table: pd.DataFrame, limits: Mapping[str, float], keys: Sequence[str] = _KEYS) -> pd.DataFrame:
    """Returns the network with the best validation metric within limits (the cheapest of equals) per ``keys``."""
    fitting = within(table, limits).dropna(subset=["val"])
    best = fitting.sort_values(["val", "macs"], ascending=[not table.attrs["higher"], True], kind="stable")
    return best.drop_duplicates(list(keys)).sort_index()


def comparison_table(
    methods: Methods, tiers: Tiers, metric: str | None = None, budget: Mapping[str, float] | None = None
) -> pd.DataFrame:
    """Returns the best network of each tier, method and seed at the end, or at the last validation within a budget."""
    table = networks_of(methods, metric, each_round=budget is not None)
    if budget is not None:
        table = _until(table, budget)
    parts = [({"tier": tier}, best_within(table, limits)) for tier, limits in tiers.items()]
    return _for_all_results(table, parts, ["tier", *ORIGIN, *COLUMNS])


def target_table(methods: Methods, tiers: Tiers, targets: Sequence[float], metric: str | None = None) -> pd.DataFrame:
    """Returns the training of each result until a network within a tier reached a target, or a lower bound of it."""
    table = networks_of(methods, metric, each_round=True)
    parts = []
    for tier, limits in tiers.items():
        fitting = within(table, limits)
        for target in targets:
            marked = fitting.assign(reached=[reaches(value, target, table.attrs["higher"]) for value in fitting["val"]])
            # the first row of each result that reached the target, or else the last one
            rows = pd.concat([marked[marked["reached"]], marked[::-1]]).drop_duplicates(_KEYS)
            parts.append(({"tier": tier, "target": target}, rows))
    targets_reached = _for_all_results(table, parts, ["tier", "target", *ORIGIN, "reached", *SPENT])
    return targets_reached.assign(reached=targets_reached["reached"].eq(True))


def _for_all_results(
    table: pd.DataFrame, parts: Iterable[tuple[Mapping[str, Any], pd.DataFrame]], columns: Sequence[str]
) -> pd.DataFrame:
    """Returns a row per part and result of a table, with the part's labels; empty if the part lacks the result."""
    results = table[list(ORIGIN)].drop_duplicates(_KEYS)
    rows = [results.merge(part.drop(columns="seed"), "left", _KEYS).assign(**labels) for labels, part in parts]
    merged = pd.concat(rows, ignore_index=True)[list(columns)]
    merged.attrs.update(table.attrs)
    return merged


def _until(table: pd.DataFrame, budgets: Mapping[str, float]) -> pd.DataFrame:
    """Returns the networks at each result's last validation within the budgets."""
    rounds = table
    for unit, budget in budgets.items():
        spent = rounds.groupby(_KEYS)[BUDGETS[unit]].agg(["min", "max"])
        for (method, result), (first, _) in spent[spent["min"] > budget].iterrows():
            raise DataError(
                f"{unit}: {method} ({result}) had spent {first:.4g} by its first validation, and the budget is "
                f"{budget:.4g}; {_remedy(rounds[rounds['result'] == result], unit, budget, spent['max'])}"
            )
        rounds = rounds[rounds[BUDGETS[unit]] <= budget]
    return rounds[rounds["rounds"] == rounds.groupby(_KEYS)["rounds"].transform("max")]


def _remedy(rows: pd.DataFrame, unit: str, budget: float, ends: pd.Series) -> str:
    """Returns a remedy for a budget without any validation of a result, from its rows and the ends of all results."""
    first = rows.loc[rows["rounds"].idxmin()]
    interval = int(first["rounds"] * budget / first[BUDGETS[unit]])
    shortest = dict.fromkeys(method for method, _ in ends[ends == budget].index)  # empty unless the budget is "equal"
    times = first[BUDGETS[unit]] / budget
    longer = f"train {', '.join(shortest)} {times:.2g} times as long" if shortest else "give more"
    setting = "check_val_every_n_rounds of trainer or finetune"
    return f"validate every {interval} rounds ({setting}), or {longer}" if interval else longer


def least_spent(methods: Methods, unit: str) -> float:
    """Returns the largest budget that every result has reached by its last validation."""
    spent = networks_of(methods, each_round=True).groupby(_KEYS)[BUDGETS[unit]].max()
    if spent.isna().any():
        raise DataError(f"{unit}: are not in the records of a run; train it again with the present version")
    return float(spent.min())


def comparison_rows(table: pd.DataFrame, title: str = "Networks", without_curve: Sequence[str] = ()) -> Table:
    """Returns a :func:`comparison_table` for display: a row per method and tier, with accuracies in percent."""
    metric = table.attrs["metric"]
    rows, keys, tiers = [], [], []
    for (tier, method), group in table.groupby(["tier", "method"], sort=False):
        networks = group.dropna(subset=["arch"])
        keys.append((method, *zip(networks["result"], networks["arch"], strict=True)))
        tiers.append(_tier_text(tier) if len(networks) else "")
        seeds = str(len(networks)) if len(networks) == len(group) else f"{len(networks)} of {len(group)}"
        scores = {heading(f"{split}_{metric}"): range_text(metric, networks[split]) for split in ("val", "test")}
        costs = {title: range_text(name, networks[name]) for title, name in (("MACs", "macs"), ("size", "bytes"))}
        rows.append({"tier": _tier_text(tier), "method": method, **scores, **costs, "seeds": seeds, **_spent(networks)})
    # the column "network" names an earlier tier with the same network; it exists only if there is one
    if any(same_as := [text if tier else "" for text, tier in zip(repeats(keys, tiers), tiers, strict=True)]):
        rows = [{**row, "network": text} for row, text in zip(rows, same_as, strict=True)]
    untested = table["test"].isna() & table["arch"].notna() & table["test"].notna().any()
    remarks = {
        "No network within the tier": _methods_text(table[table["arch"].isna()]),
        "Not tested ('lit-fednas search' with these tiers tests them)": _methods_text(table[untested]),
        "No curve, as a run has logged no validation while it trained": ", ".join(without_curve),
    }
    notes = [f"{remark}: {names}." for remark, names in remarks.items() if names]
    split = _split(table)
    means = table.groupby(["tier", "method"], sort=False)[split].mean()
    # nothing is marked in a tier in which all methods are equal
    best = means.groupby(level="tier").rank(ascending=not table.attrs["higher"], method="min") == 1
    several = means.groupby(level="tier").transform("nunique") > 1
    mark = f"The best of its tier, by {_SPLITS[split]} {metric}"
    return replace(_table(rows, table, 2, title, notes), marked=[*(best & several).to_numpy().nonzero()[0]], mark=mark)


def target_rows(table: pd.DataFrame) -> Table:
    """Returns a :func:`target_table` for display; ``>`` marks a mean that is a lower bound."""
    metric, rows = table.attrs["metric"], []
    for (tier, target, method), group in table.groupby(["tier", "target", "method"], sort=False):
        trained = group.dropna(subset=["rounds"])
        bound = "" if trained["reached"].all() else "> "
        row = {"tier": _tier_text(tier), heading(metric): f"{scale_of(metric)[0] * float(target):g}", "method": method}
        row["reached"] = f"{int(group['reached'].sum())} of {len(group)}"
        spent = {name: cell if cell == DASH else f"{bound}{cell}" for name, cell in _spent(trained).items()}
        rows.append({**row, **spent})
    return _table(rows, table, 1, "Training until a network within the tier reached a target")


def _table(
    rows: Sequence[Mapping[str, str]], frame: pd.DataFrame, num_texts: int, title: str, notes: Sequence[str] = ()
) -> Table:
    return Table(list(rows[0]), [list(row.values()) for row in rows], num_texts, title, notes, frame)


def _split(table: pd.DataFrame) -> str:
    """Returns the split to show: the test data if all networks were tested."""
    networks = table.dropna(subset=["arch"])
    return "test" if len(networks) and networks["test"].notna().all() else "val"


def _spent(rows: pd.DataFrame) -> dict[str, str]:
    titles = zip(SPENT, ("rounds", "training MACs", "training bytes"), strict=True)
    return {title: range_text(name, rows[name]) for name, title in titles}


def _tier_text(tier: Any) -> str:
    return "any" if tier == ALL_TIERS else str(tier)


def _methods_text(rows: pd.DataFrame) -> str:
    """Returns the methods of rows, each with its tiers."""
    groups = rows.groupby("method", sort=False)["tier"]
    return ", ".join(f"{method} ({', '.join(map(_tier_text, dict.fromkeys(tiers)))})" for method, tiers in groups)


def _curves(methods: Methods, metric: str) -> tuple[pd.DataFrame | None, list[str]]:
    """Returns the networks at each validation, and the methods with a run that logged no validation."""
    searched = {method: any(item.part in item.run.searches for item in results) for method, results in methods.items()}
    runs = {method: results for method, results in methods.items() if not searched[method]}  # searches log no rounds
    silent = [method for method, results in runs.items() if not all(validated(result, metric) for result in results)]
    logged = {method: results for method, results in runs.items() if method not in silent}
    return networks_of(logged, metric, each_round=True) if logged else None, silent


@dataclass(frozen=True)
class Comparison:
    """The tables, charts and files of a comparison."""

    methods: Methods
    tiers: Tiers
    curves: pd.DataFrame | None  # the networks at each validation, of the methods that log validations
    tables: Mapping[str, Table]  # by the name of the CSV file: ``compare``, and ``targets`` and ``clients`` if any
    exclusions: Sequence[str] = ()  # a line for each result that is not comparable

    def text(self, markdown: bool = False) -> str:
        """Returns all tables as text."""
        mark = "## " if markdown else ""
        exclusions = ["\n".join(f"left out: {line}" for line in self.exclusions)] if self.exclusions else []
        tables = [f"{mark}{table.title}\n\n{table.text(markdown)}" for table in self.tables.values()]
        return "\n\n".join([*tables, *exclusions])

    def write(self, folder: Path) -> list[str]:
        """Writes text, picture, page, and a CSV file per table into a folder; returns the files' names."""
        text, picture, page = _PAGES
        replace_text(folder / text, self.text(markdown=True) + "\n")
        with replacing(folder / picture) as file:
            self.figure().savefig(file, dpi=150)
        sections: dict[str, Sequence[Any]] = {table.title: [replace(table, title="")] for table in self.tables.values()}
        sections["Fronts and curves"] = self.charts()
        notes = [f"Left out: {line}" for line in self.exclusions]
        write_page(f"{len(self.methods)} methods compared", sections, folder / page, notes=notes)
        content = {f"{name}.csv": csv_text(table.frame) for name, table in self.tables.items()}
        if self.curves is not None:
            content["curves.csv"] = csv_text(self.curves)
        for name, values in content.items():
            replace_text(folder / name, values)
        return [*_PAGES, *content]

    def figure(self) -> Figure:
        """Draws the front of every method, and its curve in each tier over computation: mean and range over seeds."""
        figure = new_figure(1 if self.curves is None else 1 + len(self.tiers), in_row=2)
        self._draw_fronts(figure.axes[0])
        if self.curves is not None:
            spent = "spent_macs" if self.curves["spent_macs"].notna().any() else "rounds"
            self._draw_curves(figure.axes[1:], self.curves, spent)
        legend(figure)
        return figure

    def charts(self) -> list[Charts]:
        """Returns the charts of a page: fronts, and curves of each tier over computation, communication or rounds."""
        figure = new_figure()
        self._draw_fronts(figure.axes[0])
        legend(figure)
        front, charts = Chart("The best network of each tier", figure), []
        recorded = [] if self.curves is None else [spent for spent in _OVER if self.curves[spent].notna().any()]
        for spent in recorded[:2]:
            figure = new_figure(len(self.tiers), in_row=3)
            self._draw_curves(figure.axes, self.curves, spent)
            legend(figure)
            charts.append(Chart(f"The best network of each tier over {_OVER[spent]}", figure))
        return [Charts([front]), *([Charts(charts)] if charts else [])]

    def _draw_fronts(self, axes: Axes) -> None:
        """Draws each method's networks, with horizontal lines at networks that were trained alone."""
        table = self.tables["compare"].frame
        networks, split, metric = table.dropna(subset=["arch"]), _split(table), table.attrs["metric"]
        scale, text = axis("macs", networks["macs"].max() if len(networks) else 1.0)
        times, unit = scale_of(metric)
        for index, method in enumerate(self.methods):
            groups = networks[networks["method"] == method].groupby("tier", sort=False)
            line = (groups[split].agg(RANGE) * times).set_index(groups["macs"].mean() / scale).sort_index()
            axes.vlines(line.index, line["min"], line["max"], color=look(index)["color"], linewidth=0.9, alpha=0.6)
            axes.plot(line.index, line["mean"], **look(index), markersize=4.5, linewidth=1.2, label=figure_text(method))
            if all(result.trained_alone for result in self.methods[method]):
                for y in line["mean"].unique():
                    axes.axhline(y, color=look(index)["color"], linewidth=0.9, linestyle=":")
            for tier, rows in groups:
                x, y = rows["macs"].mean(), rows[split].mean()
                tip = f"{method}, {_tier_text(tier)}\n{metric} {metric_text(metric, y, '%')}, {short(x)} MACs"
                say(axes, x / scale, times * y, tip)
        for tier, limits in self.tiers.items():
            if "macs" in limits:
                axes.axvline(x := limits["macs"] / scale, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
                transform = axes.get_xaxis_transform()
                axes.text(x, 1.01, figure_text(tier, 12), fontsize=7, ha="center", transform=transform)
        label(axes, text, f"{_SPLITS[split]} {metric}{unit}")
        log_axis(axes)

    def _draw_curves(self, panels: Sequence[Axes], curves: pd.DataFrame, spent: str) -> None:
        """Draws the best network of each tier in a panel, over the training of the runs that recorded it."""
        metric, names = curves.attrs["metric"], list(self.methods)
        times, unit = scale_of(metric)
        recorded = curves[curves.groupby(_KEYS)[spent].transform(lambda values: values.notna().all()).astype(bool)]
        scale, text = axis(spent, recorded[spent].max() if len(recorded) else 1.0)
        for axes, (tier, limits) in zip(panels, self.tiers.items(), strict=True):
            for method, rows in best_within(recorded, limits, [*_KEYS, "rounds"]).groupby("method", sort=False):
                steps = stairs([times * run.set_index(spent)["val"] for _, run in rows.groupby("result")])
                steps = steps[:: -(len(steps) // _MAX_STEPS + 1)][::-1]  # thinned out, from the last step
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
    """Compares methods; ``limits`` are the training budgets, the other arguments those of :func:`compare`, parsed."""
    methods, exclusions = comparable(methods)
    tiers = tiers_of(methods) if tiers is None else tiers
    present = {unit: limit for unit, limit in limits.items() if limit is not None}
    budgets = {unit: least_spent(methods, unit) if limit == "equal" else limit for unit, limit in present.items()}
    units = {"macs": "MACs", "bytes": "B"}
    texts = ", ".join(short(budget, units.get(unit, unit)) for unit, budget in budgets.items())
    title = f"Networks at the last validation within {texts} of all clients' training" if budgets else "Networks"
    table = comparison_table(methods, tiers, metric, budgets or None)
    curves, without_curve = _curves(methods, table.attrs["metric"])
    tables = {"compare": comparison_rows(table, title, without_curve)}
    if targets:
        tables["targets"] = target_rows(target_table(methods, tiers, targets, metric))
    folders = {method: [result.clients_folder for result in results] for method, results in methods.items()}
    folders_with_scores = {method: [*filter(None, paths)] for method, paths in folders.items() if any(paths)}
    if folders_with_scores:
        clients = fairness_table(folders_with_scores)
        rows = fairness_rows(clients[clients["tier"] == ALL_TIERS], "method", "runs")
        tables["clients"] = replace(rows, title="Clients, on their own data", frame=clients)
    return Comparison(methods, tiers, curves, tables, exclusions)


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
    """Compares methods by the best network of every device tier, and by the cost of training.

    The validation metric chooses the best network of a run within each tier's limits, from evaluated subnets, exits,
    grown or pruned models, and searches.

    Args:
        methods: "label=pattern,pattern" for the folders of a method's runs, which differ in their seeds. By default
            the label is the name of the folder that holds the run. A pattern may also match a search or a fine-tuning.
        tiers: A YAML file with the limits of each tier, such as {small: {macs: 0.8e+6}}; by default the searches'.
        metric: The metric that chooses networks; by default the task's first metric.
        macs: A training budget in MACs, or "equal" for the largest that all methods have reached. Networks are
            compared at the last validation within the budget.
        bytes: A training budget in bytes, both ways, or "equal".
        rounds: A training budget in rounds, or "equal".
        targets: Values of the metric, to compare the training until a network within the tier reached them.
        markdown: Whether to print the tables as Markdown.
        output: A folder for compare.md, compare.html, compare.png and CSV files.
        overwrite: Whether to replace files in it that this command has not written.
    """
    if output is not None:
        check_output(*(output / name for name in (*_PAGES, *_TABLES)), overwrite=overwrite)
    limits = None if tiers is None else read_tiers(tiers)
    results = read_methods(methods)
    comparison = compared(results, limits, metric, targets, macs=macs, bytes=bytes, rounds=rounds)
    print(comparison.text(markdown))
    if output is not None:
        print(f"\nwritten in {output}: {', '.join(comparison.write(output))}")
