"""The command line: ``lit-fednas fit | validate | test | partition | search | finetune | export | report``.

A LightningCLI: every setting is a key of a YAML file and an option of the same name. A run is a folder, by
default ``runs/<name>/version_<n>``; ``--ckpt_path last`` goes on in the newest one, in place. ``report`` alone
takes no settings: it reads a run's folder.
"""

from __future__ import annotations

import logging
import signal
import sys
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from jsonargparse._deprecated import JsonargparseDeprecationWarning
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from lit_fednas.analysis import pareto_figure, read_search
from lit_fednas.analysis.report import write_report
from lit_fednas.callbacks import (
    BetaDecay,
    CostLedger,
    DeployedAccuracy,
    DeviceAverage,
    PruneByBudgets,
    RoundCheckpoint,
    RoundsToTarget,
    RoundTime,
    SoftAverage,
    TransformOnConvergence,
    default_callbacks,
)
from lit_fednas.data import FederatedDataModule
from lit_fednas.errors import CheckpointError, ClientError, ConfigError, FedNASError, RankError
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.federation.interrupts import Interrupted
from lit_fednas.federation.run_folder import run_folder
from lit_fednas.federation.trainer import check_readable
from lit_fednas.finetune import FinetuneTrainer
from lit_fednas.loggers import RunLogger

EPILOG = "lit-fednas report RUN writes a finished run's folder as one HTML page (lit-fednas report --help)."
#: Commands that work on a trained run: without a checkpoint they take the newest.
AFTER_TRAINING = ("search", "finetune", "export")
RUN_LOGGER = {"class_path": "lit_fednas.loggers.RunLogger", "init_args": {"save_dir": "runs", "name": "run"}}


