"""Pins Lightning's private names in the engine, so that an upgrade that changes them fails here."""

from __future__ import annotations

import ast
import inspect
import re
from pathlib import Path

import lightning.pytorch as pl
import pytest
import torch
from lightning.pytorch.loops.fit_loop import _FitLoop
from lightning.pytorch.strategies import SingleDeviceStrategy
from torch import nn

import lit_fednas
from lit_fednas.federation import ClientSettings
from lit_fednas.federation.client import ClientModule, ClientNetwork
from lit_fednas.federation.lightning_private import ClientTrainer
from lit_fednas.objectives import CrossEntropy
from tests.support import make_trainer, sgd


def test_private_names_are_used_in_one_file():
    package = Path(lit_fednas.__file__).parent
    for path in package.rglob("*.py"):
        if path.name == "lightning_private.py":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("lightning"):
                private = [alias.name for alias in node.names if alias.name.startswith("_")]
                assert not private, f"{path}: {private}"
            if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
                text = ast.unparse(node.value)
                assert not text.endswith(("trainer", "strategy", "fit_loop")), f"{path}: {ast.unparse(node)}"


def test_fit_loop_has_the_overridden_stages():
    for name in ("setup_data", "advance", "on_advance_end", "run", "teardown", "_warn_if_modules_in_eval_mode"):
        assert callable(getattr(_FitLoop, name)), name
    source = inspect.getsource(_FitLoop.run)
    assert [source.index(part) for part in ("setup_data", "on_advance_start", "self.advance", "on_advance_end")]
    assert "self.epoch_loop.run(self._data_fetcher)" in inspect.getsource(_FitLoop.advance)
    loop = make_trainer().fit_loop
    assert loop._combined_loader is None
    for counter in (loop.epoch_progress.current, loop.epoch_progress.total):
        assert {"ready", "started", "processed", "completed"} <= set(vars(counter))


def test_trainer_calls_the_replaced_methods():
    assert list(inspect.signature(pl.Trainer._fit_impl).parameters)[:3] == ["self", "model", "train_dataloaders"]
    assert re.search(r"self\._fit_impl,\s+model,\s+train_dataloaders,", inspect.getsource(pl.Trainer.fit))
    assert {"_optimizers", "_lightning_module"} <= set(vars(SingleDeviceStrategy("cpu")))


def fitted(trainer, objective):
    """Returns one client's module after two batches."""
    module, network = ClientModule(objective, ClientSettings(sgd(0.1))), nn.Linear(4, 2)
    module.begin(ClientNetwork(network))
    addresses, batch = [p.data_ptr() for p in network.parameters()], (torch.rand(6, 4), torch.randint(2, (6,)))
    trainer.fit(module, train_dataloaders=iter([batch, batch]))
    assert [p.data_ptr() for p in network.parameters()] == addresses
    assert trainer.strategy.model is None  # the trainer keeps no reference to the client
    return module


def test_one_client_trainer_fits_many_modules_in_place_also_after_a_failure():
    class Broken(CrossEntropy):
        def loss(self, network, inputs, targets):
            raise RuntimeError("no")

    trainer = ClientTrainer(torch.device("cpu"))
    for _ in range(2):
        assert fitted(trainer, CrossEntropy()).num_steps == 2
        with pytest.raises(RuntimeError, match=r"^no$"):
            fitted(trainer, Broken())


@pytest.mark.parametrize("clip_norm", [None, 0.01])
def test_scaled_gradients_train_as_others(clip_norm):
    """A scale of a power of two is exact. Steps with gradients that are not finite are skipped, and halve the scale."""
    draws = torch.Generator().manual_seed(0)
    batch = torch.rand(6, 4, generator=draws), torch.randint(2, (6,), generator=draws)
    weights = []
    for scale in (None, 2.0**10):
        trainer, network = ClientTrainer(torch.device("cpu")), nn.Linear(4, 2)
        trainer.grad_scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, enabled=scale is not None)
        module = ClientModule(CrossEntropy(), ClientSettings(sgd(0.1), clip_norm=clip_norm))
        module.begin(ClientNetwork(network))
        nn.init.constant_(network.weight, 0.5)
        nn.init.constant_(network.bias, 0.0)
        trainer.fit(module, train_dataloaders=iter([batch, batch, (batch[0] * torch.inf, batch[1])][: 2 + bool(scale)]))
        weights.append([parameter.detach() for parameter in network.parameters()])
    assert trainer.grad_scaler.get_scale() == 2.0**9
    for plain, scaled in zip(*weights, strict=True):
        assert torch.equal(plain, scaled)
    assert not torch.equal(weights[0][0], torch.full((2, 4), 0.5))
