"""Evaluation of the average over all clients instead of a round's cohort (FedHeN, App. A, "Reporting Results")."""

from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.checkpoints import ClientStore, copied
from lit_fednas.federation.evaluation import SubnetMetrics, recalibrated
from lit_fednas.messages import ClientResult, ClientUpdate

_KIND = "device_average"


class DeviceAverage(FederatedCallback):
    """Evaluates the mean of the weights that each client sent last, without an effect on training.

    For each evaluated subnet, the mean is over the clients that trained its architecture in their last used update.
    Logs, while training, ``val/devices/<subnet>/accuracy`` and ``/loss`` for subnets that clients have trained.

    The clients' weights are on disk in ``clients`` beside the checkpoints, which refer to them (2.4 GB for the paper's
    clients). Move a checkpoint together with that folder.

    Args:
        weighted: Whether clients are weighted by their number of examples; if not, all are equal (the paper).
    """

    def __init__(self, weighted: bool = False) -> None:
        self.weighted = weighted
        self._store = ClientStore()
        self._networks: dict[str, nn.Module] = {}
        self._metrics: SubnetMetrics

    def setup(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, stage: str) -> None:
        """Sets up the metrics of the evaluated subnets."""
        self._metrics = SubnetMetrics(pl_module.subnets, trainer.datamodule.task)
        self._metrics.to(trainer.strategy.root_device)
        self.metric_names = [f"val/devices/{name}" for name in self._metrics.metric_names]

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        self._store = trainer.fit_loop.open_clients(_KIND)

    @override
    def on_client_end(
        self,
        trainer: FederatedTrainer,
        module: FederatedLightningModule,
        result: ClientResult,
        update: ClientUpdate | None,
    ) -> None:
        if update is not None:
            task = result.task
            facts = {"arch": str(task.arch), "num_examples": task.num_examples}
            self._store.write(_KIND, task.round, task.client, copied(update.weights), **facts)

    def average(self, arch: str) -> dict[str, Tensor]:
        """Returns the mean over the clients that trained ``arch`` last, in float32 on the CPU; empty without any."""
        entries = {client: entry for client, entry in self._store.entries(_KIND).items() if entry["arch"] == arch}
        clients = sorted(entries)
        weights = torch.tensor([entries[client]["num_examples"] if self.weighted else 1.0 for client in clients])
        means: dict[str, Tensor] = {}
        for client, weight in zip(clients, (weights / weights.sum()).tolist(), strict=True):  # opens one file at a time
            for name, tensor in self._store.read(_KIND, client).items():
                if name not in means:
                    means[name] = torch.zeros_like(tensor, dtype=torch.float32)
                means[name].add_(tensor, alpha=weight)
        return means

    @torch.no_grad()
    def on_validation_epoch_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Builds the mean networks of the evaluated subnets that clients have trained."""
        if self._metrics.names != list(pl_module.subnets):  # the supernet has grown, or comes from a checkpoint
            self.setup(trainer, pl_module, "validate")
        self._networks = {}
        for name, arch in pl_module.subnets.items():
            if means := self.average(str(arch)):
                network = pl_module.supernet.empty_subnet(arch)
                for tensor_name, tensor in [*network.named_parameters(), *network.named_buffers()]:
                    mean = means[tensor_name]
                    tensor.copy_(mean if tensor.is_floating_point() else mean.round())
                batches = pl_module.recalibration_batches(trainer.datamodule.clients)
                self._networks[name] = recalibrated(network, batches)

    def on_validation_batch_end(
        self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, outputs: Any, batch: Any, *indices: int
    ) -> None:
        inputs, targets = batch
        for turn, name in enumerate(pl_module.subnets):
            if name in self._networks and (indices[0] + turn) % trainer.world_size == trainer.global_rank:
                logits = pl_module.evaluation.logits(self._networks[name], inputs)
                self._metrics.update(turn, logits, targets)

    def on_validation_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        for name, value in self._metrics.compute().items():
            if name.rpartition("/")[0] in self._networks:
                pl_module.log(f"val/devices/{name}", value, sync_dist=True)
