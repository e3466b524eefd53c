"""Writes a run's records: ``rounds.jsonl`` in the run's folder (see ``lit_fednas.records``)."""

from __future__ import annotations

import re
from dataclasses import asdict
from typing import Any

from lightning import LightningModule, Trainer

from lit_fednas.callbacks.deployed_accuracy import DeployedAccuracy
from lit_fednas.costs import client_cost
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, ServerRound
from lit_fednas.federation.run_folder import keeps_files, run_folder
from lit_fednas.records import append_round, forget_from


class RunRecorder(FederatedCallback):
    """Writes one record per round; on resuming, the records after the checkpoint are dropped first."""

    def __init__(self) -> None:
        self._clients: list[dict[str, Any]] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Drops what the run is about to write anew."""
        if keeps_files(trainer):
            forget_from(run_folder(trainer), trainer.global_step)  # a round is a step

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: ServerRound, batch_idx: int
    ) -> None:
        """Keeps how it went for each client."""
        assert isinstance(pl_module, FederatedLightningModule)
        self._clients = []
        for result in batch.results:
            task = result.task
            cost = client_cost(result, pl_module.supernet.cost(task.arch))
            self._clients.append(
                {
                    "client": task.client,
                    "arch": str(task.arch),
                    **({"tier": task.tier} if task.tier else {}),
                    "status": result.status,
                    "reason": result.reason,
                    "num_examples": task.num_examples,
                    "num_seen": result.num_seen,
                    "num_steps": result.num_steps,
                    "loss": result.loss,
                    **(
                        {"accuracy": result.accuracy, "num_tested": result.num_tested} if result.num_tested else {}
                    ),
                    **({} if task.group is None else {"group": task.group}),
                    **asdict(cost),
                    "seconds": round(result.seconds, 4),
                }
            )

    @staticmethod
    def _former(trainer: Trainer, module: LightningModule) -> set[str]:
        """Metrics of subnets that were evaluated once and are no more; a supernet may change in training."""
        assert isinstance(module, FederatedLightningModule)
        names = {name for name in trainer.callback_metrics if re.fullmatch("val/[^/]+/(accuracy|loss)", name)}
        return names - set(module.validation_metrics)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Writes the round's record."""
        if not keeps_files(trainer) or self._clients is None:
            return  # the rest of a round that was recorded before
        validated = (trainer.current_epoch + 1) % (trainer.check_val_every_n_epoch or 1) == 0
        trained = any(client["status"] == "ok" for client in self._clients)
        deployed = any(
            isinstance(callback, DeployedAccuracy) and callback.rounds == trainer.global_step
            for callback in trainer.callbacks  # type: ignore[attr-defined]
        )
        of_this_round = {"val": validated, "deployed": deployed, "clients/loss": trained}
        metrics = {  # without those that Lightning still holds from an earlier round
            name: float(value)
            for name, value in trainer.callback_metrics.items()
            if of_this_round.get(name, of_this_round.get(name.partition("/")[0], True))
            and name not in self._former(trainer, pl_module)
        }
        record = {"round": trainer.current_epoch, "metrics": metrics, "clients": self._clients}
        append_round(run_folder(trainer), record)
        self._clients = None
