"""The two apps that ``flwr run`` starts: the server's, which runs the rounds, and the devices'."""

from __future__ import annotations

import tempfile
from functools import partial
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from lit_fednas.cli import told
from lit_fednas.flower.device import device_of, digest
from lit_fednas.flower.link import KINDS, Link
from lit_fednas.flower.server import FlowerCLI
from lit_fednas.flower.wire import Packet

server_app = ServerApp()
client_app = ClientApp()


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Trains as ``lit-fednas fit`` does; a failed run ends with its reason."""
    settings = context.run_config
    config = str(settings["config"])
    link = Link(grid, digest(config), float(settings["timeout"]), float(settings["join-timeout"]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(config)
        words = ["fit", "--config", str(path)]
        if resume := str(settings["resume"]):
            words += ["--ckpt_path", resume]
        status = told(partial(_run, words, link))
    if status:
        raise SystemExit(status)


def _run(words: list[str], link: Link) -> int:
    from lit_fednas.lightning_cli import run

    return run(words, partial(FlowerCLI, link=link))


def _answer(message: Message, context: Context) -> Message:
    """Answers one message with the node's own data."""
    kind = next(name for name, of in KINDS.items() if of == message.metadata.message_type)
    device = device_of(str(context.run_config["config"]), context.node_config)
    return Message(device.answer(kind, Packet.of(message.content)).record(), reply_to=message)


client_app.train()(_answer)
client_app.evaluate()(_answer)
client_app.query("join")(_answer)
