"""Checks the commands of a study in one process without training: parses each, creates its parts and sets them up.

The standard input is a JSON list of ``[words, is_alone]``, the standard output a JSON list of the commands' settings as
YAML. A command that is not alone reads files of another run, which may not exist yet, so it is only parsed.
"""

import json
import sys
from argparse import ArgumentError
from collections.abc import Sequence
from contextlib import redirect_stdout, suppress
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from textwrap import shorten
from typing import Any

from lightning import Callback
from typing_extensions import override

from lit_fednas.cli.commands import TRAINING
from lit_fednas.cli.entry import cause_of, exit_status, with_paths
from lit_fednas.cli.lightning_cli import FederatedCLI, run
from lit_fednas.errors import ConfigError, FedNASError
from lit_fednas.federation import FederatedTrainer


class _SetUpDone(Exception):
    """The set-up before training is complete."""


class _StopBeforeTraining(Callback):
    def on_train_start(self, *arguments: Any) -> None:
        raise _SetUpDone


class CheckingCLI(FederatedCLI):
    """Runs a command up to training, evaluation or search, and writes only into ``folder``."""

    def __init__(self, settings: list[str], folder: Path, is_alone: bool, words: Sequence[str]) -> None:
        self.settings, self.folder, self.is_alone = settings, folder, is_alone
        with suppress(_SetUpDone):
            super().__init__(words)

    @override
    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        self.settings.append(self._parser(self.subcommand).dump(config, skip_none=False))
        if not self.is_alone:
            raise _SetUpDone
        config.ckpt_path = None
        config.trainer.logger, config.trainer.default_root_dir = False, str(self.folder)
        config.trainer.devices, config.trainer.num_nodes, config.trainer.strategy = 1, 1, "auto"

    @override
    def _run_subcommand(self, subcommand: str) -> None:
        trainer: Any = self.trainer
        if subcommand == "fit":
            trainer.callbacks.insert(0, _StopBeforeTraining())
            trainer.fit(self.model, datamodule=self.datamodule)
            return
        owner = TRAINING[subcommand].load()
        if issubclass(owner, FederatedTrainer):
            trainer.load(self.model, self.datamodule, None)
            _ = self.datamodule.test_dataloader() if subcommand == "test" else None
        else:
            owner(trainer, self.model, self.datamodule, self.folder).check(**self.options)


def check(commands: Sequence[tuple[list[str], bool]]) -> list[str]:
    """Returns the commands' settings; raises ConfigError for the first invalid command."""
    settings: list[str] = []
    for (program, *words), is_alone in commands:
        try:
            with TemporaryDirectory() as folder:
                run(with_paths(words), partial(CheckingCLI, settings, Path(folder), is_alone))
        except Exception as error:
            reason = cause_of(error) or error
            if not isinstance(reason, FedNASError | OSError | ArgumentError):
                raise
            command = shorten(" ".join([program, *words]), 120, placeholder=" ...")
            raise ConfigError(f"{' '.join(str(reason).split())} (of {command})") from error
    return settings


def main() -> int:
    """Reads commands and prints their settings."""
    with redirect_stdout(sys.stderr):
        settings = check(json.load(sys.stdin))
    print(json.dumps(settings))
    return 0


if __name__ == "__main__":
    sys.exit(exit_status(main))
