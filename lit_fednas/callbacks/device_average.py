"""Reporting by the average over all devices, not only over a round's cohort (FedHeN, App. A, "Reporting Results").

A cohort's average is noisy. So the authors report "model performances when we average all devices (all complex
devices for server complex model and all simple devices for server simple model)", and train as ever.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.errors import CheckpointError
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.client_store import ClientStore, copied, state_in
from lit_fednas.federation.evaluation import SubnetMetrics, recalibrated
from lit_fednas.messages import ClientResult, ClientUpdate

_KIND = "device_average"


class DeviceAverage(FederatedCallback):
    """Evaluates the mean of what all devices last trained; training is not touched.

    For each evaluated subnet, the mean is over the devices whose last update was of that architecture, each with the
    weights that it sent then. A device of which no update was used yet is left out. Logs
    ``val/devices/<subnet>/accuracy`` and ``/loss``, and ``test/...`` likewise, for subnets that devices have trained.

    The last weights of all devices are kept on disk, in ``clients`` beside the checkpoints, which refer to them: with
    50 devices of 0.7M and 50 of 11.2M parameters (the paper's) 2.4 GB, and a cohort's more. What an older checkpoint
    refers to is kept with it. Move a checkpoint together with that folder.

    Args:
        weighted: Whether a device counts by its examples, or all count alike (the paper).
    """

    def __init__(self, weighted: bool = False) -> None:
        self.weighted = weighted
        self._store = ClientStore()
        self._networks: dict[str, nn.Module] | None = None
        self._metrics: SubnetMetrics | None = None
        self.metric_names: list[str] = []

    def setup(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, stage: str) -> None:
        """Prepares the metrics; ``metric_names`` says what will be logged at a validation."""
        self._prepare(trainer, pl_module)

    def _prepare(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> None:
        self._metrics = SubnetMetrics(module.subnets, trainer.datamodule.task, module.evaluation.top_k)
        self._metrics.to(trainer.strategy.root_device)
        self.metric_names = [f"val/devices/{name}" for name in self._metrics.metric_names]

    # ---- what devices trained -------------------------------------------------------------------------

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Prepares the files of the devices' weights."""
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
            facts = {"arch": str(result.task.arch), "num_examples": result.task.num_examples}
            self._store.write(_KIND, result.task.round, result.task.client, copied(update.weights), **facts)

    # ---- the mean -------------------------------------------------------------------------------------

    @torch.no_grad()
    def average(self, arch: str) -> dict[str, Tensor] | None:
        """Returns the mean over the devices of an architecture.

        Args:
            arch: The architecture's text.

        Returns:
            Tensors by their names in the subnet, on the CPU; ``None`` if no device has trained it.
        """
        devices = {
            client: float(entry["num_examples"]) if self.weighted else 1.0
            for client, entry in sorted(self._store.entries(_KIND).items())
            if entry["arch"] == arch
        }
        if not devices:
            return None
        weights = torch.tensor(list(devices.values()))
        weights /= weights.sum()
        means: dict[str, Tensor] = {}
        for client, weight in zip(devices, weights.tolist(), strict=True):  # one open file at a time
            sent = self._store.read(_KIND, client)
            for name, tensor in sent.items():
                if name not in means:
                    means[name] = torch.zeros_like(tensor, dtype=torch.float32)
                means[name].add_(tensor, alpha=weight)
        return {name: total if sent[name].is_floating_point() else total.round_() for name, total in means.items()}

    @torch.no_grad()
    def _build(self, module: FederatedLightningModule, clients: Any) -> dict[str, nn.Module]:
        """Returns the mean networks of the evaluated subnets, by name, in evaluation mode."""
        networks = {}
        for name, arch in module.subnets.items():
            means = self.average(str(arch))
            if means is None:
                continue
            network = module.supernet.empty_subnet(arch)
            for tensor_name, tensor in [*network.named_parameters(), *network.named_buffers()]:
                tensor.copy_(means[tensor_name])
            batches = module.recalibration_batches(clients)
            networks[name] = recalibrated(network, batches) if batches else network.eval()
        return networks

    # ---- evaluation -----------------------------------------------------------------------------------

    def on_validation_epoch_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Drops networks of earlier weights."""
        self._networks = None

    def on_validation_batch_end(
        self,
        trainer: FederatedTrainer,
        pl_module: FederatedLightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Evaluates the mean networks on the batch."""
        self._evaluate(trainer, pl_module, batch, batch_idx)

    # the same for the test set
    on_test_epoch_start = on_validation_epoch_start  # type: ignore[assignment]
    on_test_batch_end = on_validation_batch_end  # type: ignore[assignment]

    def on_validation_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Logs ``val/devices/...``."""
        self._log(pl_module, "val")

    def on_test_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Logs ``test/devices/...``."""
        self._log(pl_module, "test")

    def _evaluate(
        self, trainer: FederatedTrainer, module: FederatedLightningModule, batch: Any, batch_idx: int
    ) -> None:
        assert self._metrics is not None
        if self._metrics.names != list(module.subnets):  # the supernet has grown, or was taken from a checkpoint
            self._prepare(trainer, module)
        if self._networks is None:
            self._networks = self._build(module, trainer.datamodule.clients)
        inputs, targets = batch
        for turn, (name, arch) in enumerate(module.subnets.items()):
            if name in self._networks and (batch_idx + turn) % trainer.world_size == trainer.global_rank:
                logits = module.evaluation.logits(self._networks[name], inputs)
                self._metrics.update(turn, logits, module.supernet.targets(arch, targets))

    def _log(self, module: FederatedLightningModule, split: str) -> None:
        assert self._metrics is not None
        for name, value in self._metrics.compute().items():
            if self._networks and name.rpartition("/")[0] in self._networks:
                module.log(f"{split}/devices/{name}", value, sync_dist=True)

    # ---- checkpoints ----------------------------------------------------------------------------------

    def on_load_checkpoint(
        self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Finds the devices' last weights for an evaluation; a fit finds them when it begins.

        Raises:
            CheckpointError: They are not there, or the checkpoint is of an older version.
        """
        if checkpoint["callbacks"].get(self.state_key):
            raise CheckpointError(
                "device_average: the checkpoint is of an earlier version, which kept the devices' weights elsewhere; "
                "continue with the version that began the run, or set device_average to null"
            )
        if not trainer.training:
            self._store = ClientStore()
            self._store.load_state_dict(state_in(checkpoint), Path(str(trainer.ckpt_path)))
            self._store.open(_KIND, trainer.ranks)
