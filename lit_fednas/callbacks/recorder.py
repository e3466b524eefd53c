"""What is written into a run's folder: records of rounds, the data's partition, the evaluated subnets."""

import logging
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from lightning import Callback
from typing_extensions import override

from lit_fednas.callbacks.cost_ledger import cost_of
from lit_fednas.callbacks.weight_average import weights_evaluated
from lit_fednas.costs import RoundCost
from lit_fednas.data import FederatedDataModule
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.federation.trainer import keeps_files, run_folder
from lit_fednas.formatting import rows_text
from lit_fednas.messages import ClientResult
from lit_fednas.records.files import FolderLock, replace_json, seal
from lit_fednas.records.partition import write_partition
from lit_fednas.records.run import INPUTS_FILE, RECORDS, append_round, forget_from, write_subnets

log = logging.getLogger(__name__)

NAMES = ("subnet", "arch", "split", "weights")
COSTS = ("macs", "parameters", "bytes")


class RunRecorder(FederatedCallback):
    """Writes one record per round to ``rounds.jsonl``; resuming first removes the records after the checkpoint.

    The run's folder is locked during ``fit``, ``validate`` and ``test``, so that no other process writes into it.

    Raises:
        ConfigError: Another process writes into the folder (reported before training).
    """

    def __init__(self) -> None:
        self._clients: list[dict[str, Any]] | None = None
        self._lock: FolderLock | None = None

    def setup(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage != "predict" and keeps_files(trainer):
            self._lock = FolderLock(run_folder(trainer))

    def teardown(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, stage: str) -> None:
        """Keeps the checksums of what the run has recorded."""
        if self._lock is not None and stage == "fit" and keeps_files(trainer):  # else another process may train there
            seal(run_folder(trainer), *RECORDS)
        self.on_exception()

    def on_exception(self, *arguments: Any) -> None:
        if self._lock is not None:
            self._lock.release()

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Removes the records that the run will write again."""
        if keeps_files(trainer):
            forget_from(run_folder(trainer), trainer.global_step)  # a round is a step
        elif trainer.is_global_zero and not trainer.fast_dev_run:
            log.info("without a logger or a trainer.default_root_dir only checkpoints are kept")

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        self._clients = [_client_record(result, cost_of(result, module)) for result in round.results]

    def on_train_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        if not keeps_files(trainer) or self._clients is None:
            return  # the rest of a round that has been recorded
        metrics = {name: float(value) for name, value in trainer.fit_loop.round_metrics.items()}
        with weights_evaluated(trainer, pl_module):
            weights = pl_module.supernet.digest()
        record = {"round": trainer.current_epoch, "weights": weights, "metrics": metrics, "clients": self._clients}
        chosen = trainer.fit_loop.fastest
        if chosen is not None and chosen["round"] == trainer.current_epoch:
            record["fastest"] = chosen
        append_round(run_folder(trainer), record)
        self._clients = None


class PartitionFiles(Callback):
    """Writes ``inputs.json``, ``partition.csv`` and ``partition.png`` (SuperFed, Fig. 9) when training starts."""

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Writes the files where a run starts."""
        data = trainer.datamodule
        if not keeps_files(trainer) or not isinstance(data, FederatedDataModule):
            return
        folder = run_folder(trainer)
        if trainer.global_step == 0 or not (folder / "partition.png").exists():  # a round is a step
            replace_json(folder / INPUTS_FILE, data.inputs_record())
            write_partition(data.class_counts, data.strata, folder, data.owners)


class SubnetTable(FederatedCallback):
    """Prints the subnets after ``fit``, ``validate`` and ``test``, and writes ``subnets-<split>.csv``."""

    state_names = ("rows", "rounds")

    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []  # of the last validation, which may have been before a resume
        self.rounds = 0  # trained until that validation

    def on_validation_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Keeps the rows, and shows them after ``validate``."""
        with weights_evaluated(trainer, pl_module):
            rows = table_rows(pl_module, trainer.callback_metrics, "val")
        self.rows, self.rounds = rows, trainer.global_step
        if trainer.state.fn == "validate":
            self._show(trainer, self.rows, "val")

    def on_fit_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        if self.rounds == trainer.global_step:  # a round is a step
            self._show(trainer, self.rows, "val")
        elif trainer.enable_validation:
            log.info("round %d was not validated; lit-fednas validate shows its subnets", trainer.global_step)

    def on_test_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        self._show(trainer, table_rows(pl_module, trainer.callback_metrics, "test"), "test")

    @staticmethod
    def _show(trainer: FederatedTrainer, rows: list[dict[str, Any]], split: str) -> None:
        if not rows:
            return
        if keeps_files(trainer):
            write_subnets(run_folder(trainer), split, rows)
        if trainer.is_global_zero:
            print(format_table(rows))


def _client_record(result: ClientResult, cost: RoundCost) -> dict[str, Any]:
    """Returns a client's part of the round's record, without unknown values."""
    task = result.task
    record = {"client": task.client, "arch": str(task.arch), "tier": task.tier or None}
    record |= {"status": result.status, "reason": result.reason, "num_examples": task.num_examples}
    counts = ("num_seen", "num_units", "num_steps", "loss")
    record |= {name: getattr(result, name) for name in counts}
    tested = result.num_tested or None
    record |= {"accuracy": result.tested.get("accuracy") if tested else None, "num_tested": tested, "group": task.group}
    record |= {**asdict(cost), "seconds": round(result.seconds, 4)}
    return {name: value for name, value in record.items() if value is not None}


def table_rows(module: FederatedLightningModule, metrics: Any, split: str) -> list[dict[str, Any]]:
    """Returns one row per evaluated subnet that has metrics of the split, with the digest of the weights."""
    rows, weights = [], module.supernet.digest()
    for name, arch in module.subnets.items():
        if f"{split}/{name}/{module.task.metric}" not in metrics:
            continue
        figures = {one: round(float(metrics[f"{split}/{name}/{one}"]), 6) for one in module.val_metrics.directions}
        costs = {one: getattr(module.supernet.cost(arch), one) for one in COSTS}
        rows.append({"subnet": name, "arch": str(arch), "split": split, **figures, **costs, "weights": weights})
    return rows


def format_table(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the rows as aligned text."""
    metrics = {f"{rows[0]['split']}_{name}": name for name in rows[0] if name not in (*NAMES, *COSTS)}
    rated = [{**row, **{shown: row[name] for shown, name in metrics.items()}} for row in rows]
    return rows_text(rated, ["subnet", "arch", *COSTS, *metrics], left=2)
