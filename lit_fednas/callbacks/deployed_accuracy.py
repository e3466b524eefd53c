"""Each client's accuracy on its data with the model that it would use (FedTrans, section 5.1, "Metrics")."""

import logging
from typing import Any, Literal

import numpy as np
import torch
from typing_extensions import override

from lit_fednas.callbacks.weight_average import weights_evaluated
from lit_fednas.data import Task
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.federation.evaluation import Recalibration, batches_of_clients, client_scores, normalises_over_batches
from lit_fednas.federation.ranks import deal
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.records.folder import keeps_files, run_folder
from lit_fednas.records.run import write_client_scores

log = logging.getLogger(__name__)

_BATCH_SIZE = 512


@checked("deployed_accuracy")
class DeployedAccuracy(FederatedCallback):
    """Evaluates every client on its split, with the global weights of the model that the assignment deploys to it.

    Logs ``deployed/accuracy`` (or the task's metric), the unweighted mean over clients; ``deployed/iqr``, their
    interquartile range (linear interpolation); and ``deployed/worst``. At the end of training it writes ``clients.csv``
    with a row per client that has examples in the split.

    Args:
        split: The clients' split: ``test`` (the paper) or ``val``.
        every_n_rounds: Number of rounds between two evaluations; by default every validation. The last round of a run
            is always evaluated.

    Raises:
        ConfigError: No client has such a split, or the assignment does not deploy models (reported before training).
    """

    def __init__(self, split: Literal["test", "val"] = "test", every_n_rounds: PositiveInt | None = None) -> None:
        self.split, self.every_n_rounds = split, every_n_rounds
        self.rows: list[dict[str, Any]] = []  # rows of the last evaluation
        self.rounds: int | None = None  # number of rounds before the last evaluation
        self.task: Task

    def setup(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, stage: str) -> None:
        """Sets the names of the metrics if every validation logs them."""
        self.task = trainer.datamodule.task
        if (trainer.check_val_every_n_epoch or 1) % (self.every_n_rounds or 1) == 0:
            self.metric_names = [f"deployed/{name}" for name in (self.task.metric, "iqr", "worst")]

    def on_fit_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Validates that clients have the split, and that the assignment deploys models."""
        self.rows, self.rounds = [], None
        clients = trainer.datamodule.clients
        try:
            clients.rows(0, self.split)
        except ConfigError as error:  # remote clients hold the data
            raise ConfigError(f"deployed_accuracy: {error}") from None
        sizes = clients.split_sizes(self.split)
        if not sizes.any():
            raise ConfigError(
                f"deployed_accuracy.split: no client has {self.split} examples; set data.client_{self.split} above 0"
            )
        pl_module.assignment.deployed(int((sizes > 0).argmax()))

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        if self.every_n_rounds is not None and trainer.global_step % self.every_n_rounds == 0:  # a round is a step
            self._evaluate_and_log(trainer, module)

    def on_validation_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        if self.every_n_rounds is None and trainer.state.fn == "fit":
            self._evaluate_and_log(trainer, pl_module)

    def on_fit_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        if self.rounds != trainer.global_step:
            pl_module.to(trainer.strategy.root_device)  # Lightning has moved the module to the CPU
            self._evaluate(trainer, pl_module)
            pl_module.cpu()
        if keeps_files(trainer):
            write_client_scores(run_folder(trainer), self.rows, ["arch"])
        if trainer.is_global_zero:
            log.info(
                "%d clients with their deployed models on their %s examples: %s %.4g, interquartile range %.4g, "
                "worst %.4g",
                *(len(self.rows), self.split, self.task.metric, *self.figures().values()),
            )

    def figures(self) -> dict[str, float]:
        """Returns the metrics of the last evaluation, without ``deployed/``."""
        metric = self.task.metric
        values = [row[metric] for row in self.rows]
        low, high = np.quantile(values, [0.25, 0.75])
        worst = min(values) if self.task.metrics[metric] else max(values)
        return {metric: float(np.mean(values)), "iqr": float(high - low), "worst": worst}

    def _evaluate_and_log(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> None:
        with weights_evaluated(trainer, module):
            self._evaluate(trainer, module)
        for name, value in self.figures().items():
            module.log(f"deployed/{name}", value, sync_dist=True)  # the value is equal on all ranks; avoids a warning

    def _evaluate(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> None:
        """Sets all clients' rows, with equal values for any number of ranks."""
        was_training = module.supernet.training
        module.supernet.eval()
        try:
            rows = self._share(trainer, module)
        finally:
            module.supernet.train(was_training)
        gathered = trainer.fit_loop.ranks.gather(rows)
        self.rows = sorted((row for share in gathered for row in share), key=lambda row: row["client"])
        self.rounds = trainer.global_step

    @torch.no_grad()
    def _share(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> list[dict[str, Any]]:
        """Returns the rows of this rank's share of the batches, which do not depend on the number of ranks."""
        clients, supernet = trainer.datamodule.clients, module.supernet
        sizes_by_arch: dict[Any, dict[int, int]] = {}
        for client, size in enumerate(clients.split_sizes(self.split).tolist()):
            if size:
                sizes_by_arch.setdefault(module.assignment.deployed(client), {})[client] = size
        statistics = module.recalibration_batches(clients)
        batches: list[tuple[Any, list[int]]] = []
        for arch, sizes in sizes_by_arch.items():
            alone = not statistics and normalises_over_batches(supernet.skeleton(arch))
            batches += [(arch, group) for group in batches_of_clients(sizes, 1 if alone else _BATCH_SIZE)]
        work = [supernet.macs(arch) * sum(sizes_by_arch[arch][client] for client in group) for arch, group in batches]
        rows: list[dict[str, Any]] = []
        networks = Recalibration(statistics)
        for index in deal(work, trainer.world_size)[trainer.global_rank]:
            arch, group = batches[index]
            network = networks.network(str(arch), supernet, arch)
            scores = client_scores(network, clients, group, self.split, module.evaluation, _BATCH_SIZE)
            for score in scores:
                rows.append({**score.row(), "tier": module.population.tier(score.client).name, "arch": str(arch)})
        return rows
