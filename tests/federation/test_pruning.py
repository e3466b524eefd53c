"""Runs that make a model smaller step by step: iterations, groups, drops, costs; stopping and going on."""

from __future__ import annotations

import json
import signal
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import CandidateGroups, FixedArchitecture
from lit_fednas.assignment.client_groups import balanced_groups, group_report, random_groups
from lit_fednas.callbacks import CostLedger, PruneByBudgets, RoundCheckpoint, RunRecorder
from lit_fednas.callbacks.client_division import groups_of_candidates
from lit_fednas.costs import MeasuredLatency
from lit_fednas.data import Dirichlet
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation import (
    ClientSettings,
    EvaluationSettings,
    FederatedCallback,
    RandomAvailability,
    UniformCohort,
)
from lit_fednas.federation.interrupts import Interrupted
from lit_fednas.loggers import RunLogger
from lit_fednas.messages import WITHHELD
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import Model
from lit_fednas.transport import Int8, Transport
from tests.supernets.sequences import pruned_sequence
from tests.support import assert_same, make_module, make_trainer, run_record, sgd, tiny_data, weights

CLIENTS = 6


def data(**settings):
    return tiny_data(CLIENTS, **{"client_val": 0.3, "client_test": 0.1, **settings})


def pruning(**settings):
    return make_module(
        **{
            "supernet": pruned_sequence(hidden=(6, 8)),
            "assignment": CandidateGroups(),
            "aggregation": OverlapAverage(),
            "cohort": UniformCohort(ratio=1.0),
            "client": ClientSettings(sgd(0.1), batch_size=8, validate="trained"),
            "evaluation": EvaluationSettings(),
            **settings,
        }
    )


def budgets(**settings) -> PruneByBudgets:
    return PruneByBudgets(
        **{
            "budget": 0.3,
            "first": 0.2,
            "decay": 0.98,
            "rounds": {1: 2, 3: 3},
            "drop": 0.5,
            "groups": 2,
            **settings,
        }
    )


def run(folder: Path, *extra, callback=None, ckpt_path=None, rounds=-1, module=None, source=None, **settings):
    callback = callback or budgets()
    trainer = make_trainer(
        rounds,
        check_val_every_n_rounds=2,
        enable_checkpointing=True,
        logger=RunLogger(str(folder), "run", "only"),
        callbacks=[callback, CostLedger(), RunRecorder(), RoundCheckpoint(), *extra],
    )
    module = module or pruning(**settings)
    trainer.fit(module, datamodule=source or data(), ckpt_path=ckpt_path)
    return folder / "run" / "only", module, trainer, callback


def written(folder: Path) -> dict:
    return json.loads((folder / "sequence.json").read_text())


def records(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "rounds.jsonl").read_text().splitlines()]


def record(folder: Path) -> dict:
    return {**run_record(folder), "sequence": written(folder)}


def last(folder: Path) -> str:
    return str(folder / "run" / "only" / "checkpoints" / "last.ckpt")


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> tuple:
    return run(tmp_path_factory.mktemp("straight"))


# ---- the iterations -----------------------------------------------------------------------------------


def test_the_sequence_goes_down_under_its_budgets(straight) -> None:
    folder, module, trainer, _ = straight
    sequence = written(folder)
    models = sequence["models"]
    whole = models[0]["macs"]
    assert sequence["complete"]
    assert sequence["under_way"] is None
    assert sequence["initial"] == whole == module.supernet.macs(Model(0))
    assert models[-1]["resource"] <= 0.3 * whole < models[-2]["resource"]
    for t, (before, model) in enumerate(pairwise(models), start=1):
        budget = max(before["resource"] - 0.2 * 0.98 ** (t - 1) * whole, 0.3 * whole)
        assert model["budget"] == pytest.approx(budget)
        assert model["resource"] <= budget
        assert model["resource"] == module.supernet.macs(Model(t))
        assert model["rounds"] == model["round"] - model["first_round"] + 1 == (2 if t < 3 else 3)
        lost = {group: before["sizes"][group] - size for group, size in model["sizes"].items()}
        (won,) = (one for one in model["candidates"] if one["unit"] == model["unit"])
        assert {group: count for group, count in lost.items() if count} == won["removed"]
        assert won["dropped"] is None
        assert model["accuracy"] == won["accuracies"][-1]
    assert any(len(set(one["accuracies"])) > 1 for model in models for one in model["candidates"])
    assert [model["first_round"] for model in models[2:]] == [model["round"] + 1 for model in models[1:-1]]
    assert trainer.current_epoch == models[-1]["round"] + 1  # the last budget ends training
    assert len(module.supernet.models) == len(models)
    assert len(module.supernet.candidates) == 0


