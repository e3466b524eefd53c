"""Callbacks that monitor a metric: logged metrics and their directions."""

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

#: Metrics and their modes.
BEST = {
    **dict.fromkeys(("val/mean/accuracy", "val/devices/largest/accuracy", "deployed/accuracy"), "max"),
    **dict.fromkeys(("deployed/worst", "clients/used"), "max"),
    **dict.fromkeys(("val/largest/loss", "clients/loss", "clients/wild", "deployed/iqr", "cost/total_macs"), "min"),
}
FAULTS, CLIENT = FaultPolicy(norm_bound=3.0), ClientSettings(sgd(0.1), batch_size=8, validate="trained")


def followed(*callbacks: Any, rounds: int = 3, **settings: Any) -> Any:
    logging = [DeviceAverage(), DeployedAccuracy(), CostLedger()]
    module = make_module(faults=FAULTS, client=CLIENT)
    data = tiny_data(client_val=0.2, client_test=0.2)
    return fit(module, data, rounds, callbacks=[*logging, *callbacks], enable_checkpointing=True, **settings)


def test_the_best_of_each_logged_metric_is_kept(tmp_path: Path) -> None:
    """Checkpoints of this package, which choose the mode, and of Lightning keep the best round of the record."""
    followers = []
    for number, (name, mode) in enumerate(BEST.items()):
        folder, other_folder = str(tmp_path / f"a{number}"), str(tmp_path / f"b{number}")
        followers += [
            RoundCheckpoint(name, dirpath=folder),
            ModelCheckpoint(other_folder, monitor=name, mode=mode, save_on_train_epoch_end=True),
            EarlyStopping(name, mode=mode, patience=9),
        ]
    followed(*followers, RunRecorder(), default_root_dir=str(tmp_path / "run"))
    records = list(read_rounds(tmp_path / "run"))
    for number, (name, mode) in enumerate(BEST.items()):
        best = (max if mode == "max" else min)(record["metrics"][name] for record in records)
        checkpoint, lightning_checkpoint, stopping = followers[3 * number : 3 * number + 3]
        scores = checkpoint.best_model_score, lightning_checkpoint.best_model_score, stopping.best_score
        assert list(map(float, scores)) == pytest.approx([best] * 3), name


@pytest.mark.parametrize(
    ("follower", "message"),
    [
        (
            EarlyStopping("val/mean/accuracy"),
            "mode: min (min is Lightning's default) keeps the worst val/mean/accuracy",
        ),
        (
            ModelCheckpoint(monitor="clients/loss", mode="max"),
            "mode: max (min is Lightning's default) keeps the worst clients/loss",
        ),
        (
            ModelCheckpoint(monitor="val/mean/acuracy"),
            "monitor: 'val/mean/acuracy' will not be logged; did you mean val/mean/accuracy?",
        ),
        (EarlyStopping("time/round"), "monitor: 'time/round' will not be logged"),
        (EarlyStopping("test/mean/accuracy"), "monitor: 'test/mean/accuracy' will not be logged"),
    ],
)
def test_a_wrong_mode_or_an_unknown_metric_is_refused(follower: Any, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        followed(follower)
    assert str(raised.value).startswith(f"trainer.callbacks: {type(follower).__name__}.{message}")


def test_a_metric_without_a_direction_needs_a_mode() -> None:
    with pytest.raises(ConfigError, match="mode: null is undefined for 'clients/lr'"):
        followed(RoundCheckpoint("clients/lr"))


def test_metrics_of_rounds_are_monitored_at_validations(tmp_path: Path) -> None:
    stopping = EarlyStopping("clients/loss", patience=9)
    folder = tmp_path / "run"
    followed(stopping, RunRecorder(), rounds=4, check_val_every_n_rounds=2, default_root_dir=str(folder))
    values = [record["metrics"]["clients/loss"] for record in read_rounds(folder)]
    assert float(stopping.best_score) == pytest.approx(min(values[1], values[3]))


def test_a_deployed_accuracy_between_validations_cannot_be_monitored() -> None:
    """In every second round the metric would be that of an earlier round."""
    with pytest.raises(ConfigError, match=r"checkpoint\.monitor: 'deployed/accuracy' will not be logged"):
        fit(
            make_module(),
            tiny_data(client_test=0.2),
            callbacks=[DeployedAccuracy(every_n_rounds=2), RoundCheckpoint(monitor="deployed/accuracy")],
            enable_checkpointing=True,
        )


def test_user_callbacks_may_log_metrics_without_announcing_them() -> None:
    logs = Noted("on_server_step", lambda trainer, module, round: module.log("mine/size", float(round.number)))
    stopping = EarlyStopping("mine/size", mode="max", patience=9)
    followed(logs, stopping)
    assert float(stopping.best_score) == 2


def test_all_announced_metrics_are_logged(tmp_path: Path) -> None:
    class Announced(FederatedCallback):
        def on_train_start(self, trainer: Any, pl_module: Any) -> None:
            self.names = logged_metrics(trainer, pl_module)
            self.ways = {name: higher_is_better(name, pl_module.task, {}) for name in self.names}

    announced = Announced()
    followed(announced, RunRecorder(), rounds=1, default_root_dir=str(tmp_path / "run"))
    (record,) = read_rounds(tmp_path / "run")
    assert set(announced.names) == set(record["metrics"])
    assert {name for name, higher in announced.ways.items() if higher is None} == {"clients/lr"}
