"""Rounds per second with one process and with several; clients differ in size and draw random architectures.

Each way to use the cores, RANKSxTHREADS, runs alone, in turns with the others. All must reach the same loss in their
first round. "busiest/mean rank" is the CPU time of the busiest rank over the mean of all ranks, as the median over
rounds; 1 means equal shares (a waiting rank takes no CPU time).
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

from benchmarks.child import call_in_child
from benchmarks.measuring import between, check_losses, repeated
from benchmarks.tasks import Setting


def measure(options: argparse.Namespace) -> dict[str, Any]:
    calls = {}
    for ranks, threads in options.grid:
        setting = asdict(Setting.of(options, network="elastic", ranks=ranks, threads=None))
        arguments = {"setting": setting, "rounds": options.rounds, "warmup": options.warmup, "who": "library"}
        calls[ranks, threads] = partial(call_in_child, "benchmarks.rounds:alone", arguments, ranks, threads)
    runs = repeated(calls, options.repetitions)
    losses = [run["first_loss"] for way_runs in runs.values() for run in way_runs]
    check_losses(losses, losses[:1] * len(losses), 1e-3, "ranks")  # batch norms amplify the order of sums
    ways: list[dict[str, Any]] = []
    for (ranks, threads), way_runs in runs.items():
        seconds = [second for run in way_runs for second in run["seconds"]]
        seconds_of_ranks = [cpu for run in way_runs for cpu in zip(*run["cpu_by_rank"], strict=True)]
        speed = 1 / median(seconds)
        ways.append(
            {
                "ranks": ranks,
                "threads": threads,
                "seconds": seconds,
                "rounds_per_second": speed,
                "by_run": [1 / median(run["seconds"]) for run in way_runs],
                "busiest_to_mean": median(max(cpu) * len(cpu) / sum(cpu) for cpu in seconds_of_ranks),
                "speed_up": speed / (ways[0]["rounds_per_second"] if ways else speed),
            }
        )
    return {"ways": ways}


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "ranks x threads": f"{row['ranks']} x {row['threads']}",
            "rounds/s": f"{row['rounds_per_second']:.3f}",
            "quartiles": between([1 / second for second in row["seconds"]]),
            "speed-up": f"{row['speed_up']:.2f}",
            "busiest/mean rank": f"{row['busiest_to_mean']:.3f}",
        }
        for row in report["ways"]
    ]
