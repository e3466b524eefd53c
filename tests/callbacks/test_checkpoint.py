"""Tests when checkpoints are written, the choice of the best, and the state after errors."""

from __future__ import annotations

import io

import pytest
import torch

from lit_fednas.callbacks import RoundCheckpoint, RunRecorder
from lit_fednas.federation import FederatedCallback
from lit_fednas.federation.process import Interrupted
from lit_fednas.records import read_rounds
from lit_fednas.testing.contract import assert_alike
from lit_fednas.testing.runs import contents
from tests.federation.test_resume import StopAt
from tests.federation.test_resume import run as full_run
from tests.support import assert_same, fit, linear_net, make_module, tiny_data, weights


class Values(FederatedCallback):
    """Replaces the values of the validation metrics."""

    def __init__(self, values):
        self.values = values

    def on_validation_epoch_end(self, trainer, pl_module):
        value = self.values[trainer.current_epoch]
        metrics = pl_module.val_metrics
        metrics.compute = lambda: dict.fromkeys(metrics.metric_names, torch.tensor(value))


def run(folder, checkpoint, rounds=4, callbacks=(), module=None, ckpt_path=None, **settings):
    module, callbacks = module or make_module(linear_net()), [checkpoint, *callbacks]
    settings = {"enable_checkpointing": True, "default_root_dir": str(folder), **settings}
    return fit(module, tiny_data(), rounds, ckpt_path, callbacks=callbacks, **settings), module


def names(folder):
    return sorted(path.name for path in folder.rglob("*.ckpt"))


def step(path):
    return torch.load(path, weights_only=True)["global_step"]


@pytest.mark.parametrize(("every_n_rounds", "saved_steps"), [(1, [1, 2, 3]), (2, [2, 3])])
def test_the_last_is_written_every_n_rounds_and_at_the_end(tmp_path, every_n_rounds, saved_steps):
    last, steps = tmp_path / "checkpoints" / "last.ckpt", []

    class Saves(FederatedCallback):
        """Reads the file when the next round starts, and at the end."""

        def on_cohort_start(self, *arguments):
            if last.exists() and step(last) not in steps:
                steps.append(step(last))

        on_train_end = on_cohort_start

    _, module = run(tmp_path, RoundCheckpoint(every_n_rounds=every_n_rounds), 3, [Saves()])
    assert steps == saved_steps
    assert names(tmp_path) == ["last.ckpt"]
    saved = torch.load(last, weights_only=True)["state_dict"]
    assert_same({f"supernet.{name}": tensor for name, tensor in weights(module).items()}, saved)


@pytest.mark.parametrize(("mode", "top_k", "best_rounds"), [("max", 2, [1, 3]), ("min", 1, [0])])
def test_the_best_are_kept(tmp_path, mode, top_k, best_rounds):
    checkpoint = RoundCheckpoint("val/largest/accuracy", mode, top_k, dirpath=str(tmp_path / "here"))
    run(tmp_path, checkpoint, 5, [Values([0.1, 0.9, 0.3, 0.7, 0.5])])
    assert names(tmp_path / "here") == ["last.ckpt", *(f"round={round}.ckpt" for round in best_rounds)]
    for round in best_rounds:
        assert step(tmp_path / "here" / f"round={round}.ckpt") == round + 1
    assert step(tmp_path / "here" / "last.ckpt") == 5


@pytest.mark.parametrize(("metric", "best", "score"), [("accuracy", "round=1", 0.9), ("loss", "round=2", 0.1)])
def test_without_a_mode_the_metric_defines_the_best(tmp_path, metric, best, score):
    """The best checkpoint is kept in a run that is stopped, moved and resumed."""
    checkpoint, resumed = (RoundCheckpoint(monitor=f"val/largest/{metric}") for _ in range(2))
    run(tmp_path / "old", checkpoint, 3, [Values([0.5, 0.9, 0.1])])
    assert checkpoint.best_model_path.endswith(f"{best}.ckpt")
    last = (tmp_path / "old").rename(tmp_path / "new") / "checkpoints" / "last.ckpt"
    run(tmp_path / "new", resumed, 4, [Values([0.0, 0.0, 0.0, 0.4])], ckpt_path=str(last))
    assert names(tmp_path / "new") == ["last.ckpt", f"{best}.ckpt"]
    assert resumed.best_model_path == str(last.with_name(f"{best}.ckpt"))
    assert float(resumed.best_model_score) == pytest.approx(score)


class Break(FederatedCallback):
    """Raises an error in a hook of a round, after reading the checkpoint."""

    def __init__(self, hook, round, path):
        self.path = path
        setattr(self, hook, self.raise_at)
        self.round = round
        self.content = b""

    def raise_at(self, trainer, *rest):
        if trainer.current_epoch == self.round:
            self.content = self.path.read_bytes()
            raise RuntimeError("out of the blue")


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    return contents(full_run(tmp_path_factory.mktemp("straight")))


@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_validation_end"])
def test_an_error_in_a_round_keeps_the_previous_checkpoint(tmp_path, straight, hook):
    """Rounds 1 and 3 are validated; in round 3 the error may follow the server's step."""
    last = tmp_path / "run" / "only" / "checkpoints" / "last.ckpt"
    broken = Break(hook, 3, last)
    with pytest.raises(RuntimeError, match="out of the blue"):
        full_run(tmp_path, broken)
    after_error, before_error = (torch.load(source, weights_only=True) for source in (last, io.BytesIO(broken.content)))
    assert after_error["global_step"] == before_error["global_step"] == 3
    assert_same(after_error["state_dict"], before_error["state_dict"])
    assert after_error["federation"] == before_error["federation"]
    assert_alike(contents(full_run(tmp_path, ckpt_path=str(last))), straight)


@pytest.mark.parametrize("first", [True, False])
def test_an_error_at_the_end_of_a_round_keeps_the_previous_checkpoint(tmp_path, first):
    """The records contain all rounds of the checkpoint, for either order of the callbacks."""
    last = tmp_path / "checkpoints" / "last.ckpt"
    broken = Break("on_train_epoch_end", 1, last)
    with pytest.raises(RuntimeError, match="out of the blue"):
        run(tmp_path, RoundCheckpoint(), 3, [broken, RunRecorder()] if first else [RunRecorder(), broken])
    assert step(last) == 1
    run(tmp_path, RoundCheckpoint(), 3, [RunRecorder()], ckpt_path=str(last))
    assert [record["round"] for record in read_rounds(tmp_path)] == [0, 1, 2]


def test_a_checkpoint_that_cannot_be_loaded_is_not_overwritten(tmp_path):
    """The loop's counters are restored before the optimizer's state raises an error."""

    def with_groups(count, ckpt_path=None, callbacks=()):
        def optimizer(params):
            params = list(params)
            groups = [{"params": params[number::count]} for number in range(count)]
            return torch.optim.SGD(groups, lr=1.0, momentum=0.9)

        module = make_module(linear_net(), server_optimizer=optimizer)
        run(tmp_path, RoundCheckpoint(), 4, callbacks, module=module, ckpt_path=ckpt_path)

    last = tmp_path / "checkpoints" / "last.ckpt"
    with pytest.raises(Interrupted):
        with_groups(1, callbacks=[StopAt(2, 1, "SIGTERM")])
    content = last.read_bytes()
    with pytest.raises(ValueError, match="parameter groups"):
        with_groups(2, str(last))
    assert last.read_bytes() == content
