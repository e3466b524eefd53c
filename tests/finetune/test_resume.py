"""Stopped anywhere and started again = run straight through, exactly."""

from __future__ import annotations

import os
import shutil
import signal

import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedCallback
from lit_fednas.federation.interrupts import Interrupted
from lit_fednas.finetune import finetuning
from lit_fednas.records import FinetuneFiles
from lit_fednas.tiers import ClientTiers, ListedTiers
from tests.finetune.small import Ranges, everything, module_of, rounds


class Stop(Exception):
    pass


class StopIn(FederatedCallback):
    """Stops a candidate in the middle of a round, as an error or a signal does."""

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
            if self.how == "error":
                raise Stop
            os.kill(os.getpid(), getattr(signal, self.how))


@pytest.fixture
def straight(tuned_once):
    return everything(FinetuneFiles(tuned_once.folder / "finetune"))


@pytest.mark.parametrize(("how", "raised"), [("error", Stop), ("SIGTERM", Interrupted)])
def test_in_the_second_candidates_second_round(trained, straight, monkeypatch, how, raised):
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "_Stop", StopIn(1, 1, how))
        with pytest.raises(raised):
            trained.finetune()
    files = FinetuneFiles(trained.folder / "finetune")
    assert len(rounds(trained.path("small"))) == 2
    assert len(rounds(trained.path("middle"))) == 1
    assert not trained.path("large").exists()
    assert not files.settings()["complete"]
    assert not (files.folder / "tiers.csv").exists()
    assert everything(trained.finetune()) == straight


@pytest.mark.slow
def test_in_the_first_round_of_all(trained, straight, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "_Stop", StopIn(0, 0, "SIGINT"))
        with pytest.raises(Interrupted):
            trained.finetune()
    assert not (trained.path("small") / "checkpoints" / "last.ckpt").exists()
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
            if how == "error":
                raise Stop
            os.kill(os.getpid(), getattr(signal, how))
        return found

    with monkeypatch.context() as patch:
        patch.setattr(finetuning.Finetuning, where, stopping)
        with pytest.raises(Stop if how == "error" else Interrupted):
            trained.finetune()
    assert not trained.path("large").exists()
    assert everything(trained.finetune()) == straight


def test_a_signal_before_the_loop_listens_stops_the_candidate_at_once(trained, straight, monkeypatch):
    plain = finetuning.RoundCheckpoint

    def stopping():
        """While the candidate's trainer is made."""
        os.kill(os.getpid(), signal.SIGTERM)
        return plain()

    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "RoundCheckpoint", stopping)
        with pytest.raises(Interrupted):
            trained.finetune()
    assert not (trained.path("small") / "rounds.jsonl").exists()
    assert everything(trained.finetune()) == straight


def test_after_the_end_nothing_is_trained_again(trained, straight, monkeypatch):
    trained.finetune()
    stamps = {path: path.stat().st_mtime_ns for path in trained.folder.rglob("last.ckpt")}
    assert len(stamps) == 3
    asked = []

    class Counted(FederatedCallback):
        def __init__(self, *given):
            pass

        def on_client_end(self, trainer, module, result, update):
            asked.append(result)

    monkeypatch.setattr(finetuning, "_Stop", Counted)
    assert everything(trained.finetune()) == straight
    assert asked == []
    assert {path: path.stat().st_mtime_ns for path in trained.folder.rglob("last.ckpt")} == stamps


def test_after_the_last_candidate_the_rest_is_made_up_for(trained, straight, monkeypatch):
    plain = FinetuneFiles.write

    def stopping(self, table, rows):
        if table == "tiers":
            raise Stop
        plain(self, table, rows)

    with monkeypatch.context() as patch:
        patch.setattr(FinetuneFiles, "write", stopping)
        with pytest.raises(Stop):
            trained.finetune()
    assert everything(trained.finetune()) == straight


@pytest.mark.slow
def test_several_candidates_of_a_tier_are_gone_on_with(trained, monkeypatch):
    tiers = ClientTiers(Ranges("middle", "large"), ListedTiers({"middle": [0, 1, 2], "large": [3, 4, 5]}))
    trained = trained._replace(module=module_of(trained.module.supernet, tiers=tiers))
    there = trained._replace(folder=trained.folder / "straight")
    expected = everything(there.finetune(architectures=2))
    with monkeypatch.context() as patch:
        patch.setattr(finetuning, "_Stop", StopIn(1, 1, "error"))
        with pytest.raises(Stop):
            trained.finetune(architectures=2)
    assert len(rounds(trained.path("middle", 1))) == 1
    assert everything(trained.finetune(architectures=2)) == expected


def test_another_fine_tuning_in_the_same_folder_is_refused(trained):
    trained.finetune(rounds=1)
    before = everything(FinetuneFiles(trained.folder / "finetune"))
    for changed, word in [
        ({"rounds": 2}, r"other rounds \(there 1, now 2\)"),
        ({"rounds": 1, "initial": "random"}, "other initial, weights"),
        ({"rounds": 1, "tier_aware": False}, "other tier_aware, eligible"),
        ({"rounds": 1, "seed": 7}, r"other seed \(there 0, now 7\)"),
        ({"rounds": 1, "architectures": 1}, "other architectures"),
    ]:
        with pytest.raises(ConfigError, match=rf"^finetune.name: .*a fine-tuning with {word}.*another name$"):
            trained.finetune(**changed)
    assert everything(FinetuneFiles(trained.folder / "finetune")) == before
    shutil.copytree(trained.folder / "search", trained.folder / "search2")
    with pytest.raises(ConfigError, match=r"^finetune.name: .*search2 holds a fine-tuning with other rounds"):
        trained.finetune(rounds=1, name="search2")
