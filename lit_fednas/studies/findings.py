"""What runs of a study measure, and whether it confirms its claims.

The effect of a claim is a mean over seeds, with its 95 % interval by Student's t.
"""

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

import pandas as pd
from scipy.stats import t as student_t

from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.tables import csv_text
from lit_fednas.formatting import rows_text
from lit_fednas.records import FinetuneFiles
from lit_fednas.records.files import read_table, reading, replace_text
from lit_fednas.records.run import reaches
from lit_fednas.studies.study import Claim, Study, require_known

#: The measure that is added to those of the file: processor time of all commands of a run.
MINUTES = "minutes"
RESULT_COLUMNS = ["experiment", "arm", "seed", "measure", "value"]
#: What the ledger counts.
LEDGER = ("macs", "bytes_down", "bytes_up")
#: Metrics that the package logs: their first word, and what their last may be, if that is limited.
METRICS: dict[str, tuple[str, ...]] = dict.fromkeys(("val", "test"), ("accuracy", "loss", "perplexity", "rmse", "mae"))
METRICS |= {"deployed": (*METRICS["val"], "iqr", "worst"), "time": ("round", "mean", "std", "total")}
METRICS |= dict.fromkeys(("clients", "cost", "others_share", "privacy", "prune", "transform"), ())
#: What a measure is read from, and which other arguments of :func:`figure` go with it.
SOURCES: dict[str, tuple[str, ...]] = {
    "metric": ("last", "target", "macs"),
    "table": ("column", "row", "share", "statistic"),
    "ledger": (),
    "tau": (),
}
#: What is taken of a column; the deviation is divided by the number of rows, as in Table 7 of FedorAS.
STATISTICS: dict[str, Callable[[pd.Series], float]] = {
    "mean": pd.Series.mean,
    "std": lambda column: column.std(ddof=0),
    "min": pd.Series.min,
    "max": pd.Series.max,
}
Verdict = Literal["seen", "not seen", "undecided", "not resolved", "needs the paper's scale", "not run"]
#: So many seeds are enough: what they leave open is undecided, and its interval says how large it can be.
MOST_SEEDS = 10


def check_metric(metric: str, where: str) -> None:
    """Validates the kind of a logged metric; which networks are evaluated is known in training alone."""
    kind, _, name = metric.partition("/")
    require_known(kind, METRICS, f"{where}: {metric}", "logged")
    if METRICS[kind]:
        require_known(name.rpartition("/")[2], METRICS[kind], f"{where}: {metric}", "logged")


def figure(
    run: Run,
    metric: str | None = None,
    last: int = 1,
    target: float | None = None,
    macs: float | None = None,
    table: str | None = None,
    column: str = "",
    row: Mapping[str, Any] | None = None,
    share: float | None = None,
    statistic: str = "mean",
    ledger: str | None = None,
    tau: str | None = None,
) -> float:
    """Returns a figure of a run; NaN where it has no such record.

    Args:
        run: The run.
        metric: A logged metric: the mean over its last validations,
        last: as many as this;
        target: or the rounds until the metric has reached this (the run's last validation if it never has, so that
            two runs that never have are equal);
        macs: or its value at the last validation before all clients had spent this many multiply-accumulates.
        table: Or a CSV file in the run's folder,
        column: of which this column is averaged
        row: over the rows with these values,
        share: or in the row with the most ``macs_per_example`` of at most this share of the greatest;
        statistic: ``std``, ``min`` or ``max`` of it in place of its mean.
        ledger: Or what all clients spent in total (``macs``, ``bytes_down``, ``bytes_up``).
        tau: Or Kendall's tau between the accuracies of a fine-tuning's candidates before and after it, by its name.
    """
    nothing = float("nan")
    if tau is not None:
        known = (run.folder / tau).exists()
        correlation = FinetuneFiles(run.folder / tau).rank_correlation() if known else None
        return nothing if correlation is None else correlation
    if ledger is not None:
        return float(run.ledger["total"][ledger]) if run.ledger else nothing
    if table is not None:
        path = run.folder / table
        return _cell(path, column, row or {}, share, statistic) if path.exists() else nothing
    values = pd.Series(dtype=float) if metric is None else run.logged(metric)
    if values.empty:
        return nothing
    if target is not None:
        reached = values.index[[reaches(value, target) for value in values]]
        return float(1 + (values.index[-1] if reached.empty else reached[0]))
    if macs is not None:
        values = values[run.spent["spent_macs"].loc[values.index] <= macs]
    return float(values.tail(last).mean())


def _cell(path: Path, column: str, row: Mapping[str, Any], share: float | None, statistic: str) -> float:
    rows = read_table(path, [column, *row])
    with reading(path):
        table = pd.DataFrame([each for each in rows if all(each[name] == str(value) for name, value in row.items())])
        if share is not None:
            macs = pd.to_numeric(table["macs_per_example"])
            table = table.loc[macs[macs <= share * macs.max()].nlargest(1).index]
        return float(STATISTICS[statistic](pd.to_numeric(table[column]))) if len(table) else float("nan")


