"""The command ``lit-fednas sweep``: a Weights & Biases sweep file (grid or random) without a server.

Each combination is one run of the file's own command, in a folder of its own under ``runs/<sweep>/``, which is named
after the file's ``name``; loggers of W&B write offline. Started again, it leaves out what is finished and goes on with
what was stopped. At the end a table and a figure compare the runs.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from lit_fednas.analysis.sweeps import compare, read_sweep, sweep_figure, swept
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.formatting import text_table
from lit_fednas.ranges import NonNegativeInt, PositiveInt
from lit_fednas.records.files import check_folder_name
from lit_fednas.records.measures import OF_CLASSES
from lit_fednas.sweeps.macros import expand
from lit_fednas.sweeps.runs import (
    Run,
    Sweep,
    folder_names,
    loggers_of,
    run_all,
    settings_of,
    unvalidated_rounds,
)
from lit_fednas.sweeps.sweep_file import combinations, read_sweep_file


def sweep(
    file: Path,
    *extra: str,
    jobs: PositiveInt = 1,
    seeds: list[int] | None = None,
    count: int | None = None,
    draw_seed: NonNegativeInt = 0,
    out: Path = Path("runs"),
) -> int:
    """Runs a Weights & Biases sweep file (grid or random) without a server.

    Each combination is one run of the file's own command, in a folder of its own; loggers of W&B write offline. The
    same command goes on where it was stopped, and leaves out what is finished.

    Args:
        file: The sweep file.
        *extra: What follows -- goes to every command of the file.
        jobs: Runs side by side.
        seeds: seed_everything of every combination; 0 if not given.
        count: Draws of a random sweep.
        draw_seed: Seed of a random sweep's draws.
        out: Where the sweep's folder is made, which is named after the file's name.

    Returns:
        The exit status: 1 if a run failed.
    """
    content = read_sweep_file(file)
    runs = planned(content, seeds or [0], extra, count, draw_seed)
    name = str(content.get("name") or file.stem)
    check_folder_name("name", name)
    settings = settings_of(runs[0].commands[0])
    for warning in dict.fromkeys(unvalidated_rounds(settings, run.parameters) for run in runs):
        if warning:
            print(f"lit-fednas: {warning}", file=sys.stderr)
    status = run_all(Sweep(out / name, {"sweep": name, "file": str(file)}, runs), loggers_of(settings), jobs)
    report(out / name)
    return status


def planned(
    sweep: dict[str, Any], seeds: Sequence[int], extra: Sequence[str], count: int | None = None, draw_seed: int = 0
) -> list[Run]:
    """Returns every combination with every seed, seeds last.

    Args:
        sweep: The file's content.
        seeds: The seeds.
        extra: What goes to every command.
        count: Draws of a random sweep.
        draw_seed: Seed of the draws.

    Raises:
        ConfigError: The file has seeds of its own.
    """
    if "seed_everything" in sweep["parameters"]:
        raise ConfigError("parameters.seed_everything: give seeds to the command instead (--seeds 0 1)")
    chosen = combinations(sweep, count, draw_seed)
    runs = []
    for seed in dict.fromkeys(seeds):
        for values, name in zip(chosen, folder_names(chosen), strict=True):
            command = expand(sweep["command"], sweep["program"], values)
            command += [f"--seed_everything={seed}", *extra]
            runs.append(Run(values, seed, f"{name}/seed{seed}", [command]))
    return runs


def report(folder: Path) -> None:
    """Writes ``sweep.csv`` and ``sweep.png``, and prints the combinations beside each other."""
    table = read_sweep(folder)
    table.to_csv(folder / "sweep.csv", index=False)
    try:
        print(text_of(compare(table)))
        if swept(table):
            sweep_figure(table).savefig(folder / "sweep.png")
    except DataError as error:
        print(f"lit-fednas: {error}", file=sys.stderr)


def text_of(table: pd.DataFrame) -> str:
    """Returns a comparison as text: the mean over seeds, and the range; accuracies in percent."""
    place = list(table.columns).index("seeds")
    metrics = [name.removesuffix(" mean") for name in table.columns if name.endswith(" mean")]
    body = []
    for row in table.to_dict("records"):
        cells = []
        for metric in metrics:
            scale = 100 if metric.rpartition("/")[2] == next(iter(OF_CLASSES)) else 1
            mean, low, high = (scale * row[f"{metric} {word}"] for word in ("mean", "low", "high"))
            cells.append(f"{mean:.2f} ({low:.2f}-{high:.2f})")
        own = [row[name] for name in table.columns[: place + 1]]
        body.append([*(f"{one:.4g}" if isinstance(one, float) else str(one) for one in own), *cells])
    head = [name.split(".")[-1] for name in table.columns[: place + 1]]
    return text_table([*head, *(metric.removeprefix("val/") for metric in metrics)], body, left=place)
