"""Every method: it goes on after a stop, and learns tokens, numbers and labels, stacked clients too, or refuses."""

from __future__ import annotations

import functools
import inspect
import math
import os
import pkgutil
import re
import signal
from dataclasses import dataclass, field, fields
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import lit_fednas.objectives
from lit_fednas.callbacks import RoundCheckpoint
from lit_fednas.data import Examples
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FaultPolicy, FederatedCallback, FederatedLightningModule
from lit_fednas.federation.client import LocalRunner
from lit_fednas.federation.interrupts import Interrupted
from lit_fednas.loggers import RunLogger
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.objectives import Objective
from tests.federation import methods
from tests.federation.methods import METHODS
from tests.federation.tokens import PAD, VOCABULARY, by_hand, token_data, token_examples
from tests.support import assert_same, fit, make_trainer, one_of_many, weights

ROUNDS = 2
LAST = Path("run", "only", "checkpoints", "last.ckpt")
REFUSED = {name: refusal for name in METHODS if (refusal := methods.refusal(name)) is not None}
RUN = [name for name in METHODS if name not in REFUSED]
LEARN_TOKENS = [name for name in RUN if METHODS[name].subject == methods.OF_TOKENS]
#: Of tokens, one of each class, and what else changes a round of theirs; the others are slow.
ALIKE = {f"{name}{methods.OF_TOKENS}" for name in ("a cohort of one", "channels last", "paths of operators")}
QUICK = (
    *{methods.part_of(name): name for name in reversed(LEARN_TOKENS) if name not in ALIKE}.values(),
    *("clients that test of numbers", "clients that fail of labels"),
)


class Stop(FederatedCallback):
    """Stops the run as a signal does, in its second round."""

    def on_cohort_start(self, trainer: Any, module: Any, round: Any) -> None:
        if round.number == 1:
            os.kill(os.getpid(), signal.SIGTERM)


@dataclass
class Witness(FederatedCallback):
    """Of each fit, by round and client: the loss that is told, and the mean of its steps' losses over their tokens.

    The latter of clients alone, since a step of stacked ones cannot be looked into.
    """

    patch: pytest.MonkeyPatch
    told: dict[tuple[int, int], float] = field(default_factory=dict)
    counted: dict[tuple[int, int], float] = field(default_factory=dict)

    def setup(self, trainer: Any, pl_module: FederatedLightningModule, stage: str) -> None:
        begin, loss = pl_module.objective.begin, pl_module.objective.loss

        def begun(network: Any, task: ClientTask, generator: Any) -> None:
            self.address, self.steps = (task.round, task.client), []
            begin(network, task, generator)

        def noted(network: Any, inputs: Tensor, targets: Tensor) -> Tensor:
            value = loss(network, inputs, targets)
            self.steps.append((value.item(), int(np.count_nonzero(targets.numpy() != PAD))))
            tokens = sum(count for _, count in self.steps)
            self.counted[self.address] = sum(one * count for one, count in self.steps) / tokens
            return value

        if pl_module.client.clients_per_fit == 1:
            self.patch.setattr(pl_module.objective, "begin", begun)
            self.patch.setattr(pl_module.objective, "loss", noted)

    def on_client_end(self, trainer: Any, module: Any, result: ClientResult, update: Any) -> None:
        if not math.isnan(result.loss):
            self.told[result.task.round, result.task.client] = result.loss


@dataclass(frozen=True)
class Run:
    """What a run comes to: its module and last figures, and what is in its folder, to the bit."""

    module: FederatedLightningModule
    figures: dict[str, float]
    record: str


def run(name: str, folder: Path, *extra: FederatedCallback, ckpt_path: Path | None = None) -> Run:
    logger = RunLogger(str(folder), "run", "only")
    callbacks = [*extra, *methods.callbacks(name), RoundCheckpoint()]
    trainer = make_trainer(ROUNDS, enable_checkpointing=True, logger=logger, callbacks=callbacks)
    module = METHODS[name]()
    trainer.fit(module, datamodule=methods.data(name), ckpt_path=ckpt_path)
    checkpoint = torch.load(folder / LAST, weights_only=True)
    record = {
        "weights": {name: tensor.tolist() for name, tensor in checkpoint["state_dict"].items()},
        **{key: checkpoint[key] for key in ("federation", "optimizer_states", "epoch", "global_step")},
        "metrics": (folder / "run" / "only" / "metrics.csv").read_text(),
    }
    return Run(module, {key: float(value) for key, value in trainer.callback_metrics.items()}, repr(record))


