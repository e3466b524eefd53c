"""The runs of a sweep or an arena: their folders, what is known of them in ``sweep.json``, and their processes.

``sweep.json`` holds ``sweep`` (its name), ``file`` and ``runs``: for each its ``parameters`` (values by name),
``seed``, ``folder`` (within the sweep's), ``commands`` (without where they write), ``done`` (how many of them have
ended) and ``status`` (``waiting``, ``running``, ``stopped``, ``failed`` or ``finished``).
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import yaml

from lit_fednas.analysis.sweeps import SWEEP_FILE
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.records.files import read_json, replace_json

LOG_FILE = "sweep.log"


@dataclass
class Run:
    """One combination, or one method, with one seed: commands that run one after the other."""

    parameters: dict[str, Any]
    seed: int
    folder: str
    commands: list[list[str]] = field(default_factory=list)
    done: int = 0
    status: str = "waiting"

    def take_over(self, before: Run) -> bool:
        """Goes on where an earlier start has left this run; commands that have not begun may be others.

        Returns:
            Whether what has begun had the same commands.
        """
        begun = before.done + (before.status in ("running", "stopped", "failed"))
        if before.commands[:begun] != self.commands[:begun]:
            return False
        self.done = before.done
        self.status = before.status if before.status != "finished" else "waiting"
        if self.done == len(self.commands):
            self.status = "finished"
        return True


class Sweep:
    """The runs and the file that keeps their state.

    Args:
        folder: Of the sweep.
        head: What ``sweep.json`` says beside the runs.
        runs: All that are wanted; those of an earlier start are kept beside them.

    Raises:
        ConfigError: A run was begun with another command.
    """

    def __init__(self, folder: Path, head: Mapping[str, Any], runs: Sequence[Run]) -> None:
        self.folder = folder
        self.head = dict(head)
        self.wanted = list(runs)
        earlier = {run.folder: run for run in self._read()}
        for run in runs:
            before = earlier.pop(run.folder, None)
            if before is not None and not run.take_over(before):
                raise ConfigError(
                    f"{folder / run.folder} was begun with other options; remove it or give another --out"
                )
        self.others = list(earlier.values())

    def _read(self) -> list[Run]:
        path = self.folder / SWEEP_FILE
        if not path.exists():
            return []
        try:
            return [Run(**run) for run in read_json(path, ["runs"])["runs"]]
        except TypeError as error:
            raise DataError(f"{path}: is of another version ({error}); remove it or give another --out") from error

    def write(self) -> None:
        """Writes ``sweep.json``; a kill leaves the old one or the new one."""
        runs = [asdict(run) for run in self.wanted + self.others]
        replace_json(self.folder / SWEEP_FILE, {**self.head, "runs": runs})

    def mark(self, run: Run, status: str) -> None:
        """Notes how a run stands."""
        run.status = status
        self.write()
        done = sum(run.status == "finished" for run in self.wanted)
        step = f", command {run.done + 1} of {len(run.commands)}" if status == "running" and run.commands[1:] else ""
        print(f"{status}: {run.folder}{step} ({done} of {len(self.wanted)} finished)", flush=True)


def folder_names(combinations: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a folder's name for each combination: the parameters' last words, and their values.

    Raises:
        ConfigError: Two would have the same.

    Example:
        >>> folder_names([{"beta_decay.beta0": 0.9, "beta_decay.decay": "linear"}])
        ['beta0=0.9,decay=linear']
    """
    names = [",".join(f"{key.split('.')[-1]}={_text(value)}" for key, value in one.items()) for one in combinations]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"parameters: two combinations are called {name}; make their values differ")
    return names


def _text(value: Any) -> str:
    text = f"{value:.5g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^\w.+-]+", "_", text)


def settings_of(command: Sequence[str]) -> dict[str, Any]:
    """Returns the settings that a command would use, by parsing it in a process of its own.

    Raises:
        ConfigError: The command does not parse, or its first logger does not keep a run's folder.
    """
    try:
        shown = subprocess.run([*command, "--print_config"], env=environment(1), capture_output=True, text=True)
    except OSError as error:
        raise ConfigError(f"command: {command[0]!r} cannot be started: {error.strerror}") from error
    if shown.returncode:
        told = shown.stderr.strip().splitlines() or [f"exit status {shown.returncode}"]
        raise ConfigError(f"{' '.join(command)}: {told[-1].removeprefix('lit-fednas: ')}")
    settings: dict[str, Any] = yaml.safe_load(shown.stdout)
    first, *_ = loggers_of(settings)
    if not (isinstance(first, dict) and first["class_path"].endswith("RunLogger")):
        raise ConfigError("trainer.logger: a sweep's runs need lit_fednas.loggers.RunLogger as their first")
    return settings


def loggers_of(settings: Mapping[str, Any]) -> list[Any]:
    """Returns the loggers of a command's settings."""
    loggers = settings["trainer"]["logger"]
    return loggers if isinstance(loggers, list) else [loggers]


