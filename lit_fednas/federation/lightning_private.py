"""All private names of Lightning that the engine touches (lightning 2.6), behind public interfaces; a test pins them.

Lightning's loops are private, and its Trainer reads some twenty attributes of its fit loop.
"""

import logging
from abc import abstractmethod
from collections import UserList
from collections.abc import Callable
from typing import Any, TypeVar

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.io.torch_io import TorchCheckpointIO
from lightning.pytorch.callbacks import WeightAveraging
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.loops.training_epoch_loop import _TrainingEpochLoop
from lightning.pytorch.overrides.distributed import _sync_module_states
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy, Strategy
from lightning.pytorch.trainer.connectors.accelerator_connector import _AcceleratorConnector
from lightning.pytorch.trainer.connectors.data_connector import _DataLoaderSource
from lightning.pytorch.trainer.states import TrainerStatus
from torch import nn
from torch.optim.swa_utils import AveragedModel

from lit_fednas.errors import ConfigError
from lit_fednas.federation.ranks import naming_lost_rank
from lit_fednas.records.files import replace_saved

T = TypeVar("T")


class _RoundEpochLoop(_TrainingEpochLoop):
    """Also validates the last round, planned or not, since its weights are those of the run."""

    def _should_check_val_epoch(self) -> bool:
        trainer = self.trainer
        is_last = trainer.should_stop or trainer.current_epoch + 1 == trainer.max_epochs
        return bool(super()._should_check_val_epoch() or (trainer.enable_validation and is_last))


class RoundFitLoop(_FitLoop):
    """Counts rounds as epochs, and passes each round to ``training_step``."""

    epoch_progress: Any

    def __init__(self, trainer: pl.Trainer, max_rounds: int) -> None:
        super().__init__(trainer, min_epochs=0, max_epochs=max_rounds)
        self.epoch_loop = _RoundEpochLoop(trainer)
        self._one_batch: UserList[Any] = UserList([None])  # in a list Lightning would look for several loaders
        self._earlier_metrics: dict[str, Any] = {}  # logged in earlier rounds

    @abstractmethod
    def train_cohort(self, round: int) -> Any:
        """Trains the round's clients; returns the batch of ``training_step``."""

    def setup_data(self) -> None:
        """Connects the one batch in place of a training data loader."""
        self._data_source = _DataLoaderSource(self._one_batch, "train_dataloader")
        super().setup_data()

    def advance(self) -> None:
        """Runs a round: the cohort, then Lightning's own step and validation."""
        # a checkpoint was made between the server's step and the round's end, as ModelCheckpoint can: do the rest
        if self.restarting and self.epoch_loop.global_step > self.rounds_done:
            super().advance()
            return
        try:
            self._one_batch[0] = self.train_cohort(self.rounds_done)
        except BaseException:
            for counter in (self.epoch_progress.current, self.epoch_progress.total):
                counter.ready = counter.started = counter.processed
            raise
        super().advance()

    def on_advance_start(self) -> None:
        """Notes the metrics of earlier rounds, then begins a round."""
        self._earlier_metrics = dict(self.trainer.callback_metrics)
        super().on_advance_start()

    def on_advance_end(self) -> None:
        """Ends a round; validates it if a callback has stopped training only then, as EarlyStopping can."""
        validated = self.epoch_loop._should_check_val_epoch()
        super().on_advance_end()
        if self.trainer.should_stop and self.trainer.enable_validation and not validated:
            self.trainer.validating = True
            self.epoch_loop.val_loop.run()
            self.trainer.training = True

    @property
    def round_metrics(self) -> dict[str, torch.Tensor]:
        """The metrics of the present round; Lightning keeps those that only earlier rounds logged: the same tensors."""
        metrics, earlier = self.trainer.callback_metrics, self._earlier_metrics
        return {name: value for name, value in metrics.items() if earlier.get(name) is not value}

    @property
    def is_whole(self) -> bool:
        """Whether the state is that between two rounds, so that it may be saved."""
        return bool(self.epoch_progress.current.ready == self.epoch_progress.current.completed)

    @property
    def rounds_done(self) -> int:
        """Finished rounds."""
        return int(self.epoch_progress.current.processed)

    def _warn_if_modules_in_eval_mode(self) -> None:
        """Does not warn: the server's module is never in training mode."""


class ClientStrategy(SingleDeviceStrategy):
    """Trains a network in place: it is neither moved to the device nor, after the fit, to the CPU."""

    def begin(self, module: pl.LightningModule) -> None:
        """Connects a module, and creates its optimizer."""
        self.connect(module)
        self._optimizers = [module.configure_optimizers()]  # type: ignore[list-item]

    def teardown(self) -> None:
        """Releases the module and its optimizer."""
        self._optimizers = []
        self._lightning_module = self.model = None


