"""The commands that need a configuration: every setting is a key of a YAML file and an option of the same name.

A run is a folder, by default ``runs/<name>/version_<n>``; ``--ckpt_path last`` continues the newest run in its folder.
"""

import inspect
import logging
import re
import sys
import warnings
from argparse import SUPPRESS
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from pydoc import locate
from shlex import quote
from typing import Any, ClassVar, cast

import lightning
import yaml
from jsonargparse import ArgumentError, get_loader, set_loader
from jsonargparse._deprecated import JsonargparseDeprecationWarning
from lightning import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.utilities import rank_zero_only
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from typing_extensions import override

from lit_fednas import __version__
from lit_fednas.callbacks import OPTIONAL_CALLBACKS, CostLedger, RoundCheckpoint, default_callbacks
from lit_fednas.callbacks.draw_fronts import DrawFronts
from lit_fednas.cli.commands import TRAINING
from lit_fednas.cli.effects import without_effect
from lit_fednas.cli.run_config import (
    SaveConfig,
    among,
    check_new_run,
    check_same_settings,
    continue_run,
    plain_settings,
    run_of,
    share_run,
    swept_checkpoint,
)
from lit_fednas.config_files import EXAMPLE_TIERS, expanded, parse_yaml
from lit_fednas.data import FederatedDataModule
from lit_fednas.errors import ConfigError, FedNASError, did_you_mean
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.process import Interrupted
from lit_fednas.records import TierFiles
from lit_fednas.records.folder import keeps_files, run_folder

log = logging.getLogger(__name__)
_load = get_loader("yaml")
# a text that our YAML reader refuses stays text, which its setting may refuse
set_loader("yaml", lambda text: None if parse_yaml(text) is None else _load(text), (yaml.YAMLError, ValueError))

RUN_LOGGER = {"class_path": "lit_fednas.loggers.RunLogger", "init_args": {"save_dir": "runs", "name": "run"}}
PARTS = ("trainer", "model", "datamodule")
#: Arguments that a supernet takes from the data.
LINKED = {"num_classes", "input_shape"}
#: Every parser raises errors, refuses shortened options, and writes versions into saved configurations.
STRICT: dict[str, Any] = {
    "exit_on_error": False,
    "allow_abbrev": False,
    "dump_header": [f"lit-fednas=={__version__}", f"lightning=={lightning.__version__}"],
}


