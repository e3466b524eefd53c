"""The command ``runs``: the runs under a folder, and the removal of those that never finished a round."""

import re
import shutil
from pathlib import Path

from lit_fednas.analysis.report.run_sections import class_name
from lit_fednas.analysis.runs import Run, read_search, run_folders
from lit_fednas.analysis.tables import DASH
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.formatting import cost_text, metric_text, text_table
from lit_fednas.records.files import FolderLock
from lit_fednas.records.run import ROUNDS_FILE

#: What is in the folder of a run before its first round has ended.
_BEGUN = re.compile(
    r"SHA256SUMS|config\.yaml|inputs\.json|metrics\.csv|partition\.(csv|png)|study\.log|wandb-id\.txt|tensorboard|checkpoints|\..*\.part"
)


def runs(folder: Path = Path("runs"), /, clean: bool = False) -> None:
    """Lists the runs under a folder: method, best networks, size.

    Args:
        folder: The folder of all runs, or of those of one name.
        clean: Remove the runs that never finished a round, unless a process trains in them or they hold other files.

    Raises:
        DataError: The folder holds no run.
    """
    found, damaged = run_folders(folder), []
    if not found:
        raise DataError(f"{folder}: holds no run; train one with lit-fednas fit, or give another folder")
    rows = []
    for path in found:
        run, cells = Run(path), [DASH, DASH, DASH]
        try:
            model, trainer = (run.settings.get(name) or {} for name in ("model", "trainer"))
            parts = [class_name(model.get(role)) for role in ("supernet", "assignment")]
            done, planned = len(run.rounds), trainer.get("max_rounds", -1)
            rounds = str(done) if planned in (-1, done) else f"{done} of {planned}"
            cells = [", ".join(filter(None, parts)) or DASH, _best(run), rounds]
        except DataError as error:
            damaged.append(f"damaged: {error}")
        files = (file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
        rows.append([str(path), *cells, cost_text("bytes", sum(file.stat().st_size for file in files))])
    print("\n".join([text_table(["run", "method", "best of each tier", "rounds", "size"], rows, left=3), *damaged]))
    for path in found if clean else ():
        if not (path / ROUNDS_FILE).exists():
            _remove(path)


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


def _remove(folder: Path) -> None:
    """Removes a run without a round, if nobody trains in it and it holds nothing else."""
    try:
        lock = FolderLock(folder)
    except ConfigError:
        print(f"kept: {folder}, in which a process trains")
        return
    others = sorted(path.name for path in folder.iterdir() if not _BEGUN.fullmatch(path.name))
    others += sorted(path.name for path in folder.glob("checkpoints/*"))
    if others:  # also the first round, if it has ended by now
        print(f"kept: {folder}, which holds {', '.join(others)}")
    else:
        print(f"removed: {folder}")
        shutil.rmtree(folder)
    lock.release()