class SaveConfig(SaveConfigCallback):
    """Saves the whole configuration as ``config.yaml`` in the run's folder, and in Weights & Biases if used."""

    def save_config(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Hands the configuration to W&B as nested hyperparameters, so that sweeps can group by them."""
        for logger in trainer.loggers:
            if isinstance(logger, WandbLogger):
                logger.experiment.config.update(_plain(self.config.as_dict()), allow_val_change=True)


class FederatedCLI(LightningCLI):
    """LightningCLI for one module, one data module and one trainer."""

    def __init__(self, args: Sequence[str] | None = None) -> None:
        strict = {"exit_on_error": False, "allow_abbrev": False}
        super().__init__(
            model_class=FederatedLightningModule,
            datamodule_class=FederatedDataModule,
            trainer_class=FinetuneTrainer,
            trainer_defaults={
                "logger": RUN_LOGGER,
                "callbacks": default_callbacks(),
                "enable_model_summary": False,
            },
            save_config_callback=SaveConfig,
            save_config_kwargs={"overwrite": True},
            seed_everything_default=0,
            auto_configure_optimizers=False,
            parser_kwargs={**strict, "epilog": EPILOG, **{name: {**strict} for name in self.subcommands()}},
            args=list(args) if args is not None else None,
        )

    @staticmethod
    def subcommands() -> dict[str, set[str]]:
        """Lightning's, ``partition``, and what comes after training."""
        kept = {name: names for name, names in LightningCLI.subcommands().items() if name != "predict"}
        own = ("partition", *AFTER_TRAINING)
        return {**kept, **{name: {"model", "datamodule", "folder"} for name in own}}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """Adds the short names that sweeps set, and links what must agree."""
        parser.add_lightning_class_args(CostLedger, "cost_ledger")
        parser.add_lightning_class_args(RoundCheckpoint, "checkpoint")
        parser.add_argument(
            "--beta_decay", type=BetaDecay | None, default=None, help="MaxNet's beta over the rounds."
        )
        parser.add_argument(
            "--device_average",
            type=DeviceAverage | None,
            default=None,
            help="Evaluates the mean of what all devices last trained, besides the global weights.",
        )
        parser.add_argument(
            "--deployed_accuracy",
            type=DeployedAccuracy | None,
            default=None,
            help="Evaluates each client on its own data, with the model that it would use.",
        )
        parser.add_argument(
            "--prune_by_budgets",
            type=PruneByBudgets | None,
            default=None,
            help="Makes the model smaller step by step, and tries candidates by groups of clients.",
        )
        parser.add_argument(
            "--round_time",
            type=RoundTime | None,
            default=None,
            help="Simulated time of the rounds on the clients' devices.",
        )
        parser.add_argument(
            "--rounds_to_target",
            type=RoundsToTarget | None,
            default=None,
            help="The first rounds at which metrics reach their targets.",
        )
        parser.add_argument(
            "--soft_average",
            type=SoftAverage | None,
            default=None,
            help="Mixes the models of a suite with smaller ones.",
        )
        parser.add_argument(
            "--transform_on_convergence",
            type=TransformOnConvergence | None,
            default=None,
            help="Derives a larger model whenever training slows down.",
        )
        parser.link_arguments("seed_everything", "model.seed", compute_fn=_seed)
        parser.link_arguments("seed_everything", "data.seed", compute_fn=_seed)
        for name in ("num_classes", "input_shape"):
            parser.link_arguments(f"data.{name}", f"model.supernet.init_args.{name}", apply_on="instantiate")

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Parses, and sees that a checkpoint that is given can be read, before LightningCLI looks into it."""
        super().parse_arguments(parser, args)
        check_readable(self.config[self.config.subcommand].get("ckpt_path"))

    def before_instantiate_classes(self) -> None:
        """Finds the run's folder if a checkpoint is given."""
        config = self.config[self.subcommand]
        if self.subcommand in AFTER_TRAINING and not config.get("ckpt_path"):
            config.ckpt_path = "last"
        if config.get("ckpt_path"):
            continue_run(config)

    def after_search(self) -> None:
        """Draws the search's fronts."""
        folder = run_folder(self.trainer) / self.config_init.search.search.name
        pareto_figure(read_search(folder)).savefig(folder / "pareto.png", dpi=150)

    def instantiate_trainer(self, **kwargs: Any) -> Any:
        """Adds what is off by default, before the callbacks that record what it logs."""
        trainer = super().instantiate_trainer(**kwargs)
        off_by_default = ("rounds_to_target", "round_time", "deployed_accuracy", "device_average", "beta_decay")
        for name in (*off_by_default, "soft_average", "transform_on_convergence", "prune_by_budgets"):
            callback = self._get(self.config_init, name)
            if callback is not None:
                trainer.callbacks.insert(0, callback)  # type: ignore[attr-defined]
        return trainer


def continue_run(config: Namespace) -> None:
    """Turns ``ckpt_path: last`` or ``best`` into the newest run's file, and points the logger at its folder.

    Args:
        config: A subcommand's configuration; changed in place.

    Raises:
        CheckpointError: There is no such run.
    """
    logger = config.trainer.logger
    first = logger[0] if isinstance(logger, list) else logger
    if not isinstance(first, Namespace | dict) or not first["class_path"].endswith(RunLogger.__name__):
        return
    settings = first["init_args"]
    root = Path(settings["save_dir"]) / settings["name"]
    word = str(config.ckpt_path)
    if word in ("last", "best"):
        found = sorted(root.glob("*/checkpoints/last.ckpt"), key=lambda path: path.stat().st_mtime)
        if settings["version"] is not None:
            version = settings["version"]
            folder = version if isinstance(version, str) else f"version_{version}"
            found = [path for path in found if path.parent.parent.name == folder]
        if not found:
            raise CheckpointError(f"ckpt_path: {word!r} finds no run in {root}; start one without it")
        checkpoint = found[-1] if word == "last" else _best_of(found[-1])
    else:
        checkpoint = Path(word)
    config.ckpt_path = str(checkpoint)
    folder_of_run = checkpoint.parent.parent
    if folder_of_run.parent.resolve() == root.resolve():
        settings["version"] = folder_of_run.name


def _best_of(last: Path) -> Path:
    """The best checkpoint that a run's last one knows of."""
    states = torch.load(last, map_location="cpu", weights_only=True)["callbacks"].values()
    for state in states:
        if isinstance(state, dict) and state.get("best_model_path"):
            return last.parent / Path(state["best_model_path"]).name
    raise CheckpointError(
        f"ckpt_path: 'best' finds none in {last.parent}; train with --checkpoint.monitor, or use last"
    )


def _seed(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ConfigError(f"seed_everything: {value} must be a number; a run belongs to its seed")
    return value


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value if isinstance(value, int | float | bool | str | type(None)) else str(value)


def _rank() -> int:
    """This process among those of the run; known from the environment before the trainer is made."""
    return int(getattr(rank_zero_only, "rank", None) or 0)


def _own_error(error: BaseException | None) -> BaseException | None:
    """The error of ours behind one that jsonargparse has wrapped; none if there is none."""
    while error is not None and not isinstance(error, FedNASError | ClientError | RankError):
        error = error.__cause__ or error.__context__
    return error


class _ToStderr(logging.StreamHandler):
    """Writes to what ``sys.stderr`` is now, not to what it was when the first command ran in this process."""

    @property
    def stream(self) -> Any:
        """Standard error."""
        return sys.stderr

    @stream.setter
    def stream(self, value: Any) -> None:
        pass


def _quiet_surroundings() -> None:
    """Shows our own log lines plainly, and of Lightning's only warnings."""
    own = logging.getLogger("lit_fednas")
    if not own.handlers:
        handler = _ToStderr()
        handler.setFormatter(logging.Formatter("%(message)s"))
        own.addHandler(handler)
        own.setLevel(logging.ERROR if _rank() else logging.INFO)  # every rank would say the same
        own.propagate = False
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    logging.getLogger("lightning.fabric").setLevel(logging.WARNING)
    # lightning 2.6 calls what jsonargparse 4.49 and later deprecate
    warnings.filterwarnings("ignore", category=JsonargparseDeprecationWarning)
    # lightning 2.6 calls what torch 2.12 and later deprecate
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    # the server's validation data are batches already
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")


def report(words: Sequence[str]) -> None:
    """Runs ``lit-fednas report RUN``: one HTML page of all that a run's folder holds."""
    parser = ArgumentParser(prog="lit-fednas report", description=write_report.__doc__, exit_on_error=False)
    parser.add_argument("run", type=Path, help="A run's folder, as runs/digits/version_0.")
    parser.add_argument(
        "--output", type=Path | None, default=None, help="The file; report.html in the run's folder."
    )
    given = parser.parse_args(list(words))
    print(f"written: {write_report(given.run, given.output)}")


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        args: The words after ``lit-fednas``; those of the process if not given.

    Returns:
        The exit status: 0; 2 for what the user can mend, told in one line; 1 if a client failed and the policy
        is to stop, or another rank has gone; 128 and the signal's number if a signal stopped the run, whose state
        is saved.
    """
    _quiet_surroundings()
    words = sys.argv[1:] if args is None else list(args)
    try:
        if words[:1] == ["report"]:
            report(words[1:])
        else:
            FederatedCLI(args)
    except ArgumentError as error:
        line = " ".join(str(error).split())
        print(f"lit-fednas: {line} (lit-fednas fit --help lists all options)", file=sys.stderr)
        return 2
    except (ValueError, ClientError, RankError) as error:
        own = _own_error(error)
        if own is None:
            raise
        print(f"lit-fednas{f' (rank {_rank()})' if _rank() else ''}: {own}", file=sys.stderr)
        return 2 if isinstance(own, FedNASError) else 1
    except Interrupted as stop:
        name = signal.Signals(stop.signum).name
        if _rank():
            return 128 + stop.signum
        print(f"lit-fednas: stopped by {name}; go on with --ckpt_path last", file=sys.stderr)
        return 128 + stop.signum
    return 0
