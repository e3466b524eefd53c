"""Devices that join a run: refusals, nodes that return, and the settings of nodes."""

from __future__ import annotations

import json
import logging
from contextlib import nullcontext
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pytest

from lit_fednas.data import ArraySource, DataSource, RandomFlip
from lit_fednas.errors import ConfigError
from lit_fednas.federation import UniformCohort
from lit_fednas.loggers import RunLogger
from lit_fednas.messages import ClientTask
from tests.support import make_module, tiny_data, tiny_examples

loopback = pytest.importorskip("tests.flower.loopback")
from flwr.app import Error, Message  # noqa: E402

from lit_fednas.flower.device import device_of  # noqa: E402
from lit_fednas.flower.link import _number  # noqa: E402
from lit_fednas.flower.server import FlowerRunner  # noqa: E402
from lit_fednas.flower.wire import Packet  # noqa: E402


def own_device(number: int, **settings: Any) -> Any:
    """Returns a device with its own training examples."""
    data = tiny_data(1)
    data.source = ArraySource(tiny_examples(40, number), **settings)
    return loopback.device(make_module, data, number, share=False)


def server(grid: Any, source: DataSource | None = None) -> Any:
    data = tiny_data(2)
    data.source = source or ArraySource(tiny_examples(), val=tiny_examples(40, 1))
    return loopback.server_data(loopback.connected(grid), data)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"augmentation": [RandomFlip()]}, r"client 1 has augmentation .*'p': 0.5.*, the server \[\]; give both"),
        ({"class_names": list("abcx")}, "client 1 has class_names .*; set data.source.init_args.classes"),
    ],
)
def test_a_device_that_prepares_its_data_otherwise_is_refused(settings: dict[str, Any], message: str):
    grid = loopback.Loopback({10: own_device(0), 11: own_device(1, **settings)})
    with pytest.raises(ConfigError, match=f"^data.source: {message}"):
        server(grid).setup("fit")
    server(loopback.Loopback({10: own_device(0), 11: own_device(1)})).setup("fit")


def test_a_second_node_takes_part_when_the_first_is_gone(caplog: pytest.LogCaptureFixture):
    grid = loopback.Loopback({10: own_device(0), 11: own_device(1)})
    joining = server(grid)
    joining.setup("fit")
    link = joining.link
    num_asked = len(grid.asked)
    grid.devices[12] = own_device(1)  # client 1 returns without a key while its old node still counts as connected
    with caplog.at_level(logging.WARNING, "lit_fednas"):
        link._newcomers()
        link._newcomers()
    assert link.nodes == {0: 10, 1: 11}
    assert len(grid.asked) == num_asked + 1
    assert "client 1 already has node 11" in caplog.text
    del grid.devices[11]
    link._newcomers()
    assert link.nodes == {0: 10, 1: 12}
    assert len(grid.asked) == num_asked + 1
    grid.devices[13] = own_device(5)
    grid.devices[13].number = None  # the device refuses; it gets one message, and no run ends
    link._newcomers()
    link._newcomers()
    assert link.nodes == {0: 10, 1: 12}
    assert len(grid.asked) == num_asked + 2


def joined(messages: list[Any]) -> int:
    return sum(message.metadata.message_type == "query.join" for message in messages)


def test_a_silent_device_stops_no_other():
    """Neither a start, beyond its time limit, nor a round of the other devices."""
    grid = loopback.Loopback({10: own_device(0), 11: own_device(1)})
    grid.fault = lambda message, answer: None if message.metadata.dst_node_id == 11 else answer
    data = server(grid)
    data.link = loopback.connected(grid, timeout=60, join_timeout=0.2)
    start = monotonic()
    with pytest.raises(ConfigError, match=r"^flower: after 0.2 s, only the clients \[0\] of 2 have joined"):
        data.setup("fit")
    link = data.link
    replies = list(link.ask("train", [1, 1], lambda position: Packet({}), lambda: None))
    assert [reply.status for _, reply in replies] == ["away", "away"]
    assert joined(grid.asked) == 2  # no second message while the device may still answer
    assert monotonic() - start < 30
    grid._answers["message 2"] = Message(Error(8, "crashed"), reply_to=grid.asked[1])  # after it, another is sent
    grid.fault = lambda message, answer: answer
    for _ in range(2):
        link._newcomers()
    assert joined(grid.asked) == 3
    assert link.nodes == {0: 10, 1: 11}