class FederatedCLI(LightningCLI):
    """LightningCLI for one module, one data module and one trainer, with more commands than the trainer's."""

    data_class: ClassVar[type[FederatedDataModule]] = FederatedDataModule

    def __init__(self, words: Sequence[str]) -> None:
        self._words = list(words)
        try:
            super().__init__(
                model_class=FederatedLightningModule,
                datamodule_class=self.data_class,
                trainer_class=FederatedTrainer,
                trainer_defaults={
                    "logger": RUN_LOGGER,
                    "callbacks": [*default_callbacks(), DrawFronts()],
                    "enable_model_summary": False,
                },
                save_config_callback=SaveConfig,
                save_config_kwargs={"overwrite": True},
                seed_everything_default=0,
                auto_configure_optimizers=False,
                parser_kwargs={**STRICT, "prog": "lit-fednas"},
                args=self._words,
            )
        except (Interrupted, OSError) as error:
            error.add_note(self._remedy())
            raise

    def _remedy(self) -> str:
        """Returns the remedy after a stop: how to continue the command."""
        callback = getattr(getattr(self, "trainer", None), "checkpoint_callback", None)
        if callback is None or self.subcommand != "fit":
            return "start the same command again"
        last = Path(str(callback.dirpath), "last.ckpt")
        if last.exists():
            return f"continue with --ckpt_path {quote(str(last))}"
        return "start the same command again, as no round is saved yet"

    @override
    def _add_subcommands(self, parser: LightningArgumentParser, **kwargs: Any) -> None:
        self._subcommand_parsers: dict[str, LightningArgumentParser] = {}
        subcommands = parser.add_subcommands()
        names = [name for name in TRAINING if name in self._words]  # other parsers would only take time
        for name in names or TRAINING:  # a file may name the command
            command = TRAINING[name]
            description = command.summary.rstrip(".")
            subparser = self.init_parser(**STRICT, description=description)
            if "trainer" in _parts(name):
                self._add_arguments(subparser)
            else:
                self._add_fewer_arguments(subparser)
            self._subcommand_method_arguments[name] = subparser.add_method_arguments(
                command.load(), command.method, skip={"model", "datamodule"}
            )
            for option in self._subcommand_method_arguments[name]:  # an option without a value is true
                if (action := subparser._option_string_actions[f"--{option}"]).default is False:
                    action.nargs, action.const = "?", True
            for other in ("search", "finetune"):
                if other in self._subcommand_method_arguments[name]:
                    continue
                text = f"Settings of the command {other}, which this command keeps but does not read."
                subparser.add_argument(f"--{other}", type=dict[str, Any], default=SUPPRESS, help=text)
            self._subcommand_parsers[name] = subparser
            subcommands.add_subcommand(name, subparser, help=description)

    def _add_fewer_arguments(self, parser: LightningArgumentParser) -> None:
        """Adds the data's arguments; ignores all other settings of a run's configuration."""
        self.add_default_arguments_to_parser(parser)
        parser.add_lightning_class_args(FederatedDataModule, "data")
        parser.link_arguments("seed_everything", "data.seed", compute_fn=_seed)
        others = ("trainer", "model", "cost_ledger", "checkpoint", "ckpt_path", "changed")
        for name in (*others, *OPTIONAL_CALLBACKS):
            parser.add_argument(f"--{name}", type=Any, default=None, help=SUPPRESS)

    @override
    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_lightning_class_args(CostLedger, "cost_ledger")
        parser.add_lightning_class_args(RoundCheckpoint, "checkpoint")
        for name, callback in OPTIONAL_CALLBACKS.items():
            summary = str(callback.__doc__).partition("\n")[0]
            parser.add_argument(f"--{name}", type=callback | None, default=None, help=summary)
        parser.link_arguments("seed_everything", "model.seed", compute_fn=_seed)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=_seed)
        parser.add_argument(
            "--changed",
            type=list[str],
            default=[],
            help="Settings that may change when a run is continued; those of records, output and hardware always may.",
        )
        for name in LINKED:
            parser.link_arguments(f"data.{name}", f"model.supernet.init_args.{name}", apply_on="instantiate")

    @override
    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Reports unknown options with the closest match."""
        try:
            self.config = expanded(parser.parse_args(args))
        except ArgumentError as error:
            if missing := re.match(r"the following arguments are required: (\w+\.\w+\..*)", str(error)):
                names = [name.partition(".")[2] for name in missing[1].split(", ")]
                remedy = f"set in a file (--config FILE) or by options (--{names[0]} VALUE)"
                raise ConfigError(f"{', '.join(names)}: not given; {remedy}") from error
            if (module := re.search(r"No module named '(\w+)", str(error))) and find_spec(module[1]) is None:
                fault = f"the module {module[1]} is not installed, in this folder or beside the configuration"
                raise ConfigError(f"config: {fault}; add its folder to PYTHONPATH") from error
            if abstract := re.search(r"but ([\w.]+) is abstract", str(error)):
                key = ".".join(re.findall(r'Parser key "([\w.]+)"', str(error)))
                methods = ", ".join(sorted(cast(Any, locate(abstract[1])).__abstractmethods__))
                raise ConfigError(f"{key}: {abstract[1]} lacks {methods}; implement it, or choose another") from error
            raise ArgumentError(None, f"{error}{self._similar(str(error))}") from error
        except (RecursionError, SyntaxError) as error:  # YAML contains itself, or the user's module is wrong
            raise ConfigError(f"config: {type(error).__name__}: {error}; correct the file") from error

    def _similar(self, message: str) -> str:
        """Returns the option, class or argument that is closest to the unknown one of an error."""
        if argument := re.search(r"class_path '([\w.]+)'.*Option '(\w+)' is not accepted", message, re.DOTALL):
            word = argument[2]
            bases = inspect.getmro(cast(type, locate(argument[1])))
            choices = {name for base in bases for name in inspect.signature(base).parameters}
        elif name := re.search(r"(?:import path string: |module '[\w.]+' has no attribute ')(\w+)'?$", message):
            word = name[1]
            modules = [sys.modules[name] for name in [*sys.modules] if name.startswith(("lit_fednas.", "torch.optim"))]
            choices = {name for module in modules for name, value in vars(module).items() if isinstance(value, type)}
            choices |= {name.rpartition(".")[2] for name in sys.modules if name.startswith("lit_fednas.")}
        else:
            forms = r"unrecognized arguments: --([\w.]+)|Key '([\w.]+)'|key \"([\w.]+)\"|accept option '([\w.]+)'"
            unknown = re.search(forms, message)
            word = next(filter(None, unknown.groups())) if unknown else ""
            choices = {action.dest for parser in self._subcommand_parsers.values() for action in parser._actions}
        return did_you_mean(word, choices)

    @override
    def _parse_ckpt_path(self) -> None:
        """Does nothing: LightningCLI would merge a checkpoint's hyperparameters over the configuration."""

    @override
    def before_instantiate_classes(self) -> None:
        """Finds the run and the checkpoint to continue, except for a new ``fit`` or a search before training."""
        config, command = self.config[self.subcommand], str(self.subcommand)
        if "trainer" not in _parts(command):
            return
        trainer = config.trainer
        for line in without_effect(plain_settings(config), command):
            log.warning(line)
        options = {word.partition("=")[0] for word in self._words}
        ckpt_path = config.get("ckpt_path") or (swept_checkpoint(trainer.logger) if command == "fit" else None)
        # an option for the logger says where to write
        run = None if any(re.match(r"--trainer\.logger(\.|$)", option) for option in options) else run_of(config)
        is_plan = command == "search" and not config.search.evaluations and (not run or "--ckpt_path" in options)
        if not ckpt_path and (command == "fit" or is_plan):
            check_new_run(trainer.logger, None if trainer.fast_dev_run else trainer.default_root_dir)
            share_run(trainer.logger)
            return
        config.ckpt_path = continue_run(config, str(ckpt_path or "last"), run)
        share_run(trainer.logger)
        if command != "fit" and config.ckpt_path in ("last", "best"):
            raise ConfigError(f"ckpt_path: {config.ckpt_path!r} needs a RunLogger as first trainer.logger; give a file")
        check_same_settings(config, command)
        if not ckpt_path:
            log.info("weights: those of %s", config.ckpt_path)

    @override
    def instantiate_classes(self) -> None:
        if "trainer" in _parts(str(self.subcommand)):
            super().instantiate_classes()
            self._check_linked()
            self.datamodule.may_change = among("data.source", self._get(self.config, "changed"))
            return
        self.config_init = self.parser.instantiate_classes(self.config)
        self.datamodule = self._get(self.config_init, "data")

    def _check_linked(self) -> None:
        """Validates that the configuration does not contradict the arguments that the supernet takes from the data."""
        arguments = inspect.signature(type(self.model.supernet)).parameters
        settings = self._get(self.config, "model.supernet").get("init_args", {})
        for name in arguments.keys() & LINKED:
            values = settings.get(name), getattr(self.datamodule, name), arguments[name].default
            setting, actual, default = (list(value) if isinstance(value, tuple) else value for value in values)
            if setting not in (None, actual, default):
                raise ConfigError(f"model.supernet.init_args.{name}: {setting} is not the data's {actual}; remove it")

    @override
    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """Adds optional callbacks before the recorders of their values; converts Lightning's errors to ours."""
        try:
            trainer = super().instantiate_trainer(**kwargs)
        except (ImportError, MisconfigurationException, RuntimeError, TypeError, ValueError) as error:
            if isinstance(error, FedNASError):
                raise
            raise ConfigError(f"trainer: {' '.join(str(error).split())}; change the setting") from error
        optional = [self._get(self.config_init, name) for name in OPTIONAL_CALLBACKS]
        trainer.callbacks[:0] = [callback for callback in optional if callback is not None]  # type: ignore[attr-defined]
        return trainer

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        owner = TRAINING[subcommand].load()
        if owner is FederatedTrainer:
            super()._run_subcommand(subcommand)
        else:
            command = owner(**{name: getattr(self, name) for name in _parts(subcommand)})
            getattr(command, TRAINING[subcommand].method)(**self.options)
        if subcommand in ("fit", "search", "finetune") and keeps_files(self.trainer):
            folder = run_folder(self.trainer)
            print(f"written: {folder}")
            if (folder / "checkpoints").exists():  # a search before training saves no checkpoint
                run = quote(str(folder))
                for command, options in self._next_commands(folder):
                    print(f"next: lit-fednas {command} --config {run}/config.yaml {options}".rstrip())
                print(f"or:   lit-fednas report {run}")

    def _next_commands(self, folder: Path) -> list[tuple[str, str]]:
        """Returns commands that may follow a training or a search in a run's folder, with their options."""
        if self.subcommand == "fit":
            tiers = self.model.population.tiers or self._get(self.config, "search", {}).get("tiers")
            return [("search", "" if tiers else EXAMPLE_TIERS)]
        name = self.options[str(self.subcommand)].name
        tiers = TierFiles(folder / name).tier_names[:1]
        return [("export", f"--name {quote(name)} --tier {quote(tier)}") for tier in tiers]

    @property
    def options(self) -> dict[str, Any]:
        """The options of the command itself, without those of trainer, model and data."""
        names = self._subcommand_method_arguments[str(self.subcommand)]
        return {name: self.config_init[self.subcommand][name] for name in names}


