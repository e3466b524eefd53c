"""A device's worker: one process that answers all messages of a run.

Flower starts a process for every message, where importing torch and reading data would take seconds. The process of
the first message starts the worker; later processes send their messages to it. The worker ends with the SuperNode,
after ten minutes without a message, or when Flower ends a process that waits for its answer.
"""

import os
import signal
import socket
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Client, Connection
from pathlib import Path
from threading import Thread
from time import sleep
from typing import Any

from lit_fednas.errors import ClientError

_LONGEST_WAIT = 600.0  # seconds without a message
_POLL = 1.0  # seconds between two looks at the SuperNode and the waiting process


def answer_in_worker(run: int, *request: Any) -> Any:
    """Returns the answer of ``lit_fednas.flower.device.answer_message``, computed by the run's worker."""
    parent = os.getppid()  # the SuperNode, which starts a process per message
    folder = Path(tempfile.gettempdir(), f"lit-fednas-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if (status := folder.lstat()).st_uid != os.getuid() or status.st_mode & 0o077:
        raise ClientError(f"{folder}: other accounts can use it; remove it")
    address = folder / f"{parent}-{run}"
    try:
        connection = Client(str(address))
    except OSError:  # the worker was not started, or was killed
        address.unlink(missing_ok=True)
        _start(address, parent)
        connection = Client(str(address))
    try:
        connection.send(request)
        answer, failure = connection.recv()
    except (EOFError, OSError) as error:
        raise ClientError("the device's worker has died, for instance for lack of memory; see its output") from error
    if failure:
        raise ClientError(failure)
    return answer


def _start(address: Path, parent: int) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(address))
        listening.listen()
        words = [str(listening.fileno()), str(address), str(parent)]
        subprocess.Popen(
            [sys.executable, "-m", __name__, *words],
            pass_fds=[listening.fileno()],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # includes the app's folder
        )


def serve(listening: socket.socket, address: Path, parent: int, answer_message: Callable[..., Any]) -> None:
    """Answers requests until none has arrived for ten minutes."""
    callers: list[Connection] = []  # the connection that waits for an answer
    Thread(target=_watch, args=(callers, address, parent), daemon=True).start()

    def answer_all(patience: float) -> None:
        listening.settimeout(patience)
        while True:
            with Connection(listening.accept()[0].detach()) as connection, suppress(EOFError, OSError):
                request = connection.recv()
                callers.append(connection)
                try:
                    answer = answer_message(*request), ""
                except Exception as error:
                    traceback.print_exc()
                    answer = None, f"{type(error).__name__}: {error}"
                callers.clear()
                connection.send(answer)

    with suppress(TimeoutError):
        answer_all(_LONGEST_WAIT)
    address.unlink(missing_ok=True)
    with suppress(TimeoutError):  # a process may have connected just before
        answer_all(0.1)


def _watch(callers: list[Connection], address: Path, parent: int) -> None:
    """Ends the worker when the SuperNode, or the process that waits for an answer, has ended."""
    while True:
        sleep(_POLL)
        try:
            os.kill(parent, 0)
            has_ended = any(connection.poll() for connection in callers)  # callers send nothing more: this is their end
        except ProcessLookupError:
            has_ended = True
        except OSError:  # the connection was closed after its answer
            has_ended = False
        if has_ended:
            address.unlink(missing_ok=True)
            os._exit(1)


if __name__ == "__main__":
    from lit_fednas.flower.device import answer_message

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    number, path, process = sys.argv[1:]
    serve(socket.socket(fileno=int(number)), Path(path), int(process), answer_message)
