"""Each setting that may make clients' fits faster, alone and together, against the hand-written loop.

Plain loop and settings take turns in one process on the same clients; a ratio is the median over fits of setting /
plain loop. The greatest difference of any weight is taken after every fit: settings that compute the same differ by
float sums alone, which batch norms of small maps amplify from step to step; bfloat16 also by its rounding. Clients in
one fit are timed together, and so is the plain loop. Compiled dropout has other masks, so the CNN is not compiled.
"auto" is what ``client.fast`` chooses in a run without end.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from lit_fednas.benchmarks import showing
from lit_fednas.benchmarks.library import Fits
from lit_fednas.benchmarks.library import chosen as fastest_settings
from lit_fednas.benchmarks.measuring import check_equal, greatest_difference, in_turns, quartiles, ratios
from lit_fednas.benchmarks.plain import PlainLoop
from lit_fednas.benchmarks.subnets import chosen
from lit_fednas.benchmarks.tasks import Setting
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import Supernet

ELASTIC = {"network": "elastic", "examples": 128, "image": 16}
#: Settings of the task, and the architecture.
TASKS: dict[str, tuple[dict[str, Any], str]] = {
    "cnn-500": ({"network": "cnn", "examples": 500}, "largest"),
    "cnn-32": ({"network": "cnn", "examples": 32}, "largest"),
    "resnet18-32": ({"network": "resnet18", "examples": 32}, "largest"),
    "elastic-smallest": (ELASTIC, "smallest"),
    "elastic-random": (ELASTIC, "random"),
    "tiny-50": ({"network": "tiny", "examples": 50, "batch_size": 10, "clients": 50}, "largest"),
}
TOGETHER = 50
LAST, BF16, COMPILED = {"channels_last": True}, {"precision": "bf16-mixed"}, {"compile": True}
LEVERS: dict[str, dict[str, Any]] = {
    "library": {},
    "fused optimizer": {"fused": True},
    "channels last": LAST,
    "compiled": COMPILED,
    "compiled, ch. last": LAST | COMPILED,
    "bf16": BF16,
    "bf16, ch. last": BF16 | LAST,
    "bf16, ch. last, compiled": BF16 | LAST | COMPILED,
    "stacked": {"clients_per_fit": TOGETHER},
    "stacked, compiled": {"clients_per_fit": TOGETHER} | COMPILED,
}
#: What ``client.fast`` chooses.
AUTO = "auto"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the measurement's options."""
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    levers = [*list(LEVERS)[1:], AUTO]
    parser.add_argument("--levers", nargs="+", choices=levers, default=levers)
    parser.add_argument("--fits", type=int, default=12, help="fits that count, of each (12)")
    parser.add_argument("--warmup", type=int, default=2, help="fits before them that do not (2)")
    parser.add_argument("--tolerance", type=float, default=0.02, help="greatest difference without bf16 (0.02)")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measures what the options ask for; returns what JSON can carry."""
    found = [row for task in options.tasks for row in measured(task, options)]
    return {"capability": torch.backends.cpu.get_cpu_capability(), "runs": found}


def measured(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row per setting that suits the task.

    Raises:
        AssertionError: A setting in float32 ends with other weights.
    """
    given, text = TASKS[name]
    task = Setting(**{"clients": 4, "seed": options.seed, "device": options.device, **given})
    net, data = task.supernet(), task.data()
    arch = net.space.sample(numpy_generator(task.seed, "lever")) if text == "random" else chosen(net, text)
    plain = PlainLoop(task, net, data, arch)
    stacked = name == "tiny-50"
    known = dict(LEVERS)
    if AUTO in options.levers:
        known[AUTO] = fastest_settings(task, net, data, arch, TOGETHER if stacked else 1)
    levers = {
        lever: known[lever]
        for lever in ("library", *options.levers)
        if ("clients_per_fit" not in known[lever] or stacked) and not ("compile" in known[lever] and "cnn" in name)
    }
    workers = {lever: _worker(task, net, data, arch, stacked, more) for lever, more in levers.items()}
    last: dict[str, list[Tensor]] = {}
    differences: dict[str, list[float]] = {lever: [] for lever in levers}

    def compare(unit: int) -> None:
        for lever in levers:
            differences[lever].append(greatest_difference(last[lever], last["plain"]))
            if "precision" not in levers[lever]:
                check_equal(differences[lever][-1], options.tolerance, f"{name}, {lever}")

    def run(who: str, unit: int) -> None:
        last[who] = _plain(plain, stacked, unit) if who == "plain" else workers[who](unit)

    seconds = in_turns(
        {who: partial(run, who) for who in ("plain", *levers)}, options.warmup + options.fits, task.device, compare
    )
    plain_seconds = seconds["plain"][options.warmup :]
    rows = []
    for lever in levers:
        each = ratios(seconds[lever][options.warmup :], plain_seconds)
        rows.append(
            {
                "task": name,
                "lever": lever if lever != AUTO else f"{AUTO}: {', '.join(levers[AUTO]) or 'as it is'}",
                "ms": 1000 * median(seconds[lever][options.warmup :]),
                "plain_ms": 1000 * median(plain_seconds),
                "ratio": median(each),
                "ratio_quartiles": quartiles(each),
                "ratios": each,
                "greatest_difference": max(differences[lever]),
            }
        )
    return rows


def _plain(loop: PlainLoop, stacked: bool, unit: int) -> list[Tensor]:
    for client in range(TOGETHER if stacked else 1):
        loop.train_client(unit, client if stacked else unit % loop.setting.clients)
    return loop.params


def _worker(
    task: Setting, net: Supernet, data: Any, arch: Any, stacked: bool, settings: dict[str, Any]
) -> Callable[[int], list[Tensor]]:
    """Returns what trains the client, or all of them, of a unit, and returns the last one's weights."""
    fits = Fits(task, net, data, **settings)

    def work(unit: int) -> list[Tensor]:
        if "clients_per_fit" in settings:
            return fits.train_together(unit, TOGETHER, arch)
        for client in range(TOGETHER if stacked else 1):
            fits.train(unit, client if stacked else unit % task.clients, arch)
        return fits.weights()

    return work


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the printed table's rows, cells by column."""
    return [
        {
            "task": row["task"],
            "setting": row["lever"],
            "ms": f"{row['ms']:.1f}",
            "plain ms": f"{row['plain_ms']:.1f}",
            "ratio": f"{row['ratio']:.3f}",
            "quartiles": showing.between(row["ratios"]),
            "difference": f"{row['greatest_difference']:.0e}",
        }
        for row in report["runs"]
    ]


def draw(report: dict[str, Any]) -> Figure:
    """Ratios to the plain loop, a panel per task."""
    tasks = list(dict.fromkeys(row["task"] for row in report["runs"]))
    figure, panels = showing.figure(0.8 + 2.6 * len(tasks), 4.2, len(tasks))
    for axes, task in zip(panels, tasks, strict=True):
        runs = [row for row in report["runs"] if row["task"] == task]
        for place, row in enumerate(runs):
            showing.points_and_median(axes, place, row["ratios"])
        axes.axhline(1, color="black", linewidth=0.8)
        axes.set_ylim(bottom=0)
        axes.set_xticks(range(len(runs)), [f"{row['lever']} {row['ratio']:.2f}" for row in runs], rotation=90)
        showing.frame(axes, "", "time / plain loop" if task == tasks[0] else "", task)
    return figure
