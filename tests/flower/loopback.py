"""Flower's grid in this process: devices answer at once, and the network can be made to fail."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")

from flwr.app import Error, Message
from flwr.proto.node_pb2 import NodeInfo
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from lit_fednas.data import FederatedDataModule
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.flower.device import Device, DeviceData, device_of
from lit_fednas.flower.link import Link
from lit_fednas.flower.server import FlowerRunner, ServerData
from lit_fednas.flower.wire import KINDS, Packet
from tests.support import make_trainer

CONFIG = "seed_everything: 0\n"


class Loopback(Grid):
    """Carries messages to devices by their node ids.

    ``fault`` takes a message and its answer, and returns the answer that the server gets, or ``None``.
    """

    run = set_run = create_message = send_and_receive = None  # unused by the package

    def __init__(self, devices: dict[int, Any], names: dict[int, str] | None = None) -> None:
        TaskIdentity.run_id = TaskIdentity.node_id = TaskIdentity.task_id = 1  # a ServerApp's process sets them
        self.devices = devices
        self.names = names or {}
        self.fault: Callable[[Message, Message], Message | None] = lambda message, answer: answer
        self.asked: list[Message] = []
        self._answers: dict[str, Message] = {}

    def get_node_ids(self) -> Iterable[int]:
        return list(self.devices)

    def get_nodes(self) -> Iterable[NodeInfo]:
        return [NodeInfo(node_id=node, name=self.names.get(node, "")) for node in self.devices]

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        ids = []
        for message in messages:
            self.asked.append(message)
            ids.append(f"message {len(self.asked)}")
            message.metadata.__dict__["_message_id"] = ids[-1]
            kind = next(name for name, text in KINDS.items() if text == message.metadata.message_type)
            try:
                content = self.devices[message.metadata.dst_node_id].answer(kind, Packet.read(message.content))
                answer = Message(content.record(), reply_to=message)
            except Exception as error:  # the process of a ClientApp does the same
                answer = Message(Error(2, f"{type(error).__name__}: {error}"), reply_to=message)
            if (arrived := self.fault(message, answer)) is not None:
                self._answers[ids[-1]] = arrived
        return ids

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        arrived = [name for name in message_ids if name in self._answers]
        return [self._answers.pop(name) for name in reversed(arrived)]  # order differs from that of the messages


@dataclass(frozen=True)
class Node:
    """A node that makes its device anew for each message."""

    config: str
    settings: dict[str, Any]

    def answer(self, kind: str, packet: Packet) -> Packet:
        return device_of(self.config, self.settings, packet.fields["changed"]).answer(kind, packet)


def like(data: FederatedDataModule, kind: Any, **changed: Any) -> Any:
    """Returns a data module of another kind with the same settings."""
    names = inspect.signature(FederatedDataModule).parameters
    return kind(**{**{name: getattr(data, name) for name in names}, **changed})


def device(
    make: Callable[[], FederatedLightningModule], data: FederatedDataModule, number: int, share: bool = True
) -> Device:
    """Returns a device with a share of the data, or with all data as its own."""
    device_data: DeviceData = like(data, DeviceData)
    device_data.share = share
    return Device(device_data, lambda data: make(), number)


def connected(grid: Grid, **settings: Any) -> Link:
    """Returns the server's connection; devices answer at once."""
    return Link(grid, CONFIG, poll=0, **{"timeout": 0.01, "join_timeout": 1, **settings})


def server_data(link: Link, data: FederatedDataModule) -> ServerData:
    """Returns the server's data, with the devices as clients."""
    server: ServerData = like(data, ServerData, num_clients=data.num_clients or len(list(link.grid.get_node_ids())))
    server.link = link
    return server


def fit_over(
    link: Link, module: Any, data: FederatedDataModule, rounds: int, ckpt_path: Path | None = None, **settings: Any
) -> Any:
    """Trains a module over devices; returns the trainer."""
    trainer = make_trainer(rounds, **settings)
    trainer.fit_loop.runner = FlowerRunner
    server = data if isinstance(data, ServerData) else server_data(link, data)
    trainer.fit(module, datamodule=server, ckpt_path=ckpt_path)
    return trainer
