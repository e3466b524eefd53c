"""The subnets as a table on the screen and in a file."""

from __future__ import annotations

import csv

import pytest

from lit_fednas.callbacks import RoundCheckpoint, SubnetTable
from lit_fednas.callbacks.subnet_table import format_table, table_rows
from lit_fednas.federation import EvaluationSettings
from tests.support import fit, make_module, make_trainer, tiny_data

SUBNETS = ["small = smallest", "d: [0,1], e: 0.25", "largest"]
HEAD = ["subnet", "architecture", "MACs", "parameters", "bytes"]


def module():
    return make_module(evaluation=EvaluationSettings(SUBNETS))


def read(path):
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        assert " ".join(reader.fieldnames) == "subnet arch split accuracy loss macs parameters bytes"
        return list(reader)


def test_rows_hold_metrics_and_costs():
    made = module()
    metrics = {"val/small/accuracy": 0.12345678, "val/small/loss": 1.5, "test/largest/accuracy": 0.9}
    arch = made.supernet.space.smallest
    network = made.supernet.subnet(arch)
    numbers = sum(parameter.numel() for parameter in network.parameters())
    assert table_rows(made, metrics, "val") == [
        {
            "subnet": "small",
            "arch": str(arch),
            "split": "val",
            "accuracy": 0.123457,
            "loss": 1.5,
            "macs": made.supernet.cost(arch).macs,
            "parameters": numbers,
            "bytes": 4 * numbers,  # its norm layers have no buffers
        }
    ]
    assert table_rows(made, {}, "val") == []


def test_columns_are_aligned():
    costs = {"macs": 12_345_678, "parameters": 1_234_567, "bytes": 4_938_268}
    tiny = {"macs": 632, "parameters": 50, "bytes": 200}
    rows = [
        {"subnet": "a", "arch": "d: 0", "split": "test", "accuracy": 0.5, "loss": 12.34567, **costs},
        {"subnet": "longer", "arch": "d: [0,1]", "split": "test", "accuracy": 1.0, "loss": 0.1, **tiny},
    ]
    assert format_table(rows).splitlines() == [
        "subnet  architecture    MACs  parameters    bytes  test accuracy     loss",
        "a       d: 0          12.3 M      1.23 M  4.94 MB         0.5000  12.3457",
        "longer  d: [0,1]         632          50    200 B         1.0000   0.1000",
    ]


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
        assert int(row["macs"]) == made.supernet.cost(made.subnets[row["subnet"]]).macs
    shown = capsys.readouterr().out
    assert shown == format_table(table_rows(made, trainer.callback_metrics, "val")) + "\n"
    assert shown.split()[:5] == HEAD
    assert not (tmp_path / "subnets-test.csv").exists()


def test_a_resumed_part_without_a_validation_writes_the_last_one(tmp_path):
    def fitted(rounds, **settings):
        callbacks = [SubnetTable(), RoundCheckpoint(dirpath=str(tmp_path))]
        known = {"check_val_every_n_rounds": 2, "enable_checkpointing": True, "default_root_dir": str(tmp_path)}
        make_trainer(rounds, callbacks=callbacks, **known).fit(module(), datamodule=tiny_data(), **settings)

    fitted(2)
    table = tmp_path / "subnets-val.csv"
    before = table.read_bytes()
    table.unlink()  # as a kill would
    fitted(3, ckpt_path=str(tmp_path / "last.ckpt"))
    assert table.read_bytes() == before


def test_validate_and_test_show_theirs(tmp_path, capsys):
    made = module()
    trainer = make_trainer(callbacks=[SubnetTable()], default_root_dir=str(tmp_path / "new"))
    trainer.validate(made, datamodule=tiny_data())
    assert "val accuracy" in capsys.readouterr().out
    trainer.test(made, datamodule=tiny_data())
    assert "test accuracy" in capsys.readouterr().out
    for split in ("val", "test"):
        rows = read(tmp_path / "new" / f"subnets-{split}.csv")
        assert [row["split"] for row in rows] == [split] * 3


def test_a_fit_without_validation_shows_nothing(tmp_path, capsys):
    settings = {"check_val_every_n_rounds": 9, "default_root_dir": str(tmp_path)}
    fit(module(), tiny_data(), 1, callbacks=[SubnetTable()], **settings)
    assert capsys.readouterr().out == ""
    assert list(tmp_path.iterdir()) == []
