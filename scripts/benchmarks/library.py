"""The library's side of a benchmark: a run, client fits alone, or a loaded run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningDataModule
from torch import Tensor

from benchmarks.tasks import CLASSES, Setting
from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import FixedArchitecture, RandomArchitectures
from lit_fednas.cli.lightning_cli import FederatedCLI
from lit_fednas.data import Classification, ClientData, Examples, TensorReader
from lit_fednas.federation import (
    ClientSettings,
    FaultPolicy,
    FederatedLightningModule,
    FederatedTrainer,
    UniformCohort,
)
from lit_fednas.federation.client import LocalRunner
from lit_fednas.federation.fastest import fastest
from lit_fednas.federation.process import keep_freed_memory
from lit_fednas.messages import ClientTask
from lit_fednas.supernets import Supernet


class Loaded(FederatedCLI):
    """Loads a run's last checkpoint, or another one, as ``lit-fednas search`` does, without searching."""

    def __init__(self, run: Path, configs: Sequence[Path] = (), checkpoint: Path | None = None) -> None:
        words = [word for path in (run / "config.yaml", *configs) for word in ("--config", str(path))]
        self.checkpoint = str(checkpoint or run / "checkpoints" / "last.ckpt")
        super().__init__(["search", *words, "--ckpt_path", self.checkpoint])
        self.trainer.load(self.model, self.datamodule, self.checkpoint)

    def _run_subcommand(self, subcommand: str) -> None:
        pass


class BenchmarkData(LightningDataModule):
    """A data module of the benchmark's data."""

    num_classes = CLASSES
    task = Classification(CLASSES)
    input_dtype = torch.float32

    def __init__(self, setting: Setting, data: Examples) -> None:
        super().__init__()
        self.input_shape = setting.shape
        self.clients = clients_of(setting, data)

    def token_range(self) -> None:
        """Returns None, because images have no tokens."""


def clients_of(setting: Setting, data: Examples) -> ClientData:
    bounds = zip(setting.starts, setting.sizes, strict=True)
    return ClientData(TensorReader(data), {"train": [np.arange(start, start + size) for start, size in bounds]})


def module_of(setting: Setting, net: Supernet, **client: Any) -> FederatedLightningModule:
    """Returns federated averaging with plain SGD; clients of an elastic network draw random architectures."""
    return FederatedLightningModule(
        net,
        RandomArchitectures() if setting.network == "elastic" else FixedArchitecture(),
        OverlapAverage(),
        ClientSettings(lambda params: torch.optim.SGD(params, lr=setting.lr), batch_size=setting.batch_size, **client),
        cohort=UniformCohort(count=setting.cohort),
        faults=FaultPolicy(on_client_error="raise"),
        seed=setting.seed,
    )


def run_library(
    setting: Setting, rounds: int, callback: Callback, net: Supernet, data: Examples, **client: Any
) -> None:
    """Trains without logger, checkpoints or validation."""
    trainer = FederatedTrainer(
        max_rounds=rounds,
        threads=setting.threads,
        accelerator="cpu" if setting.device == "cpu" else "gpu",
        devices=setting.ranks,
        strategy="ddp" if setting.ranks > 1 else "auto",
        callbacks=[callback],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        limit_val_batches=0,
    )
    trainer.fit(module_of(setting, net, **client), datamodule=BenchmarkData(setting, data))


def _tasks(setting: Setting, number: int, clients: int, arch: Any) -> list[ClientTask]:
    return [ClientTask(number, client, arch, setting.sizes[client]) for client in range(clients)]


def fastest_settings(setting: Setting, net: Supernet, data: Examples, arch: Any, clients: int) -> dict[str, Any]:
    """Returns the choice of ``client.fast`` for the first clients of a long run."""
    tasks, threads = _tasks(setting, 0, clients, arch), [torch.get_num_threads()]
    choice = fastest(module_of(setting, net), clients_of(setting, data), tasks, lambda: None, threads, 1e6)
    assert choice is not None
    return choice["settings"]


class Fits:
    """Client fits of one architecture without rounds; keeps freed memory, as a run does."""

    def __init__(self, setting: Setting, net: Supernet, data: Examples, arch: Any, **client: Any) -> None:
        keep_freed_memory()
        self.setting = setting
        self.arch = arch
        self._runner = LocalRunner(module_of(setting, net, **client), clients_of(setting, data), lambda: None)
        self._runner._shared = net.shared_tensors()  # once for all clients, as in a round

    def train_client(self, number: int, client: int) -> None:
        """Trains a client and sets ``result`` and ``update``."""
        task = ClientTask(number, client, self.arch, self.setting.sizes[client])
        self.result, self.update = self._runner.fit(task)

    def train_unit(self, unit: int) -> None:
        """Trains the next client, each unit in a new round."""
        self.train_client(unit, unit % self.setting.clients)

    def train_together(self, number: int) -> None:
        """Trains all clients in the fewest fits that the settings allow."""
        for result, update in self._runner.run(_tasks(self.setting, number, self.setting.clients, self.arch)):
            self.result, self.update = result, update

    @property
    def params(self) -> list[Tensor]:
        """The last client's weights after its training."""
        assert self.update is not None
        return list(self.update.weights.values())
