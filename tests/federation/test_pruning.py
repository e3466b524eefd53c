"""Runs that prune a model step by step: iterations, groups, drops, costs, and exact resume."""

from __future__ import annotations

import json
import signal
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch

from lit_fednas.analysis.report import write_report
from lit_fednas.assignment import CandidateGroups
from lit_fednas.callbacks import CostLedger, PruneByBudgets, RoundCheckpoint, RunRecorder
from lit_fednas.callbacks.pruning import balanced_groups
from lit_fednas.callbacks.pruning.groups import group_report, groups_of_candidates, random_groups
from lit_fednas.costs import MeasuredLatency
from lit_fednas.data import Dirichlet
from lit_fednas.errors import ConfigError
from lit_fednas.federation import (
    ClientSettings,
    EvaluationSettings,
    FederatedCallback,
    RandomAvailability,
    UniformCohort,
)
from lit_fednas.federation.process import Interrupted
from lit_fednas.messages import WITHHELD
from lit_fednas.records import read_rounds
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import Model
from lit_fednas.testing.contract import assert_alike
from lit_fednas.testing.runs import contents
from tests.federation.runs import LAST, run_in
from tests.supernets.sequences import pruned_sequence
from tests.support import assert_same, make_module, sgd, tiny_data, weights

CLIENTS = 6


def data(**settings):
    return tiny_data(CLIENTS, **{"client_val": 0.3, "client_test": 0.1, **settings})


def pruning(**settings):
    client = ClientSettings(sgd(0.1), batch_size=8, validate="trained")
    parts = {"supernet": pruned_sequence(hidden=(6, 8)), "assignment": CandidateGroups(), "client": client}
    everyone = {"cohort": UniformCohort(ratio=1.0), "evaluation": EvaluationSettings()}
    return make_module(**{**parts, **everyone, **settings})


def budgets(**settings) -> PruneByBudgets:
    return PruneByBudgets(
        **{"budget": 0.3, "first": 0.2, "decay": 0.98, "rounds": {1: 2, 3: 3}, "drop": 0.5, "groups": 2, **settings}
    )


def run(folder: Path, *extra, callback=None, ckpt_path=None, rounds=-1, source=None, **settings):
    callback, module = callback or budgets(), pruning(**settings)
    callbacks = callback, CostLedger(), RunRecorder(), RoundCheckpoint(), *extra
    trainer = run_in(folder, module, *callbacks, rounds=rounds, data=source or data(), ckpt_path=ckpt_path)
    return folder / "run" / "only", module, trainer


def written(folder: Path) -> dict:
    return json.loads((folder / "sequence.json").read_text())


@pytest.fixture(scope="module")
def straight(tmp_path_factory) -> tuple:
    """A whole run. Read only."""
    return run(tmp_path_factory.mktemp("straight"))


@pytest.fixture(scope="module")
def rounds(straight) -> list[dict]:
    return list(read_rounds(straight[0]))


@pytest.fixture(scope="module")
def models(straight) -> list[dict]:
    return written(straight[0])["models"]


def fused(clients: list[dict]) -> float:
    tested = sum(client["num_tested"] for client in clients)
    return sum(client["accuracy"] * client["num_tested"] for client in clients) / tested


# ---- the iterations -----------------------------------------------------------------------------------


