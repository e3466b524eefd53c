"""Runs a function in a child process, or in several connected ones, and returns its result.

Each child process runs ``python -m benchmarks.child request.json``.
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

#: Variables that make a process a rank; those of another launch would mislead a child process.
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
    """Calls ``module:name`` in child processes; returns the result of rank 0 after a round trip through JSON."""
    with tempfile.TemporaryDirectory() as folder:
        request, answer = Path(folder) / "request.json", Path(folder) / "answer.json"
        request.write_text(json.dumps({"function": function, "arguments": arguments, "answer": str(answer)}))
        command = [sys.executable, "-m", "benchmarks.child", str(request)]
        devnull = subprocess.DEVNULL
        processes = [subprocess.Popen(command, env=env, stdout=devnull) for env in environments(ranks, threads)]
        try:
            _wait(processes, function)
        finally:
            for process in processes:
                process.kill()
                process.wait()
        return json.loads(answer.read_text())


def environments(ranks: int, threads: int | None) -> Iterator[dict[str, str]]:
    """Yields the environment of each process, without the variables of another launch."""
    common = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    folders = [str(folder) for folder in Path(__file__).parents[1:3]]  # scripts/, and an uninstalled package
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
    """Connects this process with the other ranks of its launch, if any."""
    if "LOCAL_RANK" in os.environ:
        distributed.init_process_group("nccl" if device == "cuda" else "gloo")
    try:
        yield
    finally:
        if distributed.is_initialized():
            distributed.destroy_process_group()


def _wait(processes: list[subprocess.Popen[bytes]], function: str) -> None:
    """Waits until all processes succeed or one fails, because the others would wait for it forever."""
    while True:
        states = [process.poll() for process in processes]
        if any(states):
            raise RuntimeError(f"{function} failed in a child process; see its message above")
        if all(state == 0 for state in states):
            return
        sleep(0.02)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def silence() -> None:
    """Silences Lightning's advice, which is for users."""
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", module="lightning")


def main() -> None:
    """Calls the requested function; rank 0 writes its result."""
    request = json.loads(Path(sys.argv[1]).read_text())
    rank = int(os.environ.get("LOCAL_RANK", 0))
    if rank and torch.cuda.is_available():
        torch.cuda.set_device(rank)
    module, name = request["function"].split(":")
    function = getattr(import_module(module), name)
    silence()  # after the import, because Lightning sets the level when it is imported
    answer = function(**request["arguments"])
    if rank == 0:
        Path(request["answer"]).write_text(json.dumps(answer))


if __name__ == "__main__":
    main()
