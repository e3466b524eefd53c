"""Stopped anywhere and started again = run straight through, exactly."""

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
    """As an error or a signal does."""
    if how == "error":
        raise Stop
    os.kill(os.getpid(), getattr(signal, how))


class StopIn(FederatedCallback):
    """Stops a candidate in the middle of a round."""

    def __init__(self, candidate: int, round: int, how: str) -> None:
        self.at = candidate, round
        self.how = how
        self.made = -1

    def __call__(self, *given):
        """Each candidate's trainer makes one."""
        self.made += 1
        return self

    def on_client_end(self, trainer, module, result, update):
        if (self.made, result.task.round) == self.at:
            stop(self.how)


@pytest.fixture
def straight(tuned_once):
    return contents(tuned_once.files.folder)


def test_in_the_second_candidates_second_round(trained, straight, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "_Stop", StopIn(1, 1, "error"))
        with pytest.raises(Stop):
            trained.finetune()
    files = trained.files
    done = {path.parent.name: len(cohorts(path.parent)) for path in files.folder.glob("runs/*/rounds.jsonl")}
    assert done == {"small-0": 2, "middle-0": 1}
    assert not files.settings()["complete"]
    assert not (files.folder / "tiers.csv").exists()
    assert_alike(contents(trained.finetune().folder), straight)


def test_between_the_rounds_of_two_candidates(trained, straight, monkeypatch):
    """A signal that comes while nothing is trained is remembered until the next candidate begins."""
    plain = finetuning.Finetune._keep
    calls = []

    def stopping(self, *given):
        found = plain(self, *given)
        calls.append(given)
        if len(calls) == 2:
            stop("SIGTERM")
        return found

    with monkeypatch.context() as patch:
        patch.setattr(finetuning.Finetune, "_keep", stopping)
        with pytest.raises(Interrupted):
            trained.finetune()
    assert not trained.path("large").exists()
    assert_alike(contents(trained.finetune().folder), straight)


def test_after_the_last_candidate_the_rest_is_made_up_for_and_nothing_is_trained_again(trained, straight, monkeypatch):
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
