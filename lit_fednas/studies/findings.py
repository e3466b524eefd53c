"""Measures of a study's runs, and verdicts on its claims.

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

#: An additional measure of every run: processor time of all its commands.
MINUTES = "minutes"
RESULT_COLUMNS = ["experiment", "arm", "seed", "measure", "value"]
#: The sums of the ledger.
LEDGER = ("macs", "bytes_down", "bytes_up")
#: Metrics that the package logs: their first word, and their possible last words; empty for any word.
METRICS: dict[str, tuple[str, ...]] = dict.fromkeys(("val", "test"), ("accuracy", "loss", "perplexity", "rmse", "mae"))
METRICS |= {"deployed": (*METRICS["val"], "iqr", "worst"), "time": ("round", "mean", "std", "total")}
METRICS |= dict.fromkeys(("clients", "cost", "others_share", "privacy", "prune", "transform"), ())
#: Sources of a measure, and the other arguments of :func:`figure` that each source takes.
SOURCES: dict[str, tuple[str, ...]] = {
    "metric": ("last", "target", "macs"),
    "table": ("column", "row", "share", "statistic"),
    "ledger": (),
    "tau": (),
}
#: Statistics of a column; the deviation is divided by the number of rows, as in Table 7 of FedorAS.
STATISTICS: dict[str, Callable[[pd.Series], float]] = {
    "mean": pd.Series.mean,
    "std": lambda column: column.std(ddof=0),
    "min": pd.Series.min,
    "max": pd.Series.max,
}
Verdict = Literal["seen", "not seen", "undecided", "not resolved", "needs the paper's scale", "not run"]
#: Number of seeds after which an open claim counts as undecided; its interval bounds the effect.
MAX_SEEDS = 10


def check_metric(metric: str, where: str) -> None:
    """Validates the first and last word of a logged metric; only training knows the names between."""
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
    """Returns a figure of a run from one source (``metric``, ``table``, ``ledger`` or ``tau``); NaN without a record.

    Args:
        run: The run.
        metric: Source: the mean of a logged metric over the last validations.
        last: Number of validations in the mean of ``metric``.
        target: A value of ``metric``. The figure is then the number of rounds until it is reached; for a run that never
            reaches it, the number of all rounds, so that two such runs are equal.
        macs: Multiply-accumulates of all clients. The figure is then the last value of ``metric`` within them.
        table: Source: the mean of a column of a CSV file in the run's folder.
        column: The column of ``table``.
        row: Values by column of ``table``; only rows with these values count.
        share: A share of the greatest ``macs_per_example``. Only the row of ``table`` with the most within it counts.
        statistic: ``std``, ``min`` or ``max`` of the column in place of its mean.
        ledger: Source: the sum over all clients of ``macs``, ``bytes_down`` or ``bytes_up``.
        tau: Source: Kendall's tau between the accuracies of a fine-tuning's candidates before and after it; the name
            of the fine-tuning.
    """
    nothing = float("nan")
    if tau is not None:
        exists = (run.folder / tau).exists()
        correlation = FinetuneFiles(run.folder / tau).rank_correlation() if exists else None
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
        rounds = values.index[[reaches(value, target) for value in values]]
        return float(1 + (values.index[-1] if rounds.empty else rounds[0]))
    if macs is not None:
        values = values[run.spent["spent_macs"].loc[values.index] <= macs]
    return float(values.tail(last).mean())


def _cell(path: Path, column: str, row: Mapping[str, Any], share: float | None, statistic: str) -> float:
    rows = read_table(path, [column, *row])
    with reading(path):
        table = pd.DataFrame([entry for entry in rows if all(entry[name] == str(value) for name, value in row.items())])
        if share is not None:
            macs = pd.to_numeric(table["macs_per_example"])
            table = table.loc[macs[macs <= share * macs.max()].nlargest(1).index]
        return float(STATISTICS[statistic](pd.to_numeric(table[column]))) if len(table) else float("nan")


def measured(study: Study, arm: str, seed: int, folder: Path, minutes: float) -> pd.DataFrame:
    """Returns the measures that a run has, one row each."""
    figures = {name: figure(Run(folder), **arguments) for name, arguments in study.measures.items()}
    rows = [(study.name, arm, seed, name, value) for name, value in {**figures, MINUTES: minutes}.items()]
    return pd.DataFrame(rows, columns=RESULT_COLUMNS).dropna(subset="value")


def read_results(path: Path) -> pd.DataFrame:
    """Returns the stored rows of :func:`measured`; no rows without a file."""
    if not path.exists():
        return pd.DataFrame(columns=RESULT_COLUMNS)
    rows = read_table(path, RESULT_COLUMNS)
    with reading(path):
        return pd.DataFrame(rows, columns=RESULT_COLUMNS).astype({"seed": int, "value": float})


def keep_results(path: Path, rows: pd.DataFrame) -> None:
    """Replaces the rows of the same runs in a file of results."""
    stored, run_columns = read_results(path), RESULT_COLUMNS[:3]
    stored = stored[~pd.MultiIndex.from_frame(stored[run_columns]).isin(pd.MultiIndex.from_frame(rows[run_columns]))]
    table = pd.concat([stored, rows]) if len(stored) else rows
    replace_text(path, csv_text(table.sort_values(RESULT_COLUMNS[:4]), float_format="%.6g"))


def judged(studies: Iterable[Study], results: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per claim, judged by the rows of :func:`measured`.

    Returns:
        ``paper``, ``where``, ``claim``, ``experiment``, ``seeds`` (number of seeds with both figures), ``effect`` (mean
        over the seeds), ``low`` and ``high`` (its 95 % interval, NaN for fewer than two seeds), ``by``, ``bounds`` (of
        the effects that confirm the claim), ``minutes`` (processor time of one run, mean over the compared arms),
        ``verdict``, ``note``.
    """
    rows = []
    for study in studies:
        table = results[results["experiment"] == study.name]
        values = {pair: part.set_index("seed")["value"] for pair, part in table.groupby(["arm", "measure"])}
        for claim in study.claims:
            effects = _effects(claim, values)
            low, high = interval(effects)
            compared = [pair[0] for pair in (claim.result, claim.baseline) if pair]
            minutes = table[(table["measure"] == MINUTES) & table["arm"].isin(compared)]["value"].mean()
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
    """Returns the 95 % interval of a mean by Student's t; NaN for fewer than two values."""
    half = float(student_t.ppf(0.975, len(values) - 1)) * values.sem()
    return values.mean() - half, values.mean() + half