def test_each_candidate_is_trained_by_its_group_and_the_groups_hold_through_the_iteration(straight) -> None:
    folder, _, _, _ = straight
    rounds = records(folder)
    for model in written(folder)["models"][1:]:
        members: dict[int, set[int]] = {}
        for one in rounds[model["first_round"] : model["round"] + 1]:
            for client in one["clients"]:
                number, unit = client["arch"].removeprefix("candidate: ").split()
                assert int(number) == model["number"]
                (candidate,) = (c for c in model["candidates"] if c["unit"] == unit)
                assert client["group"] == candidate["group"]
                members.setdefault(client["group"], set()).add(client["client"])
        assert sorted(n for group in members.values() for n in group) == list(range(CLIENTS))
        assert len({candidate["group"] for candidate in model["candidates"]}) == len(model["candidates"])


def test_dropped_candidates_are_tested_but_send_nothing(straight) -> None:
    folder, _, _, _ = straight
    rounds = records(folder)
    for model in written(folder)["models"][1:]:
        for turn, one in enumerate(rounds[model["first_round"] : model["round"] + 1], start=1):
            of = {unit: [] for unit in (c["unit"] for c in model["candidates"])}
            for client in one["clients"]:
                of[client["arch"].split()[-1]].append(client)
            for candidate in model["candidates"]:
                clients, gone = of[candidate["unit"]], candidate["dropped"]
                assert bool(clients) == (gone is None or turn <= gone)
                for client in clients:
                    withheld = turn == gone
                    assert client["status"] == (WITHHELD if withheld else "ok")
                    assert (client["bytes_up"] == 0) == withheld
                    assert client["bytes_down"] > 0
                if clients:
                    assert candidate["accuracies"][turn - 1] == pytest.approx(fused(clients))
            assert one["metrics"]["clients/failed"] == 0
        gone = [candidate["dropped"] for candidate in model["candidates"]]
        assert sorted(gone, key=lambda turn: turn or 99) == [1, None][-len(gone) :]  # half of two


def test_validation_is_of_the_first_model_and_the_newest_and_of_no_other(straight) -> None:
    folder, module, _, _ = straight
    models = written(folder)["models"]
    seen = set()
    for turn, one in enumerate(records(folder)):
        newest = max(model["number"] for model in models if model["number"] == 0 or model["round"] <= turn)
        names = {f"val/model{number}/{what}" for number in (0, newest) for what in ("accuracy", "loss")}
        validated = turn % 2 == 1
        found = {name for name in one["metrics"] if name.startswith("val/")}
        assert found == ({*names, "val/mean/accuracy"} if validated else set())
        seen |= {newest} if validated else set()
    assert len(seen) > 2
    assert module.supernet.default_eval_archs == ("model: 0", f"model: {len(models) - 1}")


def test_candidates_are_compared_with_the_model_before_them(straight) -> None:
    """Section 4.3: accuracy lost since the former model, per resource saved, here as a share of the first's."""
    folder, _, _, _ = straight
    models = written(folder)["models"]
    whole = models[0]["resource"]
    for before, model in pairwise(models):
        for candidate in model["candidates"]:
            saved = (before["resource"] - candidate["resource"]) / whole
            expected = [(before["accuracy"] - accuracy) / saved for accuracy in candidate["accuracies"]]
            assert candidate["degradations"] == pytest.approx(expected)
        left = [one for one in model["candidates"] if one["dropped"] is None]
        assert model["unit"] == min(left, key=lambda one: one["degradations"][-1])["unit"]


