"""Runs whose models grow: when, which cells, and that stopping and resuming changes nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint

from lit_fednas.assignment import ByUtility, FixedArchitecture
from lit_fednas.callbacks import (
    CostLedger,
    DeviceAverage,
    RoundCheckpoint,
    RunRecorder,
    SoftAverage,
    TransformOnConvergence,
)
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation import (
    ClientSettings,
    EvaluationSettings,
    FaultPolicy,
    FederatedCallback,
    FedYogi,
    UniformCohort,
)
from lit_fednas.federation.interrupts import Interrupted
from lit_fednas.loggers import RunLogger
from lit_fednas.supernets import GroupNorm, GrowableCNN, Model, ModelSuite
from lit_fednas.supernets.growing.growth import plan
from lit_fednas.tiers import Budgets, ClientTiers
from tests.support import assert_same, make_module, make_trainer, run_record, sgd, tiny_data, weights

ROUNDS = 9
ALWAYS = 1e9  # a threshold that every degree of convergence is below


def suite(seed: int = 0, hidden=(4, 4)) -> ModelSuite:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return ModelSuite((1, 8, 8), 4, GrowableCNN(hidden, GroupNorm(2)))


def growing(**settings):
    return make_module(
        **{
            "supernet": suite(),
            "assignment": ByUtility(),
            "cohort": UniformCohort(count=4),
            "client": ClientSettings(sgd(0.1), batch_size=8),
            "evaluation": EvaluationSettings(),
            **settings,
        }
    )


def transform(**settings) -> TransformOnConvergence:
    settings = {"threshold": ALWAYS, "certainty": 0, "gamma": 1, "delta": 1, "window": 1, "stop": False, **settings}
    return TransformOnConvergence(**settings)


def run(folder: Path, *extra, callback=None, ckpt_path=None, rounds=ROUNDS, module=None, soft=True, **settings):
    callback = callback or transform()
    shared = [SoftAverage()] if soft else []
    trainer = make_trainer(
        rounds,
        check_val_every_n_rounds=2,
        enable_checkpointing=True,
        logger=RunLogger(str(folder), "run", "only"),
        callbacks=[callback, *shared, CostLedger(), RunRecorder(), RoundCheckpoint(), *extra],
    )
    module = module or growing(**settings)
    trainer.fit(module, datamodule=tiny_data(), ckpt_path=ckpt_path)
    return folder / "run" / "only", module, trainer, callback


def written(folder: Path) -> dict:
    return json.loads((folder / "suite.json").read_text())


def record(folder: Path) -> dict:
    return {**run_record(folder), "suite": written(folder)}


def last(folder: Path) -> str:
    return str(folder / "run" / "only" / "checkpoints" / "last.ckpt")


# ---- when ---------------------------------------------------------------------------------------------


def test_a_model_is_added_when_there_are_enough_losses_and_counting_starts_anew(tmp_path) -> None:
    folder, module, _, _ = run(tmp_path, callback=transform(gamma=2, delta=1))
    rows = written(folder)["models"]
    assert [row["round"] for row in rows] == [None, 2, 5, 8]  # three losses each: rounds 0-2, 3-5, 6-8
    assert [row["parent"] for row in rows] == [None, 0, 1, 2]
    assert [row["macs"] for row in rows] == sorted({row["macs"] for row in rows})
    assert [row["macs"] for row in rows] == [module.supernet.macs(Model(n)) for n in range(4)]
    rounds = [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]
    assert [one["metrics"]["transform/models"] for one in rounds] == [1, 1, 2, 2, 2, 3, 3, 3, 4]
    assert {client["arch"] for client in rounds[2]["clients"]} == {"model: 0"}
    assert {client["arch"] for one in rounds[3:] for client in one["clients"]} >= {"model: 0", "model: 1"}


def test_the_degree_of_convergence_decides(tmp_path) -> None:
    """Eq. 1 with the losses of the record, gamma 2 and delta 3."""
    folder, _, _, _ = run(tmp_path, callback=transform(gamma=2, delta=3, threshold=0.0))
    rounds = [json.loads(line)["metrics"] for line in (folder / "rounds.jsonl").read_text().splitlines()]
    losses = [metrics["clients/loss"] for metrics in rounds]
    for place, metrics in enumerate(rounds):
        if place < 4:
            assert metrics["transform/doc"] is None
        else:
            slopes = [(losses[i - 3] - losses[i]) / 3 for i in (place, place - 1)]
            assert metrics["transform/doc"] == pytest.approx(sum(slopes) / 2, abs=1e-6)
    assert len(written(folder)["models"]) == 1
    degree = rounds[5]["transform/doc"]
    folder, _, _, _ = run(tmp_path / "at", callback=transform(gamma=2, delta=3, threshold=degree + 1e-6))
    found = [metrics["transform/doc"] for metrics in rounds[4:6]]
    expected = 4 if found[0] <= degree + 1e-6 else 5
    assert written(folder)["models"][1]["round"] == expected


@pytest.mark.parametrize(
    ("threshold", "certainty", "grows"), [(0.2, 0.0, True), (0.2, 1.0, False), (0.24, 1.0, True), (0.24, 2.0, False)]
)
def test_a_slope_must_be_below_the_threshold_by_its_error(tmp_path, threshold, certainty, grows) -> None:
    """Losses of 1, 0, 1, 0 and 1 have a degree of 0 with an error of 0.236."""

    class Given(FederatedCallback):
        def on_results(self, trainer, module, round):
            round.results = [replace(one, loss=float(round.number % 2 == 0)) for one in round.results]

    callback = transform(threshold=threshold, certainty=certainty, gamma=2, delta=3)
    trainer = make_trainer(5, callbacks=[Given(), callback], logger=RunLogger(str(tmp_path), "run", "only"))
    module = growing()
    trainer.fit(module, datamodule=tiny_data())
    assert callback.losses == ({} if grows else {0: [1.0, 0.0, 1.0, 0.0, 1.0]})
    assert len(module.supernet.models) == 1 + grows


def test_the_newest_models_loss_may_decide(tmp_path) -> None:
    class Losses(FederatedCallback):
        found: list = []  # noqa: RUF012

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            numbers = [result.task.arch.number for result in batch.survivors]
            self.found.append((len(module.supernet.models), numbers))

    Losses.found = []
    folder, _, _, _ = run(tmp_path, Losses(), callback=transform(gamma=1, delta=1, loss="newest"))
    rows = written(folder)["models"]
    for before, row in pairwise(rows[1:]):
        between = Losses.found[before["round"] + 1 : row["round"] + 1]
        trained = [numbers for _, numbers in between if before["number"] in numbers]
        assert len(trained) == 2  # two losses of its own, in however many rounds
    assert len(rows) >= 3


# ---- which cells --------------------------------------------------------------------------------------


class Snapshots(FederatedCallback):
    """The weights at each round's start, and the survivors' mean over the clients of the newest model."""

    def __init__(self) -> None:
        self.rounds: list[tuple[int, dict, dict]] = []

    def on_cohort_start(self, trainer, module, round):
        self.sent = weights(module)
        self.newest = len(module.supernet.models) - 1
        self.sums: dict = {}
        self.total = 0

    def on_client_end(self, trainer, module, result, update):
        if update.task.arch.number == self.newest:
            self.total += update.task.num_examples
            for name, tensor in update.weights.items():
                old = self.sums.get(name, torch.zeros_like(tensor))
                self.sums[name] = old + update.task.num_examples * tensor

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if self.total:
            means = {name: tensor / self.total for name, tensor in self.sums.items()}
            self.rounds.append((self.newest, self.sent, means))


def measured(rounds, number: int) -> dict[str, float]:
    """The mean activeness of a model's cells over snapshots, from the clients' updates themselves."""
    of_cell: dict[str, list[float]] = {}
    for newest, sent, means in rounds:
        assert newest == number
        for cell in {name.split(".")[1] for name in means}:
            names = [name for name in means if name.startswith(f"cells.{cell}.")]
            old = {name: sent[f"networks.{number}.{name}"] for name in names}
            moved = sum(float((means[name] - old[name]).square().sum()) for name in names) ** 0.5
            there = sum(float(old[name].square().sum()) for name in names) ** 0.5
            of_cell.setdefault(cell, []).append(moved / there)
    return {cell: sum(values) / len(values) for cell, values in of_cell.items()}


@pytest.mark.parametrize("alpha", [1.0, 0.2])
def test_the_most_active_cells_are_transformed(tmp_path, alpha: float) -> None:
    """Averaged over the last two rounds of four."""
    snapshots = Snapshots()
    folder, _, _, _ = run(tmp_path, snapshots, callback=transform(gamma=2, delta=2, window=2, alpha=alpha), rounds=4)
    active = measured(snapshots.rounds[2:4], 0)
    row = written(folder)["models"][1]
    assert row["activeness"] == pytest.approx(active, rel=1e-4)
    growable = {cell: active[cell] for cell in ("conv1", "conv2")}
    expected = {cell for cell, value in growable.items() if value >= alpha * max(growable.values())}
    assert {step["widen"] for step in row["steps"]} == expected
    assert len(expected) == (1 if alpha == 1 else 2)


def test_the_next_model_is_judged_by_its_own_rounds(tmp_path) -> None:
    """It waits until it was trained in as many rounds as the window has, though there are enough losses before."""
    snapshots = Snapshots()
    folder, _, _, _ = run(tmp_path, snapshots, callback=transform(window=4), rounds=14)
    first, second = (row["round"] for row in written(folder)["models"][1:3])
    assert first == 3
    own = [taken for taken in snapshots.rounds[first + 1 : second + 1] if taken[0] == 1]
    assert len(own) == 4
    assert written(folder)["models"][2]["activeness"] == pytest.approx(measured(own, 1), rel=1e-4)


def test_rounds_in_which_the_newest_model_is_not_trained_say_nothing_of_its_cells(tmp_path) -> None:
    """Everybody trains the first model: the second is never derived from."""
    folder, _, _, callback = run(tmp_path, assignment=FixedArchitecture("smallest"), soft=False)
    assert len(written(folder)["models"]) == 2
    assert callback.activeness == []


@pytest.mark.slow
def test_the_average_over_devices_follows(tmp_path) -> None:
    _, _, trainer, _ = run(tmp_path, DeviceAverage(), rounds=6)
    assert "val/devices/model1/accuracy" in trainer.callback_metrics


@pytest.mark.slow
def test_random_cells_are_as_many_and_belong_to_the_seed(tmp_path) -> None:
    def chosen(folder, **settings):
        found = run(tmp_path / folder, callback=transform(alpha=1.0, selection="random"), rounds=6, **settings)[0]
        return [step.get("widen", step.get("deepen")) for row in written(found)["models"] for step in row["steps"]]

    first = chosen("a")
    assert len(first) == 3  # one cell each for the models of rounds 1, 3 and 5
    assert chosen("b") == first
    assert any(chosen(f"seed{seed}", seed=seed) != first for seed in (1, 2, 3))


def test_the_new_model_answers_as_its_parent_and_is_evaluated_from_then_on(tmp_path) -> None:
    class Compare(FederatedCallback):
        seen: list = []  # noqa: RUF012

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            newest = module.supernet.models[-1]
            if newest.round != batch.number:
                return
            x = torch.randn(8, 1, 8, 8)
            module.supernet.eval()
            with torch.no_grad():
                answers = [module.supernet(x, Model(number)) for number in (newest.number - 1, newest.number)]
            torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-5)
            self.seen.append(newest.number)

    Compare.seen = []
    folder, _, trainer, _ = run(tmp_path, Compare(), callback=transform(gamma=2, delta=1))
    assert Compare.seen == [1, 2, 3]
    names = {name for name in trainer.callback_metrics if name.endswith("/accuracy")}
    assert {"val/model0/accuracy", "val/model2/accuracy", "val/mean/accuracy"} <= names
    ledger = json.loads((folder / "ledger.json").read_text())
    assert list(ledger["independent"]) == ["model0", "model1", "model2", "model3"]
    alone = [ledger["independent"][f"model{number}"]["bytes_down"] for number in range(4)]
    rows = written(folder)["models"]
    # from the round in which a model was added: nine, seven, four, one rounds of four clients
    assert alone == [4 * count * row["bytes"] for count, row in zip((9, 7, 4, 1), rows, strict=True)]


# ---- until when ---------------------------------------------------------------------------------------


def test_no_model_exceeds_the_strongest_device_and_then_training_stops(tmp_path) -> None:
    first = suite().macs(Model(0))
    tiers = ClientTiers(Budgets({"weak": {"macs": first}, "strong": {"macs": 6 * first}}))
    callback = transform(gamma=2, delta=1, stop=True)

    class Complete(FederatedCallback):
        rounds: list = []  # noqa: RUF012

        def on_train_epoch_end(self, trainer, pl_module):
            self.rounds += [trainer.current_epoch] * callback.complete

    Complete.rounds = []
    folder, module, trainer, _ = run(tmp_path, Complete(), callback=callback, rounds=60, tiers=tiers, supernet=suite())
    found = written(folder)
    macs = [row["macs"] for row in found["models"]]
    assert found["complete"]
    assert callback.complete
    assert len(macs) > 1
    assert max(macs) <= 6 * first
    # a cell that still fits is not left out: each alone is too much now
    newest = module.supernet.models[-1]
    for cell in newest.blueprint.cells[:-1]:
        steps = plan(newest.blueprint, [cell.name], 99)
        assert module.supernet.planned(newest.number, steps).macs(Model(newest.number + 1)) > 6 * first
    # three losses more, counted anew, say that training has converged; then it stops
    assert trainer.current_epoch < 60
    assert Complete.rounds == [trainer.current_epoch - 4 + place for place in range(4)]


def test_as_many_models_as_asked(tmp_path) -> None:
    folder, _, _, _ = run(tmp_path, callback=transform(max_models=3))
    assert len(written(folder)["models"]) == 3
    assert written(folder)["complete"]


def test_without_warm_up_new_models_start_from_scratch(tmp_path) -> None:
    warm = run(tmp_path / "warm", rounds=2, callback=transform())[1]
    cold = run(tmp_path / "cold", rounds=2, callback=transform(warm_up=False))[1]
    assert_same(
        {name: tensor for name, tensor in weights(warm).items() if name.startswith("networks.0")},
        {name: tensor for name, tensor in weights(cold).items() if name.startswith("networks.0")},
    )
    assert not torch.equal(
        weights(warm)["networks.1.cells.conv1.conv.weight"], weights(cold)["networks.1.cells.conv1.conv.weight"]
    )


def test_a_round_without_enough_survivors_is_no_evidence(tmp_path) -> None:
    folder, _, _, callback = run(tmp_path, faults=FaultPolicy(dropout_rate=0.999, min_survivors=1), rounds=4)
    assert len(written(folder)["models"]) == 1
    assert callback.activeness == []
    assert sum(len(losses) for losses in callback.losses.values()) <= 4


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"gamma": 0}, "gamma: 0"),
        ({"delta": 0}, "delta: 0"),
        ({"window": 0}, "window: 0"),
        ({"insert": 0}, "insert: 0"),
        ({"alpha": 1.5}, r"alpha: 1\.5"),
        ({"factor": 1}, "factor: 1"),
        ({"noise": -1}, "noise: -1"),
        ({"max_models": 0}, "max_models: 0"),
    ],
)
def test_settings_out_of_range(settings, field) -> None:
    with pytest.raises(ConfigError, match=rf"transform_on_convergence.*{field}"):
        TransformOnConvergence(**settings)


# ---- stop and resume ----------------------------------------------------------------------------------


class StopAt(FederatedCallback):
    def __init__(self, round: int, when: str) -> None:
        self.round, self.when = round, when

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if self.when == "transformation" and module.supernet.models[-1].round == batch.number == self.round:
            raise RuntimeError("out of the blue")

    def on_client_end(self, trainer, module, result, update):
        if self.when == "client" and result.task.round == self.round:
            os.kill(os.getpid(), signal.SIGTERM)


def test_a_run_stopped_around_a_transformation_resumes_exactly(tmp_path) -> None:
    """Models are added after the rounds 1, 3 and 5; so round 4 is the first of the third model."""
    settings = {"server_optimizer": lambda params: FedYogi(params, lr=0.05), "rounds": 6}
    straight = record(run(tmp_path / "straight", **settings)[0])
    assert [row["round"] for row in straight["suite"]["models"]] == [None, 1, 3, 5]
    for stop, whole in ((StopAt(3, "transformation"), 3), (StopAt(4, "client"), 4)):
        folder = tmp_path / stop.when
        with pytest.raises((RuntimeError, Interrupted)):
            run(folder, stop, **settings)
        assert torch.load(last(folder), weights_only=True)["global_step"] == whole
        torch.manual_seed(99)  # nothing of the process matters
        resumed = run(folder, ckpt_path=last(folder), **settings, supernet=suite(seed=5))[0]
        assert record(resumed) == straight


def test_checkpoints_between_the_transformation_and_the_rounds_end(tmp_path) -> None:
    """Lightning's ModelCheckpoint saves after a step: the new model is in it already."""
    straight = weights(run(tmp_path / "straight", rounds=6)[1])
    saving = ModelCheckpoint(dirpath=tmp_path, filename="x", enable_version_counter=False, every_n_train_steps=1)
    run(tmp_path / "first", saving, rounds=4)
    saved = torch.load(tmp_path / "x.ckpt", weights_only=True)
    assert len(saved["federation"]["structure"]["models"]) == 2
    resumed = run(tmp_path / "rest", ckpt_path=str(tmp_path / "x.ckpt"), rounds=6)[1]
    assert_same(weights(resumed), straight)


