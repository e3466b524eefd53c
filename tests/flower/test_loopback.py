"""Runs over devices equal simulated ones, whatever the method; failures become statuses; nothing else is let in."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
import yaml

from lit_fednas.assignment import ByTier
from lit_fednas.callbacks import RoundCheckpoint
from lit_fednas.cli.entry import with_paths
from lit_fednas.cli.lightning_cli import FederatedCLI, run
from lit_fednas.data import IID, ArraySource, ByColumn, Examples, FederatedDataModule
from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, FederatedCallback, UniformCohort
from lit_fednas.messages import ClientResult, nbytes
from lit_fednas.objectives import TaskLoss
from lit_fednas.records import ALL_TIERS
from lit_fednas.search import ClientDraw, FederatedEvaluation, FederatedEvaluator
from lit_fednas.tiers import ArchitectureTiers, ClientTiers, TraceTiers
from tests.examples.feddyn import FedDyn
from tests.federation import methods
from tests.federation.methods import METHODS
from tests.support import (
    Noted,
    assert_same,
    fit,
    linear_net,
    make_module,
    one_of_many,
    sgd,
    tiny_data,
    tiny_examples,
    weights,
)

loopback = pytest.importorskip("tests.flower.loopback")
from flwr.app import Error, Message  # noqa: E402

from lit_fednas.flower.device import device_settings  # noqa: E402
from lit_fednas.flower.folder import resolved  # noqa: E402
from lit_fednas.flower.link import Link  # noqa: E402
from lit_fednas.flower.server import FlowerCLI, FlowerEvaluator, ServerData  # noqa: E402
from lit_fednas.flower.wire import Packet, result_fields, task_fields  # noqa: E402

QUICK = ("counting reject", "suites", "elastic away", "exits late")


class Notes(FederatedCallback):
    """Records all results as plain values, without their seconds."""

    def __init__(self) -> None:
        self.results: list[dict[str, Any]] = []

    def on_client_end(self, trainer: Any, module: Any, result: ClientResult, update: Any) -> None:
        self.results.append({**result_fields(result), "task": task_fields(result.task), "seconds": 0.0})


def devices(make: Callable[[], Any], data: Callable[[], Any], share: bool = True) -> dict[int, Any]:
    """Returns a device for every client, by its node's number."""
    (first := data()).setup("fit")
    numbers = range(first.clients.num_clients)
    return {1000 + 7 * number: loopback.device(make, data(), number, share) for number in numbers}


def linear(**settings: Any) -> Any:
    return make_module(linear_net(), **settings)


def three() -> dict[int, Any]:
    return devices(linear, lambda: tiny_data(3))


# ---- equality -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", one_of_many(methods.COVERING, *QUICK))
def test_a_run_over_devices_equals_the_simulated_one(name: str) -> None:
    simulated, over = METHODS[name](), METHODS[name]()
    expected, actual = Notes(), Notes()
    fit(simulated, methods.data(name), 3, callbacks=[expected, *methods.callbacks(name)])
    link = loopback.connected(loopback.Loopback(devices(METHODS[name], partial(methods.data, name))))
    loopback.fit_over(link, over, methods.data(name), 3, callbacks=[actual, *methods.callbacks(name)])
    if simulated.client.clients_per_fit > 1:  # devices train alone
        assert_same(weights(over), weights(simulated), rtol=1e-4, atol=1e-6)
    else:
        assert json.dumps(actual.results) == json.dumps(expected.results)
        assert_same(weights(over), weights(simulated))


class Lower(TaskLoss):
    """A loss below zero, as a likelihood's or FedDyn's may be."""

    def loss(self, network: Any, inputs: Any, targets: Any) -> Any:
        return super().loss(network, inputs, targets) - 1000


def test_a_loss_may_be_negative() -> None:
    notes = run_over(loopback.Loopback(devices(partial(linear, objective=Lower()), lambda: tiny_data(3))))
    assert statuses(notes) == [(client, "ok") for client in range(3)]
    assert max(result["loss"] for result in notes.results) < 0