@pytest.mark.parametrize("seed", range(2))
def test_the_group_with_the_least_to_do_gets_the_next_candidate(seed: int) -> None:
    """A group with a hundred times the examples is still busy with its first when the others are free."""
    macs = {"conv1": 5, "conv2": 4, "conv3": 5, "conv4": 4}
    scheduled = groups_of_candidates(macs, [1000, 10, 10], np.random.default_rng(seed))
    assert sorted(scheduled.values()) in ([0, 1, 1, 2], [0, 1, 2, 2])
    assert len(set(list(scheduled.values())[:3])) == 3
    assert list(scheduled) == list(macs)
    found = {groups_of_candidates({"conv1": 1}, [1, 1], np.random.default_rng(draw))["conv1"] for draw in range(8)}
    assert found == {0, 1}  # any of those that are free


@pytest.mark.parametrize("partition", ["balanced", "random"])
def test_the_groups_are_those_of_the_partition(tmp_path, partition: str) -> None:
    source = data(partitioner=Dirichlet(alpha=0.5, min_size=8))
    folder, module, _, _ = run(tmp_path, callback=budgets(partition=partition, groups=2), source=source)
    counts = np.stack([source.clients.label_counts(client, 4) for client in range(CLIENTS)])
    rounds, models = records(folder), written(folder)["models"]
    drawn = []
    for model in models[1:]:
        found: dict[int, set] = {0: set(), 1: set()}
        for client in rounds[model["first_round"]]["clients"]:
            found[client["group"]].add(client["client"])
        if partition == "balanced":
            expected = balanced_groups(counts, 2)
        else:
            expected = random_groups(CLIENTS, 2, numpy_generator(module.seed, "client-groups", model["first_round"]))
        drawn.append(expected)
        assert [sorted(members) for members in found.values() if members] == [
            sorted(members) for place, members in enumerate(expected) if found[place]
        ]
        assert model["groups"] == [asdict(report) for report in group_report(counts, expected)]
    assert len({str(groups) for groups in drawn}) == (1 if partition == "balanced" else len(drawn))


def groups_by_round(folder: Path, model: dict) -> list[dict]:
    """The group of each candidate, round by round."""
    turns = range(model["first_round"], model["round"] + 1)
    return [{client["arch"]: client["group"] for client in records(folder)[turn]["clients"]} for turn in turns]


def test_a_candidate_may_wait_for_any_free_group_in_every_round(tmp_path) -> None:
    """Alg. 4.1, line 15: two candidates of two groups change them or not; each round they are with different ones."""
    settings = {"schedule": "round", "drop": 0.0, "rounds": {1: 4}, "budget": 0.5}
    whole, _, _, _ = run(tmp_path / "whole", callback=budgets(**settings))
    found = [groups for model in written(whole)["models"][1:] for groups in groups_by_round(whole, model)]
    assert all(sorted(groups.values()) == [0, 1] for groups in found)
    for model in written(whole)["models"][1:]:
        rounds = groups_by_round(whole, model)
        assert {one["unit"]: one["group"] for one in model["candidates"]} == {
            arch.rpartition(" ")[2]: group for arch, group in rounds[-1].items()
        }
    each = [groups_by_round(whole, model) for model in written(whole)["models"][1:]]
    changes = {one != other for rounds in each for one, other in pairwise(rounds)}
    assert changes == {True, False}
    run(tmp_path / "parts", callback=budgets(**settings), rounds=4)  # stops within an iteration
    parts, _, _, _ = run(tmp_path / "parts", callback=budgets(**settings), ckpt_path=last(tmp_path / "parts"))
    assert record(parts) == record(whole)


def test_an_untrained_network_is_pruned_with_a_warning(tmp_path, caplog) -> None:
    run(tmp_path / "trained", callback=budgets(initial_rounds=1), rounds=1)
    assert "untrained" not in caplog.text
    run(tmp_path / "from-file", callback=budgets(initial=last(tmp_path / "trained")), rounds=1)
    assert "untrained" not in caplog.text
    run(tmp_path / "untrained", rounds=1)
    assert "prune_by_budgets.initial: is null and initial_rounds is 0, so an untrained network is pruned" in caplog.text


