"""A stopped and resumed fine-tuning equals an uninterrupted one exactly."""

import os
import signal

import pytest

from lit_fednas.federation import FederatedCallback
from lit_fednas.federation.process import Interrupted
from lit_fednas.finetune import finetuning
from lit_fednas.records import FinetuneFiles
from lit_fednas.testing.contract import assert_alike
from lit_fednas.testing.runs import contents
from tests.finetune.small import cohorts


class Stop(Exception):
    pass


def stop(how: str) -> None:
    """Stops the process by an error or a signal."""
    if how == "error":
        raise Stop
    os.kill(os.getpid(), getattr(signal, how))


class StopIn(FederatedCallback):
    """Stops a candidate in the middle of a round."""

    def __init__(self, candidate: int, round: int, how: str) -> None:
        self.at = candidate, round
        self.how = how
        self.num_trainers = -1

    def __call__(self, *arguments):
        """Replaces the constructor, which each candidate's trainer calls once."""
        self.num_trainers += 1
        return self

    def on_client_end(self, trainer, module, result, update):
        if (self.num_trainers, result.task.round) == self.at:
            stop(self.how)


@pytest.fixture
def straight(tuned_once):
    return contents(tuned_once.files.folder)


def test_in_the_second_candidates_second_round(trained, straight, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "_StopOnSignal", StopIn(1, 1, "error"))
        with pytest.raises(Stop):
            trained.finetune()
    files = trained.files
    done = {path.parent.name: len(cohorts(path.parent)) for path in files.folder.glob("runs/*/rounds.jsonl")}
    assert done == {"small-0": 2, "middle-0": 1}
    assert not files.settings()["complete"]
    assert not (files.folder / "tiers.csv").exists()
    assert_alike(contents(trained.finetune().folder), straight)


def test_between_the_rounds_of_two_candidates(trained, straight, monkeypatch):
    """A signal between two trainings takes effect when the next candidate begins."""
    plain = finetuning.Finetune._save_network
    calls = []

    def stopping(self, *arguments):
        result = plain(self, *arguments)
        calls.append(arguments)
        if len(calls) == 2:
            stop("SIGTERM")
        return result

    with monkeypatch.context() as patch:
        patch.setattr(finetuning.Finetune, "_save_network", stopping)
        with pytest.raises(Interrupted):
            trained.finetune()
    assert not trained.path("large").exists()
    assert_alike(contents(trained.finetune().folder), straight)


def test_after_the_last_candidate_nothing_is_trained_again(trained, straight, monkeypatch):
    plain = FinetuneFiles.write

    def stopping(self, table, rows):
        if table == "tiers":
            raise Stop
        plain(self, table, rows)

    with monkeypatch.context() as patch:
        patch.setattr(FinetuneFiles, "write", stopping)
        with pytest.raises(Stop):
            trained.finetune()
    stamps = {path: path.stat().st_mtime_ns for path in trained.folder.rglob("last.ckpt")}
    assert len(stamps) == 3
    assert_alike(contents(trained.finetune().folder), straight)
    assert {path: path.stat().st_mtime_ns for path in trained.folder.rglob("last.ckpt")} == stamps
