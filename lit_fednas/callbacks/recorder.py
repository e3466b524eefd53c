"""Writes a run's records and its data's partition into the run's folder (see ``lit_fednas.records``)."""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import Any

from lightning import Callback
from torch import Tensor
from typing_extensions import override

from lit_fednas.callbacks.cost_ledger import cost_of
from lit_fednas.costs import RoundCost
from lit_fednas.data import FederatedDataModule
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.federation.trainer import keeps_files, run_folder
from lit_fednas.messages import ClientResult
from lit_fednas.records import append_round, forget_from
from lit_fednas.records.files import FolderLock, replace_json
from lit_fednas.records.partition import write_partition
from lit_fednas.records.run import INPUTS_FILE

log = logging.getLogger(__name__)


class RunRecorder(FederatedCallback):
    """Writes one record per round to ``rounds.jsonl``; resuming first removes the records after the checkpoint.

    The run's folder is locked during training, so that no other process writes into it.

    Raises:
        ConfigError: Another process trains in the folder (reported before training).
    """

    def __init__(self) -> None:
        self._clients: list[dict[str, Any]] | None = None
        self._held: dict[str, Tensor] = {}
        self._lock: FolderLock | None = None

    def setup(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, stage: str) -> None:
        """Locks the run's folder."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and keeps_files(trainer):
            self._lock = FolderLock(run_folder(trainer))

    def teardown(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, stage: str) -> None:
        """Releases the run's folder."""
        if self._lock is not None:
            self._lock.release()

    def on_exception(
        self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, exception: BaseException
    ) -> None:
        """Releases the run's folder."""
        self.teardown(trainer, pl_module, "fit")

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Removes the records that the run will write again."""
        self._held = dict(trainer.callback_metrics)
        if keeps_files(trainer):
            forget_from(run_folder(trainer), trainer.global_step)  # a round is a step
        elif trainer.is_global_zero and not trainer.fast_dev_run:
            log.info("without a logger or a trainer.default_root_dir only checkpoints are kept")

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Keeps the clients' results."""
        self._clients = [_client_record(result, cost_of(result, module)) for result in round.results]

    def on_train_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Writes the round's record."""
        if not keeps_files(trainer) or self._clients is None:
            return  # the rest of a round that has been recorded
        # Lightning still holds values that only earlier rounds logged: the identical tensors
        held, self._held = self._held, dict(trainer.callback_metrics)
        metrics = {name: float(value) for name, value in self._held.items() if held.get(name) is not value}
        record = {"round": trainer.current_epoch, "metrics": metrics, "clients": self._clients}
        chosen = trainer.fit_loop.fastest
        if chosen is not None and chosen["round"] == trainer.current_epoch:
            record["fastest"] = chosen
        append_round(run_folder(trainer), record)
        self._clients = None


class PartitionFiles(Callback):
    """Writes ``inputs.json``, ``partition.csv`` and ``partition.png`` (SuperFed, Fig. 9) when training starts."""

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Writes the files, once."""
        data = trainer.datamodule
        if not keeps_files(trainer) or not isinstance(data, FederatedDataModule):
            return
        folder = run_folder(trainer)
        if not (folder / "partition.png").exists():
            replace_json(folder / INPUTS_FILE, data.inputs_record())
            write_partition(data.class_counts, data.strata, folder)


def _client_record(result: ClientResult, cost: RoundCost) -> dict[str, Any]:
    """Returns a client's part of the round's record, without unknown values."""
    task = result.task
    record = {
        "client": task.client,
        "arch": str(task.arch),
        "tier": task.tier or None,
        "status": result.status,
        "reason": result.reason,
        "num_examples": task.num_examples,
        "num_seen": result.num_seen,
        "num_steps": result.num_steps,
        "loss": result.loss,
        "accuracy": result.accuracy if result.num_tested else None,
        "num_tested": result.num_tested or None,
        "group": task.group,
        **asdict(cost),
        "seconds": round(result.seconds, 4),
    }
    return {name: value for name, value in record.items() if value is not None}