@pytest.mark.parametrize("packed", [False, True])
def test_costs_are_those_of_the_rounds(tmp_path, straight, packed) -> None:
    folder, module, _, _ = run(tmp_path, transport=Transport(up=Int8()), rounds=3) if packed else straight
    rounds, models = records(folder), written(folder)["models"]
    ends = [model["first_round"] for model in models[1:]] + [len(rounds)]
    for model, end in zip(models, ends, strict=True):
        clients = [client for one in rounds[model["first_round"] : end] for client in one["clients"]]
        for name in ("macs", "bytes_down", "bytes_up"):
            assert model["costs"][name] == sum(client[name] for client in clients)
        for client in clients:
            arch = module.supernet.space.parse(client["arch"])
            macs = module.supernet.cost(arch).macs  # known also of candidates that are gone
            assert client["macs"] == macs * (client["num_seen"] + client["num_tested"])


def fused(clients: list[dict]) -> float:
    tested = sum(client["num_tested"] for client in clients)
    return sum(client["accuracy"] * client["num_tested"] for client in clients) / tested


def test_the_initial_model_is_measured_as_candidates_are(straight) -> None:
    """By all clients, in the first round; they train it, and nothing of that is used."""
    folder, module, _, _ = straight
    first, models = records(folder)[0], written(folder)["models"]
    assert [client["client"] for client in first["clients"]] == list(range(CLIENTS))
    assert {(client["arch"], client["status"]) for client in first["clients"]} == {("model: 0", WITHHELD)}
    assert all(client["num_seen"] for client in first["clients"])
    assert models[0]["accuracy"] == pytest.approx(fused(first["clients"]))
    assert (models[0]["costs"]["bytes_up"], models[0]["rounds"], models[1]["first_round"]) == (0, 1, 1)
    fresh = pruned_sequence(hidden=(6, 8))
    assert_same(module.supernet.views(Model(0)), fresh.views(Model(0)))


class Weights(FederatedCallback):
    """The candidates' weights after each round's step."""

    def __init__(self) -> None:
        self.found: list[dict[str, dict]] = []

    def on_cohort_start(self, trainer, module, round):
        supernet = module.supernet
        archs = {task.arch for task in round.tasks}
        self.sent = {arch: {n: t.clone() for n, t in supernet.views(arch).items()} for arch in archs}
        self.updates: dict = {arch: [] for arch in archs}

    def on_client_end(self, trainer, module, result, update):
        tensors = {name: tensor.clone() for name, tensor in update.weights.items()}
        self.updates[update.task.arch].append((update.task.num_examples, tensors))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        supernet = module.supernet
        after = {}
        for arch in self.sent:
            chosen = arch.number == len(supernet.models) - 1 and supernet.models[-1].unit == arch.unit
            if chosen or arch in supernet.space.members:
                now = Model(arch.number) if chosen else arch
                after[arch] = {name: tensor.clone() for name, tensor in supernet.views(now).items()}
        used = {result.task.arch for result in batch.survivors}
        self.found.append({"sent": self.sent, "updates": self.updates, "after": after, "used": used})


def test_updates_are_fused_by_training_examples_for_those_that_stay(tmp_path) -> None:
    watch = Weights()
    # the callback that looks comes first, while the iteration is still there
    trainer = make_trainer(-1, callbacks=[watch, budgets()])
    trainer.fit(pruning(), datamodule=data(partitioner=Dirichlet(alpha=1.0, min_size=8)))
    seen = {"used": 0, "withheld": 0}
    for one in watch.found:
        for arch, after in one["after"].items():
            used = arch in one["used"]
            seen["used" if used else "withheld"] += 1
            for name, tensor in after.items():
                if used:
                    pairs = one["updates"][arch]
                    mean = sum(n * tensors[name].double() for n, tensors in pairs) / sum(n for n, _ in pairs)
                    torch.testing.assert_close(tensor.double(), mean, rtol=1e-5, atol=1e-6)
                else:
                    assert torch.equal(tensor, one["sent"][arch][name])
    assert min(seen.values()) >= 2


