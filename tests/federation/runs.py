"""Runs of the methods, for comparisons between ranks, resumed runs and stacked clients."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from lit_fednas.callbacks import RoundCheckpoint
from lit_fednas.data import FederatedDataModule
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer
from lit_fednas.loggers import RunLogger
from lit_fednas.messages import ClientResult
from lit_fednas.testing.runs import contents
from tests.federation import methods
from tests.support import fit, tiny_data, weights

LAST = Path("run", "only", "checkpoints", "last.ckpt")


class Witness(FederatedCallback):
    """Records the results of each round, and the clients that callbacks hear of, for comparisons between ranks."""

    def __init__(self) -> None:
        self.rounds: list[list[tuple[Any, ...]]] = []
        self.live: list[int] = []

    def on_client_end(self, trainer, module, result, update):
        self.live.append(result.task.client)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.rounds.append([(r.task.client, str(r.task.arch), r.status, r.num_seen, r.loss) for r in batch.results])


class Results(FederatedCallback):
    """Records the results of the clients' fits."""

    def __init__(self) -> None:
        self.all: list[ClientResult] = []

    def on_client_end(self, trainer, module, result, update):
        self.all.append(result)

    @property
    def status(self) -> dict[int, str]:
        return {result.task.client: result.status for result in self.all}


@dataclass(frozen=True)
class Run:
    """The outcome of a run on one rank."""

    weights: dict[str, torch.Tensor]
    rounds: list[list[tuple[Any, ...]]]
    reported_clients: list[int]
    evaluated: int
    metrics: dict[str, float]
    assignment: dict[str, Any]
    module: FederatedLightningModule = field(repr=False)
    files: dict[str, Any] = field(repr=False)

    @property
    def statuses(self) -> list[list[tuple[Any, ...]]]:
        return [[result[:4] for result in results] for results in self.rounds]

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the module, for transfer to another process."""
        return {**vars(self), "module": None}


def run(
    name: str,
    folder: Path,
    extra: Iterable[FederatedCallback] = (),
    rounds: int = methods.ROUNDS,
    ckpt_path: Path | None = None,
    **settings: Any,
) -> Run:
    """Runs a method, with a checkpoint of every round in a folder."""
    module, witness, evaluated = methods.METHODS[name](), Witness(), []
    update = module.val_metrics.update
    module.val_metrics.update = lambda index, *rest: evaluated.append(index) or update(index, *rest)
    callbacks = [*extra, witness, *methods.callbacks(name), RoundCheckpoint()]
    logger = RunLogger(str(folder), "run", "only")
    settings |= {"callbacks": callbacks, "enable_checkpointing": True, "logger": logger}
    trainer = fit(module, methods.data(name), rounds, ckpt_path, **settings)
    return Run(
        weights(module),
        witness.rounds,
        sorted(witness.live),
        len(evaluated),
        {key: float(value) for key, value in trainer.callback_metrics.items()},
        module.assignment.state_dict(),
        module,
        contents(folder) if trainer.is_global_zero else {},
    )


def run_in(
    folder: Path,
    module: FederatedLightningModule,
    *callbacks: FederatedCallback,
    rounds: int,
    data: FederatedDataModule | None = None,
    ckpt_path: Path | None = None,
) -> FederatedTrainer:
    """Trains in a folder, with a validation every second round."""
    logger = RunLogger(str(folder), "run", "only")
    settings = {"check_val_every_n_rounds": 2, "enable_checkpointing": True, "logger": logger}
    return fit(module, data or tiny_data(), rounds, ckpt_path, callbacks=list(callbacks), **settings)


@functools.cache
def straight(name: str) -> Run:
    """A run on one rank, without a stop. Read only."""
    with TemporaryDirectory() as folder:
        return run(name, Path(folder))
