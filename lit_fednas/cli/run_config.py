"""The run that a command continues, its configuration file, and the settings that its checkpoint depends on."""

import json
import logging
import os
import re
import secrets
from collections.abc import Collection, Mapping
from inspect import getsource
from pathlib import Path
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

from lit_fednas.config_files import expanded, flat, modules_line
from lit_fednas.errors import LIBRARIES, CheckpointError, ConfigError
from lit_fednas.federation.checkpoints import read_checkpoint, weights_file
from lit_fednas.loggers import RunLogger
from lit_fednas.records.files import replace_text
from lit_fednas.records.folder import keeps_files, run_folder
from lit_fednas.records.run import INPUTS_FILE, version_of

log = logging.getLogger(__name__)

#: The file with the run's id in Weights & Biases, in the run's folder.
_WANDB_ID = "wandb-id.txt"
#: The last checkpoint within a run's folder.
_LAST = Path("checkpoints", "last.ckpt")
#: By logger class: the setting that names the folder between ``save_dir`` and the run's folder.
_NAMES = {"RunLogger": "name", "TensorBoardLogger": "name", "WandbLogger": "project"}
#: The settings that decide a run's data; no command may change them.
_DATA = ("seed_everything", "data")
_CALLBACKS = "trainer.callbacks"
#: Settings that may differ when a run is continued, with all settings below them. All others must stay the same, also
#: new settings and a user's callbacks.
MAY_DIFFER = {
    # settings of the command, and of commands after training
    *("config", "ckpt_path", "changed", "search", "finetune"),
    # reading of data
    *("data.num_workers", "data.eval_batch_size"),
    # evaluations, records and checkpoints that training does not read
    *("model.evaluation", "cost_ledger", "checkpoint"),
    *("device_average", "deployed_accuracy", "round_time"),
    *("trainer.check_val_every_n_rounds", "trainer.limit_val_batches", "trainer.limit_test_batches"),
    *("trainer.limit_predict_batches", "trainer.inference_mode"),
    # length of the run
    *("trainer.max_rounds", "trainer.max_time", "trainer.fast_dev_run"),
    # hardware
    *("trainer.accelerator", "trainer.strategy", "trainer.devices", "trainer.num_nodes", "trainer.threads"),
    *("trainer.deterministic", "trainer.benchmark", "trainer.plugins"),
    # output and display
    *("trainer.logger", "trainer.default_root_dir", "trainer.model_registry", "trainer.enable_checkpointing"),
    *("trainer.enable_progress_bar", "trainer.enable_model_summary", "trainer.enable_autolog_hparams"),
    *("trainer.profiler", "trainer.detect_anomaly", "trainer.barebones"),
}
#: Callbacks that do not change training, if the class is Lightning's or this package's; a user's subclass may.
_WATCHERS = (Checkpoint, DeviceStatsMonitor, LearningRateMonitor, ModelSummary, ProgressBar, ThroughputMonitor, Timer)


class SaveConfig(SaveConfigCallback):
    """Saves a run's configuration as ``config.yaml``, in Weights & Biases if used, and in checkpoints."""

    @override
    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Does not save a training's configuration yet, because other parts may still refuse to train."""
        if stage != "fit" and trainer.is_global_zero:
            self.save_config(trainer, pl_module, stage)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Saves a run's configuration in a form that starts a new run."""
        self.config = self.config.clone()
        self.config.ckpt_path, self.config.changed = None, []
        for logger in _listed(self.config.trainer.logger):
            if isinstance(logger, Namespace) and "version" in logger.get("init_args", {}):
                logger.init_args.version = None
        if keeps_files(trainer):
            text = modules_line() + self.parser.dump(self.config, skip_none=False)
            private = getattr(trainer.strategy.checkpoint_io, "private", False)  # the file may hold the noise's seed
            replace_text(run_folder(trainer) / self.config_filename, text, private)
        if trainer.is_global_zero:
            self.save_config(trainer, pl_module, "fit")

    @override
    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Sends nested hyperparameters to W&B, so that sweeps can group by them; saves W&B's id of the run."""
        folder = run_folder(trainer)
        for logger, settings in zip(trainer.loggers, _listed(self.config.trainer.logger), strict=False):
            if not isinstance(logger, WandbLogger):
                continue
            run = logger.experiment
            run.config.update(yaml.safe_load(self.parser.dump(self.config, skip_none=False)), allow_val_change=True)
            if settings["init_args"].get("name") is None:
                run.name = f"{folder.parent.name}/{folder.name}"
            if keeps_files(trainer):
                replace_text(folder / _WANDB_ID, run.id)

    def on_search_end(self, trainer: Any, pl_module: Any, folder: Path) -> None:
        """Names W&B's run and saves its id, since the training may not have been logged there."""
        self.save_config(trainer, pl_module, "search")

    on_finetune_end = on_search_end

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"settings": training_settings(self.config)}


def plain_settings(config: Namespace) -> dict[str, Any]:
    """Returns a command's settings as plain values, nested."""
    return dict(json.loads(json.dumps(config, default=_plain)))