def test_zero_rounds_test_and_train_nothing(tmp_path) -> None:
    folder, module, _, _ = run(tmp_path, callback=budgets(rounds={1: 0}))
    models = written(folder)["models"]
    assert models[-1]["resource"] <= 0.3 * models[0]["resource"]
    assert {model["rounds"] for model in models[1:]} == {1}
    assert all(model["costs"]["bytes_up"] == 0 for model in models)
    # what is left of the initial weights, filter by filter
    first, newest = (module.supernet.views(Model(n))["conv1.conv.weight"] for n in (0, len(models) - 1))
    rows = {tuple(row.flatten()[:9].tolist()) for row in first}
    assert {tuple(row.flatten()[:9].tolist()) for row in newest} <= rows


def test_fewer_groups_than_candidates_means_several_tasks_for_a_client(tmp_path) -> None:
    folder, _, _, _ = run(tmp_path, callback=budgets(groups=1))
    rounds = records(folder)
    models = written(folder)["models"]
    first = rounds[models[1]["first_round"]]["clients"]
    count = len(models[1]["candidates"])
    assert count > 1
    assert sorted(client["client"] for client in first) == sorted(list(range(CLIENTS)) * count)
    assert len({client["arch"] for client in first}) == count
    # for a client that trains two candidates, batches and their order are the same
    assert {client["num_seen"] for client in first if client["client"] == 0} == {first[0]["num_seen"]}


def test_initial_rounds_come_first(tmp_path) -> None:
    folder, _, _, _ = run(tmp_path, callback=budgets(initial_rounds=3), assignment=CandidateGroups(initial_clients=2))
    rounds, models = records(folder), written(folder)["models"]
    assert [[client["arch"] for client in one["clients"]] for one in rounds[:3]] == [["model: 0"] * 2] * 3
    assert models[0]["rounds"] == models[1]["first_round"] == 3
    trained = [client for one in rounds[:3] for client in one["clients"]]
    assert models[0]["costs"]["bytes_up"] == sum(client["bytes_up"] for client in trained) > 0
    assert models[0]["accuracy"] == pytest.approx(fused(rounds[2]["clients"]))


def test_the_initial_model_may_come_from_a_file(tmp_path) -> None:
    _, module, _, _ = run(tmp_path / "first", rounds=3, callback=budgets(initial_rounds=3))
    begun, _, _, _ = run(
        tmp_path / "second", callback=budgets(initial=last(tmp_path / "first")), rounds=1, module=pruning()
    )
    given = torch.load(last(tmp_path / "second"), weights_only=True)["state_dict"]
    for name, tensor in module.supernet.views(Model(0)).items():
        assert torch.equal(given[f"supernet.networks.0.{name}"], tensor)
    assert written(begun)["models"][0]["accuracy"] == pytest.approx(fused(records(begun)[0]["clients"]))


def test_groups_are_of_those_who_are_available(tmp_path) -> None:
    cohort = UniformCohort(ratio=1.0, availability=RandomAvailability(0.4))
    folder, module, _, _ = run(tmp_path, cohort=cohort)
    rounds, models = records(folder), written(folder)["models"]
    seen = set()
    for model in models[1:]:
        there = set(cohort.availability.available(model["first_round"], CLIENTS, module.seed))
        assert sum(group["clients"] for group in model["groups"]) == max(1, len(there))
        seen.add(frozenset(there))
        for turn in range(model["first_round"], model["round"] + 1):
            now = set(cohort.availability.available(turn, CLIENTS, module.seed))
            assert {client["client"] for client in rounds[turn]["clients"]} <= there & now
    assert len(seen) > 1


