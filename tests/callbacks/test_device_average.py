"""Tests the average over all clients against their sent weights (FedHeN, App. A, "Reporting Results")."""

from __future__ import annotations

import shutil
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch import Tensor
from torch.nn import functional

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import ByTier, RandomArchitectures
from lit_fednas.callbacks import DeviceAverage, RoundCheckpoint
from lit_fednas.data import Dirichlet
from lit_fednas.federation import ClientSettings, EvaluationSettings, FederatedCallback, UniformCohort
from lit_fednas.federation.checkpoints import state_in
from lit_fednas.objectives import SideObjective
from lit_fednas.supernets import BatchNorm, EarlyExitResNet, GroupNorm, Norm
from lit_fednas.tiers import ArchitectureTiers, ClientTiers, TierShares
from tests.support import Noted, fit, make_module, make_trainer, seeded, sgd, tiny_data, tiny_examples

ROUNDS = 4


def method(norm: Norm = GroupNorm(2), **settings: Any) -> Any:
    net = seeded(EarlyExitResNet, (1, 8, 8), 4, width=4, norm=norm, blocks=[1, 1], exits=[1, 2])
    source = ArchitectureTiers({"simple": "smallest", "complex": "largest"})
    return make_module(
        **{
            "supernet": net,
            "tiers": ClientTiers(source, TierShares([0.5, 0.5], shuffle=False), enforced=False),
            "assignment": ByTier(),
            "objective": SideObjective(),
            "aggregation": OverlapAverage(weighted=False),
            "cohort": UniformCohort(count=3),
            "client": ClientSettings(sgd(0.1), batch_size=8),
            "evaluation": EvaluationSettings(["simple = smallest", "complex = largest"]),
            **settings,
        }
    )


def data() -> Any:
    return tiny_data(8, partitioner=Dirichlet(alpha=1.0, min_size=4))


class Witness(FederatedCallback):
    """Computes the averages and their accuracy by hand at every validation."""

    def __init__(self, weighted: bool) -> None:
        self.weighted = weighted
        self.last: dict[int, tuple[str, int, dict[str, Tensor]]] = {}
        self.expected: list[dict[str, float]] = []

    def on_client_end(self, trainer, module, result, update):
        copied = {name: tensor.clone() for name, tensor in update.weights.items()}
        self.last[update.task.client] = (str(update.task.arch), update.task.num_examples, copied)

    @torch.no_grad()
    def on_validation_epoch_end(self, trainer, module):
        examples = tiny_examples(40, 1)
        x, y = examples.inputs.float() / 255, examples.targets
        metrics = {}
        for name, arch in module.subnets.items():
            updates = [(n if self.weighted else 1, w) for text, n, w in self.last.values() if text == str(arch)]
            if not updates:
                continue
            network = module.supernet.subnet(arch).eval()
            total = sum(n for n, _ in updates)
            network.load_state_dict(
                {key: sum(n * w[key].double() for n, w in updates) / total for key in updates[0][1]}
            )
            logits = network(x)
            metrics[f"val/devices/{name}/accuracy"] = float((logits.argmax(1) == y).float().mean())
            metrics[f"val/devices/{name}/loss"] = float(functional.cross_entropy(logits, y))
        self.expected.append(metrics)


def logged_at(hook: str) -> Noted:
    def device_metrics(trainer: Any, module: Any) -> dict[str, float]:
        return {name: float(value) for name, value in trainer.callback_metrics.items() if "/devices/" in name}

    return Noted(hook, device_metrics)


@pytest.mark.parametrize(("weighted", "assignment"), [(False, ByTier), (True, RandomArchitectures)])
def test_by_hand(weighted, assignment):
    """With random architectures, a client counts with its last one."""
    average, witness = DeviceAverage(weighted), Witness(weighted)
    logged = logged_at("on_validation_end")
    fit(method(assignment=assignment()), data(), ROUNDS, callbacks=[average, witness, logged])
    assert len(witness.last) > 3  # more clients than in a cohort
    assert set(average.metric_names) == set(logged.all[-1])
    assert len(logged.all) == ROUNDS
    for metrics, expected in zip(logged.all, witness.expected, strict=True):
        assert metrics == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize("batches", [0, 2])
def test_statistics_are_averaged_or_recalibrated(batches):
    average, name = DeviceAverage(), "stages.0.0.block.norm1"
    evaluation = EvaluationSettings(["simple = smallest"], recalibrate_batches=batches)
    fit(method(BatchNorm(running_statistics=batches == 0), evaluation=evaluation), data(), 2, callbacks=[average])
    mean = average.average("exits: 1")
    (network,) = average._networks.values()
    norm = network.get_submodule(name)
    assert norm.running_mean.abs().sum() > 0
    assert not network.training
    if batches:
        assert f"{name}.running_mean" not in mean
        assert norm.num_batches_tracked == batches
    else:
        assert torch.equal(norm.running_mean, mean[f"{name}.running_mean"])


def resumable(folder, rounds, *callbacks, **settings):
    """Returns the logged values and the callback of a run in a folder."""
    logged, average = logged_at("on_validation_end"), DeviceAverage()
    callbacks = [average, logged, RoundCheckpoint(dirpath=folder), *callbacks]
    trainer = make_trainer(rounds, enable_checkpointing=True, callbacks=callbacks, default_root_dir=str(folder))
    trainer.fit(method(), datamodule=data(), **settings)
    return logged.all, average


def test_files_are_kept_as_long_as_checkpoints_refer_to_them(tmp_path):
    run, saved = tmp_path / "run", tmp_path / "every"

    def files(*checkpoints) -> set[str]:
        states = [state_in(torch.load(path, weights_only=True))["kept"] for path in checkpoints]
        return {entry["file"] for state in states for entry in state["device_average"].values()}

    def contents() -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in (run / "clients").iterdir()}

    def saving() -> ModelCheckpoint:
        return ModelCheckpoint(saved, "{epoch}", save_top_k=-1, every_n_epochs=2)

    straight, _ = resumable(run, 6, saving())
    second, referred = files(saved / "epoch=1.ckpt"), files(run / "last.ckpt", *saved.iterdir())
    assert second - files(run / "last.ckpt")
    assert referred <= contents().keys()
    assert len(contents()) <= len(referred) + 3  # files that the last cohort has replaced

    old_contents = contents()
    repeated, _ = resumable(
        run, 4, saving(), ckpt_path=str(saved / "epoch=1.ckpt")
    )  # a second attempt in the same folder
    assert repeated == straight[2:4]
    assert {name: content for name, content in contents().items() if name in referred} == {
        name: old_contents[name] for name in referred
    }
    assert files(run / "last.ckpt") == files(saved / "epoch=3.ckpt")  # equal weights have equal names

    shutil.rmtree(saved)
    latest = files(run / "last.ckpt")
    resumable(run, 5, ckpt_path=str(run / "last.ckpt"))
    assert set(contents()) == latest | files(run / "last.ckpt")
