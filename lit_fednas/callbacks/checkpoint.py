"""Checkpoints at the end of rounds, and when a run stops."""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.checks import higher_is_better
from lit_fednas.federation.lightning_private import RoundFitLoop, save_alone
from lit_fednas.ranges import PositiveInt, Range, checked
from lit_fednas.records.files import check_room


@checked("checkpoint")
class RoundCheckpoint(ModelCheckpoint):
    """Lightning's ``ModelCheckpoint`` with a federated run's defaults.

    Writes ``last.ckpt`` every ``every_n_rounds``, and with the state of the last finished round when Ctrl-C, SIGTERM or
    an error stops the run. With a ``monitor`` the best checkpoints are kept, too.

    Args:
        monitor: The metric that ranks checkpoints; by default only the last checkpoint is kept.
        mode: ``min`` or ``max``, the better direction of the metric; by default derived from the metric.
        save_top_k: Number of best checkpoints to keep; -1 keeps all.
        every_n_rounds: Number of rounds between two checkpoints.
        dirpath: The folder for checkpoints; by default ``checkpoints`` in the run's folder.
    """

    field = "checkpoint"

    def __init__(
        self,
        monitor: str | None = None,
        mode: Literal["min", "max"] | None = None,
        save_top_k: Annotated[int, Range(at_least=-1)] = 1,
        every_n_rounds: PositiveInt = 1,
        dirpath: str | None = None,
    ) -> None:
        super().__init__(
            dirpath=dirpath,
            filename="round={epoch}",
            auto_insert_metric_name=False,
            monitor=monitor,
            mode=mode or "max",
            save_top_k=save_top_k if monitor is not None else 0,
            every_n_epochs=every_n_rounds,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )
        self.every_n_rounds = every_n_rounds
        self._derives_mode = mode is None
        self._started = False  # whether the state is complete, also after a resume
        self._trained_in: Path | None = None

    def setup(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        self._started = False
        if stage == "fit" and self.monitor is not None and self._derives_mode:
            # Set before a state is restored, which Lightning matches by monitor and mode.
            higher = higher_is_better(self.monitor, trainer.datamodule.task, pl_module.metrics)
            if higher is None:
                return  # an unknown metric is reported later, when all metrics are known
            self.mode = "max" if higher else "min"
            if torch.isinf(self.kth_value):  # no best checkpoint yet
                self.kth_value = torch.tensor(-torch.inf if higher else torch.inf)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the best checkpoints, and updates their paths if the run's folder was moved."""
        scores_by_path = state_dict["best_k_models"]
        moved_paths = {path: Path(str(self.dirpath), Path(path).name) for path in scores_by_path}
        if self.dirpath is not None and all(path.is_file() for path in moved_paths.values()):
            scores = {str(moved_paths[path]): score for path, score in scores_by_path.items()}
            names = "best_model_path", "kth_best_model_path"
            paths = {name: str(moved_paths.get(state_dict[name], "")) for name in names}
            state_dict = {**state_dict, **paths, "dirpath": self.dirpath, "best_k_models": scores}
        super().load_state_dict(state_dict)

    def on_fit_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        super().on_fit_start(trainer, pl_module)
        if self.dirpath is not None and trainer.is_global_zero and not trainer.fast_dev_run:
            folder = Path(self.dirpath)
            present = [path for name in (self.CHECKPOINT_NAME_LAST, "round=*") for path in folder.glob(f"{name}.ckpt")]
            if present and trainer.ckpt_path is None and self._trained_in != folder:
                raise ConfigError(
                    f"checkpoint.dirpath: {present[0]} is of another run and would be replaced; choose another folder, "
                    f"move the file, or set ckpt_path to it to continue that run"
                )
            weights = sum(tensor.nbytes for tensor in pl_module.state_dict().values())
            check_room("checkpoint.dirpath", folder, weights)

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        super().on_train_start(trainer, pl_module)
        self._started = True
        self._trained_in = Path(str(self.dirpath))

    def on_train_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Saves the best checkpoints like Lightning, and the last one (which Lightning saves only with a new best)."""
        done = trainer.current_epoch + 1
        if self.monitor in trainer.fit_loop.round_metrics:  # otherwise its value is from an earlier round
            super().on_train_epoch_end(trainer, pl_module)
        if done % self.every_n_rounds == 0 or done == trainer.max_epochs or trainer.should_stop:
            self._save_last(trainer)

    def on_exception(self, trainer: FederatedTrainer, *arguments: Any) -> None:
        """Saves the last finished round if the state is consistent."""
        loop: Any = trainer.fit_loop
        running = self._started and trainer.training
        if running and isinstance(loop, RoundFitLoop) and loop.is_whole and trainer.global_step > 0:
            self._save_last(trainer, save_alone)

    def _save_last(
        self, trainer: FederatedTrainer, save: Callable[..., None] = FederatedTrainer.save_checkpoint
    ) -> None:
        if not trainer.fast_dev_run:
            assert self.dirpath is not None
            save(trainer, Path(self.dirpath) / f"{self.CHECKPOINT_NAME_LAST}.ckpt")
