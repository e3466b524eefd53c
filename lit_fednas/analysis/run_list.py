"""The command ``runs``, which lists the runs under a folder."""

from pathlib import Path

from lit_fednas.analysis.comparison import best_within
from lit_fednas.analysis.networks import Result, networks_of_weights, tiers_of
from lit_fednas.analysis.report.run_sections import class_name
from lit_fednas.analysis.runs import Run, run_folders
from lit_fednas.analysis.tables import DASH
from lit_fednas.errors import DataError
from lit_fednas.formatting import metric_text, rows_text
from lit_fednas.records import ALL_TIERS


def runs(folder: Path = Path("runs"), /) -> None:
    """Lists the runs under a folder with their method, best networks and size.

    Args:
        folder: The folder of all runs, or of the versions of one run.

    Raises:
        DataError: The folder holds no run.
    """
    folders, damaged = run_folders(folder), []
    if not folders:
        raise DataError(f"{folder}: holds no run; train one with lit-fednas fit, or give another folder")
    rows = []
    for path in folders:
        run, cells = Run(path), {}
        try:
            model, trainer = (run.settings.get(name) or {} for name in ("model", "trainer"))
            parts = [class_name(model.get(role)) for role in ("supernet", "assignment")]
            finished, planned = len(run.rounds), trainer.get("max_rounds", -1)
            rounds = str(finished) if planned in (-1, finished) else f"{finished} of {planned}"
            method = ", ".join(filter(None, parts)) or DASH
            cells = {"method": method, "best of each tier": _best(run), "rounds": rounds}
        except DataError as error:
            damaged.append(f"damaged: {error}")
        files = (file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
        rows.append({"run": str(path), **cells, "bytes": sum(file.stat().st_size for file in files)})
    print("\n".join([rows_text(rows, ["run", "method", "best of each tier", "rounds", "bytes"], left=3), *damaged]))


def _best(run: Run) -> str:
    """Returns the metric of each tier's best network; without evaluated networks, the last mean of the metric."""
    metric, split, values = run.metric, "val", {"mean ": run.logged(f"val/mean/{run.metric}")[-1:]}
    result = Result(run)
    if len(table := networks_of_weights(result, metric)):
        table = table.assign(val=table["val"].fillna(table["test"]), run=run.name)  # some networks were only tested
        table.attrs["higher"] = run.metrics[metric] is not False
        best = {tier: best_within(table, limits, ["run"]) for tier, limits in tiers_of({"": [result]}).items()}
        split = "val" if any(rows["test"].isna().any() for rows in best.values()) else "test"
        values = {"" if tier == ALL_TIERS else f"{tier} ": rows[split] for tier, rows in best.items()}
    texts = [f"{tier}{metric_text(metric, value, '%')}" for tier, column in values.items() for value in column]
    return f"{', '.join(texts)} ({split} {metric})" if texts else DASH
