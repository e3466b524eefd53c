"""The runs of a study: their folders, what is known of them in ``study.json``, and their processes.

``study.json`` holds ``study`` (its name), ``file`` and ``runs``: for each its ``parameters`` (values by name), ``arm``,
``seed``, ``folder`` (within the study's), ``commands`` (without where they write), ``needs`` (folders that it reads),
``done`` (how many commands have ended), ``minutes`` (their processor time) and ``status`` (``waiting``, ``running``,
``stopped``, ``failed`` or ``finished``).
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from textwrap import shorten
from types import FrameType
from typing import Any

import yaml

from lit_fednas.errors import ConfigError
from lit_fednas.records.files import read_json, reading, replace_json, seal
from lit_fednas.records.forms import STUDY
from lit_fednas.studies.jobs import LOG_FILE, Cluster, Command, Job, LocalJob, environment

STUDY_FILE = "study.json"
_SEED = re.compile(r"--seed_everything=\d+$")
#: What sets commands up, given to its standard input.
CHECK = [sys.executable, "-m", "lit_fednas.studies.checking"]


@dataclass
class Run:
    """One arm with one seed: commands that run one after the other."""

    parameters: dict[str, Any]
    arm: str
    seed: int
    folder: str
    commands: list[list[str]] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    done: int = 0
    minutes: float = 0.0
    status: str = "waiting"

    def take_over(self, earlier: Run) -> bool:
        """Goes on where an earlier start has left this run; commands that have not begun may be others."""
        begun = earlier.done + (earlier.status in ("running", "stopped", "failed"))
        if earlier.commands[:begun] != self.commands[:begun]:
            return False
        self.done, self.minutes = earlier.done, earlier.minutes
        self.status = earlier.status if earlier.status != "finished" else "waiting"
        if self.done == len(self.commands):
            self.status = "finished"
        return True


class Runs:
    """All runs of a study, and the file that keeps their state."""

    def __init__(self, folder: Path, head: Mapping[str, Any], wanted: Sequence[Run]) -> None:
        self.folder = folder
        self.head = dict(head)
        self.wanted = list(wanted)
        path = folder / STUDY_FILE
        kept = read_json(path, STUDY).get("runs", [])
        with reading(path):
            runs = [Run(**run) for run in kept]
        earlier = {run.folder: run for run in runs if (folder / run.folder).exists()}  # else it was removed
        for run in wanted:
            begun = earlier.pop(run.folder, None)
            if begun is not None and not run.take_over(begun):
                raise ConfigError(f"{folder / run.folder} was begun with other options; remove it or change --out")
        self.others = list(earlier.values())
        known = {run.folder for run in wanted} | {run.folder for run in self.others if run.status == "finished"}
        for run in self.waiting:
            if missing := [need for need in run.needs if need not in known]:
                raise ConfigError(f"arms: {run.arm} reads {missing[0]}, which is not there; add its arm and seed")

    @property
    def finished(self) -> list[Run]:
        """All that have finished, also of earlier starts, by seed."""
        runs = [run for run in [*self.wanted, *self.others] if run.status == "finished"]
        return sorted(runs, key=lambda run: run.seed)

    @property
    def waiting(self) -> list[Run]:
        """Those that are wanted and have not finished."""
        return [run for run in self.wanted if run.status != "finished"]

    def write(self) -> None:
        """Writes ``study.json``; a kill leaves the old one or the new one."""
        runs = [asdict(run) for run in self.wanted + self.others]
        replace_json(self.folder / STUDY_FILE, {**self.head, "runs": runs})
        seal(self.folder, STUDY_FILE)

    def mark(self, run: Run, status: str) -> None:
        """Notes how a run stands."""
        run.status = status
        self.write()
        done = sum(run.status == "finished" for run in self.wanted)
        step = f", command {run.done + 1} of {len(run.commands)}" if status == "running" and run.commands[1:] else ""
        print(f"{status}: {run.folder}{step} ({done} of {len(self.wanted)} finished)", flush=True)


def checked(runs: Sequence[Run], jobs: int) -> dict[str, dict[str, Any]]:
    """Sets up the commands that are left, each once for all seeds; returns the settings of each run's next."""
    kinds: dict[str, tuple[list[str], bool]] = {}
    for run in runs:
        for command in run.commands[run.done :]:
            kinds.setdefault(_kind(command), (command, not run.needs))
    print(f"checking: {len(kinds)} commands", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(_settings, [dict(list(kinds.items())[turn::jobs]) for turn in range(jobs)])
    settings = {kind: text for part in parts for kind, text in part.items()}
    return {run.folder: _with_logger(settings[_kind(run.commands[run.done])]) for run in runs}


def _kind(command: Sequence[str]) -> str:
    return " ".join(_SEED.sub("seed", word) for word in command)


def _settings(commands: Mapping[str, tuple[list[str], bool]]) -> dict[str, str]:
    """Returns the commands' settings as YAML; those of other programs are only parsed."""
    ours = {kind: given for kind, given in commands.items() if given[0][0] == "lit-fednas"}
    texts = json.loads(_output(CHECK, json.dumps(list(ours.values())))) if ours else []
    parsed = {
        kind: _output([*command, "--print_config"]) for kind, (command, _) in commands.items() if kind not in ours
    }
    return {**dict(zip(ours, texts, strict=True)), **parsed}


def _output(command: Sequence[str], given: str | None = None) -> str:
    """Returns what a process prints, or raises its last line."""
    try:
        shown = subprocess.run(command, env=environment(1), input=given, capture_output=True, text=True)
    except OSError as error:
        raise ConfigError(f"command: {command[0]!r} cannot be started: {error.strerror}") from error
    if shown.returncode:
        told = shown.stderr.strip().splitlines() or [f"exit status {shown.returncode}"]
        source = "" if given else f" (of {shorten(' '.join(command[:-1]), 120, placeholder=' ...')})"
        raise ConfigError(f"{told[-1].removeprefix('lit-fednas: ')}{source}")
    return shown.stdout


def _with_logger(text: str) -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load(text)
    first, *_ = _loggers(settings)
    if not (isinstance(first, dict) and first["class_path"].endswith("RunLogger")):
        raise ConfigError("trainer.logger: a study's runs need lit_fednas.loggers.RunLogger as their first")
    return settings


def _loggers(settings: Mapping[str, Any]) -> list[Any]:
    loggers = settings["trainer"]["logger"]
    return loggers if isinstance(loggers, list) else [loggers]


def in_folder(loggers: Sequence[Mapping[str, Any]], study: Path, run: str) -> str:
    """The option that makes loggers write into a run's folder, and tells W&B of the study."""
    name, version = run.split("/")
    placed = []
    for logger in loggers:
        settings = dict(logger.get("init_args") or {})
        if logger["class_path"].endswith("RunLogger"):
            settings |= {"save_dir": str(study), "name": name, "version": version}
        elif logger["class_path"].endswith("WandbLogger"):
            settings |= {"save_dir": str(study), "name": run, "group": study.name}
        placed.append({"class_path": logger["class_path"], "init_args": settings})
    return f"--trainer.logger={json.dumps(placed)}"


def run_all(runs: Runs, settings: Mapping[str, Mapping[str, Any]], jobs: int, cluster: Cluster | None = None) -> int:
    """Starts or continues all that are not finished, some side by side, and names those that failed."""
    runs.write()
    with _ended_by_signals():
        _run_waiting(runs, settings, jobs, cluster)
    failed = [run for run in runs.wanted if run.status == "failed"]
    for run in failed:
        print(f"lit-fednas: {run.folder} failed; see {runs.folder / run.folder / LOG_FILE}", file=sys.stderr)
    for run in runs.wanted:
        if run.status == "waiting":
            print(f"lit-fednas: {run.folder} was not started, as a run that it reads failed", file=sys.stderr)
    return 1 if failed else 0


def _run_waiting(runs: Runs, settings: Mapping[str, Mapping[str, Any]], jobs: int, cluster: Cluster | None) -> None:
    waiting = runs.waiting
    running: list[tuple[Run, Job]] = []
    try:
        while waiting or running:
            finished = {run.folder for run in runs.finished}
            ready = [run for run in waiting if finished.issuperset(run.needs)]
            for run in ready[: jobs - len(running)]:
                waiting.remove(run)
                loggers = in_folder(_loggers(settings[run.folder]), runs.folder, run.folder)
                words, folder = [*run.commands[run.done], loggers], runs.folder / run.folder
                command = Command(words, folder, 1 if cluster else jobs)
                running.append((run, cluster.start(command) if cluster else LocalJob(command)))
                runs.mark(run, "running")
            if not running:
                break  # what is left reads a run that failed
            time.sleep(0.2)
            for run, job in list(running):
                if (status := _ended(run, job)) is not None:
                    running.remove((run, job))
                    run.done += not status
                    if not status and run.done < len(run.commands):
                        waiting.insert(0, run)  # one run is finished before the next begins
                    else:
                        runs.mark(run, "failed" if status else "finished")
    finally:  # whatever ends the command ends the runs, which then save their state
        for _, job in running:
            job.terminate()
        for run, job in running:
            while _ended(run, job) is None:
                time.sleep(0.05)
            runs.mark(run, "stopped")


def _ended(run: Run, job: Job) -> int | None:
    """Returns the exit status of a job that has ended, and adds its processor time to that of its run."""
    status = job.poll()
    if status is not None:
        run.minutes += job.minutes
    return status


@contextmanager
def _ended_by_signals() -> Iterator[None]:
    """A termination is as Ctrl-C, and what was said of it is how to go on."""

    def leave(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_IGN)  # some senders tell the process, and its group once more
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except KeyboardInterrupt:
        print("lit-fednas: stopped; the same command goes on", file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)
