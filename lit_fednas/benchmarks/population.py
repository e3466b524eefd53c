"""Set-up, memory and time per round of populations of growing size, each in a process of its own.

Clients hold two examples each, dealt out at random, and train a linear model; a round asks as many clients whatever
the population. A run is as the command line makes it: with records, checkpoints after every round, and the partition
in its folder. Set-up is all that comes before the first round; overhead is what a round takes besides its clients'
fits; MiB are the peak above the imports. With --tiers, clients belong to three device tiers and are away in three of
ten rounds. Slopes are of logarithms: 1 grows with the population, 0 does not. Of many rounds (--rounds 10000 --clients
1000), the last tenth's median time over the first tenth's, and what is resident more per round (a least-squares slope
over the rounds that count), say whether a run slows down or grows.
"""

from __future__ import annotations

import argparse
import tempfile
from itertools import pairwise
from math import log
from pathlib import Path
from statistics import linear_regression, median
from time import perf_counter
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import FixedArchitecture
from lit_fednas.benchmarks import showing
from lit_fednas.benchmarks.child import call_in_child
from lit_fednas.benchmarks.measuring import forget_peak, memory, peak_memory
from lit_fednas.callbacks import RoundCheckpoint, default_callbacks
from lit_fednas.data import IID, ArraySource, Examples, FederatedDataModule
from lit_fednas.federation import (
    AlwaysAvailable,
    ClientSettings,
    FederatedCallback,
    FederatedLightningModule,
    FederatedTrainer,
    RandomAvailability,
    ServerRound,
    UniformCohort,
)
from lit_fednas.loggers import RunLogger
from lit_fednas.rng import generator
from lit_fednas.supernets import PlainNetwork
from lit_fednas.tiers import Budgets, ClientTiers

FEATURES, CLASSES, PER_CLIENT = 8, 2, 2
TIERS = {"small": {"macs": 1e3}, "medium": {"macs": 1e4}, "large": {"macs": 1e5}}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the measurement's options."""
    parser.add_argument("--clients", type=int, nargs="+", default=[10**power for power in range(3, 7)])
    parser.add_argument("--cohort", type=int, default=10, help="clients per round (10)")
    parser.add_argument("--rounds", type=int, default=100, help="rounds that count (100)")
    parser.add_argument("--warmup", type=int, default=10, help="rounds before them that do not (10)")
    parser.add_argument("--repeats", type=int, default=3, help="processes per population (3)")
    parser.add_argument("--every", type=int, default=1, help="rounds between checkpoints, which wait for the disk (1)")
    parser.add_argument("--tiers", action="store_true", help="three device tiers, and clients that are away")


