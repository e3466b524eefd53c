"""The command ``lit-fednas arena``: trains several methods on the same data with the same seeds, and compares them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from lit_fednas.comparison.command import Comparison, compared
from lit_fednas.comparison.results import Result, methods_of
from lit_fednas.errors import DataError
from lit_fednas.ranges import PositiveInt
from lit_fednas.sweeps.arena_file import Arena, folder_of, read_arena
from lit_fednas.sweeps.runs import Run, Sweep, loggers_of, run_all, settings_of, unvalidated_rounds


def arena(
    file: Path,
    *extra: str,
    jobs: PositiveInt = 1,
    seeds: list[int] | None = None,
    methods: list[str] | None = None,
    out: Path = Path("runs"),
) -> int:
    """Trains several methods on the same data with the same seeds, and compares them.

    Every method and seed is a run in a folder of its own: trained, searched at the tiers or tested, and compared. The
    same command goes on where it was stopped, and leaves out what is finished; methods and seeds may be added.

    Args:
        file: The arena file (lit_fednas.sweeps.arena_file says what it holds).
        *extra: What follows -- goes to every command.
        jobs: Runs side by side.
        seeds: In place of those of the file.
        methods: Labels of those that are run; all of the file if not given.
        out: Where the arena's folder is made, which is named after the file's name.

    Returns:
        The exit status: 1 if a run failed.

    Raises:
        ConfigError: The file or a method's settings cannot work (told before anything is trained).
        DataError: No run has finished.
    """
    content = read_arena(file)
    chosen = methods or list(content.methods)
    for label in chosen:
        if label not in content.methods:
            raise DataError(f"methods: {label} is not in {file}; choose from {', '.join(content.methods)}")
    runs = [
        Run({"method": label}, seed, f"{folder_of(label)}/seed{seed}", content.commands(label, seed, extra))
        for seed in dict.fromkeys(seeds or content.seeds)
        for label in chosen
    ]
    sweep = Sweep(out / content.name, {"sweep": content.name, "file": str(file)}, runs)
    status = 0
    first = {run.parameters["method"]: run for run in reversed(runs) if run.status != "finished"}
    if settings := [_checked(first[label], label) for label in chosen if label in first]:
        status = run_all(sweep, loggers_of(settings[0]), jobs)
    comparison = compared_arena(content, sweep)
    print(f"\n{comparison.text()}\n\nwritten in {sweep.folder}: {', '.join(comparison.write(sweep.folder))}")
    return status


def _checked(run: Run, label: str) -> Mapping[str, object]:
    """Returns the settings of a method's first run that is not finished, of which all commands that are left parse."""
    print(f"checking: {label}", flush=True)
    settings, *_ = [settings_of(command) for command in run.commands[run.done :]]
    if warning := unvalidated_rounds(settings, {}):
        print(f"lit-fednas: {label}: {warning}", file=sys.stderr)
    return settings


def compared_arena(arena: Arena, sweep: Sweep) -> Comparison:
    """Compares the runs of an arena that have finished, also of earlier starts.

    Args:
        arena: The file's content.
        sweep: The runs.

    Returns:
        The comparison at the arena's tiers.

    Raises:
        DataError: No run has finished.
    """
    found: dict[str, list[Result | Path]] = {label: [] for label in arena.methods}
    tuned: dict[str, list[Result | Path]] = {}
    for run in sorted([*sweep.wanted, *sweep.others], key=lambda run: run.seed):
        label = str(run.parameters["method"])
        if run.status != "finished" or label not in found:
            continue
        found[label].append(sweep.folder / run.folder)
        for name in arena.methods[label].finetune:
            tuned.setdefault(f"{label}, {name}", []).append(sweep.folder / run.folder / folder_of(name))
    methods = methods_of({label: folders for label, folders in {**found, **tuned}.items() if folders})
    if not methods:
        raise DataError(f"{sweep.folder}: no run has finished; see sweep.json, and start the same command again")
    return compared(methods, arena.tiers, **arena.compare)
