"""A device may send anything: a wrong value in a message is a failure of this client alone."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial, reduce
from math import inf, nan
from operator import getitem
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_fednas.errors import DataError
from lit_fednas.federation import ClientSettings, UniformCohort
from tests.federation import methods
from tests.federation.methods import METHODS
from tests.support import linear_net, make_module, make_trainer, one_of_many, sgd, tiny_data

loopback = pytest.importorskip("tests.flower.loopback")
from flwr.app import RecordDict  # noqa: E402

from lit_fednas.flower import device  # noqa: E402
from lit_fednas.flower.link import Reply  # noqa: E402
from lit_fednas.flower.server import FlowerEvaluator, FlowerRunner, FlowerSearch  # noqa: E402
from lit_fednas.flower.wire import Packet  # noqa: E402
from lit_fednas.search import ClientDraw, FederatedEvaluation  # noqa: E402

#: Methods with all kinds of statistics, and with clients that test.
WITH_STATISTICS = ["operators late", "widths", "widths late", "widths reject", "exits", "cells", "suites"]

#: Values that are wrong in all fields except texts.
VALUES = [10**400, 10**30, -(10**400), -1, -0.5, nan, inf, -inf, 1e308, True, None, "1", "\ud800"]
VALUES += [[], {}, [[1]], {"a": 1}]


def replaced(tree: Any, factor: int = 1) -> Iterator[tuple[list[Any], Any]]:
    """Yields trees with one value replaced, removed or multiplied, each with the path to this value."""

    def ways(node: Any, way: list[Any]) -> Iterator[list[Any]]:
        for key in node if isinstance(node, dict) else range(len(node)) if isinstance(node, list) else ():
            yield [*way, key]
            yield from ways(node[key], [*way, key])

    for way in ways(tree, []):
        leaf = reduce(getitem, way, tree)
        for value in (*VALUES, ..., leaf * factor if isinstance(leaf, int) else leaf):
            changed = copy.deepcopy(tree)
            parent = reduce(getitem, way[:-1], changed)
            if value is ...:
                del parent[way[-1]]
            else:
                parent[way[-1]] = value
            if changed != tree:
                yield way, changed


@pytest.mark.parametrize("name", one_of_many(WITH_STATISTICS, "widths"))
def test_an_answer_with_a_wrong_value_is_one_client_s_failure(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    read, outcomes = FlowerRunner._read, []

    def spy(runner: FlowerRunner, task: Any, reply: Reply) -> Any:
        answer, update = read(runner, task, reply)
        if answer.ok and not outcomes:
            packet = reply.packet
            for way, fields in replaced(packet.fields, 1000):
                result, _ = read(runner, task, Reply(Packet(fields, packet.tensors)))
                if way[-1] != "reason" and result.loss not in (-1, -0.5):  # an objective may have such a loss
                    outcomes.append((way, result.status, result.reason))
                if way[0] == "result" and len(way) == 2 and way[1] != "status":
                    failure = Packet({"result": {**fields["result"], "status": "error"}})
                    failed, none = read(runner, task, Reply(failure))
                    assert (failed.status, failed.num_tested, none) == ("error", 0, None)
                    assert failed.reason.isprintable()
                    assert len(failed.reason) <= 300
            for tensor in wrong_tensors(packet.tensors):
                result, _ = read(runner, task, Reply(Packet(packet.fields, {**packet.tensors, **tensor})))
                outcomes.append(([*tensor], result.status, result.reason))
        return answer, update

    monkeypatch.setattr(FlowerRunner, "_read", spy)
    nodes: dict[int, Any] = {}
    method = replace(METHODS[name], wire="-")  # weights as they are
    (data := methods.data(name)).setup("fit")
    for number in range(data.clients.num_clients):
        nodes[9 + number] = loopback.device(method, methods.data(name), number)
    loopback.fit_over(loopback.connected(loopback.Loopback(nodes)), method(), data, 1)
    assert len(outcomes) > 150
    assert [outcome for outcome in outcomes if outcome[1] not in ("error", "non-finite")] == []
    of_test = {status for way, status, _ in outcomes if way[:2] == ["result", "tested"]}
    assert of_test == {"error"} | ({"non-finite"} if method.measure in ("received", "trained") else set())


def wrong_tensors(tensors: Mapping[str, torch.Tensor]) -> Iterator[dict[str, torch.Tensor]]:
    for name, tensor in {tensor.dtype: (name, tensor) for name, tensor in tensors.items()}.values():
        for value in (1e20, -inf, nan) if tensor.is_floating_point() else (2**62, -(2**63)):
            yield {name: torch.full_like(tensor, value)}
        yield {name: tensor.to(torch.int8)}
        yield {name: tensor[None]}
        yield {f"{name}.": tensor}


def test_a_device_that_joins_with_a_wrong_value_is_refused() -> None:
    grid, answers = loopback.Loopback({9: loopback.device(make_module, tiny_data(3), 0)}), []
    grid.fault = lambda message, answer: answers.append(Packet.read(answer.content)) or answer
    link = loopback.connected(grid)
    link._newcomers()
    for way, fields in replaced(answers[0].fields):
        joined = link._joined(None, Reply(Packet(fields)))
        assert isinstance(joined, Reply) or way[0] in ("kind", "macs_per_second"), way  # the server compares kinds
        assert not isinstance(joined, Reply) or joined.reason.isprintable()
    fields = {**answers[0].fields, "macs_per_second": inf}
    assert isinstance(link._joined(None, Reply(Packet(fields))), Reply)


def test_a_damaged_message_of_the_server_is_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    make = partial(make_module, linear_net(), client=ClientSettings(sgd(0.1), steps=1))
    node = loopback.device(make, tiny_data(1), 0)
    grid = loopback.Loopback({9: node})
    loopback.fit_over(loopback.connected(grid), make(cohort=UniformCohort(ratio=1.0)), tiny_data(1), 1)
    with pytest.raises(DataError, match=r"^flower: the server's message cannot be read \(KeyError"):
        device.device_of("model: 3", {"client": 0})
    monkeypatch.setattr(device, "device_of", lambda *arguments: node)

    def refusal(content: Any) -> str:
        caplog.clear()
        answer, _ = device.answer_message(message.metadata.message_type, content, "", {}, {})
        refused = Packet.read(answer).fields.get("refused", "")
        assert not refused or caplog.messages == [refused]
        assert refused.isprintable()
        return refused

    for message in grid.asked:
        sent = Packet.read(message.content)
        assert refusal(RecordDict({})).startswith("flower: a message cannot be read (KeyError: ")
        for _, fields in replaced(sent.fields):
            refusal(Packet(fields, sent.tensors).record())
    for tensors in ({}, *wrong_tensors(sent.tensors)):
        refusal(Packet(sent.fields, tensors).record())


def server_and_module() -> tuple[Any, Any]:
    """Returns the data and the module of a server with three devices that have examples of all splits."""
    data = partial(tiny_data, 3, client_val=0.3, client_test=0.2)
    grid = loopback.Loopback({9 + number: loopback.device(make_module, data(), number) for number in range(3)})
    server = loopback.server_data(loopback.connected(grid), data())
    server.setup("fit")
    module = make_module()
    module.meet(server.clients)
    return server, module


def test_a_test_with_a_wrong_value_is_left_out(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    server, module = server_and_module()
    search = FlowerSearch(make_trainer(), module, server, tmp_path)
    arch = module.supernet.space.largest
    ask, replies = server.link.ask, {}
    monkeypatch.setattr(server.link, "ask", lambda *args: (replies or replies.update(ask(*args)) or replies).items())

    def tested() -> list[int]:
        return [score.client for score in search.scores_of_clients(arch, module.supernet.subnet(arch), range(3))]

    assert tested() == [0, 1, 2]
    for way, fields in replaced(replies[0].packet.fields, 1000):
        replies[0] = Reply(Packet(fields))
        assert tested() == [1, 2] or way == ["means", "loss"], (way, fields)  # any loss is possible
    replies[0] = Reply(None, "dropped", "away")
    assert tested() == [1, 2]


def test_a_score_with_a_wrong_value_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    server, module = server_and_module()
    archs = [module.supernet.space.smallest, module.supernet.space.largest]
    draw = ClientDraw(server.clients, module.population, 3, FederatedEvaluation(rounds=1), seed=0)
    evaluator = FlowerEvaluator(module.supernet, draw, module.evaluation, (), 16)
    ask, replies = server.link.ask, {}
    monkeypatch.setattr(server.link, "ask", lambda *args: (replies or replies.update(ask(*args)) or replies).items())
    assert all((answers[:, 0] > 0).all() for _, answers in evaluator.answers_of(archs, [0, 1, 2]))
    whole = replies[0].packet.fields
    for way, fields in replaced(whole):
        replies[0] = Reply(Packet(fields))
        for _, answers in evaluator.answers_of(archs, [0, 1, 2]):
            assert (answers[:, 0] > 0).tolist() == [False, True, True], (way, fields)
    for count in (10**12, 40):  # equal for all architectures, but more than the client has
        replies[0] = Reply(Packet({"answers": [[count, 1.0, 1.0]] * 2}))
        assert [float(answers[0].sum()) for _, answers in evaluator.answers_of(archs, [0, 1, 2])] == [0.0, 0.0]
