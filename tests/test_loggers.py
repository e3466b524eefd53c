"""The CSV file over a run's parts."""

from __future__ import annotations

import csv
import os
from pathlib import Path

import pytest

from lit_fednas.loggers import RunLogger


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


def test_rows_that_are_logged_again_or_that_a_kill_cut_short_are_dropped(tmp_path):
    log(open_run(tmp_path), range(3), other=1.0)
    path = tmp_path / "run" / "only" / "metrics.csv"
    path.write_text(path.read_text() + "3.0")
    log(open_run(tmp_path), range(2, 4), other=1.0)
    assert [row["step"] for row in rows(tmp_path)] == ["0", "1", "2", "3"]