def _parts(subcommand: str) -> list[str]:
    """Returns the names in :data:`PARTS` that a command needs: all for the trainer's methods."""
    owner = TRAINING[subcommand].load()
    parameters = PARTS if owner is FederatedTrainer else inspect.signature(owner).parameters
    return [name for name in PARTS if name in parameters]


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**32:
        text = "null" if value is None else str(value).lower()
        raise ConfigError(f"seed_everything: {text} must be a number from 0 to 2^32 - 1; choose another")
    return value


def _rank() -> int:
    """Returns this process's rank, from the environment before the trainer exists."""
    return int(getattr(rank_zero_only, "rank", None) or 0)


def _configure_logging() -> None:
    """Shows this package's log lines plainly, and only warnings of Lightning."""
    logger = logging.getLogger("lit_fednas")
    if not logger.handlers:
        logger.addHandler(logging._StderrHandler())  # type: ignore[attr-defined]  # it looks up sys.stderr when it writes
        logger.propagate = False
    logger.setLevel(logging.ERROR if _rank() else logging.INFO)  # every rank would log the same
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    # lightning 2.6 calls functions that jsonargparse 4.49 deprecates
    warnings.filterwarnings("ignore", category=JsonargparseDeprecationWarning)
    # lightning 2.6 calls functions that torch 2.12 deprecates
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    # data.server_val is 0: the module warns itself
    warnings.filterwarnings("ignore", message="Total length of `list` across ranks is zero")
    # the server's validation data are batches already
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")


def run(words: Sequence[str], cli: Callable[[Sequence[str]], LightningCLI] = FederatedCLI) -> int:
    """Runs a command with the words after ``lit-fednas``; returns the exit status."""
    _configure_logging()
    try:
        cli(words)
    except MisconfigurationException as error:  # Lightning has refused a setting
        raise ConfigError(" ".join(str(error).split())) from error
    except Interrupted as stop:
        if not _rank():
            print(f"lit-fednas: {stop}; {stop.__notes__[-1]}", file=sys.stderr)
        return 128 + stop.signum
    except Exception as error:
        if not type(error).__module__.startswith("wandb."):  # matched by name, as wandb may not be installed
            raise
        line = " ".join(str(error).split())
        raise ConfigError(f"trainer.logger: {line}; run 'wandb login', or set its offline to true") from error
    return 0