def test_a_device_that_has_lost_its_state_starts_anew_and_says_so() -> None:
    nodes = devices(partial(linear, objective=FedDyn()), lambda: tiny_data(3))
    restart = Noted("on_round_start", lambda *args: args[2].number == 1 and nodes[1007]._memory.clear())
    notes, module = Notes(), linear(objective=FedDyn(), cohort=UniformCohort(count=3))
    link = loopback.connected(loopback.Loopback(nodes))
    loopback.fit_over(link, module, tiny_data(3), 3, callbacks=[restart, notes])
    fits = [(result["task"]["round"], result["task"]["client"]) for result in notes.results if result["reason"]]
    assert fits == [(1, 1)]
    assert "has lost the objective's state" in notes.results[4]["reason"]
    assert [len(node._memory) for node in nodes.values()] == [2, 2, 2]  # the last valid state, and the newest


def own_examples() -> tuple[FederatedDataModule, list[FederatedDataModule]]:
    """Returns the examples of three clients in one source with a column, and in a source per client."""
    together = tiny_examples(60)
    site = np.arange(60) % 3
    val = tiny_examples(20, seed=1)
    examples = Examples(together.inputs, together.targets, {"site": site})
    settings = {"server_val": 0, "client_val": 0.25, "eval_batch_size": 16}
    whole = FederatedDataModule(ArraySource(examples, val), ByColumn("site"), num_clients=3, **settings)
    parts = [Examples(together.inputs[site == k], together.targets[site == k]) for k in range(3)]
    return whole, [FederatedDataModule(ArraySource(part), IID(), num_clients=9, **settings) for part in parts]


def test_devices_with_data_of_their_own_equal_the_clients_of_one_data_set() -> None:
    whole, parts = own_examples()
    make = partial(linear, client=ClientSettings(sgd(0.1), batch_size=8, validate="trained"))
    expected, actual = Notes(), Notes()
    fit(simulated := make(), own_examples()[0], callbacks=[expected])
    nodes = {50 + number: loopback.device(make, part, number, share=False) for number, part in enumerate(parts)}
    loopback.fit_over(loopback.connected(loopback.Loopback(nodes)), over := make(), whole, 3, callbacks=[actual])
    assert json.dumps(actual.results) == json.dumps(expected.results)
    assert_same(weights(over), weights(simulated))


def test_a_stopped_run_goes_on_exactly(tmp_path: Path) -> None:
    def run(rounds: int, folder: Path, ckpt_path: Path | None = None) -> dict[str, torch.Tensor]:
        settings = {"callbacks": [RoundCheckpoint(dirpath=str(folder))], "enable_checkpointing": True}
        link = loopback.connected(loopback.Loopback(three()))
        loopback.fit_over(link, module := linear(), tiny_data(3), rounds, ckpt_path, **settings)
        return weights(module)

    straight = run(4, tmp_path / "straight")
    run(2, tmp_path / "stopped")
    assert_same(run(4, tmp_path / "stopped", tmp_path / "stopped" / "last.ckpt"), straight)


# ---- who is there -------------------------------------------------------------------------------------


def run_over(grid: Any, rounds: int = 1, **settings: Any) -> Notes:
    """Trains with all clients in every round."""
    notes = Notes()
    module = linear(cohort=UniformCohort(ratio=1.0), **settings)
    link = loopback.connected(grid)
    loopback.fit_over(link, module, tiny_data(3), rounds, callbacks=[notes])
    notes.module, notes.link = module, link
    return notes


def statuses(notes: Notes) -> list[tuple[int, str]]:
    return [(result["task"]["client"], result["status"]) for result in notes.results]


def test_a_registered_name_says_which_client_a_node_is() -> None:
    grid = loopback.Loopback(three(), {1000: "client-2", 1007: "client-1", 1014: "client-0"})
    for device in grid.devices.values():
        device.number = None
    assert statuses(notes := run_over(grid)) == [(0, "ok"), (1, "ok"), (2, "ok")]
    assert notes.link.nodes == {2: 1000, 1: 1007, 0: 1014}


