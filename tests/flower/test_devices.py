"""Real devices: the processes of the folder's README over TLS, with their own keys and data."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from lit_fednas.cli import main
from lit_fednas.records import read_rounds
from tests.support import ended, forked

pytest.importorskip("flwr")
pytestmark = pytest.mark.slow

REPOSITORY = Path(__file__).parents[2]
ROUNDS = 3  # the first two of them simulated
PATIENCE = 600  # seconds for a step on a slow or busy machine
_BLOCK = re.compile(r"```bash\n(.*?)```", re.DOTALL)


class Network:
    """The processes of an app folder's README; each writes its output into a file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        blocks = _BLOCK.findall((folder / "README.md").read_text())
        settings, self.secrets, self.link, self.register, self.node, self.runs, *_ = blocks
        self.settings = settings.strip()
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        # the sooner a process is started for a message, the shorter the test
        fast = {"FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.1", "OMP_NUM_THREADS": "1"}
        self.environment = {**os.environ, **fast, "PATH": path, "PYTHONPATH": str(REPOSITORY)}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, command: str) -> None:
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                ["bash", "-c", f"{self.settings}\n{command}"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def start_link(self) -> None:
        self.start("secrets", self.secrets)
        assert self.ended("secrets") == 0, self.log("secrets")
        self.start("link", self.link)
        self.wait("link", r"Uvicorn running on https")
        self.start("register", self.register)
        assert self.ended("register") == 0, self.log("register")

    def start_node(self, client: int, data: Path, key: str | None = None) -> None:
        """Starts a device with its own data file and key."""
        command = self.node.rpartition("\\\n")[0].replace("19000", str(free_port()))
        command = command.replace("keys/client-0", key or f"keys/client-{client}")
        config = f'data.source.init_args.files="{{train: {data}}}"'
        self.start(f"node-{client}", f"{command} --node-config '{config}'")

    def start_run(self, name: str, resume: bool = False) -> None:
        plain, resuming = self.runs.strip().splitlines()
        self.start(name, resuming if resume else plain)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def wait(self, name: str, pattern: str, count: int = 1) -> str:
        """Waits until a process has written ``count`` matches of a pattern; returns the last."""
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            has_ended = self.processes[name].poll() is not None
            if len(matches := re.findall(pattern, self.log(name))) >= count:
                return matches[-1]
            assert not has_ended, f"{name} has ended without {pattern}:\n{self.log(name)}"
            time.sleep(0.05)
        raise AssertionError(f"{name} has not written {pattern} in {PATIENCE} s:\n{self.log(name)}")

    def ended(self, name: str) -> int:
        return self.processes[name].wait(PATIENCE)

    def end(self, name: str) -> None:
        """Kills a process and its children."""
        process = self.processes.pop(name)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def write_data(folder: Path) -> None:
    """Writes the files of two sites (one has no nines), of the server, and of both sites together."""
    inputs, targets = load_digits(return_X_y=True)
    inputs = (inputs.reshape(-1, 1, 8, 8) * 15).astype(np.uint8)[:500]
    sites = np.arange(500) // 4 % 2
    sites[targets[:500] == 9] = 0
    server, clients = slice(0, 100), slice(100, None)
    for name in ("train", "val", "test"):
        np.savez(folder / f"{name}.npz", inputs=inputs[server], targets=targets[server], site=np.full(100, -1))
    inputs, targets, sites = inputs[clients], targets[100:500], sites[clients]
    np.savez(folder / "all.npz", inputs=inputs, targets=targets, site=sites)
    for site in (0, 1):
        np.savez(folder / f"site-{site}.npz", inputs=inputs[sites == site], targets=targets[sites == site])


def write_configuration(folder: Path) -> None:
    """Writes the devices' ``sites.yaml``, and the changes for a simulation of the same clients."""
    (folder / "sites.yaml").write_text(f"""
trainer: {{max_rounds: {ROUNDS}, check_val_every_n_rounds: 1}}
data:
  source:
    class_path: lit_fednas.data.ArrayFiles
    init_args:
      files: {{train: {folder}/train.npz, val: {folder}/val.npz, test: {folder}/test.npz}}
      task: {{class_path: lit_fednas.data.Classification, init_args: {{num_classes: 10}}}}
  partitioner:
    class_path: lit_fednas.data.IID
  num_clients: 2
  client_val: 0.2
beta_decay: {{rounds: 2}}
model:
  supernet:
    init_args: {{stem_width: 8, stage_widths: [8, 16, 16, 16]}}
  client: {{epochs: 1, validate: trained}}
  cohort: {{init_args: {{ratio: 1.0}}}}
""")
    (folder / "simulated.yaml").write_text(f"""
trainer: {{max_rounds: 2}}
data:
  source:
    init_args:
      files: {{train: {folder}/all.npz, val: {folder}/val.npz, test: {folder}/test.npz}}
      client: site
  partitioner:
    class_path: lit_fednas.data.ByColumn
    init_args: {{column: site}}
""")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("devices")
    write_data(folder)
    write_configuration(folder)
    configuration = ["--config", "superfed/digits.yaml", "--config", str(folder / "sites.yaml")]
    address = f"127.0.0.1:{free_port()}"
    assert main(["flower", "init", str(folder / "app"), *configuration, "--tls", "--address", address]) == 0
    simulated = ["--config", str(folder / "simulated.yaml"), f"--trainer.logger.init_args.save_dir={folder}"]
    fit = forked(lambda: sys.exit(main(["fit", *configuration, *simulated])))  # devices have one thread, too
    assert ended(fit, PATIENCE) == 0
    return folder


@pytest.fixture(scope="module")
def network(folder: Path) -> Iterator[Network]:
    network = Network(folder / "app")
    try:
        network.start_link()
        for client in (0, 1):
            network.start_node(client, folder / f"site-{client}.npz")
        yield network
    finally:
        for name in list(network.processes):
            network.end(name)


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]