@functools.cache
def straight(name: str) -> tuple[Run, Witness]:
    """A run without a stop, and what its objective has seen."""
    with pytest.MonkeyPatch.context() as patch, TemporaryDirectory() as folder:
        witness = Witness(patch)
        return run(name, Path(folder), witness), witness


@pytest.mark.parametrize("name", one_of_many(RUN, *QUICK))
def test_a_stopped_run_goes_on_exactly(name: str, tmp_path: Path) -> None:
    with pytest.raises(Interrupted):
        run(name, tmp_path, Stop())
    assert torch.load(tmp_path / LAST, weights_only=True)["global_step"] == 1
    assert run(name, tmp_path, ckpt_path=tmp_path / LAST).record == straight(name)[0].record


# ---- tokens -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", one_of_many(LEARN_TOKENS, *QUICK))
def test_losses_and_metrics_are_means_over_tokens(name: str) -> None:
    found, witness = straight(name)
    if found.module.client.clients_per_fit == 1:
        assert witness.told == pytest.approx({fit: witness.counted[fit] for fit in witness.told}, rel=1e-5)
    module, examples = found.module, token_examples(30, 1)
    for subnet, arch in module.subnets.items() if not module.evaluation.recalibrate_batches else ():
        with torch.no_grad():
            values = by_hand(module.supernet.eval()(examples.inputs, arch), examples.targets)
        assert {metric: found.figures[f"val/{subnet}/{metric}"] for metric in values} == pytest.approx(values, rel=1e-5)


@pytest.mark.parametrize("name", one_of_many([name for name in RUN if METHODS[name].subject], *QUICK))
def test_stacked_clients_learn_as_alone_or_are_refused(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    module = METHODS[name]()
    monkeypatch.setattr(module.client, "clients_per_fit", 4 - module.client.clients_per_fit)  # 3 for 1, and 1 for 3
    monkeypatch.setattr(module.client, "channels_last", False)  # which is for images
    if not module.objective.stackable or module.faults.time_limit is not None:
        with pytest.raises(ConfigError, match=r"client.clients_per_fit: 3 .*set client.clients_per_fit to 1"):
            fit(module, methods.data(name), 1)
        return
    witness, (other, others) = Witness(monkeypatch), straight(name)
    fit(module, methods.data(name), ROUNDS, callbacks=[witness, *methods.callbacks(name)])
    half = module.client.precision == "bf16-mixed"
    assert_same(weights(module), weights(other.module), rtol=1e-4, atol=2e-2 if half else 1e-5)
    assert witness.told == pytest.approx(others.told, rel=1e-2 if half else 1e-5)


@pytest.mark.parametrize("name", [name for name in LEARN_TOKENS if name.startswith("objective")])
def test_what_stands_under_padding_does_not_matter(name: str) -> None:
    """The networks look back alone."""
    examples, found = token_examples(), []
    noise = torch.randint(VOCABULARY, examples.inputs.shape, generator=torch.Generator().manual_seed(0))
    for inputs in (examples.inputs, torch.where(examples.targets == PAD, noise, examples.inputs)):
        module = METHODS[name]()
        fit(module, token_data(Examples(inputs, examples.targets, examples.columns)), 1)
        found.append(weights(module))
    assert_same(*found, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_learn_is_refused_before_any_training(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LocalRunner, "run", None)
    with pytest.raises(ConfigError, match=f"^{re.escape(REFUSED[name])}"):
        fit(METHODS[name](), methods.data(name), 1, callbacks=methods.callbacks(name))


# ---- the registry -------------------------------------------------------------------------------------


def test_every_objective_has_an_instance() -> None:
    for module in pkgutil.walk_packages(lit_fednas.objectives.__path__, "lit_fednas.objectives."):
        import_module(module.name)
    found, todo = set(), [Objective]
    while todo:
        for kind in todo.pop().__subclasses__():
            todo.append(kind)
            if kind.__module__.startswith("lit_fednas.objectives.") and not inspect.isabstract(kind):
                found.add(kind)
    missing = sorted(kind.__name__ for kind in found - set(map(methods.part_of, METHODS)))
    assert not missing, f"add instances of {missing} to tests/objectives/instances.py"


def test_every_fault_is_in_a_method() -> None:
    policies = [method.settings.get("faults", FaultPolicy()) for method in METHODS.values()]
    left = {one.name for one in fields(FaultPolicy) if {getattr(each, one.name) for each in policies} <= {one.default}}
    assert left == {"on_client_error"}  # whose other choice ends a run