def test_who_has_the_key_of_another_client_is_refused_before_any_training() -> None:
    grid = loopback.Loopback(three(), {1000: "client-1"})
    server = loopback.server_data(loopback.connected(grid), tiny_data(3))
    with pytest.raises(ConfigError, match=r"^node-config: 0 is not the key's client, "):
        server.setup("fit")
    assert {message.metadata.message_type for message in grid.asked} == {"query.join"}


def test_another_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lit_fednas.flower.link.__version__", "9.9")
    server = loopback.server_data(loopback.connected(loopback.Loopback(three())), tiny_data(3))
    with pytest.raises(ConfigError, match=r"^version: .* is not the server's; install lit-fednas 9\.9"):
        server.setup("fit")


def test_tiers_are_those_of_the_devices_and_stay_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tiers = ClientTiers(ArchitectureTiers({"weak": "smallest", "strong": "largest"}), TraceTiers(full=1.0))
    make = partial(make_module, assignment=ByTier(), tiers=tiers, cohort=UniformCohort(ratio=1.0))

    def run(speeds: list[float], saved_speeds: Any = None) -> list[str]:
        grid = loopback.Loopback(devices(make, lambda: tiny_data(3)))
        for node, speed in zip(grid.devices.values(), speeds, strict=True):
            monkeypatch.setattr(node, "_speed", lambda module, speed=speed: speed)
        server = loopback.server_data(loopback.connected(grid), tiny_data(3))
        server.speeds = saved_speeds
        trainer = loopback.fit_over(server.link, module := make(), server, 1)
        trainer.save_checkpoint(tmp_path / "run.ckpt")
        return [module.population.tier(client).name for client in range(3)]

    tiers_of_clients = run([1e6, 5e9, 1e10])
    assert tiers_of_clients == ["weak", "weak", "strong"]
    saved = torch.load(tmp_path / "run.ckpt", weights_only=True)[ServerData.__qualname__]["speeds"]
    assert run([1e10, 1e10, 1e10], saved) == tiers_of_clients


# ---- failures -----------------------------------------------------------------------------------------


def error_answer(message: Message, **fault: Any) -> Message:
    return Message(Error(**fault), reply_to=message)


Fault = Callable[[Message, Message], Message | None]


def of_client_one(fault: Fault) -> Fault:
    """Returns a fault of client 1's training in round 1 alone."""

    def in_round_one(message: Message, answer: Message) -> Message | None:
        task = Packet.read(message.content).fields.get("task", {})
        return fault(message, answer) if (task.get("client"), task.get("round")) == (1, 1) else answer

    return in_round_one


def of_result(**values: Any) -> Fault:
    def fault(message: Message, answer: Message) -> Message:
        packet = Packet.read(answer.content)
        answer.content = Packet({"result": packet.fields["result"] | values}, packet.tensors).record()
        return answer

    return fault


def from_node_one(message: Message, code: int) -> Message:
    """Returns Flower's error for a lost node, which the SuperLink sends."""
    answer = error_answer(message, code=code, reason="Node Unavailable")
    answer.metadata.__dict__["_src_node_id"] = 1
    return answer


UNREAD = "the answer cannot be read (ValueError: {})"
#: By name: a fault, and the client's reason. ``test_hostile`` replaces all other values of messages.
FAULTS: dict[str, tuple[Fault, str]] = {
    "exception": (lambda m, a: error_answer(m, code=2, reason="ValueError: plums"), "ValueError: plums"),
    "dead node": (lambda m, a: from_node_one(m, 5), "Node Unavailable"),
    "silence": (lambda m, a: None, "no answer after flower's timeout, 0.01 s"),
    "the server's status": (of_result(status="wild"), UNREAD.format("status 'wild'")),
    "a test of its own": (of_result(tested={"beauty": 1.0}), UNREAD.format("tested by ['beauty']")),
    "other statistics": (
        of_result(statistics={"MacsStatistics": {"macs": 1}}),
        UNREAD.format("statistics of ['MacsStatistics']"),
    ),
}
STATUSES = {"dead node": "dropped", "silence": "timeout"}  # the others are errors


