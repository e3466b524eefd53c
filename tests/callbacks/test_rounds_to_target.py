"""The first rounds at which targets were reached, with given accuracies and in real runs."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import torch

from lit_fednas.callbacks import CostLedger, RoundCheckpoint, RoundsToTarget, RunRecorder
from lit_fednas.data import IID, ArraySource, FederatedDataModule
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation import FederatedCallback
from lit_fednas.loggers import RunLogger
from lit_fednas.records import read_rounds
from tests.support import linear_net, make_module, make_trainer, tiny_data, tiny_examples

DEVICES = "val/devices/simple/accuracy"
LARGEST = "val/largest/accuracy"
# one client of three: 20 examples of 256 multiply-accumulates; 260 numbers of 4 bytes
MACS, BYTES = 3 * 20 * 256, 3 * 1040


class Given(FederatedCallback):
    """Logs given accuracies; ``None``: nothing in that round."""

    def __init__(self, values):
        self.values = values
        self.metric_names = []

    def setup(self, trainer, pl_module, stage):
        self.metric_names = [DEVICES, "val/devices/simple/loss"]

    def on_validation_epoch_end(self, trainer, pl_module):
        value = self.values[trainer.current_epoch]
        if value is not None:
            pl_module.log(DEVICES, torch.tensor(value))


def run(folder, callback, values=(), rounds=None, extra=(), ckpt_path=None, data=None, **settings):
    trainer = make_trainer(
        rounds or len(values),
        enable_checkpointing=True,
        logger=RunLogger(str(folder), "run", "only"),
        callbacks=[callback, Given(list(values)), CostLedger(), RunRecorder(), RoundCheckpoint(), *extra],
        **settings,
    )
    trainer.fit(make_module(linear_net()), datamodule=data or tiny_data(), ckpt_path=ckpt_path)
    return folder / "run" / "only"


def rows(folder: Path) -> list[tuple]:
    with open(folder / "targets.csv", newline="") as file:
        return [tuple(row.values()) for row in csv.DictReader(file)]


def row(target, rounds, metric=DEVICES):
    counts = ("", "", "", "") if rounds is None else (rounds, rounds * MACS, rounds * BYTES, rounds * BYTES)
    return tuple(str(cell) for cell in (metric, target, *counts))


def test_the_first_round_counted_from_one_with_what_was_spent(tmp_path, capsys):
    # 0.7 of float32 lies below 0.7; what falls afterwards stays reached
    values = [0.1, None, 0.55, 0.7, 0.3]
    folder = run(tmp_path, RoundsToTarget({DEVICES: [0.7, 0.1, 0.5, 0.71]}), values)
    assert rows(folder) == [row(0.1, 1), row(0.5, 3), row(0.7, 4), row(0.71, None)]
    with open(folder / "targets.csv") as file:
        assert file.readline().strip() == "metric,target,round,macs,bytes_down,bytes_up"
    shown = [line.split() for line in capsys.readouterr().out.splitlines() if DEVICES in line]
    assert [line[1:] for line in shown] == [
        ["0.1", "1", "15.4", "k", "6.24", "kB"],
        ["0.5", "3", "46.1", "k", "18.7", "kB"],
        ["0.7", "4", "61.4", "k", "25", "kB"],
        ["0.71", ">", "5", "–", "–"],
    ]


def test_it_is_logged_from_then_on(tmp_path):
    folder = run(tmp_path, RoundsToTarget({DEVICES: [0.5, 0.9]}), [0.1, 0.5, 0.1])
    logged = [record["metrics"].get("rounds_to/devices-simple/0.5") for record in read_rounds(folder)]
    assert logged == [None, 2, 2]
    assert not any("rounds_to/devices-simple/0.9" in record["metrics"] for record in read_rounds(folder))


def test_only_validated_rounds_count_and_nan_reaches_nothing(tmp_path):
    callback = RoundsToTarget({DEVICES: [0.1, 0.3, 0.9]})
    folder = run(tmp_path, callback, [1.0, math.nan, 1.0, 0.2, 1.0, 0.3, 1.0], check_val_every_n_rounds=2)
    assert rows(folder) == [row(0.1, 4), row(0.3, 6), row(0.9, None)]
    assert "> 6" in callback.table()


def test_without_a_ledger_there_are_no_costs_and_a_validation_apart_from_training_does_not_count(tmp_path):
    callback, module = RoundsToTarget({DEVICES: [0.1]}), make_module(linear_net())
    trainer = make_trainer(1, callbacks=[callback, Given([0.5])], default_root_dir=str(tmp_path))
    trainer.validate(module, datamodule=tiny_data())
    assert float(trainer.callback_metrics[DEVICES]) == 0.5
    assert callback.rows[0]["round"] is None
    trainer.fit(module, datamodule=tiny_data())
    assert rows(tmp_path) == [(DEVICES, "0.1", "1", "", "", "")]


def test_training_stops_when_all_are_reached_if_asked(tmp_path):
    values, both = [0.1, 0.5, 0.6, 0.7, 0.8], {DEVICES: [0.5, 0.6]}
    folder = run(tmp_path, RoundsToTarget(both, stop=True), values)
    last, before = folder / "checkpoints" / "last.ckpt", (folder / "targets.csv").read_text()
    assert torch.load(last, weights_only=True)["global_step"] == len(list(read_rounds(folder))) == 3
    # it was enough: going on trains no round more
    run(tmp_path, RoundsToTarget(both, stop=True), values, ckpt_path=str(last))
    assert len(list(read_rounds(folder))) == 3
    assert (folder / "targets.csv").read_text() == before


VALUES = [0.1, 0.4, 0.2, 0.6, 0.7]
TARGETS = {DEVICES: [0.3, 0.6, 0.99], LARGEST: [0.01]}


def test_a_resumed_run_writes_the_same_file_and_rounds_after_the_checkpoint_are_forgotten(tmp_path):
    """It goes on from a checkpoint of round 2 of a run that had gone on."""
    straight = run(tmp_path / "straight", RoundsToTarget(TARGETS), VALUES)
    assert rows(straight) == [row(0.3, 2), row(0.6, 4), row(0.99, None), row(0.01, 1, LARGEST)]
    folder = run(tmp_path, RoundsToTarget(TARGETS), VALUES[:2])
    saved = folder / "checkpoints" / "two.ckpt"
    saved.write_bytes((folder / "checkpoints" / "last.ckpt").read_bytes())
    run(tmp_path, RoundsToTarget(TARGETS), [*VALUES[:2], 1.0, 1.0], ckpt_path=str(saved))
    assert rows(folder)[2] == row(0.99, 3)
    run(tmp_path, RoundsToTarget(TARGETS), VALUES, ckpt_path=str(saved))
    assert (folder / "targets.csv").read_text() == (straight / "targets.csv").read_text()
    for one, other in zip(read_rounds(folder), read_rounds(straight), strict=True):
        assert one["metrics"] == other["metrics"]


@pytest.mark.parametrize(
    ("callback", "said"),
    [
        (RoundsToTarget({DEVICES: [0.5]}), r"the run so far looked for val/devices/simple/accuracy 0\.5; give"),
        (FederatedCallback(), "looked for none"),
    ],
)
def test_a_resumed_run_keeps_its_targets(tmp_path, callback, said):
    last = str(run(tmp_path, callback, [0.1, 0.2]) / "checkpoints" / "last.ckpt")
    with pytest.raises(CheckpointError, match=said):
        run(tmp_path, RoundsToTarget({DEVICES: [0.4]}), [0.1] * 3, ckpt_path=last)


def test_a_fit_anew_begins_anew(tmp_path):
    callback = RoundsToTarget({DEVICES: [0.5]})
    run(tmp_path / "one", callback, [0.6])
    assert rows(run(tmp_path / "two", callback, [0.1, 0.5])) == [row(0.5, 2)]


KNOWN = f"choose from {LARGEST}, val/largest/loss, .*{DEVICES}.*$"
NO_VALIDATION = FederatedDataModule(ArraySource(tiny_examples()), num_clients=6, partitioner=IID(), server_val=0)


@pytest.mark.parametrize(
    ("targets", "settings", "said"),
    [
        ({}, {}, "asks for nothing"),
        ({DEVICES: []}, {}, "asks for nothing"),
        ({DEVICES: [0.5, 0.0]}, {}, r"val/devices/simple/accuracy\[1\]: 0.0 must be above 0"),
        ({DEVICES: [55]}, {}, "val/devices/simple/accuracy cannot reach 55; give shares of 1"),
        ({DEVICES: [math.nan]}, {}, "nan must be above 0"),
        ({"val/nobody/accuracy": [0.5]}, {}, f"val/nobody/accuracy' will not be logged; {KNOWN}"),
        ({"clients/loss": [0.5]}, {}, f"clients/loss' will not be logged; {KNOWN}"),
        ({LARGEST: [0.5]}, {"limit_val_batches": 0}, "nothing is validated"),
        ({LARGEST: [0.5]}, {"data": NO_VALIDATION}, "nothing is validated"),
    ],
)
def test_what_cannot_be_reached_is_told_before_training(tmp_path, targets, settings, said):
    with pytest.raises(ConfigError, match=said):
        run(tmp_path, RoundsToTarget(targets), [0.1], **settings)
    assert not list(tmp_path.rglob("rounds.jsonl"))