def test_latency_as_the_resource(tmp_path, monkeypatch) -> None:
    """As a clock that says a nanosecond for each parameter."""

    def said(self, network, input_shape, dtype):
        return 1e-6 * sum(parameter.numel() for parameter in network.parameters())

    monkeypatch.setattr(MeasuredLatency, "milliseconds", said)
    folder, _, _, _ = run(tmp_path, callback=budgets(resource="latency_ms", latency=MeasuredLatency()))
    models = written(folder)["models"]
    assert models[-1]["resource"] <= 0.3 * models[0]["resource"]
    assert [model["resource"] for model in models] == [pytest.approx(1e-6 * m["parameters"]) for m in models]


def test_bytes_as_the_resource(tmp_path) -> None:
    folder, module, _, _ = run(tmp_path, callback=budgets(resource="bytes"), rounds=5)
    for model in written(folder)["models"]:
        assert model["resource"] == module.supernet.cost(Model(model["number"])).bytes == model["bytes"]


def test_it_ends_where_no_unit_can_be_cut(tmp_path) -> None:
    folder, _, trainer, _ = run(tmp_path, callback=budgets(budget=0.01, first=0.3, decay=1.0))
    sequence = written(folder)
    assert sequence["complete"]
    assert sequence["models"][-1]["resource"] > sequence["budget"]
    assert trainer.current_epoch == sequence["models"][-1]["round"] + 1


# ---- stopping and going on ----------------------------------------------------------------------------


class Stop(FederatedCallback):
    """Interrupts when two of a round's clients are through, or at its end."""

    def __init__(self, round: int, where: str) -> None:
        self.round, self.where, self.ended = round, where, 0

    def on_client_end(self, trainer, module, result, update) -> None:
        self.ended += trainer.current_epoch == self.round
        if self.where == "inside" and self.ended == 2:
            raise Interrupted(signal.SIGTERM)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
        if self.where == "end" and batch.number == self.round:
            raise Interrupted(signal.SIGTERM)


@pytest.mark.parametrize(
    ("where", "number"),
    [
        ("inside", 3),  # the first round of the second iteration
        ("end", 2),  # the next iteration has begun, and the round's checkpoint is not there yet
    ],
)
def test_resuming_gives_the_same_run(tmp_path, straight, where: str, number: int) -> None:
    """Inside and between iterations."""
    with pytest.raises(Interrupted):
        run(tmp_path, Stop(number, where))
    assert record(run(tmp_path, ckpt_path=last(tmp_path))[0]) == record(straight[0])


def test_what_had_ended_stays_ended(straight, tmp_path) -> None:
    folder, module, _, _ = straight
    before = weights(module)
    again = pruning()
    trainer = make_trainer(-1, callbacks=[budgets()])
    trainer.fit(again, datamodule=data(), ckpt_path=str(folder / "checkpoints" / "last.ckpt"))
    assert_same(weights(again), before)


def test_another_network_is_refused(straight) -> None:
    folder, _, _, _ = straight
    with pytest.raises(CheckpointError, match="began with"):
        make_trainer(-1, callbacks=[budgets()]).fit(
            pruning(supernet=pruned_sequence(hidden=(6, 9))),
            datamodule=data(),
            ckpt_path=str(folder / "checkpoints" / "last.ckpt"),
        )


# ---- what is refused before training ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "callback", "match"),
    [
        ({"client": ClientSettings(sgd(0.1), batch_size=8)}, {}, "validate"),
        ({"cohort": UniformCohort(count=3)}, {}, "cohort"),
        ({"assignment": FixedArchitecture()}, {}, "gives a CandidateSchedule, which neither .* FixedArchitecture"),
        ({"source": data(client_val=0.0)}, {}, "client_val"),
        ({}, {"groups": 7}, "groups"),
        ({}, {"initial": "nowhere.ckpt"}, "nowhere"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path, settings: dict, callback: dict, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        run(tmp_path, callback=budgets(**callback), **settings)


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"budget": 1.2}, "budget"),
        ({"groups": 0}, "groups"),
        ({"balance": 0.9}, "balance"),
        ({"partition": "other"}, "partition"),
        ({"resource": "energy"}, "resource"),
        ({"resource": "latency_ms"}, "latency"),
        ({"latency": MeasuredLatency()}, "latency"),
        ({"initial_rounds": -1}, "initial_rounds"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        budgets(**settings)
