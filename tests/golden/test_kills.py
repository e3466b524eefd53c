"""A run that is killed at any moment and resumed leaves the same files as one that ran straight through."""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from lit_fednas.cli import main
from lit_fednas.testing.contract import assert_alike
from lit_fednas.testing.runs import contents
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
    if not resumes:
        shutil.rmtree(folder, ignore_errors=True)
    seconds = multiprocessing.Value("d", 0.0)
    process = forked(fit, folder, name, ["--ckpt_path", "last"] if resumes else [], limit, seconds)
    return ended(process, 600), seconds.value


@pytest.mark.slow
@pytest.mark.parametrize("name", METHODS)
def test_killed_at_random_moments_and_resumed(tmp_path, name):
    """Twice; a run without a checkpoint is started anew."""
    status, seconds = run(tmp_path / "straight", name)
    assert status == 0
    draws = random.Random(name)
    for _ in range(2):
        run(tmp_path / "killed", name, draws.uniform(0.2, 1.0) * seconds)
    assert run(tmp_path / "killed", name)[0] == 0
    assert_alike(contents(tmp_path / "killed"), contents(tmp_path / "straight"))
