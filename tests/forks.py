"""Commands without the seconds that imports take: each is forked from one process that has imported all they need."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.metadata import entry_points
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import lit_fednas.studies.runs  # noqa: F401 - which keeps sys.executable, before a test replaces it
from tests.support import forked

#: Stands for a command: sends what it was started with, passes on signals, and ends as the forked process does.
PYTHON = sys.executable
STUB = """#!{python} -ISE
import json, os, signal, socket, sys
server = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
server.connect({address!r})
socket.send_fds(server, [json.dumps([sys.argv, os.getcwd(), dict(os.environ)]).encode()], [0, 1, 2])
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, lambda number, frame: server.send(bytes([number])))
sys.exit((server.recv(1) or b"1")[0])
"""


@contextmanager
def forked_commands(folder: Path, *names: str, **environment: str) -> Iterator[None]:
    """Writes a program of each name into a folder; with them, the commands of these names run in forked processes."""
    folder.mkdir(parents=True)
    address = str(folder / "socket")
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listening:
        listening.bind(address)
        listening.listen(64)
        for name in names:
            (folder / name).write_text(STUB.format(python=PYTHON, address=address))
            (folder / name).chmod(0o755)
        server = forked(_serve, listening, names, **environment)
    try:
        yield
    finally:
        server.kill()
        server.join()


def _serve(listening: socket.socket, names: tuple[str, ...]) -> None:
    commands = {entry.name: entry.load() for entry in entry_points(group="console_scripts") if entry.name in names}
    while True:
        connection, _ = listening.accept()
        forked(_supervise, connection, commands)
        connection.close()


def _supervise(connection: socket.socket, commands: dict[str, Any]) -> None:
    """Runs a command in a group of its own; if its stub is killed, so is the group."""
    message, files, _, _ = socket.recv_fds(connection, 2**20, 3)
    process = forked(_run, commands, files, *json.loads(message))
    with suppress(OSError):  # as the process itself does, whoever is first
        os.setpgid(process.pid, process.pid)
    for file in files:
        os.close(file)
    while wait([process.sentinel, connection]) == [connection]:
        if number := connection.recv(1):
            os.kill(process.pid, number[0])
            continue
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        return
    process.join()
    with suppress(OSError):
        connection.send(bytes([process.exitcode % 256]))


def _run(commands: dict[str, Any], files: list[int], words: list[str], folder: str, values: dict[str, str]) -> None:
    os.setpgrp()
    for number, file in enumerate(files):
        os.dup2(file, number)
        os.close(file)
    sys.stdin, sys.stdout, sys.stderr = (os.fdopen(number, mode, closefd=False) for number, mode in enumerate("rww"))
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(values)
    sys.path[:0] = [path for path in values.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.argv = words
    sys.exit(commands[Path(words[0]).name]())