@pytest.mark.parametrize("name", FAULTS)
def test_a_failure_is_one_client_s_of_one_round(name: str) -> None:
    fault, reason = FAULTS[name]
    grid = loopback.Loopback(three())
    grid.fault = of_client_one(fault)
    notes = run_over(grid, 3)
    expected = [(client, "ok") for _ in range(3) for client in range(3)]
    expected[4] = (1, STATUSES.get(name, "error"))
    assert statuses(notes) == expected
    assert notes.results[4]["reason"] == reason


def test_a_device_may_go_and_come_back_as_another_node() -> None:
    grid = loopback.Loopback(three())
    away: list[Any] = []

    class Travels(FederatedCallback):
        def on_round_start(self, trainer: Any, module: Any, round: Any) -> None:
            if round.number == 1:
                away.append(grid.devices.pop(1007))
            if round.number == 2:
                grid.devices[77] = away.pop()

    notes, module = Notes(), linear(cohort=UniformCohort(ratio=1.0))
    loopback.fit_over(loopback.connected(grid), module, tiny_data(3), 3, callbacks=[notes, Travels()])
    assert [status for client, status in statuses(notes) if client == 1] == ["ok", "away", "ok"]
    assert notes.results[4]["reason"] == "the device is not connected"


# ---- after training -----------------------------------------------------------------------------------


def test_devices_score_architectures_as_simulated_clients_do() -> None:
    module, data = make_module(), methods.image_data(client_val=0.3)
    data.setup("fit")
    module.meet(data.clients)
    grid = loopback.Loopback(devices(make_module, lambda: methods.image_data(client_val=0.3)))
    server = loopback.server_data(loopback.connected(grid), methods.image_data(client_val=0.3))
    server.setup("fit")
    rng = np.random.default_rng(0)
    archs = list(dict.fromkeys(module.supernet.space.sample(rng) for _ in range(4)))
    scores = []
    for kind_of_evaluator, clients in ((FederatedEvaluator, data.clients), (FlowerEvaluator, server.clients)):
        draw = ClientDraw(clients, module.population, 3, FederatedEvaluation(rounds=2), seed=0)
        evaluator = kind_of_evaluator(module.supernet, draw, module.evaluation, (), 16)
        score = evaluator.scorer(ALL_TIERS, 0, archs)
        scores.append([score(arch) for arch in archs])
    assert scores[0] == scores[1]
    messages = [message for message in grid.asked if message.metadata.message_type == "evaluate"]
    assert len(messages) == 6  # clients, not architectures
    sent = sum(nbytes(Packet.read(message.content).tensors.values()) for message in messages)
    assert sent == evaluator._rows[ALL_TIERS, 0]["bytes_down"]


SEARCH = ["--config=search/fedoras.yaml", "--search.evaluations=8", "--search.method.init_args.population=8"]
SEARCH += ["--search.method.init_args.sample=8"]
TUNED = ["--finetune.objective=lit_fednas.objectives.CrossEntropy"]
TUNED += ["--finetune.objective.init_args.label_smoothing=0.1"]
SMALL = ["--model.client.steps=1", "--model.supernet.init_args.stem_width=8"]
SMALL += ["--model.supernet.init_args.stage_widths=[8,8,8,8]"]
LARGE_STEPS = "--model.client.optimizer.init_args.lr=0.5"
# by method: the configuration that devices have, and the options of the server's command in each stage
STAGES = {
    "fedoras": (
        ["--config=fedoras/digits.yaml", "--data.client_val=0.2", "--data.client_test=0.1", "--trainer.max_rounds=2"],
        {
            "search": [*SEARCH, "--search.federated.rounds=4", "--search.name=search"],
            "finetune": ["--config=fedoras/finetune/digits.yaml", "--finetune.rounds=2", *TUNED],
        },
    ),
    "options": (["--config=superfed/digits.yaml", "--trainer.max_rounds=1", *SMALL], {"fit": [LARGE_STEPS]}),
}


