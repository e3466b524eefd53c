"""Runs with growing models: the time of growth, the grown cells, and exact resume."""

from __future__ import annotations

import json
from dataclasses import replace
from math import isnan
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_fednas.assignment import ByUtility
from lit_fednas.callbacks import CostLedger, RoundCheckpoint, RunRecorder, SoftAverage, TransformOnConvergence
from lit_fednas.callbacks.transform_on_convergence import degree_of_convergence
from lit_fednas.federation import EvaluationSettings, FederatedCallback, UniformCohort
from lit_fednas.records import read_rounds
from lit_fednas.supernets import GroupNorm, GrowableCNN, Model, ModelSuite
from lit_fednas.supernets.growing.growth import plan
from lit_fednas.tiers import Budgets, ClientTiers
from tests.federation.runs import run_in
from tests.support import Noted, assert_same, fit, make_module, seeded, tiny_data, weights

ROUNDS = 9
ALWAYS = 1e9  # a threshold above every degree of convergence


def suite() -> ModelSuite:
    return seeded(ModelSuite, (1, 8, 8), 4, GrowableCNN((4, 4), GroupNorm(2)))


def growing(**settings):
    parts = {"supernet": suite(), "assignment": ByUtility(), "evaluation": EvaluationSettings()}
    return make_module(**{**parts, "cohort": UniformCohort(count=4), **settings})


def transform(**settings) -> TransformOnConvergence:
    settings = {"threshold": ALWAYS, "certainty": 0, "gamma": 1, "delta": 1, "window": 1, "stop": False, **settings}
    return TransformOnConvergence(**settings)


def run(folder: Path, *extra, callback=None, ckpt_path=None, rounds=ROUNDS, soft=True, **settings):
    callback, module = callback or transform(), growing(**settings)
    shared = [SoftAverage()] if soft else []
    callbacks = callback, *shared, CostLedger(), RunRecorder(), RoundCheckpoint(), *extra
    trainer = run_in(folder, module, *callbacks, rounds=rounds, ckpt_path=ckpt_path)
    return folder / "run" / "only", module, trainer, callback


def written(folder: Path) -> dict:
    return json.loads((folder / "suite.json").read_text())


# ---- when ---------------------------------------------------------------------------------------------


