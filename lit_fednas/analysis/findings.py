"""What the papers found, beside what small runs of several seeds show.

An experiment is a YAML file: how its settings were chosen (``protocol``), result ``seeds``, ``arms`` (each the commands
of one run, of which later ones have the options of the first as well), ``measures`` (figures that are read from a run's
folder) and ``claims`` (each an effect between two arms, paired by seed, and the bounds within which it confirms the
paper). :func:`measured` reads runs into rows of ``experiment, arm, seed, measure, value``; :func:`judged` compares the
rows with the claims.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import yaml
from matplotlib.figure import Figure

from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.style import GREY, PALETTE, label, new_figure
from lit_fednas.analysis.tables import validations
from lit_fednas.errors import DataError
from lit_fednas.formatting import figure_text
from lit_fednas.records import FinetuneFiles
from lit_fednas.records.files import reading
from lit_fednas.records.measures import reaches

#: The measure that the runner adds to those of the file: processor time of all commands of a run.
MINUTES = "minutes"
RESULT_COLUMNS = ["experiment", "arm", "seed", "measure", "value"]
Verdict = Literal["seen", "not seen", "not resolved", "needs the paper's scale", "not run"]


@dataclass(frozen=True)
class Claim:
    """A finding of a paper, and what would show it here.

    Attributes:
        paper: The method's name.
        where: Table, figure or section.
        claim: What the paper says.
        of: Arm and measure whose figure is judged.
        over: Arm and measure that it is compared with, in the same seed; the figure itself is judged if not given.
        by: Whether the effect is the ``difference`` of the two or their ``ratio``.
        above: The effect that confirms the claim is above this.
        below: And below this.
        note: The cause of what was found, or why it cannot be found at this size; a claim without ``of`` needs the
            paper's scale.
    """

    paper: str
    where: str
    claim: str
    of: tuple[str, str] | None = None
    over: tuple[str, str] | None = None
    by: Literal["difference", "ratio"] = "difference"
    above: float = -float("inf")
    below: float = float("inf")
    note: str = ""

    def effects(self, values: Mapping[tuple[str, str], pd.Series]) -> pd.Series:
        """Returns the effect of each seed that has both figures, by seed.

        Args:
            values: Figures by seed, of each arm and measure.
        """
        nothing = pd.Series(dtype=float)
        of = values.get(self.of, nothing) if self.of else nothing
        if self.over is None:
            return of
        over = values.get(self.over, nothing)
        return (of / over if self.by == "ratio" else of - over).dropna()

    def verdict(self, effects: pd.Series) -> Verdict:
        """Returns ``seen`` where all seeds are within the bounds, ``not seen`` where none is."""
        if self.of is None:
            return "needs the paper's scale"
        if effects.empty:
            return "not run"
        within = effects.between(self.above, self.below, inclusive="neither")
        return "seen" if within.all() else "not resolved" if within.any() else "not seen"


@dataclass(frozen=True)
class Experiment:
    """The content of an experiment's file; ``name`` is the file's."""

    name: str
    protocol: str
    seeds: list[int] = field(default_factory=list)
    arms: dict[str, list[str]] = field(default_factory=dict)
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)


def read_experiment(path: Path | str) -> Experiment:
    """Returns an experiment.

    Raises:
        DataError: The file is broken, a measure cannot be read so, or a claim names an arm or a measure that the file
            does not have.
    """
    path = Path(path)
    with reading(path):
        content = yaml.safe_load(path.read_text())
        claims = [_claim(one) for one in content.pop("claims")]
        experiment = Experiment(path.stem, **content, claims=claims)
        for how in experiment.measures.values():
            inspect.signature(figure).bind(None, **how)
    for claim in claims:
        for arm, measure in filter(None, (claim.of, claim.over)):
            if arm not in experiment.arms or measure not in {*experiment.measures, MINUTES}:
                raise DataError(f"{path}: {claim.claim!r} compares {measure} of {arm}, and the file has no such pair")
    return experiment


def _claim(content: Mapping[str, Any]) -> Claim:
    pairs = {name: tuple(content[name]) for name in ("of", "over") if name in content}
    return Claim(**{**content, **pairs})


def measured(experiment: Experiment, arm: str, seed: int, folder: Path, minutes: float) -> pd.DataFrame:
    """Returns a run's measures, a row each; those of which the run has no record are left out.

    Args:
        experiment: The experiment.
        arm: The arm.
        seed: The run's seed.
        folder: The run's.
        minutes: Processor time of the run.

    Raises:
        DataError: A record is broken.
    """
    figures = {name: figure(Run(folder), **how) for name, how in experiment.measures.items()}
    rows = [(experiment.name, arm, seed, name, value) for name, value in {**figures, MINUTES: minutes}.items()]
    return pd.DataFrame(rows, columns=RESULT_COLUMNS).dropna(subset="value")


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
        share: or in the row with the most ``macs_per_example`` of at most this share of the greatest.
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
        return _cell(path, column, row or {}, share) if path.exists() else nothing
    if metric is None or metric not in run.rounds or run.rounds[metric].isna().all():
        return nothing
    rounds = validations(run, [metric])
    if target is not None:
        reached = rounds[[reaches(value, target) for value in rounds[metric]]]
        return float((rounds.iloc[-1] if reached.empty else reached.iloc[0])["rounds"])
    if macs is not None:
        rounds = rounds[rounds["macs"] <= macs]
    return float(rounds[metric].tail(last).mean())


def _cell(path: Path, column: str, row: Mapping[str, Any], share: float | None) -> float:
    with reading(path):
        table = pd.read_csv(path)
        for name, value in row.items():
            table = table[table[name].astype(str) == str(value)]
        if share is not None:
            macs = table["macs_per_example"]
            table = table[macs <= share * macs.max()].nlargest(1, "macs_per_example")
        return float(table[column].mean())


def judged(experiments: Iterable[Experiment], results: pd.DataFrame) -> pd.DataFrame:
    """Returns one row per claim.

    Args:
        experiments: The experiments.
        results: Rows of :func:`measured`.

    Returns:
        ``paper``, ``where``, ``claim``, ``experiment``, ``seeds`` (how many have both figures), ``effect`` (mean over
        the seeds, NaN without), ``low``, ``high``, ``by``, ``bounds`` (that confirm the claim), ``minutes``
        (processor time of one run, mean over the arms that it compares), ``verdict``, ``note``.
    """
    rows = []
    for experiment in experiments:
        own = results[results["experiment"] == experiment.name]
        values = {pair: part.set_index("seed")["value"] for pair, part in own.groupby(["arm", "measure"])}
        for claim in experiment.claims:
            effects = claim.effects(values)
            compared = {pair[0] for pair in (claim.of, claim.over) if pair}
            minutes = own[(own["measure"] == MINUTES) & own["arm"].isin(compared)]["value"].mean()
            effect = {"effect": effects.mean(), "low": effects.min(), "high": effects.max()}
            head = {"paper": claim.paper, "where": claim.where, "claim": claim.claim, "experiment": experiment.name}
            tail = {
                "by": claim.by,
                "bounds": _bounds(claim),
                "minutes": minutes,
                "verdict": claim.verdict(effects),
                "note": claim.note,
            }
            rows.append({**head, "seeds": len(effects), **effect, **tail})
    return pd.DataFrame(rows)


def _bounds(claim: Claim) -> str:
    """Writes the effects that confirm a claim."""
    above, below = (f"{number:g}" if abs(number) < float("inf") else "" for number in (claim.above, claim.below))
    if claim.of is None:
        return ""
    return f"{above} to {below}" if above and below else f"above {above}" if above else f"below {below}"


def effects_figure(table: pd.DataFrame) -> Figure:
    """Returns each claim's effect with its range, over the line of no effect.

    Args:
        table: Claims of a table of :func:`judged` that were run, with effects of one kind.
    """
    rows = table.to_dict("records")
    places = range(len(rows))[::-1]
    figure = new_figure()
    figure.set_size_inches(9, 0.8 + 0.28 * len(rows))
    (axes,) = figure.axes
    for place, row in zip(places, rows, strict=True):
        color = {"seen": PALETTE[2], "not seen": PALETTE[1]}.get(row["verdict"], GREY)
        axes.plot([row["low"], row["high"]], [place, place], color=color, linewidth=1.2)
        axes.plot(row["effect"], place, "o", color=color, markersize=4)
    ratio = rows[0]["by"] == "ratio"
    axes.axvline(1 if ratio else 0, color=GREY, linewidth=0.8)
    axes.set_yticks(places, [figure_text(f"{row['where']}: {row['claim']}", 84) for row in rows])
    axes.tick_params("y", labelsize=7)
    label(axes, "ratio" if ratio else "difference", "")
    return figure
