"""A stopped and resumed run equals a straight run, exactly."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_fednas.aggregation import MaxNet, OverlapAverage
from lit_fednas.assignment import RandomArchitectures, TrackingSandwich
from lit_fednas.callbacks import BetaDecay, CostLedger, RoundCheckpoint, RunRecorder
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation import FederatedCallback, FedYogi, UniformCohort
from lit_fednas.federation.process import Interrupted
from lit_fednas.objectives import Proximal, TaskLoss
from lit_fednas.records import read_rounds
from lit_fednas.supernets import ElasticResNet
from lit_fednas.testing.contract import assert_alike
from lit_fednas.testing.runs import contents
from tests.federation.runs import LAST, run_in
from tests.support import assert_same, ended, forked, make_module, tiny_supernet, weights

ROUNDS = 5


def superfed(**settings):
    parts = {"assignment": TrackingSandwich(), "aggregation": MaxNet(), "cohort": UniformCohort(count=4)}
    return make_module(server_optimizer=lambda params: FedYogi(params, lr=0.1), **{**parts, **settings})


def run(folder: Path, *extra, ckpt_path=None, every_n_rounds=1, **settings):
    checkpoint = RoundCheckpoint(monitor="val/largest/accuracy", every_n_rounds=every_n_rounds)
    callbacks = BetaDecay(), CostLedger(), RunRecorder(), checkpoint, *extra
    run_in(folder, superfed(**settings), *callbacks, rounds=ROUNDS, ckpt_path=ckpt_path)
    return folder / "run" / "only"


class StopAt(FederatedCallback):
    """Stops the run by a signal or an error after the round's n-th client."""

    def __init__(self, round: int, client: int, how: str) -> None:
        self.at = round, client
        self.how = how

    def on_cohort_start(self, trainer, module, round):
        self.count = 0

    def on_client_end(self, trainer, module, result, update):
        self.count += 1
        if (result.task.round, self.count) == self.at:
            if self.how == "error":
                raise RuntimeError("out of the blue")
            os.kill(os.getpid(), getattr(signal, self.how))


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Returns the folder of a straight run. Read only."""
    folder = run(tmp_path_factory.mktemp("straight"))
    assert len(list((folder / "checkpoints").glob("round=*.ckpt"))) == 1  # the best
    return folder


@pytest.fixture(scope="module")
def straight(finished):
    return contents(finished)


@pytest.mark.parametrize(
    ("how", "raised", "round", "client", "whole", "interval"),
    [
        ("SIGINT", Interrupted, 2, 1, 2, 100),  # between the regular checkpoints
        ("error", RuntimeError, 3, 2, 3, 1),
        ("SIGTERM", Interrupted, 2, 4, 3, 1),  # in a round's last client, which lets the round end
    ],
)
def test_a_stopped_run_resumes_exactly(tmp_path, straight, how, raised, round, client, whole, interval):
    """Finished rounds are saved, and the unfinished round is not."""
    with pytest.raises(raised):
        run(tmp_path, StopAt(round, client, how), every_n_rounds=interval)
    assert torch.load(tmp_path / LAST, weights_only=True)["global_step"] == whole
    assert_alike(contents(run(tmp_path, ckpt_path=tmp_path / LAST)), straight)


def test_a_second_resume_is_exact_too(tmp_path, straight):
    with pytest.raises(Interrupted):
        run(tmp_path, StopAt(1, 2, "SIGTERM"))
    with pytest.raises(Interrupted):
        run(tmp_path, StopAt(3, 1, "SIGINT"), ckpt_path=tmp_path / LAST)
    torch.manual_seed(1234)  # neither the process's state nor the initial weights matter
    assert_alike(contents(run(tmp_path, ckpt_path=tmp_path / LAST, supernet=tiny_supernet(seed=9))), straight)


def test_a_kill_loses_only_the_present_round(tmp_path, straight):
    assert ended(forked(run, tmp_path, StopAt(3, 2, "SIGKILL"))) == -signal.SIGKILL
    assert torch.load(tmp_path / LAST, weights_only=True)["global_step"] == 3
    assert_alike(contents(run(tmp_path, ckpt_path=tmp_path / LAST)), straight)


@pytest.mark.parametrize("when", [{"save_on_train_epoch_end": True}, {"every_n_train_steps": 1}], ids=str)
def test_lightnings_own_checkpoints_resume_exactly(tmp_path, when):
    """Lightning's ModelCheckpoint may save between the server's step and the round's end."""

    def trained(rounds, *callbacks, ckpt_path=None):
        module = superfed(aggregation=OverlapAverage())
        run_in(tmp_path, module, RunRecorder(), *callbacks, rounds=rounds, ckpt_path=ckpt_path)
        records = list(read_rounds(tmp_path / "run" / "only"))
        return weights(module), [[client["client"] for client in record["clients"]] for record in records]

    straight, cohorts = trained(3)
    trained(1, ModelCheckpoint(dirpath=tmp_path, filename="x", enable_version_counter=False, **when))
    resumed, resumed_cohorts = trained(3, ckpt_path=tmp_path / "x.ckpt")
    assert resumed_cohorts == cohorts
    assert_same(straight, resumed)


