"""Contract of callbacks; validation that a stopped run continues exactly."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, ClassVar

import pytest
import torch
from typing_extensions import override

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import RandomArchitectures
from lit_fednas.callbacks import RoundCheckpoint, RunRecorder
from lit_fednas.cli import main
from lit_fednas.federation import (
    ClientSettings,
    FederatedCallback,
    FederatedLightningModule,
    FederatedTrainer,
    UniformCohort,
)
from lit_fednas.federation.process import Interrupted
from lit_fednas.loggers import RunLogger
from lit_fednas.records.files import SUMS_FILE
from lit_fednas.testing import networks
from lit_fednas.testing.contract import Contract, assert_alike, leaves, reloaded
from lit_fednas.testing.objectives import elastic, images


def assert_resumes(config: str | Path, *options: str, stop: int = 1) -> None:
    """Validates that a run of the command line continues exactly after a stop.

    It compares all files of a stopped and an uninterrupted run to the bit, except for measured times.

    Args:
        config: Configuration for ``lit-fednas fit --config``.
        *options: More options of ``lit-fednas fit``, such as ``"--trainer.max_rounds", "4"``.
        stop: Number of finished rounds when SIGTERM stops the run.
    """

    def train(folder: Path, resumed: bool) -> None:
        logger = "--trainer.logger", "lit_fednas.loggers.RunLogger", "--trainer.logger.init_args.save_dir", str(folder)
        resume = ("--ckpt_path", "last") if resumed else ()
        status = main(["fit", "--config", str(config), *options, *logger, "--checkpoint.dirpath", "null", *resume])
        if status == 128 + signal.SIGTERM:
            raise Interrupted(signal.SIGTERM)
        assert status == 0, f"lit-fednas fit ended with the status {status}; its error says why"

    with TemporaryDirectory() as folder:
        assert_goes_on(train, Path(folder), stop)


def assert_goes_on(train: Callable[[Path, bool], Any], folder: Path, stop: int = 1) -> None:
    """Validates that a run that is stopped and resumed leaves the same files as an uninterrupted run.

    Args:
        train: Function that trains in a folder; its second argument says whether to resume the folder's checkpoint.
        folder: An empty folder.
        stop: Number of finished rounds when the run is stopped.
    """
    plan = FederatedLightningModule.plan

    def stopped(module: FederatedLightningModule, round: Any) -> Any:
        if round.number == stop:
            os.kill(os.getpid(), signal.SIGTERM)
        return plan(module, round)

    train(folder / "straight", False)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(FederatedLightningModule, "plan", stopped)
        with pytest.raises(Interrupted):
            train(folder / "stopped", False)
    train(folder / "stopped", True)
    assert_alike(contents(folder / "stopped"), contents(folder / "straight"))


def contents(folder: Path) -> dict[str, Any]:
    """Returns the contents of a folder's files by name, without the folder's own name and the checksums."""
    values: dict[str, Any] = {}
    for path in (path for path in folder.rglob("*") if path.is_file() and path.name != SUMS_FILE):
        value: Any = path.read_bytes().replace(str(folder).encode(), b"")
        if path.suffix == ".ckpt":
            state = leaves(torch.load(path, weights_only=True)).items()
            value = {
                path.replace(str(folder), ""): leaf if isinstance(leaf, tuple) else leaf.replace(str(folder), "")
                for path, leaf in state
            }
        elif path.suffix == ".jsonl":
            value = [json.loads(line) for line in value.splitlines()]
        values[str(path.relative_to(folder))] = value
    return values


class CallbackContract(Contract):
    """The contract of a :class:`~lit_fednas.federation.FederatedCallback`; ``instances`` make callbacks.

    Attributes:
        rounds: Number of rounds of a run; a run is stopped after half of them.

    Example:
        >>> from lit_fednas.callbacks import WeightAverage
        >>> class TestWeightAverage(CallbackContract):
        ...     instances = {"half": lambda: WeightAverage(0.5)}
    """

    rounds: ClassVar[int] = 4

    def module(self) -> FederatedLightningModule:
        """Returns the module to train; a subclass replaces it if its callback needs other parts."""
        client = ClientSettings(lambda parameters: torch.optim.SGD(parameters, lr=0.1), batch_size=8)
        net, cohort = networks.build_net("elastic", elastic), UniformCohort(count=3)
        return FederatedLightningModule(net, RandomArchitectures(), OverlapAverage(), client, cohort=cohort)

    def train(self, folder: Path, resumed: bool = False, *others: FederatedCallback) -> FederatedCallback:
        """Trains in a folder and returns the callback."""
        callback: FederatedCallback = self.case.make()
        trainer = FederatedTrainer(
            self.rounds,
            accelerator="cpu",
            logger=RunLogger(str(folder), "run", 0),
            callbacks=[*others, callback, RunRecorder(), RoundCheckpoint()],
            enable_progress_bar=False,
            enable_model_summary=False,
        )
        last = folder / "run" / "version_0" / "checkpoints" / "last.ckpt"
        trainer.fit(self.module(), datamodule=images(), ckpt_path=str(last) if resumed else None)
        return callback

    def check_the_state_can_be_loaded(self) -> None:
        """``state_dict`` holds tensors, numbers, texts, and lists and dictionaries of them, but no NumPy arrays."""
        state = self.train(self.folder / "state").state_dict()
        assert_alike(reloaded(state), state)

    def check_the_state_changes_after_the_servers_step_alone(self) -> None:
        """A round changes the state in ``on_server_step`` or later, so that an interrupted round leaves no trace."""

        class Witness(FederatedCallback):
            @override
            def on_round_start(self, trainer: Any, module: Any, round: Any) -> None:
                self.state = reloaded(trainer.callbacks[1].state_dict())

            @override
            def on_server_step(self, trainer: Any, module: Any, round: Any) -> None:
                assert_alike(trainer.callbacks[1].state_dict(), self.state)

        self.train(self.folder / "witness", False, Witness())

    def check_a_stopped_run_goes_on_exactly(self) -> None:
        """The state has everything that later rounds need, and ``load_state_dict`` restores it."""
        assert_goes_on(self.train, self.folder, self.rounds // 2)
