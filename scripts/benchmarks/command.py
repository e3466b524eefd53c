"""The command line of the benchmarks."""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from time import perf_counter
from types import ModuleType
from typing import Any, NoReturn

import torch

from benchmarks.child import silence
from benchmarks.measuring import counted
from benchmarks.settings import BENCHMARKS, CHOICES, CORES, OPTIONS
from lit_fednas.errors import ClientError, ConfigError, FedNASError
from lit_fednas.formatting import text_table

ALL = "all"


class Parser(argparse.ArgumentParser):
    """An argument parser with errors of one line."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False, **settings)

    def error(self, message: str) -> NoReturn:
        """Raises the message as an error of one line."""
        raise ConfigError(f"{message} ({self.prog} --help lists all options)")


def module_of(name: str) -> ModuleType:
    return import_module("benchmarks.rounds" if name == "round" else f"benchmarks.{name}")


def ranks_and_threads(text: str) -> tuple[int, int]:
    """Parses ``RANKSxTHREADS``, for example 2x1."""
    ranks, threads = text.split("x")
    return int(ranks), int(threads)


def add_option(parser: argparse.ArgumentParser, name: str, default: Any, text: str) -> None:
    flag = f"--{name.replace('_', '-')}"
    if default is False:
        parser.add_argument(flag, action="store_true", help=text)
        return
    is_list = isinstance(default, list)
    first = default[0] if is_list else default
    kind: Any = int if first is None else ranks_and_threads if isinstance(first, tuple) else type(first)
    help_text = text if default is None else f"{text} (%(default)s)"
    nargs = "+" if is_list else None
    parser.add_argument(flag, nargs=nargs, type=kind, default=default, choices=CHOICES.get(name), help=help_text)


def parse(words: Sequence[str]) -> argparse.Namespace:
    parser = Parser(prog="scripts/benchmark", description="Compares the library with a hand-written PyTorch loop.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="NAME")
    all_parser = commands.add_parser(ALL, help="all benchmarks with their defaults, in less than 20 minutes")
    all_parser.add_argument("--json", type=Path, metavar="FOLDER", help="write the results there, too")
    for name in BENCHMARKS:
        text = str(module_of(name).__doc__)
        command = commands.add_parser(name, help=text.partition("\n")[0], description=text)
        for option, meaning, defaults in OPTIONS:
            if name in defaults:
                add_option(command, option, defaults[name], meaning)
        threads = 1 if name in ("subnets", "levers") else None  # these measure small networks
        command.add_argument("--threads", type=int, default=threads, help="torch's threads in each process")
        devices = ["cpu"] if name in ("search", "start") else ["cpu", "cuda"]
        command.add_argument("--device", choices=devices, default="cpu")
        command.add_argument("--seed", type=int, default=0)
        command.add_argument("--json", type=Path, metavar="FILE", help="write the results there, too")
    return parser.parse_args(words)


def run_all(folder: Path | None) -> None:
    """Runs every benchmark in a process of its own and prints its duration."""
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
    for name in BENCHMARKS:
        began = perf_counter()
        words = ["--json", str(folder / f"{name}.json")] if folder else []
        subprocess.run([sys.executable, sys.argv[0], name, *words], check=True)
        print(f"{name}: {perf_counter() - began:.0f} s\n", flush=True)


def circumstances(options: argparse.Namespace) -> dict[str, Any]:
    """Returns the software, the hardware and the options of a measurement."""
    return {
        "torch": torch.__version__,
        "python": platform.python_version(),
        "processor": platform.processor() or platform.machine(),
        "gpu": torch.cuda.get_device_name() if options.device == "cuda" else None,
        "capability": torch.backends.cpu.get_cpu_capability(),
        "cores": CORES,
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
        "torch_threads": torch.get_num_threads(),
        **{name: value for name, value in vars(options).items() if name != "json"},
    }


def run(options: argparse.Namespace) -> None:
    silence()
    if options.threads:
        torch.set_num_threads(options.threads)
    module = module_of(options.command)
    report = circumstances(options)
    counts = [
        counted(value, name.rstrip("s"))
        for name in ("ranks", "threads", "rounds")
        if (value := report.get(name)) is not None
    ]
    print(", ".join([f"{options.command}: torch {torch.__version__}", options.device, *counts]))
    report |= module.measure(options)
    rows = module.rows(report)
    print(text_table(list(rows[0]), [list(row.values()) for row in rows]))
    if options.json:
        options.json.write_text(json.dumps(report, indent=1) + "\n")


def main(args: Sequence[str] | None = None) -> int:
    try:
        options = parse(sys.argv[1:] if args is None else args)
        if options.command == ALL:
            run_all(options.json)
        else:
            run(options)
    except subprocess.CalledProcessError as error:  # the benchmark has printed the reason
        return error.returncode
    except (FedNASError, ClientError, OSError) as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 2
    return 0