class AveragedWeights(WeightAveraging):
    """A running mean of the weights, which there is in a fit alone; after it, it is the module's weights."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Starts the mean anew for a fit."""
        self._average_model = None
        if stage == "fit":
            weights = nn.Module()  # a copy of the module itself would have the data and what read the command line
            for name, child in pl_module.named_children():
                weights.add_module(name, child)
            device = self._device or pl_module.device
            self._average_model = AveragedModel(weights, device, use_buffers=self._use_buffers, **self._kwargs)

    @property
    def average(self) -> AveragedModel | None:
        """The mean."""
        return self._average_model

    def swap(self, module: pl.LightningModule) -> None:
        """Exchanges the module's weights and their mean."""
        self._swap_models(module)


class ClientTrainer(pl.Trainer):
    """A Trainer for the fits of many clients: made once, it runs their batches without connectors between."""

    def __init__(
        self, device: torch.device, precision: str = "32-true", check: Callable[[], None] = lambda: None
    ) -> None:
        previous = logging.root.manager.disable
        logging.disable(logging.WARNING)  # what every Trainer says
        try:
            super().__init__(
                accelerator=device.type,
                strategy=ClientStrategy(device),
                devices=[device.index or 0] if device.type == "cuda" else 1,
                precision=precision,  # type: ignore[arg-type]
                max_epochs=-1,
                barebones=True,
            )
        finally:
            logging.disable(previous)
        self._check = check  # raises to stop, before a step
        self.grad_scaler = self.scaler or torch.amp.GradScaler("cpu", enabled=False)

    def _fit_impl(self, model: pl.LightningModule, train_dataloaders: Any = None, *rest: Any) -> None:
        """Runs ``training_step`` on batch after batch, until they end or it returns -1, without anything else."""
        # Lightning's search for data hooks and checkpoints takes longer than a small step
        model.trainer, strategy = self, self.strategy
        assert isinstance(strategy, ClientStrategy)
        strategy.begin(model)
        torch.set_grad_enabled(True)
        model.on_train_start()
        for index, batch in enumerate(train_dataloaders):
            self._check()
            if strategy.training_step(batch, index) == -1:
                break
        model.on_train_end()
        strategy.teardown()
        self.state.status = TrainerStatus.FINISHED
        self.state.stage = None


class RankStrategy(DDPStrategy):
    """Lightning's DDP for a run over several processes, on one node or more.

    The module is not wrapped: autograd computes no gradients of its weights, so there is nothing to reduce, and
    the wrapper's buckets would take as much memory as the weights. The round loop decides what the ranks exchange.
    """

    def configure_ddp(self) -> None:
        """Copies the weights of rank 0 to every rank."""
        assert self.model is not None
        _sync_module_states(self.model)


def strategy_with_ranks(strategy: Strategy | str, **settings: Any) -> Strategy | str:
    """Returns the strategy, with :class:`RankStrategy` in place of Lightning's DDP."""
    if strategy == "auto":
        chosen = _AcceleratorConnector(**settings).strategy
        return RankStrategy(start_method=chosen._start_method) if type(chosen) is DDPStrategy else strategy
    methods = {"ddp": "popen", "ddp_spawn": "spawn", "ddp_fork": "fork", "ddp_notebook": "fork"}
    if isinstance(strategy, str) and strategy in methods:
        return RankStrategy(start_method=methods[strategy])  # type: ignore[arg-type]
    if strategy == "single_device" or isinstance(strategy, SingleDeviceStrategy | RankStrategy):
        return strategy
    name = strategy if isinstance(strategy, str) else type(strategy).__name__
    raise ConfigError(
        f"trainer.strategy: {name} is not supported; give auto, ddp, ddp_spawn, ddp_fork, ddp_notebook, or "
        f"lit_fednas.federation.RankStrategy with settings of its own"
    )


def launched(trainer: pl.Trainer, function: Callable[[], T]) -> T:
    """Calls a function in every process of a trainer, connected, as Lightning calls its own ``fit``."""
    strategy = trainer.strategy
    if trainer.world_size == 1:
        return function()

    def connected() -> T:
        strategy.setup_environment()
        with naming_lost_rank():
            return function()

    return connected() if strategy.launcher is None else strategy.launcher.launch(connected, trainer=trainer)


def save_alone(trainer: pl.Trainer, path: Any) -> None:
    """Writes a checkpoint without waiting for the other ranks, which may have died."""
    trainer.strategy.save_checkpoint(trainer._checkpoint_connector.dump_checkpoint(), path)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint beside its place and then moves it there, so that a kill leaves the old one whole."""

    private = False

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Saves, and waits until the file is on disk."""
        replace_saved(path, checkpoint, sync=True, private=self.private)


def call_hook(trainer: pl.Trainer, name: str, *arguments: Any) -> None:
    """Calls a hook of ours on every callback that has it."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        hook: Callable[..., None] | None = getattr(callback, name, None)
        if hook is not None:
            hook(trainer, trainer.lightning_module, *arguments)
