"""Reporting by the average over all devices, not only over a round's cohort (FedHeN, App. A, "Reporting Results").

A cohort's average is noisy. So the authors report "model performances when we average all devices (all complex
devices for server complex model and all simple devices for server simple model)", and train as ever.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.callbacks.device_files import DeviceFiles
from lit_fednas.errors import CheckpointError
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.federation.evaluation import SubnetMetrics, recalibrated
from lit_fednas.messages import ClientResult, ClientTask, ClientUpdate


@dataclass(frozen=True)
class _Device:
    """What a device last trained: the architecture's text, the examples it has, the file of its weights."""

    arch: str
    num_examples: int
    file: str


class DeviceAverage(FederatedCallback):
    """Evaluates the mean of what all devices last trained; training is not touched.

    For each evaluated subnet, the mean is over the devices whose last update was of that architecture, each with the
    weights that it sent then. A device that was in no cohort yet is left out. Logs ``val/devices/<subnet>/accuracy``
    and ``/loss``, and ``test/...`` likewise, for the subnets that a device has trained.

    The last weights of all devices are kept on disk, in ``devices`` beside the checkpoints, which refer to them: with
    50 devices of 0.7M and 50 of 11.2M parameters (the paper's) 2.4 GB, and a cohort's more. What an older checkpoint
    refers to is kept with it. Move a checkpoint together with that folder.

    Args:
        weighted: Whether a device counts by its examples, or all count alike (the paper).
    """

    def __init__(self, weighted: bool = False) -> None:
        self.weighted = weighted
        self._devices: dict[int, _Device] = {}
        self._files = DeviceFiles(self.state_key)
        self._of_round: dict[int, tuple[ClientTask, dict[str, Tensor]]] = {}
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
        """Prepares the folder of the devices' weights."""
        checkpoints: Any = trainer.checkpoint_callback
        self._files.begin(getattr(checkpoints, "dirpath", None), self._names, trainer.fit_loop.ranks)

    @override
    def on_cohort_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        self._of_round = {}  # also what is left of a round that was interrupted

    @override
    def on_client_end(
        self,
        trainer: FederatedTrainer,
        module: FederatedLightningModule,
        result: ClientResult,
        update: ClientUpdate | None,
    ) -> None:
        if update is None:
            return
        weights = {name: tensor.detach().to("cpu", copy=True) for name, tensor in update.weights.items()}
        self._of_round[update.task.client] = update.task, weights

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Keeps the round's weights, each rank those of its devices."""
        ranks = trainer.fit_loop.ranks
        own = {
            client: _Device(str(task.arch), task.num_examples, self._files.write(round.number, client, weights))
            for client, (task, weights) in self._of_round.items()
        }
        for of_rank in ranks.gather(own):
            self._devices.update(of_rank)
        self._of_round = {}
        if ranks.rank == 0:
            folders = [getattr(checkpoints, "dirpath", None) for checkpoints in trainer.checkpoint_callbacks]
            self._files.remove_others(self._names, filter(None, folders))

    # ---- the mean -------------------------------------------------------------------------------------

    @torch.no_grad()
    def average(self, arch: str) -> dict[str, Tensor] | None:
        """Returns the mean over the devices of an architecture.

        Args:
            arch: The architecture's text.

        Returns:
            Tensors by their names in the subnet, on the CPU; ``None`` if no device has trained it.
        """
        devices = {client: device for client, device in sorted(self._devices.items()) if device.arch == arch}
        if not devices:
            return None
        weights = torch.tensor([float(device.num_examples) if self.weighted else 1.0 for device in devices.values()])
        weights /= weights.sum()
        means: dict[str, Tensor] = {}
        for device, weight in zip(devices.values(), weights.tolist(), strict=True):  # one open file at a time
            sent = self._files.read(device.file)
            for name, tensor in sent.items():
                if name not in means:
                    means[name] = torch.zeros_like(tensor, dtype=torch.float32)
                means[name].add_(tensor, alpha=weight)
        return {name: total if sent[name].is_floating_point() else total.round_() for name, total in means.items()}

    def _build(self, module: FederatedLightningModule, clients: Any) -> dict[str, nn.Module]:
        """Returns the mean networks of the evaluated subnets, by name, in evaluation mode."""
        networks = {}
        for name, arch in module.subnets.items():
            means = self.average(str(arch))
            if means is None:
                continue
            network = module.supernet.empty_subnet(arch)
            _load(network, means)
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

    @property
    def _names(self) -> set[str]:
        return {device.file for device in self._devices.values()}

    def state_dict(self) -> dict[str, Any]:
        """Returns where the devices' last weights are."""
        return {
            "devices": {client: asdict(device) for client, device in self._devices.items()},
            "folder": str(self._files.folder),
        }

    def on_load_checkpoint(
        self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Finds the devices' last weights: beside the checkpoint, or where the run had them.

        Raises:
            CheckpointError: They are not there, or the checkpoint is of an older version.
        """
        state = checkpoint["callbacks"].get(self.state_key)
        if state is not None and "folder" not in state:
            raise CheckpointError(
                "device_average: the checkpoint holds the devices' weights itself, as versions before 0.3 wrote it; go "
                "on with the version that began the run, or set device_average to null"
            )
        if state is not None:
            beside = Path(str(trainer.ckpt_path)).parent / Path(state["folder"]).name
            self._files.find({device["file"] for device in state["devices"].values()}, [beside, Path(state["folder"])])

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what is known of the devices."""
        self._devices = {int(client): _Device(**device) for client, device in state_dict["devices"].items()}


@torch.no_grad()
def _load(network: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Writes weights, by name, into a network."""
    for name, tensor in [*network.named_parameters(), *network.named_buffers()]:
        tensor.copy_(weights[name])
