"""The two Flower apps that ``flwr run`` starts: one for the server, one for each device.

A device's process imports neither torch nor Lightning (``lit_fednas.flower.worker``).
"""

import os
import shlex
import signal
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import ConfigRecord, Context, Message
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp

from lit_fednas.cli.entry import exit_status, with_paths
from lit_fednas.errors import ConfigError
from lit_fednas.flower.worker import answer_in_worker

if TYPE_CHECKING:
    from lit_fednas.flower.link import Link

#: Commands that run over devices.
COMMANDS = ("fit", "search", "finetune")

server_app = ServerApp()
client_app = ClientApp()


class RunFailed(RuntimeError):
    """The failure of a run that has already printed its reason; Flower records the run as failed."""


@server_app.main()
def serve(grid: Grid, context: Context) -> None:
    """Runs ``lit-fednas fit``, ``search`` or ``finetune``; a failed run ends with its reason."""
    from lit_fednas.flower.device import device_settings
    from lit_fednas.flower.link import Link

    settings = context.run_config
    config = str(settings["config"])
    link = Link(grid, device_settings(config), float(settings["timeout"]), float(settings["join-timeout"]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(config)
        name, *options = shlex.split(str(settings["command"])) or ["fit"]
        words = [name, "--config", str(path), *options]
        if resume := str(settings["resume"]):
            words += ["--ckpt_path", resume]
        status = exit_status(partial(_run, words, link))
    if status > 128:  # a signal stopped the run; Flower's handlers then end the process
        signal.raise_signal(status - 128)
    if status:
        sys.tracebacklimit = 0  # Flower would print a traceback after the reason
        raise RunFailed(f"lit-fednas ended with status {status}; the line above says why")


def _run(words: list[str], link: "Link") -> int:
    from lit_fednas.cli.lightning_cli import run
    from lit_fednas.flower.server import FlowerCLI

    if words[0] not in COMMANDS:
        raise ConfigError(f"command: {words[0]} does not run over devices; give one of {', '.join(COMMANDS)}")
    return run(with_paths(words), partial(FlowerCLI, link=link))


def _answer(message: Message, context: Context) -> Message:
    """Answers a message with the node's own data."""
    config, memory = str(context.run_config["config"]), context.state.setdefault("clients", ConfigRecord())
    request = message.metadata.message_type, message.content, config, dict(context.node_config), memory
    if Path(sys.argv[0]).name == "flwr-clientapp" and os.name == "posix":  # Flower ends this process after the message
        content, context.state["clients"] = answer_in_worker(context.run_id, *request)
    else:
        from lit_fednas.flower.device import answer_message

        content, _ = answer_message(*request)
    return Message(content, reply_to=message)


client_app.train()(_answer)
client_app.evaluate()(_answer)
client_app.evaluate("test")(_answer)
client_app.query("join")(_answer)