def test_the_sequence_goes_down_under_its_budgets(straight, models) -> None:
    folder, module, trainer = straight
    sequence, whole = written(folder), models[0]["macs"]
    assert sequence["complete"]
    assert sequence["under_way"] is None
    assert sequence["initial"] == whole == module.supernet.macs(Model(0))
    assert models[-1]["resource"] <= 0.3 * whole < models[-2]["resource"]
    for t, (previous, model) in enumerate(pairwise(models), start=1):
        budget = max(previous["resource"] - 0.2 * 0.98 ** (t - 1) * whole, 0.3 * whole)
        assert model["budget"] == pytest.approx(budget)
        assert model["resource"] <= budget
        assert model["resource"] == module.supernet.macs(Model(t))
        assert model["rounds"] == model["round"] - model["first_round"] + 1 == (2 if t < 3 else 3)
        lost = {group: previous["sizes"][group] - size for group, size in model["sizes"].items()}
        (winner,) = (candidate for candidate in model["candidates"] if candidate["unit"] == model["unit"])
        assert {group: count for group, count in lost.items() if count} == winner["removed"]
        assert winner["dropped"] is None
        assert model["accuracy"] == winner["accuracies"][-1]
    assert any(len(set(candidate["accuracies"])) > 1 for model in models for candidate in model["candidates"])
    assert [model["first_round"] for model in models[2:]] == [model["round"] + 1 for model in models[1:-1]]
    assert trainer.current_epoch == models[-1]["round"] + 1  # the last budget ends training
    assert len(module.supernet.models) == len(models)
    assert len(module.supernet.candidates) == 0


def test_groups_stay_with_their_candidates_through_an_iteration(rounds, models) -> None:
    for model in models[1:]:
        group_of = {
            f"candidate: {model['number']} {candidate['unit']}": candidate["group"] for candidate in model["candidates"]
        }
        records = rounds[model["first_round"] : model["round"] + 1]
        clients = [client for record in records for client in record["clients"]]
        assert all(client["group"] == group_of[client["arch"]] for client in clients)
        assert len({(client["group"], client["client"]) for client in clients}) == CLIENTS
        assert {client["client"] for client in clients} == set(range(CLIENTS))
        assert len(set(group_of.values())) == len(group_of)


def test_dropped_candidates_are_tested_but_send_nothing(rounds, models) -> None:
    for model in models[1:]:
        for turn, record in enumerate(rounds[model["first_round"] : model["round"] + 1], start=1):
            for candidate in model["candidates"]:
                clients = [client for client in record["clients"] if client["arch"].split()[-1] == candidate["unit"]]
                last_turn = candidate["dropped"]
                assert bool(clients) == (last_turn is None or turn <= last_turn)
                for client in clients:
                    withheld = turn == last_turn
                    assert client["status"] == (WITHHELD if withheld else "ok")
                    assert (client["bytes_up"] == 0) == withheld
                    assert client["bytes_down"] > 0
                if clients:
                    assert candidate["accuracies"][turn - 1] == pytest.approx(fused(clients))
            assert record["metrics"]["clients/failed"] == 0
        last_turns = [candidate["dropped"] for candidate in model["candidates"]]
        assert sorted(last_turns, key=lambda turn: turn or 99) == [1, None][-len(last_turns) :]  # half of two


def test_candidates_are_compared_with_the_previous_model(models) -> None:
    """Section 4.3: lost accuracy since the previous model per saved resource, as a share of the first model's."""
    whole = models[0]["resource"]
    for previous, model in pairwise(models):
        for candidate in model["candidates"]:
            saved = (previous["resource"] - candidate["resource"]) / whole
            expected = [(previous["accuracy"] - accuracy) / saved for accuracy in candidate["accuracies"]]
            assert candidate["degradations"] == pytest.approx(expected)
        remaining = [candidate for candidate in model["candidates"] if candidate["dropped"] is None]
        assert model["unit"] == min(remaining, key=lambda candidate: candidate["degradations"][-1])["unit"]


def test_the_group_with_the_least_work_gets_the_next_candidate() -> None:
    """A group with a hundred times the examples still trains its first candidate when the others are free."""
    macs = {"conv1": 5, "conv2": 4, "conv3": 5, "conv4": 4}
    scheduled = groups_of_candidates(macs, [1000, 10, 10], np.random.default_rng(0))
    assert sorted(scheduled.values()) in ([0, 1, 1, 2], [0, 1, 2, 2])
    assert len(set(list(scheduled.values())[:3])) == 3
    assert list(scheduled) == list(macs)
    groups = {groups_of_candidates({"conv1": 1}, [1, 1], np.random.default_rng(draw))["conv1"] for draw in range(8)}
    assert groups == {0, 1}  # any free group