@pytest.mark.slow
def test_a_kill_right_after_a_transformation(tmp_path) -> None:
    """SIGKILL in the hook in which the model is added; nothing of that round has been saved."""
    root = Path(__file__).parents[2]
    script = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[2])\n"
        "import torch; torch.set_num_threads(1)\n"
        "from pathlib import Path\n"
        "from lit_fednas.federation import FederatedCallback\n"
        "from tests.federation.test_growing import run\n"
        "class Kill(FederatedCallback):\n"
        "    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):\n"
        "        if len(module.supernet.models) == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "run(Path(sys.argv[1]), Kill())\n"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "killed"), str(root)], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert torch.load(last(tmp_path / "killed"), weights_only=True)["global_step"] == 3
    with torch.random.fork_rng():
        resumed = run(tmp_path / "killed", ckpt_path=last(tmp_path / "killed"), rounds=5)[0]
    assert record(resumed) == record(run(tmp_path / "straight", rounds=5)[0])


@pytest.mark.slow
def test_a_stop_that_was_reached_stays_reached(tmp_path) -> None:
    first = suite().macs(Model(0))
    tiers = ClientTiers(Budgets({"only": {"macs": 3 * first}}))
    settings = {"tiers": tiers}
    _, _, trainer, _ = run(tmp_path, callback=transform(stop=True), rounds=40, **settings)
    done = trainer.global_step
    folder, _, again, _ = run(tmp_path, callback=transform(stop=True), rounds=40, ckpt_path=last(tmp_path), **settings)
    assert again.global_step == done
    assert written(folder)["complete"]


