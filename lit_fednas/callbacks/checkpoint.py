"""Checkpoints at the end of rounds, and when a run is stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_fednas.federation.lightning_private import RoundFitLoop


class RoundCheckpoint(ModelCheckpoint):
    """Lightning's ``ModelCheckpoint`` with a federated run's defaults.

    ``last.ckpt`` is written after every round (or every so many), so that a kill loses at most that; with a
    ``monitor`` the best are kept beside it. When a run is stopped by Ctrl-C, SIGTERM or an error, ``last.ckpt``
    is written with the state of the last finished round.

    Args:
        monitor: The metric that says which checkpoints are best; none are kept without.
        mode: Whether it shall be high or low.
        save_top_k: How many of the best to keep.
        every_n_rounds: How often to write.
        dirpath: Where; ``checkpoints`` in the run's folder if not given.
    """

    def __init__(
        self,
        monitor: str | None = None,
        mode: str = "max",
        save_top_k: int = 1,
        every_n_rounds: int = 1,
        dirpath: str | None = None,
    ) -> None:
        super().__init__(
            dirpath=dirpath,
            filename="round={epoch}",
            auto_insert_metric_name=False,
            monitor=monitor,
            mode=mode,
            save_top_k=save_top_k if monitor is not None else 0,
            save_last=True,
            every_n_epochs=every_n_rounds,
            save_on_train_epoch_end=True,
            enable_version_counter=False,
        )

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        """Saves the last finished round, if the state is that."""
        loop: Any = trainer.fit_loop
        if trainer.training and isinstance(loop, RoundFitLoop) and loop.is_whole and trainer.global_step > 0:
            assert self.dirpath is not None
            trainer.save_checkpoint(Path(self.dirpath) / "last.ckpt")
