"""Settings that may speed up clients' fits, compared with the hand-written loop.

The plain loop and the settings take turns in one process on the same clients. A ratio is the median over fits of
setting / plain loop. The greatest difference between weights is measured after every fit. Equivalent settings differ
only by the order of float sums, which batch norms of small maps amplify at every step; bfloat16 also rounds. Clients
that share a fit are timed together, and so are the plain loop's. Compiled dropout draws other masks, so the CNN is
not compiled. "auto" is the choice of ``client.fast`` in a long run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

from benchmarks.library import Fits, fastest_settings
from benchmarks.measuring import between, check_equal, compared, greatest_difference, in_turns
from benchmarks.plain import PlainLoop
from benchmarks.settings import AUTO, LEVERS, TASKS, TOGETHER
from benchmarks.tasks import Setting, architecture

ARCHS = {"elastic-smallest": "smallest", "elastic-random": "random"}


def measure(options: argparse.Namespace) -> dict[str, Any]:
    return {"runs": [row for task in options.tasks for row in measured(task, options)]}


def measured(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns a row for each setting that suits the task."""
    stacked = name == "tiny-50"
    task = Setting.of(options, clients=TOGETHER if stacked else 4, **TASKS[name])
    net, data = task.supernet(), task.data()
    arch = architecture(net, ARCHS.get(name, "largest"), task.seed)
    choices = {"library": {}, **LEVERS}
    if AUTO in options.levers:
        choices[AUTO] = fastest_settings(task, net, data, arch, TOGETHER if stacked else 1)
    levers = {
        lever: choices[lever]
        for lever in ("library", *options.levers)
        if ("clients_per_fit" not in choices[lever] or stacked) and not ("compile" in choices[lever] and "cnn" in name)
    }
    plain = PlainLoop(task, net, data, arch)
    fits = {lever: Fits(task, net, data, arch, **settings) for lever, settings in levers.items()}
    differences: dict[str, list[float]] = {lever: [] for lever in levers}

    def compare(unit: int) -> None:
        for lever, settings in levers.items():
            differences[lever].append(greatest_difference(fits[lever].params, plain.params))
            if "precision" not in settings:
                check_equal(differences[lever][-1], options.tolerance, f"{name}, {lever}")

    workers = {"plain": _work(plain, stacked)}
    for lever, settings in levers.items():
        workers[lever] = fits[lever].train_together if "clients_per_fit" in settings else _work(fits[lever], stacked)
    seconds = in_turns(workers, options.fits, task.device, compare, warmup=options.warmup)
    return [
        {
            "task": name,
            "lever": lever if lever != AUTO else f"{AUTO}: {', '.join(settings) or 'unchanged'}",
            "ms": 1000 * median(seconds[lever]),
            "plain_ms": 1000 * median(seconds["plain"]),
            **compared(seconds[lever], seconds["plain"]),
            "greatest_difference": max(differences[lever]),
        }
        for lever, settings in levers.items()
    ]


def _work(trainer: PlainLoop | Fits, stacked: bool) -> Callable[[int], None]:
    """Returns a worker that trains the next client, or all clients for a stacked fit."""

    def train_all(unit: int) -> None:
        for client in range(TOGETHER):
            trainer.train_client(unit, client)

    return train_all if stacked else trainer.train_unit


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "task": row["task"],
            "setting": row["lever"],
            "ms": f"{row['ms']:.1f}",
            "plain ms": f"{row['plain_ms']:.1f}",
            "ratio": f"{row['ratio']:.3f}",
            "quartiles": between(row["ratios"]),
            "difference": f"{row['greatest_difference']:.0e}",
        }
        for row in report["runs"]
    ]
