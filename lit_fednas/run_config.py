"""A run's configuration: its file, and what a checkpoint's run was trained with."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Mapping
from pydoc import locate
from typing import Any, cast

import yaml
from jsonargparse import Namespace
from lightning.pytorch.callbacks import (
    Checkpoint,
    DeviceStatsMonitor,
    LearningRateMonitor,
    ModelSummary,
    ProgressBar,
    ThroughputMonitor,
    Timer,
)
from lightning.pytorch.cli import SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger
from typing_extensions import override

from lit_fednas.config_files import flat
from lit_fednas.errors import ConfigError
from lit_fednas.federation.initial_weights import read_checkpoint
from lit_fednas.federation.run_folder import keeps_files, run_folder

log = logging.getLogger(__name__)

#: What the data of a checkpoint's run depend on, which every command must leave as it was.
_DATA = ("seed_everything", "data")
_CALLBACKS = "trainer.callbacks"
#: What may differ when a run goes on, with what is below it: how it is watched, kept, shown and computed, and when it
#: ends. All else must stay as it was, a new setting and a user's callbacks too.
MAY_DIFFER = {
    # the command's own
    *("config", "ckpt_path", "changed"),
    # how data are read
    *("data.num_workers", "data.eval_batch_size"),
    # what is evaluated, counted and kept of a run that it does not read itself
    *("model.evaluation", "cost_ledger", "checkpoint"),
    *("device_average", "deployed_accuracy", "round_time", "rounds_to_target"),
    *("trainer.check_val_every_n_rounds", "trainer.limit_val_batches", "trainer.limit_test_batches"),
    *("trainer.limit_predict_batches", "trainer.inference_mode"),
    # when it ends
    *("trainer.max_rounds", "trainer.max_time", "trainer.fast_dev_run"),
    # on which machine it trains
    *("trainer.accelerator", "trainer.strategy", "trainer.devices", "trainer.num_nodes", "trainer.threads"),
    *("trainer.deterministic", "trainer.benchmark", "trainer.plugins"),
    # where it is written, and what is shown
    *("trainer.logger", "trainer.default_root_dir", "trainer.model_registry", "trainer.enable_checkpointing"),
    *("trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.enable_autolog_hparams"),
    *("trainer.profiler", "trainer.detect_anomaly", "trainer.barebones"),
}
#: Callbacks of Lightning and of this package that watch; one of the user's own is not among them, whatever its base.
_WATCHERS = (Checkpoint, DeviceStatsMonitor, LearningRateMonitor, ModelSummary, ProgressBar, ThroughputMonitor, Timer)


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
    plain = json.loads(json.dumps(config, default=_plain))
    callbacks = plain.get("trainer", {}).get("callbacks") or []
    callbacks = callbacks if isinstance(callbacks, list) else [callbacks]
    settings = {name: value for name, value in flat(plain) if not _named(name, MAY_DIFFER | {_CALLBACKS})}
    return {**settings, _CALLBACKS: [callback for callback in callbacks if not _watches(callback)]}


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
    if _CALLBACKS not in before:  # by a version that compared less
        now = {name: value for name, value in now.items() if not _named(name, ["trainer"])}
    differing = [name for name in {**before, **now} if before.get(name) != now.get(name)]
    for name in differing:
        if command != "fit" and name.partition(".")[0] not in _DATA:
            continue
        change = f"{json.dumps(before.get(name))}, and now it is {json.dumps(now.get(name))}"
        if _named(name, config.changed):
            log.warning("%s: the checkpoint's run was trained with %s", name, change)
        else:
            raise ConfigError(
                f"{name}: the checkpoint's run was trained with {change}; set it as it was, or allow the change "
                f"with --changed '[{name}]'"
            )


def _named(name: str, settings: Collection[str]) -> bool:
    """Returns whether a setting, or one above it, is among others."""
    return any(f"{name}.".startswith(f"{one}.") for one in settings)


def _watches(callback: Mapping[str, Any]) -> bool:
    path = str(callback["class_path"])
    return path.startswith(("lightning.", "lit_fednas.")) and issubclass(cast(type, locate(path)), _WATCHERS)


def _plain(value: Any) -> Any:
    return value.as_dict() if isinstance(value, Namespace) else str(value)
