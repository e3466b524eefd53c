"""A run that is killed at any moment and resumed leaves the same files as one that ran straight through."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_fednas.cli import main
from lit_fednas.records.files import SUMS_FILE
from tests.golden.runs import CONFIGS, OVERLAYS, RUNS
from tests.support import ended, forked

METHODS = ("superfed", "fedoras", "fednas", "fedhen", "fedtrans")


def fit(folder: Path, name: str, options: list[str], limit: float, seconds: Any) -> None:
    """Runs ``lit-fednas fit`` in a process of its own, which ends after so many seconds of computing.

    They are the process's own, so that it does not matter what else the machine does. Nobody handles the timer's
    signal, so that it ends the process wherever it is, as SIGKILL does.
    """
    folder.mkdir(exist_ok=True)
    os.chdir(folder)
    signal.setitimer(signal.ITIMER_PROF, limit)
    configs = [
        word for path in (CONFIGS / RUNS[name][0], OVERLAYS / f"{name}.yaml") for word in ("--config", str(path))
    ]
    own = ["--trainer.logger.init_args.name", "run", "--trainer.enable_progress_bar", "false"]
    status = main(["fit", *configs, *own, *options])
    seconds.value = time.process_time()
    raise SystemExit(status)


def run(folder: Path, name: str, limit: float = 0.0) -> tuple[int | None, float]:
    """Begins a run, or resumes it if it has a checkpoint; returns the exit status and the seconds of computing."""
    resumes = any(folder.glob("runs/run/*/checkpoints/last.ckpt"))
    seconds = multiprocessing.Value("d", 0.0)
    process = forked(fit, folder, name, ["--ckpt_path", "last"] if resumes else [], limit, seconds)
    return ended(process, 600), seconds.value


def contents(folder: Path) -> dict[str, Any]:
    """All files of a run's folder but its checksums, without what a clock says, and without the folder's own name."""
    found: dict[str, Any] = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file() and path.name != SUMS_FILE):
        value: Any = path.read_bytes()
        if path.suffix == ".ckpt":
            value = torch.load(path, weights_only=True)
        elif path.suffix == ".jsonl":
            value = [json.loads(line) for line in value.splitlines()]
        found.update(_leaves(str(path.relative_to(folder)), value, folder.name))
    return found


def _leaves(name: str, value: Any, folder: str) -> dict[str, Any]:
    if isinstance(value, dict | list | tuple):
        items = value.items() if isinstance(value, dict) else enumerate(value)
        leaves = {name: type(value).__name__}
        for key, item in items:
            leaves |= {} if key == "seconds" else _leaves(f"{name}/{key}", item, folder)
        return leaves
    if isinstance(value, torch.Tensor):
        return {name: (value.dtype, value.shape, value.contiguous().flatten().view(torch.uint8).numpy().tobytes())}
    return {name: value.replace(folder, "") if isinstance(value, str) else value}


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_killed_at_random_moments_and_resumed(tmp_path, name):
    """Twice; a run without a checkpoint is started anew."""
    status, seconds = run(tmp_path / "straight", name)
    assert status == 0
    expected = contents(tmp_path / "straight/runs/run/version_0")
    draws = random.Random(name)
    for _ in range(2):
        run(tmp_path, name, draws.uniform(0.2, 1.0) * seconds)
    assert run(tmp_path, name)[0] == 0
    found = contents(max((tmp_path / "runs/run").iterdir()))
    assert found.keys() == expected.keys()
    assert [key for key in expected if found[key] != expected[key]] == []