def training_settings(config: Namespace) -> dict[str, Any]:
    """Returns the settings that training depends on, as plain values by their names on the command line."""
    plain = plain_settings(config)
    callbacks = _listed(plain.get("trainer", {}).get("callbacks") or [])
    settings = {name: value for name, value in flat(plain) if not among(name, MAY_DIFFER | {_CALLBACKS})}
    active_callbacks = [callback for callback in callbacks if not _watches(callback)]
    max_rounds = plain.get("trainer", {}).get("max_rounds")
    # a schedule without a length has the run's
    without_length = [name for name, value in settings.items() if value is None and name.endswith(".rounds")]
    for name in without_length:
        share, decay = (settings.get(name.removesuffix("rounds") + other) for other in ("period", "decay"))
        settings[name] = None if decay == "constant" else (share or 1) * max_rounds
    follows = _names_length([plain.get("model"), active_callbacks])
    if follows:
        settings["trainer.max_rounds"] = max_rounds
    if follows or any(name.startswith("model.client.lr_schedule.") for name in without_length):
        budgets = {"cost_ledger.max_macs", "cost_ledger.max_bytes"}
        settings |= {name: value for name, value in flat(plain) if name in budgets}
    return {**settings, _CALLBACKS: active_callbacks}


def _names_length(settings: Any) -> bool:
    """Returns whether the source of a class that is not ours contains ``max_rounds`` or ``.progress``."""
    paths = set(re.findall(r'"class_path": "([\w.]+)"', json.dumps(settings)))
    kinds = {kind for path in paths for kind in getattr(locate(path), "__mro__", ())}
    others = [kind for kind in kinds if kind.__module__.partition(".")[0] not in LIBRARIES]
    return any(word in getsource(kind) for kind in others for word in ("max_rounds", ".progress"))


def check_same_settings(config: Namespace, command: str) -> None:
    """Validates that the checkpoint's run had the same settings; commands after ``fit`` compare only the data's."""
    if config.ckpt_path in ("last", "best", "hpc"):
        return  # Lightning finds another logger's checkpoint
    saved = read_checkpoint(config.ckpt_path).get("callbacks", {}).get(SaveConfig.__name__, {}).get("settings")
    if saved is None:
        return  # Python code has trained the run, without a configuration
    saved, present = expanded(saved), training_settings(config)
    for name in {**saved, **present}:
        if saved.get(name) == present.get(name) or (command != "fit" and name.partition(".")[0] not in _DATA):
            continue
        by_run = " by trainer.max_rounds" if name.endswith(".rounds") and config.get(name) is None else ""
        is_argument = name.rpartition(".")[0].endswith("init_args")  # a checkpoint has all arguments of a class
        is_new = is_argument and name not in saved and not any(among(other, {name}) for other in saved)
        if is_new or (by_run and saved.get(name) is None):
            continue  # the checkpoint's version did not have the setting
        change = f"{json.dumps(saved.get(name))}, and now it is {json.dumps(present.get(name))}{by_run}"
        if among(name, config.changed):
            log.warning("%s: the run was trained with %s", name, change)
        else:
            raise ConfigError(f"{name}: the run was trained with {change}; restore it, or add --changed '[{name}]'")


def run_of(config: Any) -> Path | None:
    """Returns the folder of the last run among a command's files, recognised by its ``config.yaml``."""
    files = [Path(str(file)) for file in config.config or ()]
    runs = [file.parent for file in files if file.name == "config.yaml" and file.with_name(INPUTS_FILE).exists()]
    return runs[-1] if runs else None


def swept_checkpoint(loggers: Any) -> str | None:
    """Returns the checkpoint of the run that a W&B agent resumes, found by the run's id."""
    settings = _logger_settings(loggers) if "WANDB_SWEEP_ID" in os.environ else None
    files = Path(settings["save_dir"], settings["name"]).glob(f"*/{_WANDB_ID}") if settings is not None else ()
    runs = [file.parent for file in files if file.read_text() == os.environ.get("WANDB_RUN_ID")]
    return next((str(run / _LAST) for run in runs if (run / _LAST).exists()), None)