def statuses(folder: Path) -> list[dict[int, str]]:
    return [{fit["client"]: fit["status"] for fit in row["clients"]} for row in read_rounds(folder)]


def test_a_run_that_was_stopped_and_resumed_equals_the_simulation_and_outlives_a_device(
    network: Network, folder: Path
) -> None:
    key = network.folder / "stranger"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", str(key)], check=True)
    network.start_node(2, folder / "site-0.npz", key="stranger")
    network.start_run("first")
    for client in (0, 1):
        network.wait(f"node-{client}", r"Receiving: train", count=2)
    number = network.wait("first", r"started run (\d+)")
    network.start("stop", f"flwr stop {number} server")
    assert network.ended("stop") == 0, network.log("stop")
    network.ended("first")
    network.start_run("second", resume=True)
    network.wait("node-1", "Receiving: train", count=4)  # the third round's task
    run = network.folder / "runs/digits/version_0"
    expected, actual = weights(folder / "digits/version_0"), weights(run)
    network.end("node-1")
    network.ended("second")
    assert f"round {ROUNDS}/{ROUNDS} " in network.log("second"), network.log("second")
    assert expected.keys() == actual.keys()
    assert [name for name in expected if not torch.equal(expected[name], actual[name])] == []
    assert statuses(run) == [{0: "ok", 1: "ok"}, {0: "ok", 1: "ok"}, {0: "ok", 1: "dropped"}]
    assert "No SuperNode found with the given public key" in network.log("link")
    assert "Failed to activate SuperNode" in network.log("node-2")
    assert network.ended("node-2") == 1

    network.start_node(1, folder / "site-1.npz")
    network.wait("node-1", r"SuperNode ID: \d+", count=2)
    assert len(set(re.findall(r"SuperNode ID: (\d+)", network.log("node-1")))) == 1
