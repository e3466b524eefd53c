"""The CSV file over a run's parts."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from lit_fednas.loggers import RunLogger
from lit_fednas.records.run import forget_from


def open_run(folder: Path) -> RunLogger:
    return RunLogger(str(folder), "run", "only")


def rows(folder: Path) -> list[dict[str, str]]:
    with open(folder / "run" / "only" / "metrics.csv", newline="") as file:
        return list(csv.DictReader(file))


def log(logger: RunLogger, steps, **values: float) -> None:
    for step in steps:
        logger.log_metrics({"loss": float(step), **values}, step)


def test_new_columns_replace_the_file_as_a_whole(tmp_path, monkeypatch):
    logger = open_run(tmp_path)
    log(logger, [0])
    monkeypatch.setattr(os, "replace", lambda *paths: (_ for _ in ()).throw(KeyboardInterrupt))  # a kill
    with pytest.raises(KeyboardInterrupt):
        log(logger, [1], later=2.0)
    assert rows(tmp_path) == [{"loss": "0.0", "step": "0"}]
    monkeypatch.undo()
    log(open_run(tmp_path), [1], later=2.0)
    assert [(row["step"], row["later"]) for row in rows(tmp_path)] == [("0", ""), ("1", "2.0")]


def test_nothing_is_lost_before_the_first_row_of_the_second_part(tmp_path):
    log(open_run(tmp_path), range(3))
    second = open_run(tmp_path)
    second.log_hyperparams({"a": 1})
    second.save()
    second.finalize("failed")
    assert [row["step"] for row in rows(tmp_path)] == ["0", "1", "2"]


def test_rows_that_are_trained_again_or_that_a_kill_cut_short_are_dropped(tmp_path):
    """Rows of other commands stay."""
    log(open_run(tmp_path), range(3), other=1.0)
    later = open_run(tmp_path)
    for row in ({"val/a/loss": 0.5}, {"test/a/loss": 0.6}, {"test/a/loss": 0.6}):
        later.log_metrics({**row, "epoch": 3.0}, 3)  # a validation and two tests of the last weights
    path = tmp_path / "run" / "only" / "metrics.csv"
    path.write_text(path.read_text() + "3.0")
    logged = [(row["step"], row["loss"], row["val/a/loss"], row["test/a/loss"]) for row in rows(tmp_path)[:-1]]
    assert logged[2:] == [("2", "2.0", "", ""), ("3", "", "0.5", ""), *[("3", "", "", "0.6")] * 2]
    for first, expected in ((3, logged), (2, [*logged[:2], *logged[3:]])):
        forget_from(path.parent, first)
        log(open_run(tmp_path), [first], other=1.0)
        present = [(row["step"], row["loss"], row["val/a/loss"], row["test/a/loss"]) for row in rows(tmp_path)]
        assert present == [*expected, (str(first), f"{first}.0", "", "")]


def test_a_validation_of_later_weights_stays_when_earlier_rounds_are_trained_again(tmp_path):
    """The row before training stays in any case; that of a round goes with it."""
    logger = open_run(tmp_path)
    logger.log_metrics({"val/a/loss": 9.0}, 0)
    for step in range(3):
        logger.log_metrics({"loss": 1.0}, step)
        logger.log_metrics({"val/a/loss": float(step)}, step)
    logger.log_metrics({"val/a/loss": 7.0}, 3)
    for first, losses in ((1, ["9.0", "", "0.0", "7.0"]), (0, ["9.0", "7.0"])):
        forget_from(tmp_path / "run" / "only", first)
        assert [row["val/a/loss"] for row in rows(tmp_path)] == losses
