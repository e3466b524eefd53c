"""Studies with commands as jobs of a cluster."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from lit_fednas.cli import main
from lit_fednas.errors import ConfigError
from lit_fednas.studies.jobs import Cluster, Command
from tests.studies.conftest import calls, statuses
from tests.support import waited

submitit = pytest.importorskip("submitit")


def test_jobs_run_the_same_commands_as_processes(write) -> None:
    words = ["study", write(then=["test"]), "--seeds", "0", "--jobs", "2", "--cluster", "debug"]
    assert main([*words, "--", "--broken=test"]) == 1
    assert statuses() == {"A_large/seed0": "failed", "B/seed0": "failed"}
    assert main(words) == 2  # the runs were started with other options
    first, second = calls("A_large/seed0")
    assert first[0] == "fit"
    assert "ckpt_path" not in first[-1]
    assert second[0] == "test"
    assert second[-1] == "--ckpt_path=runs/small/A_large/seed0/checkpoints/last.ckpt"
    assert Path("runs/small/A_large/seed0/study.log").read_text() == 2 * "out of paper\n"


@pytest.mark.slow
def test_an_interrupted_job_is_queued_again_and_continues(tmp_path: Path) -> None:
    """The first start writes a checkpoint and waits; the second start reads it."""
    script = tmp_path / "train.py"
    script.write_text(f"""import pathlib, signal, sys, time
place = pathlib.Path({str(tmp_path / "run" / "checkpoints" / "last.ckpt")!r})
print(sys.argv[1:], flush=True)
def leave(*given):
    print("saved", flush=True)
    sys.exit(1)
signal.signal(signal.SIGTERM, leave)
if not place.exists():
    place.parent.mkdir()
    place.touch()
    time.sleep(60)
sum(range(10_000_000))
""")
    cluster = Cluster("local", tmp_path / "jobs", {"timeout_min": 5})
    job = cluster.start(Command([sys.executable, str(script)], tmp_path / "run"))
    assert job.poll() is None
    waited(lambda: (tmp_path / "run" / "checkpoints").exists())
    task = child(job._job._process.pid)
    for process in (child(task), task):  # Slurm sends it shortly before a timeout
        os.kill(process, signal.SIGUSR2)
    waited(lambda: job.poll() is not None)
    assert job.poll() == 0
    last = tmp_path / "run" / "checkpoints" / "last.ckpt"
    assert (tmp_path / "run" / "study.log").read_text() == f"[]\nsaved\n['--ckpt_path={last}']\n"
    assert 0 < job.minutes < 1


def child(process: int) -> int:
    """Returns the only child of a process."""
    (number,) = Path(f"/proc/{process}/task/{process}/children").read_text().split()
    return int(number)


@pytest.mark.slow
def test_a_cancelled_job_has_failed(tmp_path: Path) -> None:
    cluster = Cluster("local", tmp_path / "jobs", {})
    job = cluster.start(Command([sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "run"))
    waited((tmp_path / "run" / "study.log").exists)
    job.terminate()
    waited(lambda: job.poll() is not None)
    assert job.poll() == 1


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("sun", {}, "cluster: sun with {}: AutoExecutor doesn't know any executor named sun"),
        ("local", {"hours": 3}, "cluster: local with {'hours': 3}: Parameter 'hours' need to be prefixed"),
        ("local", {"timeout_min": "3"}, "Parameter \"timeout_min\" expected type <class 'int'>"),
    ],
)
def test_unknown_clusters_and_options_are_refused(
    tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError) as raised:
        Cluster(name, tmp_path, options)
    assert message in str(raised.value)


def test_slurm_without_accounting_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without accounting, a study would wait forever for a lost job."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match='cluster: slurm: Could not detect "srun"'):
        Cluster("slurm", tmp_path, {})
    for name, status in {"srun": 0, "sacct": 1}.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho storage is disabled >&2; exit {status}\n")
        (tmp_path / name).chmod(0o755)
    with pytest.raises(ConfigError, match=r"cluster: slurm: sacct, .* not work here \(storage is disabled\);"):
        Cluster("slurm", tmp_path, {})


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "submitit", None)
    with pytest.raises(ConfigError, match=r"cluster: needs submitit; pip install lit-fednas\[cluster\]"):
        Cluster("local", tmp_path, {})
