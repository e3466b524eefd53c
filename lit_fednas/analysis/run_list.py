"""The command ``runs``: the runs under a folder."""

from pathlib import Path

from lit_fednas.analysis.report.run_sections import class_name
from lit_fednas.analysis.runs import Run, read_search, run_folders
from lit_fednas.analysis.tables import DASH
from lit_fednas.errors import DataError
from lit_fednas.formatting import metric_text, rows_text


def runs(folder: Path = Path("runs"), /) -> None:
    """Lists the runs under a folder: method, best networks, size.

    Args:
        folder: The folder of all runs, or of those of one name.

    Raises:
        DataError: The folder holds no run.
    """
    found, damaged = run_folders(folder), []
    if not found:
        raise DataError(f"{folder}: holds no run; train one with lit-fednas fit, or give another folder")
    rows = []
    for path in found:
        run, cells = Run(path), {}
        try:
            model, trainer = (run.settings.get(name) or {} for name in ("model", "trainer"))
            parts = [class_name(model.get(role)) for role in ("supernet", "assignment")]
            done, planned = len(run.rounds), trainer.get("max_rounds", -1)
            rounds = str(done) if planned in (-1, done) else f"{done} of {planned}"
            cells = {
                "method": ", ".join(filter(None, parts)) or DASH,
                "best of each tier": _best(run),
                "rounds": rounds,
            }
        except DataError as error:
            damaged.append(f"damaged: {error}")
        files = (file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
        rows.append({"run": str(path), **cells, "bytes": sum(file.stat().st_size for file in files)})
    print("\n".join([rows_text(rows, ["run", "method", "best of each tier", "rounds", "bytes"], left=3), *damaged]))


def _best(run: Run) -> str:
    """Returns the metric of each tier's network, of the best subnet, or the last mean of a run that was stopped."""
    metric, split, values = run.metric, "val", dict.fromkeys(["mean "], run.logged(f"val/mean/{run.metric}"))
    for name in ("val", "test"):
        if len(table := run.subnets(name)):
            split, values = name, {"": table[metric].sort_values(ascending=run.metrics[metric] is not False)}
    for name in run.searches[:1]:
        metric, table = (search := read_search(run.folder / name)).metric, search.tiers
        split = "val" if table[f"test_{metric}"].isna().any() else "test"
        values = {f"{tier} ": rows[f"{split}_{metric}"] for tier, rows in table.groupby("tier", sort=False)}
    named = [f"{tier}{metric_text(metric, found.iloc[-1], '%')}" for tier, found in values.items() if len(found)]
    return f"{', '.join(named)} ({split} {metric})" if named else DASH
