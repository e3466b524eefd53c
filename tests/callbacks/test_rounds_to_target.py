"""The first rounds at which targets were reached, with given accuracies and in real runs."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import pytest
import torch

from lit_fednas.callbacks import CostLedger, RoundCheckpoint, RoundsToTarget, RunRecorder
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation import FederatedCallback
from lit_fednas.loggers import RunLogger
from lit_fednas.records import read_rounds
from tests.support import linear_net, make_module, make_trainer, tiny_data

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


def run(folder, callback, values=(), rounds=None, extra=(), ckpt_path=None, **settings):
    trainer = make_trainer(
        rounds or len(values),
        enable_checkpointing=True,
        logger=RunLogger(str(folder), "run", "only"),
        callbacks=[callback, Given(list(values)), CostLedger(), RunRecorder(), RoundCheckpoint(), *extra],
        **settings,
    )
    trainer.fit(make_module(linear_net()), datamodule=tiny_data(), ckpt_path=ckpt_path)
    return folder / "run" / "only"


def rows(folder: Path) -> list[tuple]:
    with open(folder / "targets.csv", newline="") as file:
        return [tuple(row.values()) for row in csv.DictReader(file)]


def row(target, rounds, metric=DEVICES):
    counts = ("", "", "", "") if rounds is None else (rounds, rounds * MACS, rounds * BYTES, rounds * BYTES)
    return tuple(str(cell) for cell in (metric, target, *counts))


def test_the_first_round_counted_from_one_with_what_was_spent(tmp_path):
    # 0.7 of float32 lies below 0.7; what falls afterwards stays reached
    values = [0.1, None, 0.55, 0.7, 0.3]
    folder = run(tmp_path, RoundsToTarget({DEVICES: [0.7, 0.1, 0.5, 0.71]}), values)
    assert rows(folder) == [row(0.1, 1), row(0.5, 3), row(0.7, 4), row(0.71, None)]
    logged = [record["metrics"].get("rounds_to/devices-simple/0.5") for record in read_rounds(folder)]
    assert logged == [None, None, 3, 3, 3]


def test_only_validated_rounds_count_and_nan_reaches_nothing(tmp_path):
    callback, values = RoundsToTarget({DEVICES: [0.1, 0.3, 0.9]}), [1.0, math.nan, 1.0, 0.2, 1.0, 0.3, 1.0]
    folder = run(tmp_path, callback, values, check_val_every_n_rounds=2)
    assert rows(folder) == [row(0.1, 4), row(0.3, 6), row(0.9, None)]


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


def test_a_resumed_run_keeps_its_targets(tmp_path):
    last = str(run(tmp_path, RoundsToTarget({DEVICES: [0.5]}), [0.1, 0.2]) / "checkpoints" / "last.ckpt")
    with pytest.raises(CheckpointError, match=r"the run so far looked for val/devices/simple/accuracy 0\.5; give"):
        run(tmp_path, RoundsToTarget({DEVICES: [0.4]}), [0.1] * 3, ckpt_path=last)


@pytest.mark.parametrize(
    ("targets", "settings", "said"),
    [
        ({}, {}, "names no value"),
        ({DEVICES: [55]}, {}, "val/devices/simple/accuracy cannot reach 55; give shares of 1"),
        (
            {"clients/los": [0.5]},
            {},
            "clients/los' will not be logged; did you mean clients/loss.; choose from val",
        ),
        ({"clients/lr": [0.5]}, {}, "clients/lr' does not say whether higher is better"),
        ({LARGEST: [0.5]}, {"limit_val_batches": 0}, "largest/accuracy' will not be logged"),
    ],
)
def test_what_cannot_be_reached_is_told_before_training(tmp_path, targets, settings, said):
    with pytest.raises(ConfigError, match=said):
        run(tmp_path, RoundsToTarget(targets), [0.1], **settings)