def unvalidated_rounds(settings: Mapping[str, Any], parameters: Mapping[str, Any]) -> str:
    """Returns a warning where a run's last round is not validated, so that an earlier one is compared; else empty.

    Args:
        settings: Of one run.
        parameters: What another run has in their place, by dotted name.

    Example:
        >>> unvalidated_rounds({"trainer": {"max_rounds": 25, "check_val_every_n_rounds": 10}}, {})
        'trainer.check_val_every_n_rounds: 10 does not divide trainer.max_rounds, 25: round 20 is compared'
        >>> unvalidated_rounds({"trainer": {"max_rounds": 20, "check_val_every_n_rounds": 10}}, {})
        ''
    """
    names = ("trainer.max_rounds", "trainer.check_val_every_n_rounds")
    given = settings["trainer"]
    rounds, every = (parameters.get(name, given.get(name.partition(".")[2])) for name in names)
    if not isinstance(rounds, int) or not isinstance(every, int) or rounds < 0 or rounds % every == 0:
        return ""
    last = rounds - rounds % every
    compared = f"round {last} is compared" if last else "nothing is validated"
    return f"{names[1]}: {every} does not divide {names[0]}, {rounds}: {compared}"


def in_folder(loggers: Sequence[Mapping[str, Any]], sweep: Path, run: str) -> str:
    """The option that makes loggers write into a run's folder, and tells W&B of the sweep."""
    name, version = run.split("/")
    placed = []
    for logger in loggers:
        settings = dict(logger.get("init_args") or {})
        if logger["class_path"].endswith("RunLogger"):
            settings |= {"save_dir": str(sweep), "name": name, "version": version}
        elif logger["class_path"].endswith("WandbLogger"):
            settings |= {"save_dir": str(sweep), "name": run, "group": sweep.name}
        placed.append({"class_path": logger["class_path"], "init_args": settings})
    return f"--trainer.logger={json.dumps(placed)}"


def environment(jobs: int) -> dict[str, str]:
    """A run's: W&B without a server, the commands of this Python first, and its share of the cores."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))} if jobs > 1 else {}
    return {**threads, **os.environ, "PATH": path, "WANDB_MODE": "offline"}


def run_all(sweep: Sweep, loggers: Sequence[Mapping[str, Any]], jobs: int) -> int:
    """Starts or continues all that are not finished, some side by side, and names those that failed.

    Args:
        sweep: The runs.
        loggers: Of every run.
        jobs: How many run side by side.

    Returns:
        The exit status: 1 if a run failed.

    Raises:
        KeyboardInterrupt: It was stopped; the runs have saved their state.
    """
    sweep.write()
    with _ended_by_signals():
        _run_waiting(sweep, loggers, jobs)
    failed = [run for run in sweep.wanted if run.status == "failed"]
    for run in failed:
        print(f"lit-fednas: {run.folder} failed; see {sweep.folder / run.folder / LOG_FILE}", file=sys.stderr)
    return 1 if failed else 0


def _run_waiting(sweep: Sweep, loggers: Sequence[Mapping[str, Any]], jobs: int) -> None:
    waiting = [run for run in sweep.wanted if run.status != "finished"]
    running: dict[int, tuple[Run, subprocess.Popen[bytes]]] = {}
    with _stopping(sweep, running):
        while waiting or running:
            while waiting and len(running) < jobs:
                run = waiting.pop(0)
                process = _start(sweep, run, loggers, jobs)
                running[process.pid] = run, process
                sweep.mark(run, "running")
            time.sleep(0.2)
            for run, process in list(running.values()):
                if process.poll() is not None:
                    del running[process.pid]
                    run.done += not process.returncode
                    if not process.returncode and run.done < len(run.commands):
                        waiting.insert(0, run)  # one run is finished before the next begins
                    else:
                        sweep.mark(run, "failed" if process.returncode else "finished")


def _start(sweep: Sweep, run: Run, loggers: Sequence[Mapping[str, Any]], jobs: int) -> subprocess.Popen[bytes]:
    folder = sweep.folder / run.folder
    folder.mkdir(parents=True, exist_ok=True)
    last = folder / "checkpoints" / "last.ckpt"
    command = [*run.commands[run.done], in_folder(loggers, sweep.folder, run.folder)]
    command += [f"--ckpt_path={last}"] if last.exists() else []
    with open(folder / LOG_FILE, "ab") as log:
        # a group of its own: Ctrl-C reaches this process alone, which then ends the runs in order
        return subprocess.Popen(
            command, env=environment(jobs), stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=0
        )


@contextmanager
def _stopping(sweep: Sweep, running: Mapping[int, tuple[Run, subprocess.Popen[bytes]]]) -> Iterator[None]:
    """Whatever ends the command ends the runs, which then save their state."""
    try:
        yield
    finally:
        for _, process in running.values():
            process.terminate()
        for run, process in running.values():
            process.wait()
            sweep.mark(run, "stopped")


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A termination is as Ctrl-C, and what was said of it is how to go on."""

    def leave(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_IGN)  # some senders tell the process, and its group once more
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except KeyboardInterrupt:
        print("lit-fednas: stopped; the same command goes on", file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