def test_a_checkpoint_of_a_suite_needs_the_suite_that_it_began_with(tmp_path) -> None:
    run(tmp_path, rounds=3)
    with pytest.raises(CheckpointError, match=r"began with conv1 4, conv2 4, head.*conv1 4, conv2 6"):
        run(tmp_path / "other", supernet=suite(hidden=(4, 6)), ckpt_path=last(tmp_path))


@pytest.mark.slow
def test_a_grown_module_takes_an_earlier_checkpoint(tmp_path) -> None:
    """As after training in one process: validating an earlier checkpoint, then the last again."""
    saving = ModelCheckpoint(
        dirpath=tmp_path, filename="round{epoch}", save_top_k=-1, auto_insert_metric_name=False, every_n_epochs=1
    )
    _, module, trainer, _ = run(tmp_path, saving, rounds=6)
    final = weights(module)
    early = trainer.validate(module, datamodule=tiny_data(), ckpt_path=str(tmp_path / "round1.ckpt"))[0]
    assert "val/model1/accuracy" in early
    assert "val/model2/accuracy" not in early
    late = trainer.validate(module, datamodule=tiny_data(), ckpt_path=last(tmp_path))[0]
    assert "val/model3/accuracy" in late
    assert_same(weights(module), final)


def test_one_model_that_never_grows_is_federated_averaging(tmp_path) -> None:
    """With utilities, soft aggregation and a transformation that never comes."""
    never = {"threshold": 0.0}
    whole = run(tmp_path / "whole", callback=transform(**never))[1]
    parts = growing(assignment=FixedArchitecture())
    plain = run(tmp_path / "plain", module=parts, callback=transform(**never), soft=False)[1]
    assert_same(weights(whole), weights(plain))


def test_a_suite_that_had_grown_before_goes_on_growing(tmp_path) -> None:
    """The record gives reasons for those models alone that the callback has added."""
    before = suite()
    before.add(0, plan(before.models[0].blueprint, ["conv1"], 1), seed=0)
    folder, _, _, _ = run(tmp_path, supernet=before, rounds=2)
    rows = written(folder)["models"]
    assert [row["parent"] for row in rows] == [None, 0, 1]
    assert [bool(row["activeness"]) for row in rows] == [False, False, True]
