"""The library's side: a run of its Trainer, or its client fits alone."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import torch
from lightning import Callback, LightningDataModule
from torch import Tensor

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import Assignment, FixedArchitecture
from lit_fednas.benchmarks.tasks import CLASSES, Setting
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
from lit_fednas.federation.machine import keep_freed_memory
from lit_fednas.messages import ClientTask
from lit_fednas.supernets import Supernet


class BenchmarkData(LightningDataModule):
    """The data as the engine wants them."""

    num_classes = CLASSES
    task = Classification(CLASSES)
    input_dtype = torch.float32

    def __init__(self, setting: Setting, data: Examples) -> None:
        super().__init__()
        self.input_shape = setting.shape
        self.clients = clients_of(setting, data)

    def token_range(self) -> None:
        """Returns nothing: images are no tokens."""


def clients_of(setting: Setting, data: Examples) -> ClientData:
    """Every client's rows of the data."""
    bounds = zip(setting.starts, setting.sizes, strict=True)
    return ClientData(TensorReader(data), {"train": [np.arange(start, start + size) for start, size in bounds]})


def client_settings(setting: Setting, fused: bool | None = None, **more: Any) -> ClientSettings:
    """How clients train: plain SGD, fused if asked for, and what is compared."""
    return ClientSettings(
        lambda params: torch.optim.SGD(params, lr=setting.lr, fused=fused), batch_size=setting.batch_size, **more
    )


def run_library(
    setting: Setting,
    rounds: int,
    callback: Callback,
    net: Supernet,
    data: Examples,
    assignment: Assignment | None = None,
    **client: Any,
) -> FederatedTrainer:
    """Fits for some rounds, without logger, checkpoints or validation."""
    module = FederatedLightningModule(
        net,
        assignment or FixedArchitecture(),
        OverlapAverage(),
        client_settings(setting, **client),
        cohort=UniformCohort(count=setting.cohort),
        seed=setting.seed,
    )
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
    trainer.fit(module, datamodule=BenchmarkData(setting, data))
    return trainer


def _module(setting: Setting, net: Supernet, **client: Any) -> FederatedLightningModule:
    return FederatedLightningModule(
        net,
        FixedArchitecture(),
        OverlapAverage(),
        client_settings(setting, **client),
        faults=FaultPolicy(on_client_error="raise"),
        seed=setting.seed,
    )


def chosen(setting: Setting, net: Supernet, data: Examples, arch: Any, clients: int) -> dict[str, Any]:
    """Returns the settings that ``client.fast`` chooses for the first clients in a run without end."""
    tasks = [ClientTask(0, client, arch, setting.sizes[client]) for client in range(clients)]
    threads = [torch.get_num_threads()]
    found = fastest(_module(setting, net), clients_of(setting, data), tasks, lambda: None, threads, inf)
    assert found is not None
    return found["settings"]


class Fits:
    """The library's client fits without the rounds around them; freed memory is kept, as a run does.

    Args:
        setting: The task.
        net: The global weights, which stay as they are.
        data: All clients' examples.
        **client: Settings of the clients' training.
    """

    def __init__(self, setting: Setting, net: Supernet, data: Examples, **client: Any) -> None:
        keep_freed_memory()
        self.setting = setting
        self.client = client
        self._runner = LocalRunner(_module(setting, net, **client), clients_of(setting, data), lambda: None)

    def train(self, number: int, client: int, arch: Any) -> None:
        """Trains a client; ``result`` and ``update`` then say how it went."""
        task = ClientTask(number, client, arch, self.setting.sizes[client])
        self.result, self.update = self._runner.fit(task)

    def train_unit(self, arch: Any, unit: int) -> None:
        """Trains one client after another, in a new round each."""
        self.train(unit, unit % self.setting.clients, arch)

    def train_together(self, number: int, clients: int, arch: Any) -> list[Tensor]:
        """Trains the first clients in as few fits as the settings allow; returns the last one's weights."""
        sizes = self.setting.sizes
        tasks = [ClientTask(number, client, arch, sizes[client]) for client in range(clients)]
        for result, update in self._runner.run(tasks):
            self.result, self.update = result, update
        return self.weights()

    def weights(self) -> list[Tensor]:
        """The last client's weights after its training."""
        assert self.update is not None
        return list(self.update.weights.values())
