"""Set-up, memory and time per round for populations of growing size, each in a process of its own.

Each client holds two random examples and trains a linear model; a round has the same cohort size in every
population. A run is like the command line's: with records, a checkpoint after every round, and the partition in its
folder. Set-up is the time before the first round. Overhead is a round's time without its clients' fits. MiB are the
peak above the imports. With --tiers, clients belong to three device tiers and are away in three of ten rounds. A
slope is that of the logarithms: 1 grows with the population, 0 does not.

Over many rounds (--rounds 10000 --clients 1000), two figures tell whether a run slows down or grows: the last tenth's
median time over the first tenth's, and the growth of resident memory per round (a least-squares slope).
"""

from __future__ import annotations

import argparse
import tempfile
from functools import partial
from math import log
from pathlib import Path
from statistics import linear_regression, median
from time import perf_counter
from typing import Any

import torch
from torch import nn

from benchmarks.child import call_in_child
from benchmarks.measuring import between, forget_peak, memory, peak_memory, repeated
from benchmarks.rounds import Rounds
from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import FixedArchitecture
from lit_fednas.callbacks import RoundCheckpoint, default_callbacks
from lit_fednas.data import IID, ArraySource, Examples, FederatedDataModule
from lit_fednas.federation import (
    Availability,
    ClientSettings,
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


class Watch(Rounds):
    """Also records the start of the first round and the seconds of the clients' fits."""

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Records the end of the set-up."""
        self.training: list[float] = []
        self.began = perf_counter()
        super().on_train_start(trainer, module)

    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Records the sum of the clients' seconds."""
        self.training.append(sum(result.seconds for result in round.results))


def alone(clients: int, cohort: int, rounds: int, warmup: int, every: int, tiers: bool, seed: int) -> dict[str, Any]:
    forget_peak("cpu")
    imports = memory("cpu")
    draws = generator(seed, "benchmark-data")
    inputs = torch.randn(PER_CLIENT * clients, FEATURES, generator=draws)
    examples = Examples(inputs, (inputs[:, 0] > 0).long())
    availability = RandomAvailability(0.3) if tiers else Availability()
    watch = Watch("cpu", warmup + rounds, warmup)
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
            max_rounds=warmup + rounds,
            accelerator="cpu",
            logger=RunLogger(folder, "run", "only"),
            callbacks=[*default_callbacks(), RoundCheckpoint(every_n_rounds=every), watch],
            enable_progress_bar=False,
            enable_model_summary=False,
            limit_val_batches=0,
        )
        trainer.fit(module, datamodule=data)
        files = [path for path in Path(folder).rglob("*") if path.is_file()]
        checkpoints = sum(path.stat().st_size for path in files if path.suffix == ".ckpt")
        records = sum(path.stat().st_size for path in files) - checkpoints
    late, seconds = watch.mib[warmup:], watch.seconds["library"]
    tenth = max(1, len(seconds) // 10)
    return {
        "setup_seconds": watch.began - began,
        "peak_mib": peak_memory("cpu") - imports,
        "round_seconds": seconds,
        "training_seconds": watch.training[warmup:],
        "growth_kib_per_round": 1024 * linear_regression(range(len(late)), late).slope,
        "last_over_first": median(seconds[-tenth:]) / median(seconds[:tenth]),
        "checkpoint_bytes": checkpoints,
        "record_bytes": records,
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    names = "cohort", "rounds", "warmup", "every", "tiers", "seed"
    arguments = {name: getattr(options, name) for name in names}
    calls = {
        clients: partial(
            call_in_child, "benchmarks.population:alone", {"clients": clients, **arguments}, threads=options.threads
        )
        for clients in options.clients
    }
    return {"runs": list(repeated(calls, options.repeats).items())}


def summary(report: dict[str, Any]) -> list[dict[str, float]]:
    """Returns each population's medians over its processes and rounds."""
    populations = []
    for clients, runs in report["runs"]:
        pairs = [pair for run in runs for pair in zip(run["round_seconds"], run["training_seconds"], strict=True)]
        names = "setup_seconds", "peak_mib", "last_over_first", "growth_kib_per_round"
        populations.append(
            {
                "clients": clients,
                **{name: median(run[name] for run in runs) for name in names},
                "round_seconds": median(whole for whole, _ in pairs),
                "overhead_seconds": median(whole - training for whole, training in pairs),
                **{name: runs[0][name] for name in ("checkpoint_bytes", "record_bytes")},
            }
        )
    return populations


def slope(populations: list[dict[str, float]], name: str) -> float:
    """Returns the power of the population by which a figure grows."""
    sizes = [log(population["clients"]) for population in populations]
    return linear_regression(sizes, [log(population[name]) for population in populations]).slope


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the rows of the printed table; the last one has the slopes."""
    populations = summary(report)
    cells = [
        {
            "clients": f"{row['clients']:,}",
            "set-up s": f"{row['setup_seconds']:.2f}",
            "peak MiB": f"{row['peak_mib']:.0f}",
            "ms/round": f"{1000 * row['round_seconds']:.1f}",
            "quartiles": between([1000 * second for run in runs for second in run["round_seconds"]], 1),
            "last/first": f"{row['last_over_first']:.2f}",
            "KiB/round": f"{row['growth_kib_per_round']:+.2f}",
            "overhead ms": f"{1000 * row['overhead_seconds']:.1f}",
            "checkpoints kB": f"{row['checkpoint_bytes'] / 1000:.0f}",
            "records kB": f"{row['record_bytes'] / 1000:.0f}",
        }
        for row, (_, runs) in zip(populations, report["runs"], strict=True)
    ]
    if len(populations) > 1:
        slopes = dict.fromkeys(cells[0], "") | {
            "clients": "slope",
            "set-up s": f"{slope(populations, 'setup_seconds'):.2f}",
            "ms/round": f"{slope(populations, 'round_seconds'):.3f}",
            "overhead ms": f"{slope(populations, 'overhead_seconds'):.3f}",
        }
        cells.append(slopes)
    return cells
