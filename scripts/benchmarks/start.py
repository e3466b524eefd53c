"""CPU seconds to start, to show help and to refuse a configuration, compared with ``import lightning.pytorch``.

Each way runs in a process of its own on a terminal, in turns. "first words" are the seconds until the first line of
output; an import prints none. "first bar" are the seconds from the end of the imports, when data are read, to the
first progress bar.
"""

from __future__ import annotations

import argparse
import os
import sys
from functools import partial
from statistics import median
from tempfile import TemporaryDirectory
from time import perf_counter
from typing import Any

from benchmarks.child import environments
from benchmarks.measuring import compared, repeated
from lit_fednas.errors import ConfigError

IMPORT = "import lightning.pytorch"
_FIT = ["-m", "lit_fednas", "fit", "--config", "superfed/digits.yaml"]
#: Python's arguments and the expected exit status of each way.
WAYS: dict[str, tuple[list[str], int]] = {
    IMPORT: (["-c", IMPORT], 0),
    "fit --help": (["-m", "lit_fednas", "fit", "--help"], 0),
    "refused": ([*_FIT, "--model.client.epochs", "0"], 2),
    "one round": ([*_FIT, "--trainer.max_rounds", "1"], 0),
}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    (environment,) = environments(1, options.threads)
    with TemporaryDirectory() as folder:
        runs = {way: partial(alone, *WAYS[way], folder, environment) for way in WAYS}
        return {"ways": repeated(runs, options.repeats)}


def alone(words: list[str], status: int, folder: str, environment: dict[str, str]) -> dict[str, float | None]:
    """Runs Python in a folder on a new terminal; returns CPU seconds and the seconds until each output."""
    try:
        import pty
        import termios
    except ImportError:
        raise ConfigError("start: this system has no pseudo-terminals; use Linux or macOS") from None
    began = perf_counter()
    process, terminal = pty.fork()
    if process == 0:
        try:
            os.chdir(folder)
            os.execve(sys.executable, [sys.executable, *words], environment)
        finally:
            os._exit(127)
    termios.tcsetwinsize(terminal, (24, 100))  # a terminal without columns shows no bar
    output, moments = b"", dict[bytes, float]()
    while part := _read(terminal):
        output += part
        for text in (b"\n", b"reading", b"%|"):
            if text in output:
                moments.setdefault(text, perf_counter() - began)
    os.close(terminal)
    _, exit_status, usage = os.wait4(process, 0)
    assert os.waitstatus_to_exitcode(exit_status) == status, output.decode()
    return {
        "cpu": usage.ru_utime + usage.ru_stime,
        "wall": perf_counter() - began,
        "first_words": moments.get(b"\n"),
        "first_bar": moments[b"%|"] - moments[b"reading"] if {b"%|", b"reading"} <= moments.keys() else None,
    }


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 2**16)
    except OSError:  # Linux raises it when the process has ended
        return b""


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    def median_text(runs: list[dict[str, Any]], name: str) -> str:
        values = [run[name] for run in runs if run[name] is not None]
        return f"{median(values):.2f}" if values else "-"

    table_rows, cpu = [], {way: [run["cpu"] for run in runs] for way, runs in report["ways"].items()}
    for way, runs in report["ways"].items():
        figures = compared(cpu[way], cpu[IMPORT])
        lower, upper = figures["ratio_quartiles"]
        table_rows.append(
            {
                "start": way,
                "CPU s": median_text(runs, "cpu"),
                "x import": f"{figures['ratio']:.3f}",
                "quartiles": f"{lower:.3f} to {upper:.3f}",
                "wall s": median_text(runs, "wall"),
                "first words s": median_text(runs, "first_words"),
                "first bar s": median_text(runs, "first_bar"),
            }
        )
    return table_rows
