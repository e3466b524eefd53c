"""A run's configuration: its file, and what a checkpoint's run was trained with."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator, Mapping
from typing import Any

import yaml
from jsonargparse import Namespace
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger
from typing_extensions import override

from lit_fednas.callbacks import OPTIONAL_CALLBACKS
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedCallback
from lit_fednas.federation.initial_weights import read_checkpoint
from lit_fednas.federation.run_folder import keeps_files, run_folder

log = logging.getLogger(__name__)

#: Callbacks that change what is trained, by their keys.
_METHODS = [
    name
    for name, callback in OPTIONAL_CALLBACKS.items()
    if any(
        getattr(callback, hook, None) not in (None, getattr(FederatedCallback, hook))
        for hook in ("on_round_start", "on_results")
    )
]
#: What the data of a checkpoint's run depend on, which every command must leave as it was.
_DATA = ("seed_everything", "data")
#: How data are read, which changes nothing.
_SAME_DATA = ("data.num_workers", "data.eval_batch_size")


class SaveConfig(SaveConfigCallback):
    """Saves a run's configuration as ``config.yaml``, in Weights & Biases if used, and in checkpoints."""

    @override
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Saves nothing of a run yet: other parts may still refuse to train."""
        if stage != "fit" and trainer.is_global_zero:
            self.save_config(trainer, pl_module, stage)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Saves what a run is trained with, so that it starts a new run if it is given back."""
        self.config = self.config.clone()
        self.config.ckpt_path, self.config.changed = None, []
        loggers = self.config.trainer.logger
        for logger in loggers if isinstance(loggers, list) else [loggers]:
            if isinstance(logger, Namespace) and "version" in logger.get("init_args", {}):
                logger.init_args.version = None
        if keeps_files(trainer):
            folder = run_folder(trainer)
            folder.mkdir(parents=True, exist_ok=True)
            self.parser.save(self.config, folder / self.config_filename, skip_none=False, overwrite=True)
        if trainer.is_global_zero:
            self.save_config(trainer, pl_module, "fit")

    @override
    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Gives the configuration to W&B as nested hyperparameters, so that sweeps can group by them."""
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.experiment.config.update(
                    yaml.safe_load(self.parser.dump(self.config, skip_none=False)), allow_val_change=True
                )

    def state_dict(self) -> dict[str, Any]:
        """Returns the settings that training depends on, by their names on the command line."""
        return {"settings": training_settings(self.config)}


def training_settings(config: Namespace) -> dict[str, Any]:
    """Returns the settings that training depends on, by their names on the command line; plain values.

    Args:
        config: A command's configuration.
    """
    settings = {name: config.get(name) for name in (*_DATA, "model", *_METHODS)}
    plain = json.loads(json.dumps(settings, default=_plain))
    plain["model"].pop("evaluation", None)
    return {name: value for name, value in _flat(plain) if name not in _SAME_DATA}


def check_same_settings(config: Namespace, command: str) -> None:
    """Validates that a checkpoint is used with the settings that its run was trained with.

    Args:
        config: The command's configuration; ``ckpt_path`` and ``changed`` are read.
        command: ``fit`` compares all that training depends on, the other commands the data alone.

    Raises:
        CheckpointError: The checkpoint is missing, damaged, or not a run's.
        ConfigError: A setting differs that ``changed`` does not name.
    """
    if config.ckpt_path in ("last", "best", "hpc"):
        return  # another logger's; Lightning looks for it
    before = read_checkpoint(config.ckpt_path).get("callbacks", {}).get(SaveConfig.__name__, {}).get("settings")
    if before is None:
        return  # a run of Python code
    now = training_settings(config)
    differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    for name in differing:
        if command != "fit" and name.partition(".")[0] not in _DATA:
            continue
        change = f"{json.dumps(before.get(name))}, and now it is {json.dumps(now.get(name))}"
        if any(f"{name}.".startswith(f"{allowed}.") for allowed in config.changed):
            log.warning("%s: the checkpoint's run was trained with %s", name, change)
        else:
            raise ConfigError(
                f"{name}: the checkpoint's run was trained with {change}; set it as it was, or allow the change "
                f"with --changed '[{name}]'"
            )


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, item in value.items():
        if isinstance(item, Mapping):
            yield from _flat(item, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", item


def _plain(value: Any) -> Any:
    return value.as_dict() if isinstance(value, Namespace) else str(value)
