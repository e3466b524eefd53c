"""Runs of the methods: what several ranks, a stop and stacked clients must not change."""

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
    """Notes, round by round, what the ranks must agree on, and of whom the callbacks were told."""

    def __init__(self) -> None:
        self.rounds: list[list[tuple[Any, ...]]] = []
        self.live: list[int] = []

    def on_client_end(self, trainer, module, result, update):
        self.live.append(result.task.client)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.rounds.append([(r.task.client, str(r.task.arch), r.status, r.num_seen, r.loss) for r in batch.results])


class Results(FederatedCallback):
    """Keeps what the clients' fits came to."""

    def __init__(self) -> None:
        self.all: list[ClientResult] = []

    def on_client_end(self, trainer, module, result, update):
        self.all.append(result)

    @property
    def status(self) -> dict[int, str]:
        return {result.task.client: result.status for result in self.all}


@dataclass(frozen=True)
class Run:
    """What a run comes to on a rank."""

    weights: dict[str, torch.Tensor]
    rounds: list[list[tuple[Any, ...]]]
    told: list[int]
    evaluated: int
    metrics: dict[str, float]
    assignment: dict[str, Any]
    module: FederatedLightningModule = field(repr=False)
    files: dict[str, Any] = field(repr=False)

    @property
    def statuses(self) -> list[list[tuple[Any, ...]]]:
        return [[result[:4] for result in results] for results in self.rounds]

    def __getstate__(self) -> dict[str, Any]:
        """For another process."""
        return {**vars(self), "module": None}


def run(
    name: str,
    folder: Path,
    extra: Iterable[FederatedCallback] = (),
    rounds: int = methods.ROUNDS,
    ckpt_path: Path | None = None,
    **settings: Any,
) -> Run:
    """One method's run, which saves every round in a folder."""
    module, witness, evaluated = methods.METHODS[name](), Witness(), []
    update = module.val_metrics.update
    module.val_metrics.update = lambda place, *rest: evaluated.append(place) or update(place, *rest)
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
