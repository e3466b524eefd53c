"""Runs a function in a process of its own, or in several that talk to each other, and hands its result back.

As a module, ``python -m benchmarks.child request.json``, it is such a process.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from time import sleep
from typing import Any

import torch
from torch import distributed

#: What tells a process that it is one of several; left behind by a launcher, it would mislead a new one.
RANK_VARIABLES = (
    "GROUP_RANK",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "MASTER_ADDR",
    "MASTER_PORT",
    "NODE_RANK",
    "RANK",
    "WORLD_SIZE",
)


def call_in_child(function: str, arguments: dict[str, Any], ranks: int = 1, threads: int | None = None) -> Any:
    """Returns what ``module:name`` does in a process of its own, on rank 0 if there are several, as JSON carries it."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_text(json.dumps({"function": function, "arguments": arguments, "answer": str(answer)}))
        command = [sys.executable, "-m", "benchmarks.child", str(request)]
        places = environments(ranks, threads)
        processes = [subprocess.Popen(command, env=env, stdout=subprocess.DEVNULL) for env in places]
        try:
            _wait(processes, function)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return json.loads(answer.read_text())


def environments(ranks: int, threads: int | None) -> Iterator[dict[str, str]]:
    """The environment of each process, without what belongs to another launch."""
    common = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    folders = [str(folder) for folder in Path(__file__).parents[1:3]]  # scripts/, and the package if not installed
    common["PYTHONPATH"] = os.pathsep.join(filter(None, [*folders, common.get("PYTHONPATH")]))
    if threads is not None:
        common["OMP_NUM_THREADS"] = str(threads)
    if ranks == 1:
        yield common
        return
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port()), "WORLD_SIZE": str(ranks)}
    for rank in range(ranks):
        yield common | {"LOCAL_RANK": str(rank), "RANK": str(rank)}


@contextmanager
def joined(device: str) -> Iterator[None]:
    """Connects this process with the others of its launch, if there are any."""
    if "LOCAL_RANK" in os.environ:
        distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _wait(processes: list[subprocess.Popen[bytes]], function: str) -> None:
    """Waits until all have ended well, or one has not: the others would wait for it forever."""
    while True:
        states = [process.poll() for process in processes]
        if any(states):
            raise RuntimeError(f"{function} failed in a process of its own; its message stands above")
        if all(state == 0 for state in states):
            return
        sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def silence() -> None:
    """Stops Lightning's advice, which is for users."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


def main() -> None:
    """Calls the function that the request names; rank 0 writes the answer."""
    request = json.loads(Path(sys.argv[1]).read_text())
    rank = int(os.environ.get("LOCAL_RANK", 0))
    if rank and torch.cuda.is_available():
        torch.cuda.set_device(rank)
    module, name = request["function"].split(":")
    function = getattr(import_module(module), name)
    silence()  # importing Lightning sets the level
    answer = function(**request["arguments"])
    if rank == 0:
        Path(request["answer"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