class Rounds(FederatedCallback):
    """Writes down when the first round begins and when each ends, and how long clients trained."""

    def __init__(self) -> None:
        self.times: list[float] = []
        self.mib: list[float] = []
        self.training: list[float] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Ends the set-up."""
        self.times.append(perf_counter())

    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Adds up the clients' fits."""
        self.training.append(sum(result.seconds for result in round.results))

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Ends a round."""
        self.times.append(perf_counter())
        self.mib.append(memory("cpu"))


def alone(clients: int, cohort: int, rounds: int, every: int, tiers: bool, seed: int) -> dict[str, Any]:
    """One run, in the process that it is called in."""
    forget_peak("cpu")
    imports = memory("cpu")
    draws = generator(seed, "benchmark-data")
    inputs = torch.randn(PER_CLIENT * clients, FEATURES, generator=draws)
    examples = Examples(inputs, (inputs[:, 0] > 0).long())
    availability = RandomAvailability(0.3) if tiers else AlwaysAvailable()
    watch = Rounds()
    with tempfile.TemporaryDirectory() as folder:
        began = perf_counter()
        data = FederatedDataModule(ArraySource(examples, None), IID(), clients, seed=seed, server_val=0)
        module = FederatedLightningModule(
            PlainNetwork(nn.Linear(FEATURES, CLASSES), (FEATURES,), CLASSES),
            FixedArchitecture(),
            OverlapAverage(),
            ClientSettings(lambda params: torch.optim.SGD(params, lr=0.1), batch_size=PER_CLIENT),
            cohort=UniformCohort(count=cohort, availability=availability),
            tiers=ClientTiers(Budgets(TIERS)) if tiers else None,
            seed=seed,
        )
        trainer = FederatedTrainer(
            max_rounds=rounds,
            accelerator="cpu",
            logger=RunLogger(folder, "run", "only"),
            callbacks=[*default_callbacks(), RoundCheckpoint(every_n_rounds=every), watch],
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
        )
        trainer.fit(module, datamodule=data)
        sizes = {path.suffix: 0 for path in Path(folder).rglob("*")}
        for path in Path(folder).rglob("*"):
            sizes[path.suffix] += path.stat().st_size if path.is_file() else 0
    return {
        "setup_seconds": watch.times[0] - began,
        "peak_mib": peak_memory("cpu") - imports,
        "round_seconds": [later - earlier for earlier, later in pairwise(watch.times)],
        "training_seconds": watch.training,
        "mib": watch.mib,
        "checkpoint_bytes": sizes[".ckpt"],
        "record_bytes": sum(sizes.values()) - sizes[".ckpt"],
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measures what the options ask for; returns what JSON can carry."""
    arguments = {
        "cohort": options.cohort,
        "rounds": options.warmup + options.rounds,
        "every": options.every,
        "tiers": options.tiers,
        "seed": options.seed,
    }
    runs: dict[int, list[dict[str, Any]]] = {clients: [] for clients in options.clients}
    for _ in range(options.repeats):  # in turns, so that a busy machine slows all alike
        for clients, found in runs.items():
            request = {"clients": clients, **arguments}
            run = call_in_child("lit_fednas.benchmarks.population:alone", request, threads=options.threads)
            for name in ("round_seconds", "training_seconds"):
                run[name] = run[name][options.warmup :]
            late = run.pop("mib")[options.warmup :]
            run["growth_kib_per_round"] = 1024 * linear_regression(range(len(late)), late).slope
            tenth = max(1, len(run["round_seconds"]) // 10)
            run["last_over_first"] = median(run["round_seconds"][-tenth:]) / median(run["round_seconds"][:tenth])
            found.append(run)
    return {"cohort": options.cohort, "tiers": options.tiers, "runs": [[n, found] for n, found in runs.items()]}


def summary(report: dict[str, Any]) -> list[dict[str, float]]:
    """Returns per population the medians over its processes and their rounds."""
    return [
        {
            "clients": clients,
            "setup_seconds": median(run["setup_seconds"] for run in runs),
            "peak_mib": median(run["peak_mib"] for run in runs),
            "round_seconds": median(second for run in runs for second in run["round_seconds"]),
            "overhead_seconds": median(
                whole - training
                for run in runs
                for whole, training in zip(run["round_seconds"], run["training_seconds"], strict=True)
            ),
            "last_over_first": median(run["last_over_first"] for run in runs),
            "growth_kib_per_round": median(run["growth_kib_per_round"] for run in runs),
            "checkpoint_bytes": runs[0]["checkpoint_bytes"],
            "record_bytes": runs[0]["record_bytes"],
        }
        for clients, runs in report["runs"]
    ]


def slope(found: list[dict[str, float]], name: str) -> float:
    """Returns by which power of the population a figure grows."""
    return linear_regression([log(row["clients"]) for row in found], [log(row[name]) for row in found]).slope


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the printed table's rows, cells by column; the last one has the slopes."""
    found = summary(report)
    cells = [
        {
            "clients": f"{row['clients']:,}",
            "set-up s": f"{row['setup_seconds']:.2f}",
            "peak MiB": f"{row['peak_mib']:.0f}",
            "ms/round": f"{1000 * row['round_seconds']:.1f}",
            "quartiles": showing.between([1000 * one for run in runs for one in run["round_seconds"]], 1),
            "last/first": f"{row['last_over_first']:.2f}",
            "KiB/round": f"{row['growth_kib_per_round']:+.2f}",
            "overhead ms": f"{1000 * row['overhead_seconds']:.1f}",
            "checkpoints kB": f"{row['checkpoint_bytes'] / 1000:.0f}",
            "records kB": f"{row['record_bytes'] / 1000:.0f}",
        }
        for row, (_, runs) in zip(found, report["runs"], strict=True)
    ]
    if len(found) > 1:
        slopes = dict.fromkeys(cells[0], "") | {
            "clients": "slope",
            "set-up s": f"{slope(found, 'setup_seconds'):.2f}",
            "ms/round": f"{slope(found, 'round_seconds'):.3f}",
            "overhead ms": f"{slope(found, 'overhead_seconds'):.3f}",
        }
        cells.append(slopes)
    return cells


def draw(report: dict[str, Any]) -> Figure:
    """Set-up and round over the population, and memory, on logarithmic axes."""
    found = summary(report)
    clients = [row["clients"] for row in found]
    figure, panels = showing.figure(9.5, 3.8, 2)
    for axes, lines, unit in (
        (
            panels[0],
            {"set-up": "setup_seconds", "one round": "round_seconds", "its overhead": "overhead_seconds"},
            "seconds",
        ),
        (panels[1], {"peak above the imports": "peak_mib"}, "MiB"),
    ):
        for place, (label, name) in enumerate(lines.items()):
            colour = showing.SERIES[2 * place]
            axes.plot(clients, [row[name] for row in found], "o-", color=colour, label=label, linewidth=1.6)
        axes.set_xscale("log")
        axes.set_yscale("log")
        showing.frame(axes, "clients in the population", unit, f"{report['cohort']} clients per round")
        axes.legend(fontsize=8, frameon=False)
    return figure