def test_a_start_that_fails_leaves_no_folder(tmp_path: Path):
    """The next run gets its number."""
    for count in (1, 2, 2):
        grid = loopback.Loopback({10 + number: own_device(number) for number in range(count)})
        server_end = server(grid)
        server_end.link = loopback.connected(grid, join_timeout=0)
        with nullcontext() if count == 2 else pytest.raises(ConfigError, match=r"^flower: after 0 s, only the clients"):
            module = make_module(cohort=UniformCohort(ratio=1.0))
            loopback.fit_over(server_end.link, module, server_end, 1, logger=RunLogger(str(tmp_path)))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["version_0", "version_1"]


@pytest.mark.parametrize(
    ("name", "number"), [("client-2", 2), ("site-2024", None), ("2", None), ("client-2b", None), ("", None)]
)
def test_a_key_s_name_says_which_client_only_as_client_number(name: str, number: int | None):
    assert _number(name) == number


def test_a_device_cannot_take_another_client_s_place(caplog: pytest.LogCaptureFixture):
    grid = loopback.Loopback({10: own_device(0), 11: own_device(1)}, {10: "client-0", 11: "client-1"})

    def lies(message: Any, answer: Any) -> Any:
        fields = {**Packet.read(answer.content).fields, "client": 0}
        return Message(Packet(fields).record(), reply_to=message)

    grid.fault = lambda message, answer: lies(message, answer) if message.metadata.dst_node_id == 11 else answer
    with pytest.raises(ConfigError, match=r"^the device's client is 0, and its key is registered as 1 \(node 11\)"):
        server(grid).setup("fit")


def test_a_device_that_comes_back_with_other_data_is_an_error_of_its_rounds():
    grid = loopback.Loopback({10: own_device(0), 11: own_device(1)})
    joining = server(grid)
    joining.setup("fit")
    grid.devices[11] = own_device(1, class_names=list("abcx"))
    module = make_module()
    task = ClientTask(0, 1, module.supernet.space.largest, 40)
    ((result, _),) = FlowerRunner(module, joining.clients, lambda: None).run([task])
    assert result.status == "error"
    assert result.reason.startswith("data.source: the device's data have changed")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"client": 0, "data.source.init_args.fils": "x"}, "node-config: .*fils"),
        ({"client": 0, "model.client.epochs": 3}, "node-config: model.client.epochs is not a setting"),
        (
            {"client": 0, "data.client_val": 0.3},
            "data.client_val: 0.3 is not the server's 0.0; remove it from node-config",
        ),
    ],
)
def test_a_node_s_settings_are_checked(settings: dict[str, Any], message: str):
    config = {"seed_everything": 0, "model": {}, "data": {"source": "Digits", "partitioner": "IID"}}
    with pytest.raises(ConfigError, match=f"^{message}"):
        device_of(json.dumps(config), settings)


def test_a_node_s_files_take_the_place_of_the_server_s(tmp_path: Path):
    examples = tiny_examples(20)
    own_file = tmp_path / "own.npz"
    np.savez(own_file, inputs=examples.inputs.numpy(), targets=examples.targets.numpy())
    source = {
        "class_path": "ArrayFiles",
        "init_args": {
            "files": {"train": "/at/the/server.npz", "val": "/at/the/server.npz"},
            "task": {"class_path": "lit_fednas.data.Classification", "init_args": {"num_classes": 4}},
        },
    }
    config = {"seed_everything": 0, "model": {}, "data": {"source": source, "partitioner": "IID"}}
    device = device_of(json.dumps(config), {"client": 0, "data.source.init_args.files": f"{{train: {own_file}}}"})
    (data := device.data).setup("fit")
    assert data.clients.sizes.tolist() == [20]
    refusal = device_of(json.dumps(config), {"client": 0}).answer("join", Packet({"version": "0"}))
    assert "refused" in refusal.fields
