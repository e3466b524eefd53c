"""The server's side of Flower: which client is which node, what is asked of them, and what comes back."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from time import monotonic, sleep
from typing import Any

from flwr.app import Message, MessageType
from flwr.serverapp import Grid

from lit_fednas import __version__
from lit_fednas.errors import ClientError, ConfigError
from lit_fednas.flower.wire import Packet, size_of

log = logging.getLogger(__name__)

#: Flower's type of each kind of message; a message is trained on or asked.
KINDS = {"join": f"{MessageType.QUERY}.join", "train": MessageType.TRAIN, "score": MessageType.EVALUATE}
_CRASHED = (1, 2, 8)  # flwr.common.constant.ErrorCode: the app cannot be loaded, raised an exception, or died


@dataclass
class Reply:
    """What a client answered.

    Attributes:
        packet: The answer, if there is one.
        status: ``ok``, or the status of a result without an update.
        reason: What went wrong, if there is no answer.
    """

    packet: Packet | None = None
    status: str = "ok"
    reason: str = ""


@dataclass
class Link:
    """The connection to all devices.

    Args:
        grid: Flower's.
        config: The hash of the configuration.
        timeout: Seconds after which a round no longer waits for an answer.
        join_timeout: Seconds in which all clients have to be there.
        poll: Seconds between two looks for answers.

    Attributes:
        nodes: The node of each client that has joined.
        bytes_down: Bytes sent.
        bytes_up: Bytes received.
    """

    grid: Grid
    config: str
    timeout: float = 3600.0
    join_timeout: float = 600.0
    poll: float = 0.1
    nodes: dict[int, int] = field(default_factory=dict)
    bytes_down: int = 0
    bytes_up: int = 0
    _refused: set[int] = field(default_factory=set)
    _spare: dict[int, int] = field(default_factory=dict)  # clients of nodes that wait until another is gone

    def join(self, num_clients: int | None) -> list[Mapping[str, Any]]:
        """Waits until all clients are there.

        Args:
            num_clients: How many there are; without it, all that are there at the start.

        Returns:
            What each says of itself, by number.

        Raises:
            ConfigError: They are not there in time, or a device refuses the run.
        """
        known: dict[int, Mapping[str, Any]] = {}
        end = monotonic() + self.join_timeout
        told = False
        while True:
            known |= self._ask_newcomers(starting=True)
            if known and sorted(known) == list(range(num_clients or len(known))):
                return [known[client] for client in sorted(known)]
            if beyond := [client for client in known if num_clients is not None and client >= num_clients]:
                raise ConfigError(f"data.num_clients: {num_clients}, and a device is client {beyond[0]}; raise it")
            if not told:
                told = True
                log.info("waiting for %s clients; %d are there", num_clients or "the", len(known))
            if monotonic() > end:
                raise ConfigError(
                    f"flower: after {self.join_timeout:g} s, the clients {sorted(known)} are there and {num_clients} "
                    f"are wanted; start the others (flower-supernode), or set data.num_clients"
                )
            sleep(max(self.poll, 0.05))

    def _ask_newcomers(self, starting: bool = False) -> dict[int, Mapping[str, Any]]:
        """Asks nodes that are not known yet which client they are.

        Args:
            starting: Whether a node that refuses ends the run; one that comes later is not used.

        Returns:
            What each says of itself, by number.

        Raises:
            ConfigError: A device refuses the run.
        """
        names = {node.node_id: node.name for node in self.grid.get_nodes()}
        present = set(names) | set(self.grid.get_node_ids())
        for node, client in list(self._spare.items()):
            if node in present and self.nodes.get(client) not in present:
                self.nodes[client] = node
                del self._spare[node]
        known = set(self.nodes.values()) | self._refused | self._spare.keys()
        new = sorted(present - known)
        fields = [{"client": _number(names.get(node, ""))} for node in new]
        answers: dict[int, Mapping[str, Any]] = {}
        asked = [("join", Packet(each)) for each in fields]
        answered = self._exchange(list(zip(new, asked, strict=True)), lambda: None)
        for index, reply in sorted(answered, key=itemgetter(0)):
            node = new[index]
            if reply.packet is None:
                if starting and reply.status == "error":
                    raise ConfigError(f"{reply.reason} (node {node})")
                if reply.status == "error":  # it would say so again
                    self._refused.add(node)
                log.warning("node %d: %s (%s)", node, reply.status, reply.reason)
                continue
            client = int(reply.packet.fields["client"])
            if (before := self.nodes.get(client)) in present:
                self._spare[node] = client
                log.warning("node %d: is client %d, and so is node %s, which is used", node, client, before)
                continue
            self.nodes[client] = node
            answers[client] = reply.packet.fields
        return answers

    def ask(self, packets: Sequence[tuple[int, str, Packet]], check: Callable[[], None]) -> Iterator[tuple[int, Reply]]:
        """Sends messages to clients.

        Args:
            packets: Client, kind and content.
            check: Called while waiting; raises ``Interrupted`` if the run was asked to stop.

        Yields:
            Positions in ``packets`` with the answers, as they come.
        """
        present = set(self.grid.get_node_ids())
        if any(self.nodes.get(client) not in present for client, _, _ in packets):
            self._ask_newcomers()  # a node without a key comes back under another number
            present = set(self.grid.get_node_ids())
        sent: list[tuple[int, tuple[str, Packet]]] = []
        places = []
        for place, (client, kind, packet) in enumerate(packets):
            node = self.nodes.get(client)
            if node not in present or node is None:
                yield place, Reply(None, "dropped", "the device is not connected")
            else:
                sent.append((node, (kind, packet)))
                places.append(place)
        for index, reply in self._exchange(sent, check):
            yield places[index], reply

    def _exchange(
        self, packets: Sequence[tuple[int, tuple[str, Packet]]], check: Callable[[], None]
    ) -> Iterator[tuple[int, Reply]]:
        """Sends messages to nodes, and yields the answers' positions and contents as they come."""
        if not packets:
            return
        messages = []
        for node, (kind, packet) in packets:
            content = Packet({**packet.fields, "version": __version__, "config": self.config}, packet.tensors).record()
            self.bytes_down += size_of(content)
            messages.append(Message(content, node, KINDS[kind], ttl=self.timeout + 60))
        ids = list(self.grid.push_messages(messages))
        waiting = {message: place for place, message in enumerate(ids) if message}
        for place, message in enumerate(ids):
            if not message:
                yield place, Reply(None, "dropped", "the message could not be sent")
        end = monotonic() + self.timeout
        while waiting:
            check()
            for answer in self.grid.pull_messages(list(waiting)):
                # a killed node's error comes from another node id: the message that it answers counts
                if answer.metadata.reply_to_message_id in waiting:
                    yield waiting.pop(answer.metadata.reply_to_message_id), self._read(answer)
            if waiting and monotonic() > end:
                for place in waiting.values():
                    yield place, Reply(None, "timeout", f"no answer after flower's timeout, {self.timeout:g} s")
                return
            if waiting:
                sleep(self.poll)

    def _read(self, message: Message) -> Reply:
        """Reads an answer, or why there is none."""
        if message.has_error():
            status = "error" if message.error.code in _CRASHED else "dropped"
            return Reply(None, status, " ".join(str(message.error.reason or f"code {message.error.code}").split()))
        try:
            packet = Packet.of(message.content)
            self.bytes_up += size_of(message.content)
        except ClientError as error:
            return Reply(None, "error", str(error))
        if refused := packet.fields.get("refused"):
            return Reply(None, "error", str(refused))
        return Reply(packet)


def _number(name: str) -> int | None:
    """Returns the client's number in the name of a registered key, such as ``client-3``; ``None`` without one."""
    found = re.search(r"(\d+)$", name or "")
    return int(found[1]) if found else None