def measured(study: Study, arm: str, seed: int, folder: Path, minutes: float) -> pd.DataFrame:
    """Returns a run's measures, a row each; those of which the run has no record are left out."""
    figures = {name: figure(Run(folder), **how) for name, how in study.measures.items()}
    rows = [(study.name, arm, seed, name, value) for name, value in {**figures, MINUTES: minutes}.items()]
    return pd.DataFrame(rows, columns=RESULT_COLUMNS).dropna(subset="value")


def read_results(path: Path) -> pd.DataFrame:
    """Returns the kept rows of :func:`measured`; none if there is no such file."""
    if not path.exists():
        return pd.DataFrame(columns=RESULT_COLUMNS)
    rows = read_table(path, RESULT_COLUMNS)
    with reading(path):
        return pd.DataFrame(rows, columns=RESULT_COLUMNS).astype({"seed": int, "value": float})


def keep_results(path: Path, rows: pd.DataFrame) -> None:
    """Replaces the rows of the same runs in a file of results."""
    kept, run = read_results(path), RESULT_COLUMNS[:3]
    kept = kept[~pd.MultiIndex.from_frame(kept[run]).isin(pd.MultiIndex.from_frame(rows[run]))]
    table = pd.concat([kept, rows]) if len(kept) else rows
    replace_text(path, csv_text(table.sort_values(RESULT_COLUMNS[:4]), float_format="%.6g"))


def judged(studies: Iterable[Study], results: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per claim, judged by the rows of :func:`measured`.

    Returns:
        ``paper``, ``where``, ``claim``, ``experiment``, ``seeds`` (how many have both figures), ``effect`` (mean over
        the seeds), ``low`` and ``high`` (its 95 % interval, NaN with less than two seeds), ``by``, ``bounds`` (that
        confirm the claim), ``minutes`` (processor time of one run, mean over the arms that it compares), ``verdict``,
        ``note``.
    """
    rows = []
    for study in studies:
        found = results[results["experiment"] == study.name]
        values = {pair: part.set_index("seed")["value"] for pair, part in found.groupby(["arm", "measure"])}
        for claim in study.claims:
            effects = _effects(claim, values)
            low, high = interval(effects)
            compared = [pair[0] for pair in (claim.result, claim.baseline) if pair]
            minutes = found[(found["measure"] == MINUTES) & found["arm"].isin(compared)]["value"].mean()
            head = {"paper": claim.paper, "where": claim.where, "claim": claim.claim, "experiment": study.name}
            middle = {"seeds": len(effects), "effect": effects.mean(), "low": low, "high": high}
            tail = {"by": claim.effect, "bounds": _bounds(claim), "minutes": minutes}
            rows.append({**head, **middle, **tail, "verdict": _verdict(claim, effects, low, high), "note": claim.note})
    return pd.DataFrame(rows)


def _effects(claim: Claim, values: Mapping[tuple[str, str], pd.Series]) -> pd.Series:
    """Returns the effect of each seed that has both figures, by seed."""
    nothing = pd.Series(dtype=float)
    result = values.get(claim.result, nothing) if claim.result else nothing
    if claim.baseline is None:
        return result
    baseline = values.get(claim.baseline, nothing)
    return (result / baseline if claim.effect == "ratio" else result - baseline).dropna()


def interval(values: pd.Series) -> tuple[float, float]:
    """Returns the 95 % interval of a mean by Student's t, NaN with less than two values."""
    half = float(student_t.ppf(0.975, len(values) - 1)) * values.sem()
    return values.mean() - half, values.mean() + half


def _verdict(claim: Claim, effects: pd.Series, low: float, high: float) -> Verdict:
    """Returns ``seen`` where the whole interval is within the bounds, ``not seen`` where none of it is."""
    if claim.result is None:
        return "needs the paper's scale"
    if effects.empty:
        return "not run"
    if claim.above < low and high < claim.below:
        return "seen"
    if high <= claim.above or low >= claim.below:
        return "not seen"
    return "undecided" if len(effects) >= MOST_SEEDS else "not resolved"


def _bounds(claim: Claim) -> str:
    """Writes the effects that confirm a claim."""
    above, below = (f"{number:g}" if abs(number) < float("inf") else "" for number in (claim.above, claim.below))
    if claim.result is None:
        return ""
    return f"{above} to {below}" if above and below else f"above {above}" if above else f"below {below}"


def claims_text(table: pd.DataFrame) -> str:
    """Returns a table of :func:`judged` as text, a line per claim."""
    rows = table.to_dict("records")
    for row in rows:
        row["effect (95 %)"] = f"{row['effect']:.3g} ({row['low']:.3g} to {row['high']:.3g})" if row["seeds"] else ""
        row |= {"confirmed by": row["bounds"], "minutes": f"{row['minutes']:.1f}"}
    names = ["paper", "where", "claim", "seeds", "effect (95 %)", "confirmed by", "minutes", "verdict"]
    return rows_text(rows, names, left=3)
