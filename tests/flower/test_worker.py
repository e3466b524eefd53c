"""The worker that answers a device's messages: one per run; it ends with the processes that need it."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lit_fednas.errors import ClientError
from lit_fednas.flower import worker
from tests.support import ended, forked
from tests.test_commands import HEAVY, errors_of

pytest.importorskip("flwr")


def test_a_device_s_process_imports_no_lightning(tmp_path: Path) -> None:
    errors_of(f"import sys, lit_fednas.flower.apps\nsys.exit(' '.join({HEAVY} & sys.modules.keys()) or 0)", tmp_path)


def answer(word: str, value: Any) -> Any:
    """Replaces a device."""
    if word == "fail":
        raise ValueError(value)
    if word == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if word == "sleep":
        Path(value).touch()
        time.sleep(60)
    return os.getpid(), value


@pytest.fixture
def started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """Yields the started workers, forks of this process with :func:`answer` in place of a device."""
    processes: list[Any] = []

    def start(address: Path, parent: int) -> None:
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(address))
            listening.listen()
            processes.append(forked(worker.serve, listening, address, parent, answer))

    pid = os.getpid()
    monkeypatch.setattr(os, "getppid", lambda: pid)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(worker, "_start", start)
    monkeypatch.setattr(worker, "_POLL", 0.01)
    yield processes
    for process in processes:
        process.kill()


def test_one_process_answers_all_messages_of_a_run(started: list[Any]) -> None:
    first = worker.answer_in_worker(1, "", [1, b"2"])
    assert first == (started[0].pid, [1, b"2"])
    with pytest.raises(ClientError, match=r"^ValueError: plums$"):
        worker.answer_in_worker(1, "fail", "plums")
    assert worker.answer_in_worker(1, "", None)[0] == first[0]
    assert worker.answer_in_worker(2, "", None)[0] == started[1].pid != first[0]
    with pytest.raises(ClientError, match=r"^the device's worker has died"):
        worker.answer_in_worker(1, "die", None)
    assert ended(started[0]) == -signal.SIGKILL
    assert worker.answer_in_worker(1, "", None)[0] == started[2].pid


def test_it_ends_with_the_process_that_waits_for_its_answer(started: list[Any], tmp_path: Path) -> None:
    worker.answer_in_worker(1, "", None)
    asking = forked(worker.answer_in_worker, 1, "sleep", tmp_path / "asked")
    while not (tmp_path / "asked").exists():
        assert asking.is_alive()
        time.sleep(0.01)
    assert started[0].is_alive()
    asking.kill()
    assert ended(started[0]) == 1


def test_it_ends_with_the_supernode(started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with subprocess.Popen(["sleep", "60"]) as supernode:
        monkeypatch.setattr(os, "getppid", lambda: supernode.pid)
        worker.answer_in_worker(1, "", None)
        assert started[0].is_alive()
        supernode.kill()
    assert ended(started[0]) == 1
    assert list(tmp_path.glob("lit-fednas-*/*")) == []


def test_it_ends_when_no_message_comes(started: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker, "_LONGEST_WAIT", 0.05)
    worker.answer_in_worker(1, "", None)
    assert ended(started[0]) == 0
    assert list(tmp_path.glob("lit-fednas-*/*")) == []


def test_a_folder_that_others_can_use_is_refused(started: list[Any], tmp_path: Path) -> None:
    (tmp_path / f"lit-fednas-{os.getuid()}").mkdir()
    (tmp_path / f"lit-fednas-{os.getuid()}").chmod(0o770)
    with pytest.raises(ClientError, match=r"other accounts can use it; remove it$"):
        worker.answer_in_worker(1, "", None)
    assert started == []
