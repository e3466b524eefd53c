"""The trainer that speaks of rounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation.lightning_private import AtomicCheckpointIO
from lit_fednas.federation.loop import RoundLoop


class FederatedTrainer(pl.Trainer):
    """Lightning's Trainer with rounds in place of epochs.

    Args:
        max_rounds: Rounds of communication; -1 for no end.
        check_val_every_n_rounds: How often the server's validation set is evaluated.
        **kwargs: As in ``lightning.Trainer``. Those that speak of epochs, steps or batches of training have no
            meaning here and are refused.

    Raises:
        ConfigError: An argument that has no meaning here, or a number out of range.
    """

    def __init__(self, max_rounds: int = 100, check_val_every_n_rounds: int = 1, **kwargs: Any) -> None:
        if max_rounds < -1 or check_val_every_n_rounds < 1:
            raise ConfigError(
                f"trainer: max_rounds {max_rounds} must be -1 or more, "
                f"check_val_every_n_rounds {check_val_every_n_rounds} at least 1"
            )
        plugins = kwargs.pop("plugins", None) or []
        plugins = [*plugins] if isinstance(plugins, list) else [plugins]
        super().__init__(
            max_epochs=max_rounds,
            check_val_every_n_epoch=check_val_every_n_rounds,
            min_epochs=None,
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
            plugins=[*plugins, AtomicCheckpointIO()],
            **kwargs,
        )
        rounds = self.fit_loop.max_epochs  # fast_dev_run has set it to 1
        self.fit_loop = RoundLoop(self, -1 if rounds is None else rounds)

    @property
    def current_round(self) -> int:
        """The round that is running, from 0."""
        return self.current_epoch

    @property
    def max_rounds(self) -> int:
        """Rounds of the whole run."""
        return -1 if self.max_epochs is None else self.max_epochs

    def fit(self, *args: Any, ckpt_path: Any = None, **kwargs: Any) -> None:
        """As in ``lightning.Trainer``; a checkpoint that cannot be read is told before anything is built.

        Raises:
            CheckpointError: The checkpoint is missing or damaged.
        """
        check_readable(ckpt_path)
        super().fit(*args, ckpt_path=ckpt_path, **kwargs)


def check_readable(path: Any) -> None:
    """Raises ``CheckpointError`` if a path is given that is no checkpoint; words like ``last`` pass."""
    if path is None or str(path) in ("last", "best", "hpc"):
        return
    if not Path(path).is_file():
        raise CheckpointError(f"ckpt_path: {path} does not exist; give a .ckpt file, or 'last'")
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except Exception as error:
        summary = str(error).split("\n", 1)[0][:120]
        raise CheckpointError(
            f"ckpt_path: {path} cannot be read ({type(error).__name__}: {summary}); give another checkpoint"
        ) from None
