"""Memory after every round, for cohorts of several sizes, each run in a process of its own.

The library and the plain loop train the small CNN. The library also trains an elastic network; its clients draw
random architectures. MiB are the resident memory above the imports (on a GPU: its tensors): at the start, with
network and data; at the peak; at the end. The growth per round is a least-squares slope over the rounds after
--settled. Both keep freed memory for the next step, as a run does.
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
            f"rounds: {options.rounds} is too few to measure a growth; set at least {options.settled + 2}"
        )
    if isnan(measuring.memory(options.device)):
        raise ConfigError("device: this system lacks /proc/self/status, which the benchmark reads; use Linux")
    runs: list[dict[str, Any]] = []
    for cohort in options.cohorts:
        cohort_runs = []
        for network, who in RUNS:
            image = 32 if network == "cnn" else options.image
            task = Setting.of(options, network=network, image=image, clients=max(options.cohorts), cohort=cohort)
            run = alone_in_child(asdict(task), options.rounds, 0, who)
            late = run["mib"][options.settled :]
            growth = 1024 * linear_regression(range(len(late)), late).slope
            labels = {"network": network, "who": who, "cohort": cohort, "peak_ratio": None}
            cohort_runs.append({**labels, **run, "growth_kib_per_round": growth})
        library, plain = cohort_runs[: len(WHO)]
        check_losses([library["first_loss"]], [plain["first_loss"]], 1e-4, "cnn")
        if plain["peak_mib"] > 0:
            library["peak_ratio"] = library["peak_mib"] / plain["peak_mib"]
        runs += cohort_runs
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
