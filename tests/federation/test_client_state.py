"""Client states of an objective: saved on disk if the update counts, and the same in resumed runs."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import Assignment
from lit_fednas.callbacks import RoundCheckpoint
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation import ClientSettings, FaultPolicy, FederatedCallback, UniformCohort
from lit_fednas.federation.checkpoints import state_in
from lit_fednas.objectives import TaskLoss
from lit_fednas.supernets import PlainNetwork
from tests.examples.feddyn import FedDyn, FedDynServer
from tests.examples.scaffold import Controlled, Scaffold
from tests.support import Noted, assert_same, fit, linear_net, make_module, make_trainer, sgd, tiny_data, weights

ALPHA = 0.5


class Counting(TaskLoss):
    """Keeps the number of each client's accepted updates; clients of ``failing`` fail in round 1."""

    def __init__(self, failing: tuple[int, ...] = (), saved_value: Any = None) -> None:
        self.failing, self.saved_value, self.seen = failing, saved_value, {}

    def begin(self, network, task, generator):
        self.task = task
        self.seen[task.round, task.client] = self.state.get("fits", 0)

    def statistics(self):
        if self.task.round == 1 and self.task.client in self.failing:
            raise RuntimeError("seven apples")
        return ()

    def client_state(self):
        return {"fits": self.state.get("fits", 0) + 1 if self.saved_value is None else self.saved_value}


class Ending(TaskLoss):
    """Sets the client's weights to zero when a fit ends; client 1 fails."""

    def __init__(self) -> None:
        self.ended: list[int] = []

    def begin(self, network, task, generator):
        self.client = task.client

    def statistics(self):
        if self.client == 1:
            raise RuntimeError("seven apples")
        return ()

    def end(self, network):
        self.ended.append(self.client)
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.zero_()


def test_objective_end_runs_before_weights_are_sent_also_after_a_failure() -> None:
    server = module(Ending(), count=6)
    assert not any(tensor.any() for tensor in run(server, 1, callbacks=[]).values())
    assert sorted(server.objective.ended) == [0, 1, 2, 3, 4, 5]


def module(objective: Any = None, count: int = 6, **settings: Any) -> Any:
    settings = {"client": ClientSettings(sgd(0.1), batch_size=8), **settings}
    return make_module(
        linear_net(),
        aggregation=OverlapAverage(weighted=False),
        cohort=UniformCohort(count=count),
        objective=objective or FedDyn(alpha=ALPHA),
        **settings,
    )


def run(server: Any, rounds: int = 4, folder: Any = None, resumed: Any = None, callbacks: Any = None) -> Any:
    callbacks = [FedDynServer(ALPHA)] if callbacks is None else callbacks
    saving = [] if folder is None else [RoundCheckpoint(dirpath=str(folder))]
    path, callbacks = resumed and resumed / "last.ckpt", [*callbacks, *saving]
    fit(server, tiny_data(), rounds, path, callbacks=callbacks, enable_checkpointing=bool(saving))
    return weights(server)


def counts_at_start(objective: Counting, rounds: int = 3, callbacks: Any = (), **settings: Any) -> Any:
    """Returns each client's number of accepted updates at the start of its fits, by round and client."""
    server = module(objective, **settings)
    run(server, rounds, callbacks=list(callbacks))
    return server.objective.seen


def test_feddyn_by_hand() -> None:
    """Three rounds of all clients, which take one step on all their examples."""
    whole = ClientSettings(sgd(0.1), batch_size=100)
    final_weights = run(module(client=whole), 3)
    data = tiny_data()
    data.setup("fit")
    w = {name: tensor.double() for name, tensor in weights(module()).items()}
    start, drift = dict(w), {name: torch.zeros_like(tensor) for name, tensor in w.items()}
    linear = [{name: torch.zeros_like(tensor) for name, tensor in w.items()} for _ in range(6)]
    for _ in range(3):
        trained = []
        for client in range(6):
            ((x, y),) = data.clients.batches(client, 100, torch.Generator())
            parameters = {name: tensor.clone().requires_grad_() for name, tensor in w.items()}
            layer = [parameters[name] for name in sorted(parameters, reverse=True)]
            functional.cross_entropy(functional.linear(x.double().flatten(1), *layer), y).backward()
            new = {name: p.detach() - 0.1 * (p.grad - linear[client][name]) for name, p in parameters.items()}
            linear[client] = {name: linear[client][name] - ALPHA * (new[name] - w[name]) for name in w}
            trained.append(new)
        drift = {name: drift[name] - ALPHA * sum(weights[name] - w[name] for weights in trained) / 6 for name in w}
        w = {name: sum(weights[name] for weights in trained) / 6 - drift[name] / ALPHA for name in w}
    assert max(float((w[name] - start[name]).abs().max()) for name in w) > 0.01
    assert_same({name: tensor.double() for name, tensor in final_weights.items()}, w, rtol=0, atol=1e-5)


