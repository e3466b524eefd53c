"""What every callback promises, and that a stopped run goes on exactly."""

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
    """Validates that a run of the command line goes on exactly after a stop.

    All files of the two runs are compared to the bit: weights, states of parts and callbacks, and records, but for what
    a clock says.

    Args:
        config: The configuration, as ``lit-fednas fit --config`` takes it.
        *options: Further options of ``lit-fednas fit``, as ``"--trainer.max_rounds", "4"``.
        stop: The rounds that are finished when the run is stopped, by SIGTERM in the next one.

    Raises:
        AssertionError: The runs differ; it names where.
    """

    def train(folder: Path, resumed: bool) -> None:
        logger = "--trainer.logger", "lit_fednas.loggers.RunLogger", "--trainer.logger.init_args.save_dir", str(folder)
        own = *logger, "--checkpoint.dirpath", "null", *(("--ckpt_path", "last") if resumed else ())
        status = main(["fit", "--config", str(config), *options, *own])
        if status == 128 + signal.SIGTERM:
            raise Interrupted(signal.SIGTERM)
        assert status == 0, f"lit-fednas fit ended with the status {status}; its error says why"

    with TemporaryDirectory() as folder:
        assert_goes_on(train, Path(folder), stop)


def assert_goes_on(train: Callable[[Path, bool], Any], folder: Path, stop: int = 1) -> None:
    """Validates that a run which is stopped and resumed leaves the same files as one straight through.

    Args:
        train: Trains in a folder; whether it resumes from the folder's checkpoint is the second argument.
        folder: An empty one.
        stop: The rounds that are finished when the run is stopped.
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
    """Returns what is in all files of a folder by their names, without the folder's own name and checksums of times."""
    found: dict[str, Any] = {}
    for path in (path for path in folder.rglob("*") if path.is_file() and path.name != SUMS_FILE):
        value: Any = path.read_bytes().replace(str(folder).encode(), b"")
        if path.suffix == ".ckpt":
            state = leaves(torch.load(path, weights_only=True)).items()
            value = {
                place.replace(str(folder), ""): leaf if isinstance(leaf, tuple) else leaf.replace(str(folder), "")
                for place, leaf in state
            }
        elif path.suffix == ".jsonl":
            value = [json.loads(line) for line in value.splitlines()]
        found[str(path.relative_to(folder))] = value
    return found


class CallbackContract(Contract):
    """The contract of a :class:`~lit_fednas.federation.FederatedCallback`; ``instances`` make callbacks.

    Attributes:
        rounds: The rounds of a run, which is stopped after half of them.

    Example:
        >>> from lit_fednas.callbacks import WeightAverage
        >>> class TestWeightAverage(CallbackContract):
        ...     instances = {"half": lambda: WeightAverage(0.5)}
    """

    rounds: ClassVar[int] = 4

    def module(self) -> FederatedLightningModule:
        """Returns what is trained; a subclass replaces it if its callback needs other parts."""
        client = ClientSettings(lambda parameters: torch.optim.SGD(parameters, lr=0.1), batch_size=8)
        net, cohort = networks.built("elastic", elastic), UniformCohort(count=3)
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
        """``state_dict`` holds tensors, numbers, texts, and lists and dictionaries of them; no NumPy arrays."""
        state = self.train(self.folder / "state").state_dict()
        assert_alike(reloaded(state), state)

    def check_the_state_changes_after_the_servers_step_alone(self) -> None:
        """A round changes the state in ``on_server_step`` or later, so that an interrupted one leaves no trace."""

        class Witness(FederatedCallback):
            @override
            def on_round_start(self, trainer: Any, module: Any, round: Any) -> None:
                self.state = reloaded(trainer.callbacks[1].state_dict())

            @override
            def on_server_step(self, trainer: Any, module: Any, round: Any) -> None:
                assert_alike(trainer.callbacks[1].state_dict(), self.state)

        self.train(self.folder / "witness", False, Witness())

    def check_a_stopped_run_goes_on_exactly(self) -> None:
        """What the callback needs in later rounds is in its state, and ``load_state_dict`` restores it."""
        assert_goes_on(self.train, self.folder, self.rounds // 2)
