"""The process in which a device answers one message after another.

Flower starts a process for every message. To import torch and Lightning takes seconds there, and so may reading data.
The process of a run's first message starts this one, and those of later messages pass them on to it. It ends with the
SuperNode, when no message has come for long, or when Flower ends the process whose message it answers.
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

_LONGEST_WAIT = 600.0  # seconds for the next message
_POLL = 1.0  # seconds between two looks at those that the process ends with


def answered_elsewhere(run: int, *request: Any) -> Any:
    """Returns what ``lit_fednas.flower.device.answered`` returns of a request, from the process of the run."""
    parent = os.getppid()  # Flower's, which starts one process after another
    folder = Path(tempfile.gettempdir(), f"lit-fednas-{os.getuid()}")
    folder.mkdir(mode=0o700, exist_ok=True)
    if (status := folder.lstat()).st_uid != os.getuid() or status.st_mode & 0o077:
        raise ClientError(f"{folder}: others than this account can use it; remove it")
    address = folder / f"{parent}-{run}"
    try:
        connection = Client(str(address))
    except OSError:  # it was not started, or was killed
        address.unlink(missing_ok=True)
        _start(address, parent)
        connection = Client(str(address))
    try:
        connection.send(request)
        answer, failure = connection.recv()
    except (EOFError, OSError) as error:
        raise ClientError("the device's process has died, for want of memory for instance; see its output") from error
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
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},  # with the app's folder
        )


def serve(listening: socket.socket, address: Path, parent: int, answered: Callable[..., Any]) -> None:
    """Answers requests until none has come for long."""
    asking: list[Connection] = []  # who waits for an answer
    Thread(target=_watch, args=(asking, address, parent), daemon=True).start()

    def answer_all(patience: float) -> None:
        listening.settimeout(patience)
        while True:
            with Connection(listening.accept()[0].detach()) as connection, suppress(EOFError, OSError):
                request = connection.recv()
                asking.append(connection)
                try:
                    answer = answered(*request), ""
                except Exception as error:
                    traceback.print_exc()
                    answer = None, f"{type(error).__name__}: {error}"
                asking.clear()
                connection.send(answer)

    with suppress(TimeoutError):
        answer_all(_LONGEST_WAIT)
    address.unlink(missing_ok=True)
    with suppress(TimeoutError):  # whoever has connected just before
        answer_all(0.1)


def _watch(asking: list[Connection], address: Path, parent: int) -> None:
    """Ends the process with the SuperNode's, or with one that waits for an answer."""
    while True:
        sleep(_POLL)
        try:
            os.kill(parent, 0)
            gone = any(connection.poll() for connection in asking)  # which send nothing more, so this is their end
        except ProcessLookupError:
            gone = True
        except OSError:  # an answered one has just been closed
            gone = False
        if gone:
            address.unlink(missing_ok=True)
            os._exit(1)


if __name__ == "__main__":
    from lit_fednas.flower.device import answered

    signal.signal(signal.SIGINT, signal.SIG_DFL)
    number, path, process = sys.argv[1:]
    serve(socket.socket(fileno=int(number)), Path(path), int(process), answered)