@pytest.mark.parametrize("partition", ["balanced", "random"])
def test_the_groups_are_those_of_the_partition(tmp_path, partition: str) -> None:
    source = data(partitioner=Dirichlet(alpha=0.5, min_size=8))
    folder, module, _ = run(tmp_path, callback=budgets(partition=partition, rounds={1: 1}), source=source, rounds=2)
    counts = np.stack([source.clients.label_counts(client, 4) for client in range(CLIENTS)])
    if partition == "balanced":
        groups = balanced_groups(counts, 2)
    else:
        groups = random_groups(CLIENTS, 2, numpy_generator(module.seed, "client-groups", 1))
    _, clients = (record["clients"] for record in read_rounds(folder))
    assert all(client["client"] in groups[client["group"]] for client in clients)
    assert written(folder)["models"][1]["groups"] == group_report(counts, groups)


def test_a_candidate_may_wait_for_any_free_group_in_every_round(tmp_path) -> None:
    """Alg. 4.1, line 15: in each round two candidates have different groups, which may change between rounds."""
    callback = budgets(schedule="round", drop=0.0, rounds={1: 4}, budget=0.5)
    folder, _, _ = run(tmp_path, callback=callback)
    rounds, changes = list(read_rounds(folder)), set()
    for model in written(folder)["models"][1:]:
        turns = rounds[model["first_round"] : model["round"] + 1]
        groups = [{client["arch"].split()[-1]: client["group"] for client in record["clients"]} for record in turns]
        assert all(sorted(by_unit.values()) == [0, 1] for by_unit in groups)
        assert {candidate["unit"]: candidate["group"] for candidate in model["candidates"]} == groups[-1]
        changes |= {by_unit != others for by_unit, others in pairwise(groups)}
    assert changes == {True, False}


def test_costs_are_sums_over_rounds(straight, rounds, models) -> None:
    supernet, ends = straight[1].supernet, [model["first_round"] for model in models[1:]] + [len(rounds)]
    for model, end in zip(models, ends, strict=True):
        clients = [client for record in rounds[model["first_round"] : end] for client in record["clients"]]
        for name in ("macs", "bytes_down", "bytes_up"):
            assert model["costs"][name] == sum(client[name] for client in clients)
        for client in clients:
            macs = supernet.cost(supernet.space.parse(client["arch"])).macs  # removed models have costs too
            assert client["macs"] == macs * (client["num_seen"] + client["num_tested"])


def test_a_report_shows_the_models(straight, tmp_path) -> None:
    assert "Pruned models" in write_report(straight[0], tmp_path / "page.html").read_text()


def test_the_initial_model_is_measured_like_candidates(straight, rounds, models) -> None:
    """All clients test it in the first round; their training is not used."""
    clients, supernet = rounds[0]["clients"], straight[1].supernet
    assert [client["client"] for client in clients] == list(range(CLIENTS))
    assert {(client["arch"], client["status"]) for client in clients} == {("model: 0", WITHHELD)}
    assert all(client["num_seen"] for client in clients)
    assert models[0]["accuracy"] == pytest.approx(fused(clients))
    assert (models[0]["costs"]["bytes_up"], models[0]["rounds"], models[1]["first_round"]) == (0, 1, 1)
    assert_same(supernet.views(Model(0)), pruned_sequence(hidden=(6, 8)).views(Model(0)))


def test_the_initial_model_is_trained_first_or_comes_from_a_file(tmp_path) -> None:
    several = {"callback": budgets(initial_rounds=3), "assignment": CandidateGroups(initial_clients=2)}
    folder, module, _ = run(tmp_path / "first", rounds=4, **several)
    rounds, models = list(read_rounds(folder)), written(folder)["models"]
    assert [[client["arch"] for client in record["clients"]] for record in rounds[:3]] == [["model: 0"] * 2] * 3
    trained = [client for record in rounds[:3] for client in record["clients"]]
    assert models[0]["rounds"] == written(folder)["under_way"]["first_round"] == 3
    assert models[0]["costs"]["bytes_up"] >= sum(client["bytes_up"] for client in trained) > 0
    assert models[0]["accuracy"] == pytest.approx(fused(rounds[2]["clients"]))

    run(tmp_path / "second", initial=str(tmp_path / "first" / LAST), rounds=1)
    state = torch.load(tmp_path / "second" / LAST, weights_only=True)["state_dict"]
    for name, tensor in module.supernet.views(Model(0)).items():
        assert torch.equal(state[f"supernet.networks.0.{name}"], tensor)