def test_scaffold_by_hand() -> None:
    """Three rounds of four of six clients, which take two steps on all their examples."""
    scaffold = make_module(
        PlainNetwork(Controlled(nn.Sequential(nn.Flatten(), nn.Linear(64, 4))), (1, 8, 8), 4),
        aggregation=OverlapAverage(weighted=False),
        cohort=UniformCohort(count=4),
        objective=Scaffold(0.1, 4 / 6),
        client=ClientSettings(sgd(0.1), batch_size=100, epochs=2),
    )
    layer = scaffold.supernet.network.network[1]
    w = [tensor.detach().double().clone() for tensor in (layer.weight, layer.bias)]
    cohorts = Noted("on_results", lambda trainer, module, round: [task.client for task in round.tasks])
    run(scaffold, 3, callbacks=[cohorts])
    data = tiny_data()
    data.setup("fit")
    server = [torch.zeros_like(tensor) for tensor in w]
    controls = [list(server) for _ in range(6)]
    for cohort in cohorts.all:
        trained, changes = [], []
        for client in cohort:
            ((x, y),) = data.clients.batches(client, 100, torch.Generator())
            parameters = list(w)
            for _ in range(2):
                parameters = [tensor.detach().requires_grad_() for tensor in parameters]
                functional.cross_entropy(functional.linear(x.double().flatten(1), *parameters), y).backward()
                terms = zip(parameters, controls[client], server, strict=True)
                parameters = [tensor - 0.1 * (tensor.grad - mine + c) for tensor, mine, c in terms]
            trained.append([tensor.detach() for tensor in parameters])
            terms = zip(w, trained[-1], controls[client], server, strict=True)
            new = [mine - c + (old - new_weight) / (2 * 0.1) for old, new_weight, mine, c in terms]
            changes.append([tensor - mine for tensor, mine in zip(new, controls[client], strict=True)])
            controls[client] = new
        w = [torch.stack(ones).mean(0) for ones in zip(*trained, strict=True)]
        server = [c + sum(ones) / 6 for c, *ones in zip(server, *changes, strict=True)]
    assert max(float(c.abs().max()) for c in server) > 0.01
    final_tensors = [layer.weight, layer.bias, *scaffold.supernet.network.control.buffers()]
    for tensor, expected in zip(final_tensors, [*w, *server], strict=True):
        torch.testing.assert_close(tensor.detach().double(), expected, rtol=0, atol=1e-5)


def test_a_resumed_run_is_exact_and_needs_the_files(tmp_path: Path) -> None:
    straight = run(module(count=4))
    run(module(count=4), 2, tmp_path / "run")
    files = {path.name for path in (tmp_path / "run" / "clients").iterdir()}
    state = state_in(torch.load(tmp_path / "run" / "last.ckpt", weights_only=True))
    assert {entry["file"] for entry in state["kept"]["objective"].values()} <= files
    new_folder = (tmp_path / "run").rename(tmp_path / "moved")
    assert_same(run(module(count=4), 4, tmp_path / "further", new_folder), straight)
    shutil.rmtree(new_folder / "clients")
    with pytest.raises(
        CheckpointError, match=r"ckpt_path: \d-\d-\w+.pt is not in .* move a checkpoint with the folder"
    ):
        run(module(count=4), 5, new_folder, new_folder)


def test_measuring_leaves_no_trace() -> None:
    auto = module(client=ClientSettings(sgd(0.1), batch_size=8, fast="auto"))
    assert_same(run(auto), run(module()), rtol=1e-5, atol=1e-6)


def test_a_failed_fit_leaves_no_trace() -> None:
    counts = counts_at_start(Counting(failing=(1, 2)))
    assert {client: counts[2, client] for client in range(6)} == {0: 2, 1: 1, 2: 1, 3: 2, 4: 2, 5: 2}


def test_a_round_without_a_step_leaves_no_trace() -> None:
    rejecting = Noted("on_results", lambda _, module, round: round.number == 1 and round.reject(round.tasks[0].arch))
    for counts in (
        counts_at_start(Counting(failing=(1, 2)), faults=FaultPolicy(min_survivors=5)),
        counts_at_start(Counting(), callbacks=(rejecting,)),
    ):
        assert {counts[2, client] for client in range(6)} == {1}


def test_a_rejected_update_does_not_count() -> None:
    counts = counts_at_start(Counting(), faults=FaultPolicy(norm_bound=1.01))
    assert min(counts[2, client] for client in range(6)) < 2


class Stop(FederatedCallback):
    def on_client_end(self, trainer, module, result, update):
        if (result.task.round, result.task.client) == (1, 3):
            raise RuntimeError("eight apples")


def test_an_interrupted_round_leaves_no_trace(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="eight apples"):
        run(module(Counting()), 3, tmp_path, callbacks=[Stop()])
    server = module(Counting())
    run(server, 3, tmp_path, tmp_path, callbacks=[])
    assert server.objective.seen == {(round, client): round for round in (1, 2) for client in range(6)}


def test_a_second_fit_ignores_files_of_an_interrupted_round() -> None:
    """The state of round 0 stays if the objective writes no state in the second fit."""
    server, stop = module(Counting(), client=ClientSettings(sgd(0.1), batch_size=8)), Stop()
    trainer = make_trainer(3, callbacks=[stop])
    with pytest.raises(RuntimeError, match="eight apples"):
        trainer.fit(server, datamodule=tiny_data())
    stop.on_client_end = lambda *parts: None
    server.objective.client_state = lambda: None
    trainer.fit(server, datamodule=tiny_data())
    assert {server.objective.seen[2, client] for client in range(6)} == {1}


def test_unsupported_values_are_refused() -> None:
    for value in (np.zeros(2), np.float64(1)):
        with pytest.raises(ConfigError, match=r"model.objective: Counting.client_state returns a \w+ for 'fits'"):
            run(module(Counting(saved_value=value)), 1)


def test_stacked_clients_and_several_tasks_per_client_are_refused() -> None:
    class Stackable(Counting):
        stackable = True

    for objective in (FedDyn(), Stackable()):
        with pytest.raises(ConfigError, match=rf"3: the objective {type(objective).__name__} is not stackable; set"):
            run(module(objective, client=ClientSettings(sgd(0.1), batch_size=8, clients_per_fit=3)))

    class Twice(Assignment):
        def plan(self, round):
            return [round.task(client, round.space.largest) for client in round.cohort for _ in range(2)]

    with pytest.raises(ConfigError, match="FedDyn keeps one state of each client, and Twice gives a client several"):
        run(module(assignment=Twice()))
