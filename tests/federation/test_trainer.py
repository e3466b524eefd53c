"""The trainer's rounds, and Lightning's features around them."""

from __future__ import annotations

import pytest
from lightning import Trainer
from lightning.pytorch.callbacks import (
    BackboneFinetuning,
    BatchSizeFinder,
    EarlyStopping,
    GradientAccumulationScheduler,
    LearningRateFinder,
    StochasticWeightAveraging,
)
from torch import nn

from lit_fednas.callbacks import RoundCheckpoint
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedCallback, FederatedTrainer
from lit_fednas.supernets import ElasticResNet
from tests.support import fit, make_module, make_trainer, refusals, tiny_data
from tests.testing.own_parts import HiddenUnits


def test_a_users_callback_may_have_a_name_of_lightnings():
    callback = type("ModelPruning", (FederatedCallback,), {})()
    assert callback in make_trainer(callbacks=[callback]).callbacks


test_arguments_are_refused = refusals(
    ({"max_epochs": 3}, "^trainer.max_epochs: 3 has no meaning here.*set max_rounds"),
    ({"gradient_clip_val": 1.0}, "^trainer.gradient_clip_val: 1.0 has no meaning here.*set client.clip_norm"),
    ({"max_rounds": 0}, "^trainer.max_rounds: 0 trains nothing; give at least 1, or -1 for no end"),
    ({"callbacks": StochasticWeightAveraging(0.1)}, "^trainer.callbacks: StochasticWeightAveraging .*; set weight_av"),
    ({"callbacks": [BatchSizeFinder()]}, "^trainer.callbacks: BatchSizeFinder .*; set client.batch_size"),
    ({"callbacks": LearningRateFinder()}, "^trainer.callbacks: LearningRateFinder .*; set lr of client.optimizer"),
    ({"callbacks": BackboneFinetuning()}, "^trainer.callbacks: BaseFinetuning .*training batches"),
    ({"callbacks": GradientAccumulationScheduler({0: 2})}, "^trainer.callbacks: GradientAccumulationScheduler .*"),
    ({"check_val_every_n_rounds": 0}, "^trainer.check_val_every_n_rounds: 0 must be at least 1"),
    call=lambda arguments: FederatedTrainer(**arguments),
)


def test_early_stopping_stops_after_a_round():
    stopping = EarlyStopping("val/largest/accuracy", mode="max", patience=1, min_delta=2.0)
    trainer = fit(make_module(), tiny_data(), 20, callbacks=[stopping])
    assert trainer.current_epoch == 2  # no later validation is better than the first, and patience is 1


def test_a_spent_time_is_reported(tmp_path, caplog):
    settings = {"callbacks": [RoundCheckpoint()], "enable_checkpointing": True, "default_root_dir": str(tmp_path)}
    fit(make_module(), tiny_data(), 2, max_time={"hours": 1}, **settings)
    assert "max_time" not in caplog.text
    last = tmp_path / "checkpoints" / "last.ckpt"
    assert fit(make_module(), tiny_data(), 9, last, max_time={"seconds": 0}, **settings).global_step == 2
    assert "trainer.max_time: is spent after 2 rounds, so nothing is trained; raise it" in caplog.text


class ForColours(HiddenUnits):
    def build(self, arch: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(3, arch, 3), nn.Flatten(), nn.Linear(36 * arch, self.num_classes))


def test_an_unfit_network_and_a_plain_trainer_are_one_line():
    with pytest.raises(
        ConfigError, match=r"ForColours's network 4 cannot read .* \[1, 8, 8\] .*; build it from self.inp"
    ):
        fit(make_module(ForColours((1, 8, 8), 4, [4, 8])), tiny_data())
    with pytest.raises(ConfigError, match=r"trainer: Trainer trains batches, not rounds; use .*FederatedTrainer"):
        Trainer(max_epochs=1, accelerator="cpu", logger=False).fit(make_module(), datamodule=tiny_data())


@pytest.mark.parametrize(
    ("shape", "field"), [(((1, 8, 8), 5), "num_classes: 5"), (((3, 8, 8), 4), "input_shape")], ids=str
)
def test_data_are_needed_and_must_fit(shape, field):
    supernet = ElasticResNet(*shape, stem_width=4, stage_widths=[8, 8], divisor=2)
    with pytest.raises(ConfigError, match=rf"model\.supernet\.{field}"):
        fit(make_module(supernet), tiny_data())
    with pytest.raises(ConfigError, match="data: the trainer has no data module"):
        make_trainer().fit(make_module())
