"""The command ``lit-fednas sweep``: a Weights & Biases sweep file (grid or random) without a server.

Each combination is one run of the file's own command, in a folder of its own under ``runs/<sweep>/``, which is named
after the file's ``name``; loggers of W&B write offline. Started again, it leaves out what is finished and goes on with
what was stopped. At the end a table and a figure compare the runs.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd

from lit_fednas.analysis.sweeps import compare, read_sweep, sweep_figure, swept
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.formatting import text_table
from lit_fednas.records.files import check_folder_name
from lit_fednas.records.measures import OF_CLASSES
from lit_fednas.sweeps.macros import expand
from lit_fednas.sweeps.runs import (
    LOG_FILE,
    Run,
    Sweep,
    folder_names,
    loggers_of,
    run_all,
    settings_of,
    unvalidated_rounds,
)
from lit_fednas.sweeps.sweep_file import combinations, read_sweep_file


def main(args: Sequence[str] | None = None) -> int:
    """Runs a sweep.

    Args:
        args: The words after ``lit-fednas sweep``.

    Returns:
        The exit status.
    """
    parser = runs_parser("sweep", __doc__)
    parser.add_argument("--count", type=int, help="draws of a random sweep")
    parser.add_argument("--draw-seed", type=int, default=0, help="seed of a random sweep's draws (0)")
    parser.set_defaults(seeds=[0])
    return run_file("sweep", parse(parser, args), _sweep)


def _sweep(options: argparse.Namespace) -> int:
    file = read_sweep_file(options.file)
    runs = planned(file, options)
    name = str(file.get("name") or options.file.stem)
    check_folder_name("name", name)
    settings = settings_of(runs[0].commands[0])
    for warning in dict.fromkeys(unvalidated_rounds(settings, run.parameters) for run in runs):
        if warning:
            print(f"sweep: {warning}", file=sys.stderr)
    sweep = Sweep(options.out / name, {"sweep": name, "file": str(options.file)}, runs)
    failed = run_all(sweep, loggers_of(settings), options.jobs)
    report(sweep.folder)
    return tell_failed("sweep", sweep.folder, failed)


def runs_parser(name: str, text: str | None) -> argparse.ArgumentParser:
    """Returns a parser with the options that sweeps and arenas share."""
    parser = argparse.ArgumentParser(
        prog=f"lit-fednas {name}",
        description=str(text).partition(": ")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="What follows -- goes to every lit-fednas command.",
    )
    parser.add_argument("file", type=Path)
    parser.add_argument("--jobs", type=int, default=1, help="runs side by side (1)")
    parser.add_argument("--seeds", type=int, nargs="+", help="seed_everything of every run")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="where the folder of the runs is made (runs)")
    return parser


def parse(parser: argparse.ArgumentParser, args: Sequence[str] | None) -> argparse.Namespace:
    """Parses words; those after ``--`` are ``extra``."""
    words = list(sys.argv[2:] if args is None else args)
    place = words.index("--") if "--" in words else len(words)
    options = parser.parse_args(words[:place])
    options.extra = words[place + 1 :]
    return options


def run_file(name: str, options: argparse.Namespace, run: Callable[[argparse.Namespace], int]) -> int:
    """Calls a command; tells what is wrong in one line, and how to go on when it was stopped."""
    try:
        if options.jobs < 1:
            raise ConfigError(f"jobs: {options.jobs} must be 1 or more")
        with _ended_by_signals():
            return run(options)
    except (ConfigError, DataError) as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print(f"{name}: stopped; the same command goes on", file=sys.stderr)
        return 130


def tell_failed(name: str, folder: Path, failed: Sequence[Run]) -> int:
    """Names the runs that failed; returns the exit status."""
    for run in failed:
        print(f"{name}: {run.folder} failed; see {folder / run.folder / LOG_FILE}", file=sys.stderr)
    return 1 if failed else 0


def planned(sweep: dict[str, Any], options: argparse.Namespace) -> list[Run]:
    """Returns every combination with every seed, seeds last.

    Raises:
        ConfigError: The file has seeds of its own.
    """
    if "seed_everything" in sweep["parameters"]:
        raise ConfigError("parameters.seed_everything: give seeds to the command instead (--seeds 0 1)")
    chosen = combinations(sweep, options.count, options.draw_seed)
    runs = []
    for seed in dict.fromkeys(options.seeds):
        for values, name in zip(chosen, folder_names(chosen), strict=True):
            command = expand(sweep["command"], sweep["program"], values)
            command += [f"--seed_everything={seed}", *options.extra]
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
        print(f"sweep: {error}", file=sys.stderr)


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


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A termination ends the runs in order, as Ctrl-C does."""

    def leave(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_IGN)  # some senders tell the process, and its group once more
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
