"""The command ``runs``: the runs under a folder, and the removal of those that never finished a round."""

import re
import shutil
from pathlib import Path

from lit_fednas.analysis.report.run_sections import class_name
from lit_fednas.analysis.runs import Run, run_folders
from lit_fednas.analysis.tables import DASH, size
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.formatting import metric_text, text_table
from lit_fednas.records import ALL_TIERS
from lit_fednas.records.files import FolderLock
from lit_fednas.records.run import ROUNDS_FILE

#: What is in the folder of a run before its first round has ended.
_BEGUN = re.compile(
    r"config\.yaml|inputs\.json|metrics\.csv|partition\.(csv|png)|study\.log|wandb-id\.txt|tensorboard|checkpoints|\..*\.part"
)


def runs(folder: Path = Path("runs"), /, clean: bool = False) -> None:
    """Lists the runs under a folder: method, best networks, rounds, size on disk.

    Args:
        folder: The folder of all runs, or of those of one name.
        clean: Remove the runs that never finished a round, unless a process trains in them or they hold other files.

    Raises:
        DataError: There is no run.
    """
    found, damaged = run_folders(folder), []
    if not found:
        raise DataError(f"{folder}: holds no run; train one with lit-fednas fit, or give another folder")
    rows = []
    for path in found:
        run, cells = Run(path), [DASH, DASH, DASH]
        try:
            cells = [_method(run), _best(run), _rounds(run)]
        except DataError as error:
            damaged.append(f"damaged: {error}")
        files = (file for file in path.rglob("*") if file.is_file() and not file.is_symlink())
        rows.append([str(path), *cells, size(sum(file.stat().st_size for file in files))])
    print("\n".join([text_table(["run", "method", "best of each tier", "rounds", "size"], rows, left=3), *damaged]))
    for path in found if clean else ():
        if not (path / ROUNDS_FILE).exists():
            _remove(path)


def _method(run: Run) -> str:
    model = run.settings.get("model") or {}
    return ", ".join(filter(None, (class_name(model.get(role)) for role in ("supernet", "assignment")))) or DASH


def _best(run: Run) -> str:
    """Returns the metric of each tier's network, of the best subnet, or the last mean of a run that was stopped."""
    metric, split, validated = run.metric, "val", run.logged(f"val/mean/{run.metric}")
    values = {"mean": validated.iloc[-1]} if len(validated) else {}
    subnets = {name: run.subnets(name)[metric] for name in ("val", "test") if len(run.subnets(name))}
    if (search := run.search(next(iter(run.searches), ""))) is not None and len(search.tiers):
        metric, table = search.metric, search.tiers.set_index("tier")
        split = "val" if table[f"test_{metric}"].isna().any() else "test"
        values = dict(table[f"{split}_{metric}"])
    elif subnets:
        split, found = subnets.popitem()
        values = {ALL_TIERS: found.min() if run.metrics[metric] is False else found.max()}
    named = (
        f"{'' if tier == ALL_TIERS else f'{tier} '}{metric_text(metric, value, '%')}" for tier, value in values.items()
    )
    return f"{', '.join(named)} ({split} {metric})" if values else DASH


def _rounds(run: Run) -> str:
    done, planned = len(run.rounds), (run.settings.get("trainer") or {}).get("max_rounds", -1)
    return str(done) if planned in (-1, done) else f"{done} of {planned}"


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
