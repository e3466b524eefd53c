"""All private names of Lightning that the engine uses (lightning 2.6), behind public interfaces; a test pins them."""

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
    """Always validates the last round, also after an early stop, because its weights are the run's result."""

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
        self._one_batch: UserList[Any] = UserList([None])  # Lightning would take a list for several loaders
        self._earlier_metrics: dict[str, Any] = {}

    @abstractmethod
    def train_cohort(self, round: int) -> Any:
        """Trains the round's clients; returns the batch of ``training_step``."""

    def setup_data(self) -> None:
        """Makes the round's batch the training data loader."""
        self._data_source = _DataLoaderSource(self._one_batch, "train_dataloader")
        super().setup_data()

    def advance(self) -> None:
        """Runs a round: the cohort, then Lightning's own step and validation."""
        # ModelCheckpoint can save between the server's step and the round's end; then only the end is left
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
        """Stores the metrics of earlier rounds, then begins a round."""
        self._earlier_metrics = dict(self.trainer.callback_metrics)
        super().on_advance_start()

    def on_advance_end(self) -> None:
        """Ends a round; validates it if a callback such as EarlyStopping stops the training at its end."""
        is_validated = self.epoch_loop._should_check_val_epoch()
        super().on_advance_end()
        if self.trainer.should_stop and self.trainer.enable_validation and not is_validated:
            self.trainer.validating = True
            self.epoch_loop.val_loop.run()
            self.trainer.training = True

    @property
    def round_metrics(self) -> dict[str, torch.Tensor]:
        """The metrics that this round logged: Lightning also keeps earlier rounds' metrics, as the same tensors."""
        metrics, earlier = self.trainer.callback_metrics, self._earlier_metrics
        return {name: value for name, value in metrics.items() if earlier.get(name) is not value}

    @property
    def is_whole(self) -> bool:
        """True between two rounds, when the state may be saved."""
        return bool(self.epoch_progress.current.ready == self.epoch_progress.current.completed)

    @property
    def rounds_done(self) -> int:
        """The number of finished rounds."""
        return int(self.epoch_progress.current.processed)

    def _warn_if_modules_in_eval_mode(self) -> None:
        """Suppresses the warning, because the server's module is never in training mode."""


class ClientStrategy(SingleDeviceStrategy):
    """Trains a network in place, without moving it to the device before the fit or to the CPU after it."""

    def begin(self, module: pl.LightningModule) -> None:
        """Connects a module, and creates its optimizer."""
        self.connect(module)
        self._optimizers = [module.configure_optimizers()]  # type: ignore[list-item]

    def teardown(self) -> None:
        """Releases the module and its optimizer."""
        self._optimizers = []
        self._lightning_module = self.model = None


class AveragedWeights(WeightAveraging):
    """A running mean of the weights during a fit; at its end, Lightning copies the mean into the module."""

    def setup(self, trainer: pl.Trainer, pl_module: pl.LightningModule, stage: str) -> None:
        """Starts a new mean for a fit."""
        self._average_model = None
        if stage == "fit":
            weights = nn.Module()  # a copy of the whole module would include the data and the parser's objects
            for name, child in pl_module.named_children():
                weights.add_module(name, child)
            device = self._device or pl_module.device
            self._average_model = AveragedModel(weights, device, use_buffers=self._use_buffers, **self._kwargs)

    @property
    def average(self) -> AveragedModel | None:
        """The mean of the last fit; ``None`` before a fit and in other commands."""
        return self._average_model

    def swap(self, module: pl.LightningModule) -> None:
        """Exchanges the module's weights and their mean."""
        self._swap_models(module)


class ClientTrainer(pl.Trainer):
    """A Trainer that is created once for the fits of many clients, and runs their batches without overhead."""

    def __init__(
        self, device: torch.device, precision: str = "32-true", check: Callable[[], None] = lambda: None
    ) -> None:
        previous = logging.root.manager.disable
        logging.disable(logging.WARNING)  # hides the messages of every new Trainer
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
        self._check = check  # called before each step; raises to stop
        self.grad_scaler = self.scaler or torch.amp.GradScaler("cpu", enabled=False)

    def _fit_impl(self, model: pl.LightningModule, train_dataloaders: Any = None, *rest: Any) -> None:
        """Runs ``training_step`` on each batch, until they end or it returns -1."""
        # Lightning's own implementation looks for data hooks and checkpoints, which takes longer than a small step
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
    """Lightning's DDP for a run over several processes, on one node or more; the round loop exchanges the updates."""

    def configure_ddp(self) -> None:
        """Copies the weights of rank 0 to every rank."""
        # no DDP wrapper: there are no gradients to reduce, and the wrapper's buckets would double the memory
        assert self.model is not None
        _sync_module_states(self.model)


def strategy_with_ranks(strategy: Strategy | str, **settings: Any) -> Strategy | str:
    """Returns the strategy, with :class:`RankStrategy` in place of Lightning's DDP."""
    if strategy == "auto":
        default = _AcceleratorConnector(**settings).strategy
        return RankStrategy(start_method=default._start_method) if type(default) is DDPStrategy else strategy
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
    """Calls a function in every process of a trainer, as Lightning calls its own ``fit``."""
    strategy = trainer.strategy
    if trainer.world_size == 1:
        return function()

    def connected() -> T:
        strategy.setup_environment()
        with naming_lost_rank():
            return function()

    return connected() if strategy.launcher is None else strategy.launcher.launch(connected, trainer=trainer)


def save_alone(trainer: pl.Trainer, path: Any) -> None:
    """Writes a checkpoint without waiting for the other ranks, because they may have died."""
    trainer.strategy.save_checkpoint(trainer._checkpoint_connector.dump_checkpoint(), path)


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes a checkpoint to a temporary file and then renames it, so that a kill leaves the old one intact."""

    private = False

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        """Saves, and waits until the file is on disk."""
        replace_saved(path, checkpoint, sync=True, private=self.private)


def call_hook(trainer: pl.Trainer, name: str, *arguments: Any) -> None:
    """Calls a hook on every callback that has it."""
    for callback in trainer.callbacks:  # type: ignore[attr-defined]
        hook: Callable[..., None] | None = getattr(callback, name, None)
        if hook is not None:
            hook(trainer, trainer.lightning_module, *arguments)