def continue_run(config: Any, ckpt_path: str, run: Path | None) -> str:
    """Returns a checkpoint's file, and makes the loggers write into its run: ``run``, or the newest of the name."""
    trainer, settings, dirpath = config.trainer, _logger_settings(config.trainer.logger), config.checkpoint.dirpath
    root = Path(settings["save_dir"], settings["name"]) if settings is not None else None
    if ckpt_path in ("last", "best"):
        if run is None and root is None and trainer.logger:  # the logger may know the checkpoint
            last = Path(dirpath or "", _LAST.name)
            return str(last) if ckpt_path == "last" and dirpath and last.exists() else ckpt_path
        if run is None:
            run = _newest_run(root, settings["version"], ckpt_path) if root else Path(trainer.default_root_dir or "")
        checkpoint = _checkpoint_in(run, ckpt_path)
    elif (checkpoint := weights_file(ckpt_path)) != Path(ckpt_path):  # an exported supernet's folder acts as a run
        run = checkpoint.parent if root is not None else None
    else:
        folder, root_of_runs = checkpoint.parent.parent, root if run is None else run.parent
        run = folder if root_of_runs is not None and folder.parent.resolve() == root_of_runs.resolve() else None
    if run is not None:
        run = (
            run if run.parent == root else run.resolve()
        )  # absolute: a saved path must not depend on the working directory
        trainer.default_root_dir = trainer.default_root_dir if trainer.logger else str(run)
        for logger, name in _NAMES.items():
            if (settings := _logger_settings(trainer.logger, logger)) is not None:
                settings["save_dir"], settings[name] = map(str, (run.parent.parent, run.parent.name))
                settings["version"] = run.name
    return str(checkpoint)


def check_new_run(loggers: Any, root: str | None = None) -> None:
    """Validates that a new run replaces no files of its logger's version, or of ``root`` without a logger."""
    settings = _logger_settings(loggers)
    used = Path(root) if not loggers and root is not None and Path(root).resolve() != Path.cwd() else None
    # a run without a checkpoint may be replaced
    if used and any(used.rglob("*.ckpt") if (used / INPUTS_FILE).exists() else used.glob("*")):
        raise ConfigError(f"trainer.default_root_dir: {root} is not empty; give a new one, or continue with ckpt_path")
    if settings is None or settings["version"] is None:
        return
    folder = Path(settings["save_dir"]) / settings["name"] / _folder_name(settings["version"])
    if any(folder.glob("checkpoints/*.ckpt")):
        raise ConfigError(f"trainer.logger.init_args.version: {folder} has a run; omit version, or set ckpt_path: last")


def share_run(loggers: Any) -> None:
    """Makes the other loggers write into the first logger's run: its folder, or the W&B run with the id in it."""
    run, others = _logger_settings(loggers), _listed(loggers)[1:]
    if run is None or not others:
        return
    if run["version"] is None:
        run["version"] = RunLogger(run["save_dir"], run["name"]).version
    file = Path(run["save_dir"]) / run["name"] / _folder_name(run["version"]) / _WANDB_ID
    identity = file.read_text() if file.exists() else secrets.token_hex(4)
    for logger in others:
        settings = logger.get("init_args", {})
        if logger["class_path"].endswith(WandbLogger.__name__):
            has_id = (
                settings.get("id") or settings.get("version") or "WANDB_RUN_ID" in os.environ
            )  # set by a sweep's agent
            settings["version"] = settings.get("version") if has_id else identity
        elif "name" in settings and settings["name"] is None:
            settings["name"], settings["version"] = run["name"], _folder_name(run["version"])


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _logger_settings(loggers: Any, kind: str = RunLogger.__name__) -> Any:
    """Returns the settings of the first logger if it has this class, else ``None``."""
    first = _listed(loggers)[0]
    is_kind = isinstance(first, Namespace | dict) and first["class_path"].endswith(kind)
    return first["init_args"] if is_kind else None


def _folder_name(version: int | str) -> str:
    return f"version_{version}" if isinstance(version, int) else version


def _newest_run(root: Path, version: int | str | None, word: str) -> Path:
    """Returns the run with this version, or with the highest version number."""
    runs = root.glob("*" if version is None else _folder_name(version))
    paths = [(run, path) for run in runs for path in (run / "config.yaml", run / _LAST) if path.exists()]
    files = [(version_of(run), path.stat().st_mtime, run) for run, path in paths]
    if not files:
        raise CheckpointError(f"ckpt_path: {word!r} finds no run in {root}; train one (lit-fednas fit), or give a file")
    return max(files)[2]


def _checkpoint_in(run: Path, word: str) -> Path:
    """Returns the last or best checkpoint of a run."""
    if not (last := run / _LAST).exists():
        remedy = "train without ckpt_path, or give a file"
        raise CheckpointError(f"ckpt_path: {word!r}: {last} does not exist, as no round was saved there; {remedy}")
    if word == "last":
        return last
    for state in read_checkpoint(last, ["callbacks"])["callbacks"].values():
        if isinstance(state, dict) and state.get("best_model_path"):
            return last.parent / Path(state["best_model_path"]).name
    raise CheckpointError(f"ckpt_path: no 'best' in {last.parent}; train with checkpoint.monitor, or use last")


def among(name: str, settings: Collection[str]) -> bool:
    """Returns whether a setting, or one above it, is among others."""
    return any(f"{name}.".startswith(f"{setting}.") for setting in settings)


def _watches(callback: Mapping[str, Any]) -> bool:
    path = str(callback["class_path"])
    return path.startswith(("lightning.", "lit_fednas.")) and issubclass(cast(type, locate(path)), _WATCHERS)


def _plain(value: Any) -> Any:
    return value.as_dict() if isinstance(value, Namespace) else str(value)
