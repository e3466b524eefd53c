"""The subnets as a table on the screen and in a file."""

from __future__ import annotations

import csv

import pytest

from lit_fednas.callbacks import RoundCheckpoint, SubnetTable
from lit_fednas.callbacks.recorder import format_table, table_rows
from lit_fednas.federation import EvaluationSettings
from tests.federation.runs import LAST, run_in
from tests.support import fit, make_module, tiny_data

SUBNETS = ["small = smallest", "d: [0,1], e: 0.25", "largest"]


def module():
    return make_module(evaluation=EvaluationSettings(SUBNETS))


def read(path):
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        assert " ".join(reader.fieldnames) == "subnet arch split accuracy loss macs parameters bytes weights"
        return list(reader)


def test_after_a_fit_the_last_validation_is_shown_and_written(tmp_path, capsys):
    made = module()
    trainer = fit(made, tiny_data(), 2, callbacks=[SubnetTable()], default_root_dir=str(tmp_path))
    rows = read(tmp_path / "subnets-val.csv")
    assert [row["subnet"] for row in rows] == ["small", "d01-e0.25", "largest"]
    for row in rows:
        for column in ("accuracy", "loss"):
            expected = float(trainer.callback_metrics[f"val/{row['subnet']}/{column}"])
            assert float(row[column]) == pytest.approx(expected, abs=1e-6)
        assert made.supernet.space.parse(row["arch"]) == made.subnets[row["subnet"]]
        assert row["weights"] == made.supernet.digest()
        assert int(row["macs"]) == made.supernet.cost(made.subnets[row["subnet"]]).macs
    shown = capsys.readouterr().out
    assert shown == format_table(table_rows(made, trainer.callback_metrics, "val")) + "\n"


def test_a_resumed_part_without_a_validation_writes_the_last_one(tmp_path):
    run_in(tmp_path, module(), SubnetTable(), RoundCheckpoint(), rounds=2)
    table = tmp_path / "run" / "only" / "subnets-val.csv"
    before = table.read_bytes()
    table.unlink()  # as a kill would
    run_in(tmp_path, module(), SubnetTable(), rounds=3, ckpt_path=tmp_path / LAST)
    assert table.read_bytes() == before