@pytest.mark.parametrize("method", one_of_many(STAGES, "options"))
def test_all_stages_over_devices_equal_the_simulated_ones(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The stages are training, a search by the clients, and fine-tuning with its own settings and objective."""
    monkeypatch.chdir(tmp_path)
    options, stages = STAGES[method]
    for name in ("simulated", "over"):
        words = with_paths([*options, "--data.num_clients=6", f"--trainer.logger.init_args.name={name}"])
        config = resolved(words)
        Path(f"{name}.yaml").write_text(config)
        nodes = {9 + number: loopback.Node(config, {"partition-id": number}) for number in range(6)}
        for stage, stage_options in {"fit": [], **stages}.items():
            grid = loopback.Loopback(nodes)
            link = Link(grid, device_settings(config), poll=0)
            cli = FederatedCLI if name == "simulated" else partial(FlowerCLI, link=link)
            assert run(with_paths([stage, f"--config={name}.yaml", *stage_options]), cli) == 0
            if grid.asked and stage == "fit":  # only sections that the command changes are sent
                changes = {Packet.read(message.content).fields["changed"] for message in grid.asked}
                assert [set(yaml.safe_load(text) or ()) for text in changes] == [{"model"} if stage_options else set()]
    runs = [Path("runs", name, "version_0") for name in ("simulated", "over")]
    assert_same(*(torch.load(run / "checkpoints/last.ckpt", weights_only=True)["state_dict"] for run in runs))
    files = sorted(path.relative_to(runs[1]) for stage in stages for path in runs[1].glob(f"{stage}/**/*.csv"))
    later_stages = stages.keys() - {"fit"}
    assert {Path(stage, "clients.csv") for stage in later_stages} <= set(files)
    for file in files:
        simulated, over = (pd.read_csv(run / file) for run in runs)
        same = [name for name in simulated if "seconds" not in name]
        exact = file.name != "clients.csv"  # a simulation tests several clients in one batch
        pd.testing.assert_frame_equal(simulated[same], over[same], check_exact=exact)


# ---- what travels -------------------------------------------------------------------------------------


def test_examples_never_leave_a_device() -> None:
    """Only shapes, counts, weights and figures do."""
    grid, answers = loopback.Loopback(three()), []
    grid.fault = lambda message, answer: answers.append(Packet.read(answer.content)) or answer
    run_over(grid)
    joined, trained = answers[0], answers[-1]
    assert set(joined.fields) == {"kind", "client", "counts", "macs_per_second"}
    shared = {"task", "task_settings", "augmentation", "input_shape", "num_classes", "class_names", "normalization"}
    assert set(joined.fields["kind"]) == shared
    assert not joined.tensors
    assert set(trained.fields) == {"result"}
    supernet = linear_net()
    assert {name: tensor.shape for name, tensor in trained.tensors.items()} == {
        name: tensor.shape for name, tensor in supernet.views(supernet.space.largest).items()
    }


def test_the_server_asks_for_no_examples() -> None:
    server = loopback.server_data(loopback.connected(loopback.Loopback(three())), tiny_data(3))
    server.setup("fit")
    with pytest.raises(ConfigError, match=r"^the server asks for examples that stay on clients' devices"):
        next(server.clients.batches(0, 4, torch.Generator()))
    data = tiny_data(3)
    data.setup("fit")
    assert server.clients.sizes.tolist() == data.clients.sizes.tolist()
    assert server.clients.classes(1) == data.clients.classes(1)
    assert (server.class_counts == data.class_counts.toarray()).all()


def test_packets_arrive_as_they_were_sent() -> None:
    tensors = {
        "a": torch.tensor([[1.5, torch.nan], [torch.inf, -0.0]]),
        "b": torch.tensor(2**40),
        "c": torch.zeros(0, 3),
        "d": torch.tensor([1e-4, 6e4], dtype=torch.float16),
        "e": torch.arange(6.0).view(2, 3).T,
        "f": torch.tensor([-128, 127], dtype=torch.int8),
    }
    received = Packet.read(Packet({"x": [1, 0.1, None, "é"]}, tensors).record())
    assert received.fields == {"x": [1, 0.1, None, "é"]}
    assert received.tensors.keys() == tensors.keys()
    for name, tensor in tensors.items():
        assert received.tensors[name].dtype == tensor.dtype
        torch.testing.assert_close(received.tensors[name], tensor, rtol=0, atol=0, equal_nan=True)
