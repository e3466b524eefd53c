"""Methods in one figure: what they reach over the cost of a network, and over what training has cost."""

from __future__ import annotations

from collections.abc import Mapping

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from lit_fednas.analysis.comparison.results import Methods
from lit_fednas.analysis.comparison.run_networks import SPENT, history
from lit_fednas.analysis.comparison.tables import best_within
from lit_fednas.analysis.comparison.text import scale_of
from lit_fednas.analysis.comparison.tiers import Tiers
from lit_fednas.analysis.style import GREY, RANGE, draw_line, label, legend, log_axis, look, new_figure
from lit_fednas.analysis.tables import stairs
from lit_fednas.formatting import axis, figure_text

_TITLES = {"rounds": "rounds", "spent_macs": "MACs of training", "spent_bytes": "bytes of training"}


def comparison_figure(methods: Methods, tiers: Tiers, table: pd.DataFrame) -> Figure:
    """Returns the front of every method, and its curves: mean over the seeds, and range.

    On the left, the networks of the tiers over their MACs: on the test data where all were tested, else on the
    validation data; dashed lines are the tiers' budgets. Then the validation metric of the best network within the
    last tier, over the rounds, MACs and bytes of training, of the methods that log their networks while they train.

    Args:
        methods: The methods.
        tiers: Their tiers.
        table: Of :func:`~lit_fednas.analysis.comparison.comparison_table`.
    """
    logged = {method: results for method, results in methods.items() if all(one.part is None for one in results)}
    figure = new_figure(4 if logged else 1, in_row=2)
    _draw_fronts(figure.axes[0], methods, tiers, table)
    last = list(tiers)[-1]
    for axes, spent in zip(figure.axes[1:], SPENT, strict=False):
        curves = _curves(logged, tiers[last], table, spent)
        largest = max((curve.index[-1] for seeds in curves.values() for curve in seeds), default=1.0)
        scale, unit = axis({"rounds": spent, "spent_macs": "total_macs", "spent_bytes": "total_bytes"}[spent], largest)
        for method, seeds in curves.items():
            line = stairs(seeds).agg(RANGE, axis=1)
            draw_line(axes, line.set_index(line.index / scale), list(methods).index(method), drawstyle="steps-post")
        label(axes, unit if spent != "rounds" else "rounds", _metric(table, "validation"))
        axes.set_title(f"best network{'' if last == '*' else f' within {figure_text(last)}'}", fontsize=9)
    legend(figure)
    return figure


def _draw_fronts(axes: Axes, methods: Methods, tiers: Tiers, table: pd.DataFrame) -> None:
    found = table.dropna(subset=["arch"])
    split = "test" if len(found) and found["test"].notna().all() else "val"
    scale, unit = axis("macs", found["macs"].max() if len(found) else 1.0)
    for index, method in enumerate(methods):
        rows = found[found["method"] == method]
        line = rows.groupby("tier", sort=False)[split].agg(RANGE) * scale_of(table.attrs["metric"])[0]
        macs = rows.groupby("tier", sort=False)["macs"].mean() / scale
        line = line.set_index(macs).sort_index()
        axes.vlines(line.index, line["min"], line["max"], color=look(index)["color"], linewidth=0.9, alpha=0.6)
        axes.plot(line.index, line["mean"], **look(index), markersize=4.5, linewidth=1.2, label=figure_text(method))
    for limits in tiers.values():
        if "macs" in limits:
            axes.axvline(limits["macs"] / scale, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)))
    label(axes, unit, _metric(table, "test" if split == "test" else "validation"))
    log_axis(axes)


def _curves(
    methods: Methods, limits: Mapping[str, float], table: pd.DataFrame, spent: str
) -> dict[str, list[pd.Series]]:
    """Returns each seed's metric of its best network within limits, by what was spent, per method."""
    metric, higher = table.attrs["metric"], table.attrs["higher"]
    curves: dict[str, list[pd.Series]] = {}
    for method, results in methods.items():
        for result in results:
            validations = history(result, metric).groupby("rounds")
            best = pd.concat([best_within(rows, limits, higher) for _, rows in validations])
            if len(best) and best[spent].notna().all():
                curve = best.set_index(spent)["val"] * scale_of(metric)[0]
                curves.setdefault(method, []).append(curve)
    return curves


def _metric(table: pd.DataFrame, split: str) -> str:
    metric = table.attrs["metric"]
    return f"{split} {metric}{scale_of(metric)[1]}"
