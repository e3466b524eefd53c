"""Stopped anywhere and started again = run straight through, exactly."""

import os
import shutil
import signal

import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedCallback
from lit_fednas.federation.interrupts import Interrupted
from lit_fednas.finetune import finetuning
from lit_fednas.records import FinetuneFiles
from tests.finetune.small import everything, rounds


class Stop(Exception):
    pass


STOPS = {"error": Stop, "SIGTERM": Interrupted}


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
    return everything(tuned_once.files)


@pytest.mark.parametrize(
    ("candidate", "how", "done"), [(0, "SIGTERM", {}), (1, "error", {"small-0": 2, "middle-0": 1})]
)
def test_in_the_first_round_of_all_and_in_the_second_candidates_second(
    trained, straight, monkeypatch, candidate, how, done
):
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "_Stop", StopIn(candidate, candidate, how))
        with pytest.raises(STOPS[how]):
            trained.finetune()
    files = trained.files
    assert {path.parent.name: len(rounds(path.parent)) for path in files.folder.glob("runs/*/rounds.jsonl")} == done
    assert not files.settings()["complete"]
    assert not (files.folder / "tiers.csv").exists()
    assert everything(trained.finetune()) == straight


@pytest.mark.parametrize(("how", "where"), [("error", "_initial"), ("SIGTERM", "_keep")])
def test_between_the_rounds_of_two_candidates(trained, straight, monkeypatch, how, where):
    """A signal that comes while nothing is trained is remembered until the next candidate begins."""
    plain = getattr(finetuning.Finetuning, where)
    calls = []

    def stopping(self, *given):
        found = plain(self, *given)
        calls.append(given)
        if len(calls) == 2:
            stop(how)
        return found

    with monkeypatch.context() as patch:
        patch.setattr(finetuning.Finetuning, where, stopping)
        with pytest.raises(STOPS[how]):
            trained.finetune()
    assert not trained.path("large").exists()
    assert everything(trained.finetune()) == straight


def test_a_signal_before_the_loop_listens_stops_the_candidate_at_once(trained, monkeypatch):
    plain = finetuning.RoundCheckpoint

    def stopping():
        """While the candidate's trainer is made."""
        stop("SIGTERM")
        return plain()

    monkeypatch.setattr(finetuning, "RoundCheckpoint", stopping)
    with pytest.raises(Interrupted):
        trained.finetune()
    assert not (trained.path("small") / "rounds.jsonl").exists()


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
    for _ in range(2):  # the second time, after the end
        assert everything(trained.finetune()) == straight
    assert {path: path.stat().st_mtime_ns for path in trained.folder.rglob("last.ckpt")} == stamps


def test_another_fine_tuning_in_the_same_folder_is_refused(trained):
    trained.finetune(rounds=1)
    before = everything(trained.files)
    for changed, word in [
        ({"rounds": 2}, r"other rounds \(there 1, now 2\)"),
        ({"rounds": 1, "initial": "random"}, "other initial, weights"),
        ({"rounds": 1, "tier_aware": False}, "other tier_aware, eligible"),
    ]:
        with pytest.raises(ConfigError, match=rf"^finetune.name: .*a fine-tuning with {word}.*another name$"):
            trained.finetune(**changed)
    assert everything(trained.files) == before
    shutil.copytree(trained.folder / "search", trained.folder / "search2")
    with pytest.raises(ConfigError, match=r"^finetune.name: .*search2 holds a fine-tuning with other rounds"):
        trained.finetune(rounds=1, name="search2")
