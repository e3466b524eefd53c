"""Resident memory after every round, for cohorts of several sizes, each run alone in a process of its own.

The library and the plain loop train the small CNN; the library also trains an elastic network whose clients draw
their architectures at random. MiB are what is resident above the imports (on a GPU: what its tensors take): at the
start, with network and data; at the peak; at the end; and the growth per round, a least-squares slope over the
rounds after --settled. Both keep freed memory for the next step, as a run does.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from math import isnan
from statistics import linear_regression
from typing import Any

from benchmarks import measuring
from benchmarks.measuring import WHO, check_losses
from benchmarks.rounds import alone_in_child
from benchmarks.tasks import Setting
from lit_fednas.errors import ConfigError

RUNS = (("cnn", "library"), ("cnn", "plain"), ("elastic", "library"))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    if options.rounds < options.settled + 2:
        raise ConfigError(
            f"rounds: {options.rounds} is too few to see a growth; give at least {options.settled + 2}, or less settled"
        )
    if isnan(measuring.memory(options.device)):
        raise ConfigError("device: memory is read from /proc/self/status, which this system does not have")
    runs: list[dict[str, Any]] = []
    for cohort in options.cohorts:
        found = []
        for network, who in RUNS:
            image = 32 if network == "cnn" else options.image
            task = Setting.of(options, network=network, image=image, clients=max(options.cohorts), cohort=cohort)
            run = alone_in_child(asdict(task), options.rounds, 0, who)
            late = run["mib"][options.settled :]
            growth = 1024 * linear_regression(range(len(late)), late).slope
            named = {"network": network, "who": who, "cohort": cohort, "peak_ratio": None}
            found.append({**named, **run, "growth_kib_per_round": growth})
        library, plain = found[: len(WHO)]
        check_losses([library["first_loss"]], [plain["first_loss"]], 1e-4, "cnn")
        if plain["peak_mib"] > 0:
            library["peak_ratio"] = library["peak_mib"] / plain["peak_mib"]
        runs += found
    return {"runs": runs}


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "network": run["network"],
            "who": run["who"],
            "cohort": str(run["cohort"]),
            "start MiB": f"{run['start_mib']:.0f}",
            "peak MiB": f"{run['peak_mib']:.0f}",
            "end MiB": f"{run['end_mib']:.0f}",
            "growth KiB/round": f"{run['growth_kib_per_round']:+.1f}",
            "peak library/plain": f"{run['peak_ratio']:.2f}" if run["peak_ratio"] else "",
        }
        for run in report["runs"]
    ]