def _verdict(claim: Claim, effects: pd.Series, low: float, high: float) -> Verdict:
    """Returns ``seen`` if the whole interval is within the bounds, ``not seen`` if it is outside of them."""
    if claim.result is None:
        return "needs the paper's scale"
    if effects.empty:
        return "not run"
    if claim.above < low and high < claim.below:
        return "seen"
    if high <= claim.above or low >= claim.below:
        return "not seen"
    return "undecided" if len(effects) >= MAX_SEEDS else "not resolved"


def _bounds(claim: Claim) -> str:
    above, below = (f"{number:g}" if abs(number) < float("inf") else "" for number in (claim.above, claim.below))
    if claim.result is None:
        return ""
    return f"{above} to {below}" if above and below else f"above {above}" if above else f"below {below}"


def claims_text(table: pd.DataFrame) -> str:
    """Returns a table of :func:`judged` as text, one line per claim."""
    rows = table.to_dict("records")
    for row in rows:
        row["effect (95 %)"] = f"{row['effect']:.3g} ({row['low']:.3g} to {row['high']:.3g})" if row["seeds"] else ""
        row |= {"confirmed by": row["bounds"], "minutes": f"{row['minutes']:.1f}"}
    names = ["paper", "where", "claim", "seeds", "effect (95 %)", "confirmed by", "minutes", "verdict"]
    return rows_text(rows, names, left=3)