def test_groups_contain_only_available_clients(tmp_path) -> None:
    cohort = UniformCohort(ratio=1.0, availability=RandomAvailability(0.4))
    folder, module, _ = run(tmp_path, cohort=cohort, rounds=6)
    rounds, models = list(read_rounds(folder)), written(folder)["models"]
    cohorts = set()
    for model in models[1:]:
        available = set(cohort.availability.available(model["first_round"], CLIENTS, module.seed))
        assert sum(group["clients"] for group in model["groups"]) == max(1, len(available))
        cohorts.add(frozenset(available))
        for turn in range(model["first_round"], model["round"] + 1):
            available_now = set(cohort.availability.available(turn, CLIENTS, module.seed))
            assert {client["client"] for client in rounds[turn]["clients"]} <= available & available_now
    assert len(cohorts) > 1


def test_latency_as_the_resource(tmp_path, monkeypatch) -> None:
    """A simulated clock measures a nanosecond per parameter."""

    def said(self, network, input_shape, dtype):
        return 1e-6 * sum(parameter.numel() for parameter in network.parameters())

    monkeypatch.setattr(MeasuredLatency, "milliseconds", said)
    callback = budgets(resource="latency_ms", latency=MeasuredLatency(), rounds={1: 1})
    models = written(run(tmp_path, callback=callback, rounds=2)[0])["models"]
    assert len(models) == 2
    assert all(model["resource"] == pytest.approx(1e-6 * model["parameters"]) for model in models)


def test_memory_as_the_resource(tmp_path) -> None:
    """Weights and the largest activations, 4 bytes each: the image, the first layer's outputs, and their pooling."""
    callback = budgets(resource="memory_bytes", rounds={1: 1})
    models = written(run(tmp_path, callback=callback, rounds=2)[0])["models"]
    assert [model["unit"] for model in models] == [None, "conv2"]
    assert all(model["resource"] == model["bytes"] + 4 * (64 + 6 * 64 + 6 * 16) for model in models)


# ---- stop and resume ----------------------------------------------------------------------------------


def test_a_stop_between_iterations_resumes_to_the_same_run(tmp_path, straight) -> None:
    """The stop comes after the start of the next iteration, before the round's checkpoint."""

    class Stop(FederatedCallback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx) -> None:
            if batch.number == 2:
                raise Interrupted(signal.SIGTERM)

    with pytest.raises(Interrupted):
        run(tmp_path, Stop())
    assert_alike(contents(run(tmp_path, ckpt_path=tmp_path / LAST)[0]), contents(straight[0]))


def test_resuming_a_finished_run_changes_nothing(tmp_path, straight) -> None:
    last = straight[0] / "checkpoints" / "last.ckpt"
    assert_same(weights(run(tmp_path, ckpt_path=last)[1]), weights(straight[1]))


# ---- refusals before training -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("callback", "settings", "match"),
    [
        ({}, {"client": ClientSettings(sgd(0.1), batch_size=8)}, "client.validate: is null"),
        ({}, {"cohort": UniformCohort(count=3)}, "model.cohort: takes 3 of 6"),
        ({}, {"source": data(client_val=0.0)}, "client_val"),
        ({"groups": 7}, {}, "groups: 7 is more than 6 clients"),
        ({"budget": 1.2}, {}, "prune_by_budgets.budget: 1.2"),
        ({"resource": "latency_ms"}, {}, "latency: is null and resource is latency_ms"),
    ],
)
def test_parts_that_do_not_fit_are_refused(tmp_path, callback: dict, settings: dict, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        run(tmp_path, callback=budgets(**callback), rounds=1, **settings)