WIDER = {"stem_width": 4, "stage_widths": [8, 32], "depths": [0, 1], "ratios": [0.25, 0.5], "divisor": 2}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"supernet": ElasticResNet((1, 8, 8), 4, **WIDER)}, r"differs in \d+ tensors, first in network"),
        ({"seed": 1}, "seed_everything: 1 is not the checkpoint's 0"),
        ({"assignment": RandomArchitectures()}, "largest_seen, smallest_seen, but RandomArchitectures has no state"),
    ],
    ids=["widths", "seed", "assignment"],
)
def test_a_checkpoint_of_another_run_is_refused(tmp_path, finished, settings, message):
    with pytest.raises(CheckpointError, match=message):
        run(tmp_path, ckpt_path=finished / "checkpoints" / "last.ckpt", **settings)


def remembering(kind: type, hook: str, *arguments: object) -> Any:
    """Returns a part that counts rounds in a tensor, in a hook that is called once per round."""

    def counting(self, *values):
        self.rounds = self.rounds + 1
        return getattr(super(counted, self), hook)(*values)

    members = {
        "rounds": torch.zeros(1),
        hook: counting,
        "state_dict": lambda self: {"rounds": self.rounds},
        "load_state_dict": lambda self, state: setattr(self, "rounds", state["rounds"]),
    }
    counted = type(f"Remembering{kind.__name__}", (kind,), members)
    return counted(*arguments)


def remembering_parts() -> dict[str, Any]:
    return {
        "assignment": remembering(TrackingSandwich, "observe"),
        "aggregation": remembering(OverlapAverage, "finish"),
        "cohort": remembering(UniformCohort, "observe", None, 3),
        "objective": Proximal(remembering(TaskLoss, "statistics")),
    }


def test_every_part_may_have_a_state(tmp_path):
    modules = [make_module(**remembering_parts()) for _ in range(2)]
    run_in(tmp_path, modules[0], RoundCheckpoint(), rounds=2)
    saved = torch.load(tmp_path / LAST, weights_only=True)["federation"]
    assert [float(saved[name]["rounds"]) for name in ("assignment", "aggregation", "cohort")] == [2, 2, 2]
    run_in(tmp_path, modules[1], RoundCheckpoint(), rounds=3, ckpt_path=tmp_path / LAST)
    for name in ("assignment", "aggregation", "cohort"):
        assert float(getattr(modules[1], name).rounds) == 3
    assert float(modules[1].objective.objective.rounds) == 9  # a fit of each client


class Counting(FederatedCallback):
    def state_dict(self):
        return {"seen": [np.int64(1)]}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("assignment", "model.assignment: RememberingTrackingSandwich"),
        ("aggregation", "model.aggregation: RememberingOverlapAverage"),
        ("cohort", "model.cohort: RememberingUniformCohort"),
        ("objective", "model.objective: Proximal"),
        (None, "callback Counting"),
    ],
)
def test_a_state_that_cannot_be_loaded_is_refused_on_saving(tmp_path, name, words):
    parts = {} if name is None else {name: remembering_parts()[name]}
    for part in parts.values():
        getattr(part, "objective", part).rounds = np.zeros(1)
    kind = "int64" if name is None else "ndarray"
    with pytest.raises(ConfigError, match=f"^{words}: its state holds a {kind}; keep only tensors"):
        run_in(tmp_path, make_module(**parts), RoundCheckpoint(), *([] if parts else [Counting()]), rounds=1)
