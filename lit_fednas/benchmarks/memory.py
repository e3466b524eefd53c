"""Resident memory after every round, for cohorts of several sizes, each run alone in a process of its own.

The library and the plain loop train the small CNN; the library also trains an elastic network whose clients draw
their architectures at random. MiB are what is resident above the imports (on a GPU: what its tensors take): at the
start, with network and data; at the peak; at the end; and the growth per round, a least-squares slope over the
rounds after --settled.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from math import isnan
from statistics import linear_regression
from typing import Any

from lightning import Callback
from matplotlib.figure import Figure

from lit_fednas.assignment import RandomArchitectures
from lit_fednas.benchmarks import showing
from lit_fednas.benchmarks.child import call_in_child
from lit_fednas.benchmarks.library import run_library
from lit_fednas.benchmarks.measuring import WHO, check_losses, forget_peak, peak_memory
from lit_fednas.benchmarks.measuring import memory as memory_of
from lit_fednas.benchmarks.plain import PlainLoop
from lit_fednas.benchmarks.subnets import elastic_options
from lit_fednas.benchmarks.tasks import Setting
from lit_fednas.errors import ConfigError

RUNS = (("cnn", "library"), ("cnn", "plain"), ("elastic", "library"))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the measurement's options."""
    elastic_options(parser)
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--cohorts", type=int, nargs="+", default=[10, 50, 100], help="clients per round")
    parser.add_argument("--examples", type=int, default=8, help="examples per client (8)")
    parser.add_argument("--settled", type=int, default=5, help="first rounds left out of the growth (5)")


class AfterRounds(Callback):
    """Writes down the memory after each round."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.mib: list[float] = []
        self.losses: list[float] = []

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Ends a round."""
        self.mib.append(memory_of(self.device))
        self.losses.append(float(trainer.callback_metrics["clients/loss"]))


def alone(setting: dict[str, Any], rounds: int, who: str) -> dict[str, Any]:
    """One run, in the process that it is called in."""
    task = Setting(**setting)
    forget_peak(task.device)
    imports = memory_of(task.device)
    net, data = task.supernet(), task.data()
    start = memory_of(task.device)
    after = AfterRounds(task.device)
    if who == "library":
        assignment = RandomArchitectures() if task.network == "elastic" else None
        run_library(task, rounds, after, net, data, assignment)
    else:
        plain = PlainLoop(task, net, data)
        del net
        for number in range(rounds):
            plain.round(number)
            after.mib.append(memory_of(task.device))
            after.losses.append(plain.loss)
    return {
        "imports_mib": imports,
        "start_mib": start - imports,
        "peak_mib": peak_memory(task.device) - imports,
        "end_mib": after.mib[-1] - imports,
        "first_loss": after.losses[0],
        "mib": [value - imports for value in after.mib],
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measures what the options ask for; returns what JSON can carry."""
    if options.rounds < options.settled + 2:
        raise ConfigError(
            f"rounds: {options.rounds} is too few to see a growth; give at least {options.settled + 2}, or less settled"
        )
    if isnan(memory_of(options.device)):
        raise ConfigError("device: memory is read from /proc/self/status, which this system does not have")
    runs = []
    for cohort in options.cohorts:
        found = {}
        for network, who in RUNS:
            made = Setting(
                network=network,
                examples=options.examples,
                clients=max(options.cohorts),
                cohort=cohort,
                seed=options.seed,
                device=options.device,
                threads=options.threads,
                image=32 if network == "cnn" else options.image,
                stem=options.stem,
                widths=tuple(options.widths),
            )
            arguments = {"setting": asdict(made), "rounds": options.rounds, "who": who}
            run = call_in_child("lit_fednas.benchmarks.memory:alone", arguments, threads=options.threads)
            late = run["mib"][options.settled :]
            growth = 1024 * linear_regression(range(len(late)), late).slope
            found[network, who] = run | {"growth_kib_per_round": growth}
        losses = {who: [found["cnn", who]["first_loss"]] for who in WHO}
        check_losses(losses["library"], losses["plain"], 1e-4, "cnn")
        library, plain = (found["cnn", who]["peak_mib"] for who in WHO)
        ratio = library / plain if plain > 0 else None
        for (network, who), run in found.items():
            peaks = ratio if (network, who) == ("cnn", "library") else None
            runs.append({"network": network, "who": who, "cohort": cohort, **run, "peak_ratio": peaks})
    return {"rounds": options.rounds, "settled": options.settled, "runs": runs}


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the printed table's rows, cells by column."""
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


def draw(report: dict[str, Any]) -> Figure:
    """Memory over rounds, a panel per network, a line per cohort size and who."""
    figure, panels = showing.figure(10.5, 4, 2)
    cohorts = sorted({run["cohort"] for run in report["runs"]})
    highest = max(max(run["mib"]) for run in report["runs"])
    titles = {"cnn": "small CNN", "elastic": "elastic ResNet, random architectures"}
    for axes, (network, title) in zip(panels, titles.items(), strict=True):
        for run in (run for run in report["runs"] if run["network"] == network):
            axes.plot(
                range(1, len(run["mib"]) + 1),
                run["mib"],
                color=showing.shade(cohorts.index(run["cohort"]), len(cohorts), run["who"]),
                linestyle="-" if run["who"] == "library" else "--",
                linewidth=1.6,
                label=f"{run['who']}, cohort of {run['cohort']}",
            )
        axes.set_ylim(0, 1.08 * highest)
        showing.frame(axes, "round", "MiB above the imports, after the round", title)
        axes.legend(fontsize=8, frameon=False, loc="lower right")
    return figure
