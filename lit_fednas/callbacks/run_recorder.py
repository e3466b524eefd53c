"""A record of every round in the run's folder."""

import logging
from dataclasses import asdict
from typing import Any

from typing_extensions import override

from lit_fednas.callbacks.weight_average import weights_evaluated
from lit_fednas.costs import RoundCost
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.messages import ClientResult
from lit_fednas.records.files import FolderLock, seal
from lit_fednas.records.folder import keeps_files, run_folder
from lit_fednas.records.run import RECORDS, append_round, forget_from

log = logging.getLogger(__name__)


class RunRecorder(FederatedCallback):
    """Writes one record per round to ``rounds.jsonl``; a resumed run first removes records after its checkpoint.

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
        """Writes the checksums of the run's records, and unlocks the folder."""
        if self._lock is not None and stage == "fit" and keeps_files(trainer):  # other stages may run beside a training
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
        self._clients = [_client_record(result, module.cost(result)) for result in round.results]

    def on_train_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        if not keeps_files(trainer) or self._clients is None:
            return  # the round has been recorded
        metrics = {name: float(value) for name, value in trainer.fit_loop.round_metrics.items()}
        with weights_evaluated(trainer, pl_module):
            weights = pl_module.supernet.digest()
        record = {"round": trainer.current_epoch, "weights": weights, "metrics": metrics, "clients": self._clients}
        fastest = trainer.fit_loop.fastest
        if fastest is not None and fastest["round"] == trainer.current_epoch:
            record["fastest"] = fastest
        append_round(run_folder(trainer), record)
        self._clients = None


def _client_record(result: ClientResult, cost: RoundCost) -> dict[str, Any]:
    """Returns a client's entry in the round's record, without unknown values."""
    task = result.task
    record = {"client": task.client, "arch": str(task.arch), "tier": task.tier or None}
    record |= {"status": result.status, "reason": result.reason, "num_examples": task.num_examples}
    counts = ("num_seen", "num_units", "num_steps", "loss")
    record |= {name: getattr(result, name) for name in counts}
    tested = result.num_tested or None
    record |= {"accuracy": result.tested.get("accuracy") if tested else None, "num_tested": tested, "group": task.group}
    record |= {**asdict(cost), "seconds": round(result.seconds, 4)}
    return {name: value for name, value in record.items() if value is not None}
