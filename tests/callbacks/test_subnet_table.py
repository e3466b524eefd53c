"""Tests the table of subnets on the screen and in a file."""

from __future__ import annotations

import csv

import pytest

from lit_fednas.callbacks import RoundCheckpoint, SubnetTable
from lit_fednas.callbacks.subnet_table import format_table, table_rows
from lit_fednas.federation import EvaluationSettings
from tests.federation.runs import LAST, run_in
from tests.support import Noted, fit, make_module, tiny_data

SUBNETS = ["small = smallest", "d: [0,1], e: 0.25", "largest"]


def module():
    return make_module(evaluation=EvaluationSettings(SUBNETS))


def read(path):
    with open(path, newline="") as file:
        reader = csv.DictReader(file)
        assert " ".join(reader.fieldnames) == "subnet arch split accuracy loss macs parameters bytes weights"
        return list(reader)


def test_after_a_fit_the_last_validation_is_shown_and_written(tmp_path, capsys):
    trained_module = module()
    trainer = fit(trained_module, tiny_data(), 2, callbacks=[SubnetTable()], default_root_dir=str(tmp_path))
    rows = read(tmp_path / "subnets-val.csv")
    assert [row["subnet"] for row in rows] == ["small", "d01-e0.25", "largest"]
    for row in rows:
        for column in ("accuracy", "loss"):
            expected = float(trainer.callback_metrics[f"val/{row['subnet']}/{column}"])
            assert float(row[column]) == pytest.approx(expected, abs=1e-6)
        assert trained_module.supernet.space.parse(row["arch"]) == trained_module.subnets[row["subnet"]]
        assert row["weights"] == trained_module.supernet.digest()
        assert int(row["macs"]) == trained_module.supernet.cost(trained_module.subnets[row["subnet"]]).macs
    output = capsys.readouterr().out
    assert output == format_table(table_rows(trained_module, trainer.callback_metrics, "val")) + "\n"


def stops(trainer, *arguments):
    trainer.should_stop = trainer.current_epoch == 2


@pytest.mark.parametrize(
    ("settings", "callbacks", "rounds"),
    [
        ({"check_val_every_n_rounds": 2}, [], 3),
        ({"check_val_every_n_rounds": 100}, [], 3),
        # The run stops after Lightning has decided whether to validate the round.
        ({"check_val_every_n_rounds": 2}, [Noted("on_train_epoch_end", stops)], 9),
    ],
    ids=["not a multiple", "longer than the run", "stopped at the end of a round"],
)
def test_the_table_is_of_the_last_round(tmp_path, settings, callbacks, rounds):
    table, federated = SubnetTable(), module()
    trainer = fit(
        federated, tiny_data(), rounds, callbacks=[*callbacks, table], default_root_dir=str(tmp_path), **settings
    )
    (last,) = trainer.validate(federated, datamodule=tiny_data())
    assert trainer.global_step == table.rounds == 3
    accuracies = {row["subnet"]: float(row["accuracy"]) for row in read(tmp_path / "subnets-val.csv")}
    assert accuracies == pytest.approx({name: last[f"val/{name}/accuracy"] for name in federated.subnets}, abs=1e-6)


def test_rows_of_an_earlier_round_are_not_shown(tmp_path, capsys, caplog):
    """The checkpoint of round 3 has the rows of round 2, and the run is over."""
    broken = Noted("on_cohort_start", lambda trainer, module, round: 1 // (3 - round.number))
    with pytest.raises(ZeroDivisionError):
        run_in(tmp_path, module(), SubnetTable(), RoundCheckpoint(), broken, rounds=9)
    resumed = SubnetTable()
    with caplog.at_level("INFO", "lit_fednas"):
        run_in(tmp_path, module(), resumed, rounds=3, ckpt_path=tmp_path / LAST)
    assert (len(resumed.rows), resumed.rounds) == (3, 2)
    assert capsys.readouterr().out == ""
    assert "round 3 was not validated" in caplog.text
