"""How alike the clients fare with the networks of a search or a fine-tuning (FedorAS, section 4.4).

The section is ``None`` where no client was tested by itself.
"""

from __future__ import annotations

import pandas as pd

from lit_fednas.analysis.fairness import ALL, fairness_table, ordered_scores
from lit_fednas.analysis.report.charts import Series, line_chart
from lit_fednas.analysis.report.markup import Html, join, table, tag
from lit_fednas.analysis.runs import Run
from lit_fednas.records.run import CLIENTS_FILE

_FIRST = ("search", "finetune")


def fairness(run: Run) -> Html | None:
    """A table by tier, and the clients by ascending accuracy, for every search and fine-tuning in the run."""
    names = sorted((path.parent.name for path in run.folder.glob(f"*/{CLIENTS_FILE}")), key=_place)
    if not names:
        return None
    groups = {name: [run.folder / name] for name in names}
    scores = ordered_scores(groups)
    lines = [
        Series(str(name), list(zip(rows["place"], rows["mean"], strict=True)))
        for name, rows in scores.groupby("name", sort=False)
    ]
    text = "Each client's accuracy on its own test data, with the network of its tier."
    head = ["folder", "tier", "clients", "mean accuracy", "deviation", "worst"]
    return join(
        tag("p", text),
        table(head, _rows(fairness_table(groups)), texts=2),
        tag("div", line_chart("Clients by accuracy", lines, "client", "accuracy"), class_="charts"),
    )


def _rows(found: pd.DataFrame) -> list[list[str]]:
    rows = []
    for _, row in found.iterrows():
        tier = "all" if row["tier"] == ALL else row["tier"]
        figures = (f"{row[value]:.4f}" for value in ("mean", "deviation", "worst"))
        rows.append([row["name"], tier, f"{row['clients']:,.0f}", *figures])
    return rows


def _place(name: str) -> tuple[int, str]:
    return (_FIRST.index(name) if name in _FIRST else len(_FIRST), name)