def test_each_model_needs_its_own_losses_before_the_next_is_added(tmp_path) -> None:
    folder, module, trainer, _ = run(tmp_path, callback=transform(gamma=2, delta=1))
    rows, rounds = written(folder)["models"], list(read_rounds(folder))
    assert [row["round"] for row in rows] == [None, 2, 5, 8]  # three losses each: rounds 0-2, 3-5, 6-8
    assert [row["parent"] for row in rows] == [None, 0, 1, 2]
    assert [row["macs"] for row in rows] == sorted({row["macs"] for row in rows})
    assert [row["macs"] for row in rows] == [module.supernet.macs(Model(n)) for n in range(4)]
    assert [record["metrics"]["transform/models"] for record in rounds] == [1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert {client["arch"] for client in rounds[2]["clients"]} == {"model: 0"}
    assert {client["arch"] for record in rounds[3:] for client in record["clients"]} >= {"model: 0", "model: 1"}
    assert {f"val/{name}/accuracy" for name in ("model0", "model2", "mean")} <= set(trainer.callback_metrics)


def test_the_degree_of_convergence_decides(tmp_path) -> None:
    """Eq. 1 with the losses of the record, gamma 2 and delta 3."""
    folder, _, _, _ = run(tmp_path, callback=transform(gamma=2, delta=3, threshold=0.0), rounds=6)
    rounds = [record["metrics"] for record in read_rounds(folder)]
    losses = [metrics["clients/loss"] for metrics in rounds]
    assert [metrics["transform/doc"] for metrics in rounds[:4]] == [None] * 4
    for number in (4, 5):
        slopes = [(losses[i - 3] - losses[i]) / 3 for i in (number, number - 1)]
        assert rounds[number]["transform/doc"] == pytest.approx(sum(slopes) / 2, abs=1e-6)
    assert len(written(folder)["models"]) == 1
    threshold = rounds[5]["transform/doc"] + 1e-6
    folder, _, _, _ = run(tmp_path / "at", callback=transform(gamma=2, delta=3, threshold=threshold), rounds=6)
    expected = 4 if rounds[4]["transform/doc"] <= threshold else 5
    assert written(folder)["models"][1]["round"] == expected


@pytest.mark.parametrize(("threshold", "certainty", "grows"), [(0.2, 1.0, False), (0.24, 1.0, True)])
def test_a_slope_must_be_below_the_threshold_by_its_error(tmp_path, threshold, certainty, grows) -> None:
    """Losses of 1, 0, 1, 0 and 1 have a degree of 0 with an error of 0.236."""

    class AlternatingLosses(TransformOnConvergence):
        def on_results(self, trainer, module, round):
            round.results = [replace(result, loss=float(round.number % 2 == 0)) for result in round.results]
            super().on_results(trainer, module, round)

    callback = AlternatingLosses(threshold=threshold, certainty=certainty, gamma=2, delta=3, window=1, stop=False)
    module = run(tmp_path, callback=callback, rounds=5)[1]
    assert callback.losses == ([] if grows else [1.0, 0.0, 1.0, 0.0, 1.0])
    assert len(module.supernet.models) == 1 + grows


@pytest.mark.parametrize(("gamma", "delta"), [(3, 5), (5, 3), (1, 9)])
def test_the_standard_error_is_the_degrees_deviation(gamma: int, delta: int) -> None:
    """Many draws of falling losses with noise; degree and error need enough rounds."""
    draws = torch.Generator().manual_seed(0)
    rounds = torch.arange(gamma + delta + 2, dtype=torch.double)
    losses = 3 - 0.2 * rounds + 0.1 * torch.randn(4000, len(rounds), generator=draws, dtype=torch.double)
    degrees, errors = torch.tensor([degree_of_convergence(series, gamma, delta) for series in losses.tolist()]).T
    assert float(degrees.mean()) == pytest.approx(0.2, abs=0.002)
    assert float(errors.square().mean().sqrt()) == pytest.approx(float(degrees.std()), rel=0.12)
    assert all(map(isnan, degree_of_convergence([1.0] * (gamma + delta - 1), gamma, delta)))
    assert degree_of_convergence([1.0] * (gamma + delta), gamma, delta) == (0.0, 0.0)


# ---- which cells --------------------------------------------------------------------------------------


class Snapshots(FederatedCallback):
    """The weights at each round's start, and the mean of the surviving updates of the newest model."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, dict, dict]] = []

    def on_cohort_start(self, trainer, module, round):
        self.sent, self.newest, self.updates = weights(module), len(module.supernet.models) - 1, []

    def on_client_end(self, trainer, module, result, update):
        if update.task.arch.number == self.newest:
            self.updates.append((update.task.num_examples, {n: t.clone() for n, t in update.weights.items()}))

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if self.updates:
            total, (_, first) = sum(count for count, _ in self.updates), self.updates[0]
            means = {name: sum(count * tensors[name] for count, tensors in self.updates) / total for name in first}
            self.rounds.append((self.newest, self.sent, means))


def measured(rounds, number: int) -> dict[str, float]:
    """Returns the mean activeness of a model's cells over snapshots, computed from the clients' updates."""
    of_cell: dict[str, list[float]] = {}
    for newest, sent, means in rounds:
        assert newest == number
        for cell in {name.split(".")[1] for name in means}:
            names = [name for name in means if name.startswith(f"cells.{cell}.")]
            old = {name: sent[f"networks.{number}.{name}"] for name in names}
            change_norm, weight_norm = (
                sum(float(change.square().sum()) for change in changes) ** 0.5
                for changes in ([means[name] - old[name] for name in names], old.values())
            )
            of_cell.setdefault(cell, []).append(change_norm / weight_norm)
    return {cell: sum(values) / len(values) for cell, values in of_cell.items()}


@pytest.mark.parametrize("alpha", [1.0, 0.2])
def test_the_most_active_cells_are_transformed(tmp_path, alpha: float) -> None:
    """Activeness is averaged over the last two of four rounds."""
    snapshots = Snapshots()
    folder, _, _, _ = run(tmp_path, snapshots, callback=transform(gamma=2, delta=2, window=2, alpha=alpha), rounds=4)
    row, active = written(folder)["models"][1], measured(snapshots.rounds[2:4], 0)
    assert row["activeness"] == pytest.approx(active, rel=1e-4)
    highest = max(active["conv1"], active["conv2"])
    expected = {cell for cell in ("conv1", "conv2") if active[cell] >= alpha * highest}
    assert {step["widen"] for step in row["steps"]} == expected
    assert len(expected) == (1 if alpha == 1 else 2)


def test_the_next_model_is_judged_by_its_own_rounds(tmp_path) -> None:
    """It grows only after a whole window of rounds, even if there are enough losses earlier."""
    snapshots = Snapshots()
    folder, _, _, _ = run(tmp_path, snapshots, callback=transform(window=3), rounds=9)
    first, second = (row["round"] for row in written(folder)["models"][1:3])
    assert first == 2
    rounds_of_model = [snapshot for snapshot in snapshots.rounds[first + 1 : second + 1] if snapshot[0] == 1]
    assert len(rounds_of_model) == 3
    assert written(folder)["models"][2]["activeness"] == pytest.approx(measured(rounds_of_model, 1), rel=1e-4)


# ---- until when ---------------------------------------------------------------------------------------


def test_no_model_exceeds_the_strongest_device_and_then_training_stops(tmp_path) -> None:
    first = suite().macs(Model(0))
    tiers = ClientTiers(Budgets({"weak": {"macs": first}, "strong": {"macs": 6 * first}}))
    callback = transform(gamma=2, delta=1, stop=True)
    complete = Noted("on_train_epoch_end", lambda *arguments: callback.complete)
    folder, module, trainer, _ = run(tmp_path, complete, callback=callback, rounds=60, tiers=tiers)
    macs = [row["macs"] for row in written(folder)["models"]]
    assert written(folder)["complete"]
    assert len(macs) > 1
    assert max(macs) <= 6 * first
    # a cell that still fits is not left out: each alone is too much now
    newest = module.supernet.models[-1]
    for cell in newest.blueprint.cells[:-1]:
        steps = plan(newest.blueprint, [cell.name], 99)
        assert module.supernet.planned_network(newest.number, steps).macs("whole") > 6 * first
    # three losses more, counted anew, say that training has converged; then it stops
    assert trainer.current_epoch == len(complete.all) < 60
    assert complete.all == sorted(complete.all)
    assert sum(complete.all) == 4


# ---- stop and resume ----------------------------------------------------------------------------------


def test_checkpoints_between_the_transformation_and_the_rounds_end(tmp_path) -> None:
    saving = ModelCheckpoint(dirpath=tmp_path, filename="{step}", save_top_k=-1, every_n_train_steps=1)
    straight = weights(run(tmp_path, saving, rounds=4)[1])
    between = tmp_path / "step=2.ckpt"
    assert len(torch.load(between, weights_only=True)["federation"]["structure"]["models"]) == 1
    assert_same(weights(run(tmp_path / "rest", ckpt_path=between, rounds=4)[1]), straight)


def test_one_model_that_never_grows_is_federated_averaging(tmp_path) -> None:
    whole = run(tmp_path / "whole", callback=transform(threshold=0.0), rounds=4)[1]
    plain = make_module(suite(), cohort=whole.cohort, client=whole.client, evaluation=EvaluationSettings())
    fit(plain, tiny_data(), 4)
    assert_same(weights(whole), weights(plain))
