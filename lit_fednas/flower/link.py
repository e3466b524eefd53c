"""The server's connection to devices: assigns nodes to clients, sends messages and reads answers."""

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from time import monotonic, sleep
from typing import TypeVar

import yaml
from flwr.app import Message
from flwr.serverapp import Grid

from lit_fednas import __version__
from lit_fednas.errors import ClientError, ConfigError
from lit_fednas.flower.wire import KINDS, Joined, Packet, one_line, read_joined, unreadable
from lit_fednas.messages import AWAY

T = TypeVar("T")

log = logging.getLogger(__name__)

_CRASHED = (1, 2, 8)  # flwr.common.constant.ErrorCode: the app cannot be loaded, raised an exception, or died


@dataclass
class Reply:
    """A client's answer, or the reason why there is no answer."""

    packet: Packet | None = None
    status: str = "ok"  # otherwise the status of a result without an update
    reason: str = ""
    refused: bool = False  # whether the device would refuse again


@dataclass
class Link:
    """The connection to all devices."""

    grid: Grid
    config: str  # the settings that devices read, YAML
    timeout: float = 3600.0  # seconds that a round waits for an answer
    join_timeout: float = 600.0  # seconds that a run waits for all clients to join
    poll: float = 0.1  # seconds between two requests for answers
    changed: str = ""  # the sections of the server's command that differ from the app's configuration, YAML
    data: str = ""  # the hash of the properties that all data must share; empty before the devices have joined
    nodes: dict[int, int] = field(default_factory=dict)  # the node of each client that has joined
    # by message: nodes that have not disclosed their client, and the number in their key's name
    _joining: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    _refused: set[int] = field(default_factory=set)
    _spare: dict[int, int] = field(default_factory=dict)  # the client of each node that waits for another to disconnect

    @property
    def longest(self) -> float:
        """Seconds after which Flower no longer delivers an answer."""
        return self.timeout + 60

    def use(self, settings: str) -> None:
        """Makes devices use the settings of the server's command (YAML) in place of the app's."""
        app = yaml.safe_load(self.config)
        changed = {name: value for name, value in yaml.safe_load(settings).items() if app.get(name) != value}
        self.changed = yaml.safe_dump(changed) if changed else ""
        self.config = settings

    def join(self, num_clients: int) -> list[Joined]:
        """Waits until all clients have joined; returns their disclosures by number."""
        joined: dict[int, Joined] = {}
        end = monotonic() + self.join_timeout
        log.info("waiting for %d clients", num_clients)
        while True:
            joined |= self._newcomers(starting=True)
            if out_of_range := [client for client in joined if client >= num_clients]:
                raise ConfigError(f"data.num_clients: {num_clients} excludes client {out_of_range[0]}; raise it")
            if len(joined) == num_clients:
                return [joined[client] for client in sorted(joined)]
            if monotonic() > end:
                fault = f"after {self.join_timeout:g} s, only the clients {sorted(joined)} of {num_clients} have joined"
                raise ConfigError(f"flower: {fault}; start the others (flower-supernode), or set data.num_clients")
            sleep(max(self.poll, 0.05))

    def _newcomers(self, starting: bool = False) -> dict[int, Joined]:
        """Asks new nodes for their client; returns the disclosures that have arrived, without waiting."""
        names = {node.node_id: node.name for node in self.grid.get_nodes()}
        present = set(names) | set(self.grid.get_node_ids())
        for node, client in list(self._spare.items()):
            if node in present and self.nodes.get(client) not in present:
                self.nodes[client] = node
                del self._spare[node]
        joining = {node for node, _ in self._joining.values()}
        for node in sorted(present - set(self.nodes.values()) - self._refused - self._spare.keys() - joining):
            number = _number(names.get(node, ""))
            if message := self._push(node, "join", Packet({"client": number})):
                self._joining[message] = node, number
        joined: dict[int, Joined] = {}
        for (node, number), reply in sorted(self._pull(self._joining), key=itemgetter(0)):
            answer = self._joined(number, reply)
            if isinstance(answer, Reply):
                if starting and answer.status == "error":  # in later rounds, such a node is not used
                    raise ConfigError(f"{answer.reason} (node {node})")
                if answer.refused:
                    self._refused.add(node)
                log.warning("node %d: %s (%s)", node, answer.status, answer.reason)
            elif (first := self.nodes.get(answer.client)) in present:
                self._spare[node] = answer.client
                log.warning("node %d: waits, as client %d already has node %s", node, answer.client, first)
            else:
                self.nodes[answer.client] = node
                joined[answer.client] = answer
                log.info("client %d is node %d: %s", answer.client, node, answer)
        return joined

    def _joined(self, number: int | None, reply: Reply) -> Joined | Reply:
        """Returns a newcomer's disclosure, or the reason why it cannot take part."""
        if reply.packet is None:
            return reply
        try:
            answer = read_joined(reply.packet.fields)
        except Exception as error:  # a device may send anything
            return Reply(None, "error", unreadable(error), refused=True)
        if number not in (None, answer.client):
            reason = f"the device's client is {answer.client}, and its key is registered as {number}"
            return Reply(None, "error", reason, refused=True)
        return answer

    def ask(
        self, kind: str, clients: Sequence[int], packet_of: Callable[[int], Packet], check: Callable[[], None]
    ) -> Iterator[tuple[int, Reply]]:
        """Builds and sends messages one by one; yields positions in ``clients`` with answers as they arrive."""
        present = set(self.grid.get_node_ids())
        if any(self.nodes.get(client) not in present for client in clients):
            self._newcomers()  # a node without a key comes back under another number
            present = set(self.grid.get_node_ids())
        pending: dict[str, int] = {}
        for position, client in enumerate(clients):
            node = self.nodes.get(client)
            if node is None or node not in present:
                yield position, Reply(None, AWAY, "the device is not connected")
            elif message := self._push(node, kind, packet_of(position)):
                pending[message] = position
            else:
                yield position, Reply(None, AWAY, "the message could not be sent")
        end = monotonic() + self.timeout
        while pending:
            check()  # raises if a signal has stopped the run
            yield from self._pull(pending)
            if pending and monotonic() > end:
                for position in pending.values():
                    yield position, Reply(None, "timeout", f"no answer after flower's timeout, {self.timeout:g} s")
                return
            if pending:
                sleep(self.poll)

    def _push(self, node: int, kind: str, packet: Packet) -> str:
        """Sends a message to a node; returns the message's name, empty if it could not be sent."""
        common = {"version": __version__, "changed": self.changed, "data": self.data}
        content = Packet({**packet.fields, **common}, packet.tensors).record()
        (message,) = self.grid.push_messages([Message(content, node, KINDS[kind], ttl=self.longest)])
        return str(message or "")

    def _pull(self, pending: dict[str, T]) -> Iterator[tuple[T, Reply]]:
        """Yields the answers that have arrived, and removes them from ``pending``."""
        for answer in self.grid.pull_messages(list(pending)) if pending else ():
            # a killed node's error has another node id, so only the answered message identifies it
            if answer.metadata.reply_to_message_id in pending:
                yield pending.pop(answer.metadata.reply_to_message_id), self._read(answer)

    def _read(self, message: Message) -> Reply:
        if message.has_error():
            status = "error" if message.error.code in _CRASHED else "dropped"
            return Reply(None, status, one_line(message.error.reason or f"code {message.error.code}"))
        try:
            packet = Packet.read(message.content)
        except ClientError as error:
            return Reply(None, "error", str(error))
        if refused := packet.fields.get("refused"):
            return Reply(None, "error", one_line(refused), refused=True)
        return Reply(packet)


def _number(name: str) -> int | None:
    """Returns the client's number in a key's name such as ``client-3``, or ``None``."""
    number = re.fullmatch(r"client-(\d+)", name)
    return int(number[1]) if number else None
