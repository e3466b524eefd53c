"""Lightning's Trainer with rounds in place of epochs."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Annotated, Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Callback, ProgressBar
from lightning.pytorch.plugins import CheckpointIO, Precision
from torch import Tensor, distributed
from typing_extensions import override

from lit_fednas.data import FederatedDataModule
from lit_fednas.errors import ConfigError, place_of
from lit_fednas.federation.checkpoints import check_checkpoint, read_checkpoint
from lit_fednas.federation.lightning_private import AtomicCheckpointIO, strategy_with_ranks
from lit_fednas.federation.loop import RoundLoop
from lit_fednas.federation.module import FederatedLightningModule
from lit_fednas.federation.process import threads_set
from lit_fednas.federation.ranks import Ranks
from lit_fednas.ranges import PositiveInt, Range, checked

_NO_BATCHES = "remove it, because rounds have no training batches"
#: Arguments and callbacks of Lightning's Trainer without a meaning for rounds, and the remedy for each.
MEANINGLESS = {
    "precision": "set client.precision for the clients; the server evaluates in float32",
    "max_epochs": "set max_rounds",
    "max_steps": "set max_rounds",
    "check_val_every_n_epoch": "set check_val_every_n_rounds",
    "gradient_clip_val": "set client.clip_norm",
    **dict.fromkeys(("min_epochs", "min_steps", "limit_train_batches", "overfit_batches"), _NO_BATCHES),
    **dict.fromkeys(("val_check_interval", "num_sanity_val_steps", "log_every_n_steps"), _NO_BATCHES),
    **dict.fromkeys(("accumulate_grad_batches", "gradient_clip_algorithm"), _NO_BATCHES),
    **dict.fromkeys(("use_distributed_sampler", "reload_dataloaders_every_n_epochs"), _NO_BATCHES),
    **dict.fromkeys(("BaseFinetuning", "ModelPruning", "ThroughputMonitor"), _NO_BATCHES),
    **dict.fromkeys(("BatchSizeFinder", "GradientAccumulationScheduler"), "set client.batch_size"),
    "LearningRateFinder": "set lr of client.optimizer",
    "SpikeDetection": "set faults.norm_bound",
    "StochasticWeightAveraging": "set weight_average",
}


@checked("trainer")
class FederatedTrainer(pl.Trainer):
    """Lightning's Trainer with rounds in place of epochs.

    Args:
        max_rounds: Number of communication rounds; -1 for no end.
        check_val_every_n_rounds: Number of rounds between evaluations on the server's validation set.
        threads: Number of threads of each rank on a CPU. The default depends on ``OMP_NUM_THREADS``, the network's
            size, and the number of ranks on a node.
        **kwargs: Arguments of ``lightning.Trainer``, except those of epochs, steps and training batches.
    """

    # Lightning's connectors set these attributes
    callbacks: list[Callback]
    datamodule: FederatedDataModule
    fast_dev_run: bool | int
    fit_loop: RoundLoop

    def __init__(
        self,
        max_rounds: Annotated[int, Range(at_least=-1)] = 100,
        check_val_every_n_rounds: PositiveInt = 1,
        threads: Annotated[int, Range(at_least=1, at_most=1024)] | None = None,
        **kwargs: Any,
    ) -> None:
        if max_rounds == 0:
            raise ConfigError("trainer.max_rounds: 0 trains nothing; give at least 1, or -1 for no end")
        for name in sorted(MEANINGLESS.keys() & kwargs.keys()):
            raise ConfigError(f"trainer.{name}: {kwargs[name]} has no meaning here; {MEANINGLESS[name]}")
        if kwargs.get("enable_progress_bar") is False:  # then Lightning refuses bars among the callbacks
            callbacks = kwargs.get("callbacks") or []
            callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
            kwargs["callbacks"] = [callback for callback in callbacks if not isinstance(callback, ProgressBar)]
        plugins = kwargs.pop("plugins", None) or []
        plugins = [*plugins] if isinstance(plugins, list) else [plugins]
        for name in (type(plugin).__name__ for plugin in plugins if isinstance(plugin, Precision)):
            raise ConfigError(f"trainer.plugins: {name} has no meaning here; {MEANINGLESS['precision']}")
        if not any(isinstance(plugin, CheckpointIO) for plugin in plugins):
            plugins.append(AtomicCheckpointIO())
        if isinstance(devices := kwargs.get("devices"), int) and devices > 1024:
            raise ConfigError(f"trainer.devices: {devices} is more than one machine has; give at most 1024")
        placement = {name: kwargs[name] for name in ("devices", "accelerator", "num_nodes") if name in kwargs}
        kwargs["strategy"] = strategy_with_ranks(kwargs.get("strategy", "auto"), **placement)
        super().__init__(
            max_epochs=max_rounds,
            check_val_every_n_epoch=check_val_every_n_rounds,
            # written out, because jsonargparse reads this call: other arguments become options
            min_epochs=None,
            precision=None,
            max_steps=-1,
            min_steps=None,
            limit_train_batches=1.0,
            overfit_batches=0.0,
            val_check_interval=1.0,
            num_sanity_val_steps=0,
            log_every_n_steps=1,
            accumulate_grad_batches=1,
            gradient_clip_val=None,
            gradient_clip_algorithm=None,
            use_distributed_sampler=False,
            reload_dataloaders_every_n_epochs=0,
            plugins=plugins,
            **kwargs,
        )
        kinds = [kind for callback in self.callbacks for kind in type(callback).__mro__]
        names = {kind.__name__ for kind in kinds if kind.__module__.startswith("lightning.")}
        for name in sorted(MEANINGLESS.keys() & names):
            raise ConfigError(f"trainer.callbacks: {name} has no meaning here; {MEANINGLESS[name]}")
        self.threads = threads
        if self.fast_dev_run:  # trains this number of rounds, with one validation
            max_rounds = self.check_val_every_n_epoch = int(self.fast_dev_run)
        self.fit_loop = RoundLoop(self, max_rounds)

    @property
    def max_rounds(self) -> int:
        """Number of rounds of the whole run; -1 for no end."""
        return -1 if self.max_epochs is None else self.max_epochs

    @override
    def fit(  # type: ignore[override]
        self,
        model: pl.LightningModule,
        datamodule: pl.LightningDataModule | None = None,
        ckpt_path: str | None = None,
    ) -> None:
        """Trains the global weights; with ``ckpt_path`` resumes the checkpoint's run."""
        check_checkpoint(ckpt_path, ("loops", "callbacks", "optimizer_states", "lr_schedulers"))
        try:
            super().fit(model, datamodule=datamodule, ckpt_path=ckpt_path, weights_only=True)
        except Exception as error:
            if location := place_of(error):
                error.add_note(f"raised in {location}")
            raise

    @override
    def validate(  # type: ignore[override]
        self,
        model: FederatedLightningModule | None = None,
        datamodule: pl.LightningDataModule | None = None,
        ckpt_path: str | None = None,
        verbose: bool = False,
    ) -> Any:
        """Evaluates the subnets on the server's validation set, and returns a list with one dictionary of metrics."""
        return self._evaluate(super().validate, model, datamodule, ckpt_path, verbose)

    @override
    def test(  # type: ignore[override]
        self,
        model: FederatedLightningModule | None = None,
        datamodule: pl.LightningDataModule | None = None,
        ckpt_path: str | None = None,
        verbose: bool = False,
    ) -> Any:
        """Evaluates the subnets on the test set, and returns a list with one dictionary of metrics."""
        return self._evaluate(super().test, model, datamodule, ckpt_path, verbose)

    def _evaluate(
        self, run: Callable[..., Any], model: Any, datamodule: Any, ckpt_path: str | None, verbose: bool
    ) -> Any:
        check_checkpoint(ckpt_path)
        with self.computing(model):
            return run(model, None, ckpt_path, verbose, datamodule, weights_only=True)

    @override
    def predict(  # type: ignore[override]
        self,
        model: FederatedLightningModule | None = None,
        datamodule: FederatedDataModule | None = None,
        ckpt_path: str | None = None,
    ) -> list[Tensor]:
        """Returns logits of the subnet ``evaluation.predicted``, batch by batch in the order of the test set."""
        check_checkpoint(ckpt_path)
        with self.computing(model):
            logits: Any = super().predict(model, datamodule=datamodule, ckpt_path=ckpt_path, weights_only=True)
        order = self.datamodule.predict_dataloader().rows.argsort()  # the batches are those of ``test``
        return list(torch.cat(logits)[order].split(len(logits[0])))

    def load(self, model: FederatedLightningModule, datamodule: FederatedDataModule, ckpt_path: str | None) -> None:
        """Sets up module and data like ``validate``, with the weights of a checkpoint if there is one."""
        if self.world_size > 1 and not distributed.is_initialized():
            raise ConfigError(f"trainer.devices: {self.world_size} processes cannot load a module here; set it to 1")
        checkpoint = None if ckpt_path is None else read_checkpoint(ckpt_path)
        datamodule.prepare_data()
        datamodule.setup("validate")
        if checkpoint is not None:
            datamodule.load_state_dict(checkpoint.get(type(datamodule).__qualname__, {}))
        model.meet(datamodule.clients)
        model.trainer = self
        self.strategy.connect(model)
        if checkpoint is not None:
            model.on_load_checkpoint(checkpoint)
            model.load_state_dict(checkpoint["state_dict"])
        device = self.strategy.root_device
        model.to(device).eval()
        datamodule.move_to(device)

    @property
    def ranks(self) -> Ranks:
        """This process and its connection to the trainer's other processes."""
        return Ranks(self.global_rank, self.world_size, self.strategy.root_device)

    def computing(
        self, model: FederatedLightningModule | None = None, threads: int | None = None
    ) -> AbstractContextManager[Sequence[int]]:
        """Sets the number of threads inside the block; :attr:`threads` takes precedence over ``threads``."""
        module: Any = model or self.lightning_module
        ranks_here = self.world_size // self.num_nodes
        return threads_set(self.threads or threads, module.supernet, module.client.batch_size, ranks_here)
