"""Callbacks that follow a metric of a run: which metrics there are, and which end of each is the best."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint

from lit_fednas.callbacks import CostLedger, DeployedAccuracy, DeviceAverage, RoundCheckpoint, RunRecorder
from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, FaultPolicy, FederatedCallback
from lit_fednas.federation.checks import higher_is_better, logged_metrics
from lit_fednas.records import read_rounds
from tests.support import Noted, fit, make_module, sgd, tiny_data

#: Metrics, and which end of them is the best.
BEST = {
    **dict.fromkeys(("val/mean/accuracy", "val/devices/largest/accuracy", "deployed/accuracy"), "max"),
    **dict.fromkeys(("deployed/worst", "clients/used"), "max"),
    **dict.fromkeys(("val/largest/loss", "clients/loss", "clients/wild", "deployed/iqr", "cost/total_macs"), "min"),
}
FAULTS, CLIENT = FaultPolicy(norm_bound=3.0), ClientSettings(sgd(0.1), batch_size=8, validate="trained")


def followed(*callbacks: Any, rounds: int = 3, **settings: Any) -> Any:
    """A run that logs all that these tests name, in a folder if one is given."""
    logging = [DeviceAverage(), DeployedAccuracy(), CostLedger()]
    module = make_module(faults=FAULTS, client=CLIENT)
    data = tiny_data(client_val=0.2, client_test=0.2)
    return fit(module, data, rounds, callbacks=[*logging, *callbacks], enable_checkpointing=True, **settings)


def test_the_best_of_any_metric_that_is_logged_is_kept(tmp_path: Path) -> None:
    """By its record: with this package's checkpoints, which find the mode, and with Lightning's."""
    following = []
    for number, (name, mode) in enumerate(BEST.items()):
        other = ModelCheckpoint(str(tmp_path / f"a{number}"), monitor=name, mode=mode, save_on_train_epoch_end=True)
        own = RoundCheckpoint(name, dirpath=str(tmp_path / f"b{number}"))
        following += [own, other, EarlyStopping(name, mode=mode, patience=9)]
    followed(*following, RunRecorder(), default_root_dir=str(tmp_path / "run"))
    records = list(read_rounds(tmp_path / "run"))
    for number, (name, mode) in enumerate(BEST.items()):
        best = (max if mode == "max" else min)(record["metrics"][name] for record in records)
        own, other, stopping = following[3 * number : 3 * number + 3]
        scores = own.best_model_score, other.best_model_score, stopping.best_score
        assert list(map(float, scores)) == pytest.approx([best] * 3), name


@pytest.mark.parametrize(
    ("following", "message"),
    [
        (
            EarlyStopping("val/mean/accuracy"),
            "mode: min (min is Lightning's default) takes the worst val/mean/accuracy for the",
        ),
        (
            ModelCheckpoint(monitor="clients/loss", mode="max"),
            "mode: max (min is Lightning's default) takes the worst clients/loss for",
        ),
        (
            ModelCheckpoint(monitor="val/mean/acuracy"),
            "monitor: 'val/mean/acuracy' will not be logged; did you mean val/mean/accuracy?",
        ),
        (EarlyStopping("time/round"), "monitor: 'time/round' will not be logged"),
        (EarlyStopping("test/mean/accuracy"), "monitor: 'test/mean/accuracy' will not be logged"),
    ],
)
def test_what_would_keep_the_worst_or_nothing_is_refused(following: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        followed(following)
    assert str(raised.value).startswith(f"trainer.callbacks: {type(following).__name__}.{message}")


def test_what_is_logged_between_validations_is_followed_at_each_as_it_is_then(tmp_path: Path) -> None:
    stopping = EarlyStopping("clients/loss", patience=9)
    folder = tmp_path / "run"
    followed(stopping, RunRecorder(), rounds=4, check_val_every_n_rounds=2, default_root_dir=str(folder))
    values = [record["metrics"]["clients/loss"] for record in read_rounds(folder)]
    assert float(stopping.best_score) == pytest.approx(min(values[1], values[3]))


def test_a_deployed_accuracy_that_a_validation_does_not_have_cannot_be_followed() -> None:
    """Every second round it would be an earlier round's."""
    with pytest.raises(ConfigError, match=r"checkpoint\.monitor: 'deployed/accuracy' will not be logged"):
        fit(
            make_module(),
            tiny_data(client_test=0.2),
            callbacks=[DeployedAccuracy(every_n_rounds=2), RoundCheckpoint(monitor="deployed/accuracy")],
            enable_checkpointing=True,
        )


def test_own_callbacks_may_log_what_they_do_not_announce() -> None:
    logs = Noted("on_server_step", lambda trainer, module, round: module.log("mine/size", float(round.number)))
    stopping = EarlyStopping("mine/size", mode="max", patience=9)
    followed(logs, stopping)
    assert float(stopping.best_score) == 2


def test_all_that_is_announced_is_logged(tmp_path: Path) -> None:
    class Announced(FederatedCallback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.names = logged_metrics(trainer, pl_module)
            self.ways = {name: higher_is_better(name, pl_module.task, {}) for name in self.names}

    announced = Announced()
    followed(announced, RunRecorder(), rounds=1, default_root_dir=str(tmp_path / "run"))
    (record,) = read_rounds(tmp_path / "run")
    assert set(announced.names) == set(record["metrics"])
    assert {name for name, higher in announced.ways.items() if higher is None} == {"clients/lr"}
