"""The runs of a study: their folders, their states in ``study.json``, and their processes.

``study.json`` has ``study`` (its name), ``file`` and ``runs``. A run has ``parameters`` (values by name), ``arm``,
``seed``, ``folder`` (in the study's), ``commands`` (without the option of their folder), ``needs`` (folders that it
reads), ``done`` (number of finished commands), ``minutes`` (their processor time) and ``status`` (``waiting``,
``running``, ``stopped``, ``failed`` or ``finished``).
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
#: The program that checks commands from its standard input.
CHECK = [sys.executable, "-m", "lit_fednas.studies.checking"]


@dataclass
class Run:
    """One arm with one seed: a sequence of commands."""

    parameters: dict[str, Any]
    arm: str
    seed: int
    folder: str
    commands: list[list[str]] = field(default_factory=list)
    needs: list[str] = field(default_factory=list)
    done: int = 0
    minutes: float = 0.0
    status: str = "waiting"

    def resume(self, earlier: Run) -> bool:
        """Takes the state of an earlier start; returns whether its started commands are the same."""
        num_begun = earlier.done + (earlier.status in ("running", "stopped", "failed"))
        if earlier.commands[:num_begun] != self.commands[:num_begun]:
            return False
        self.done, self.minutes = earlier.done, earlier.minutes
        self.status = earlier.status if earlier.status != "finished" else "waiting"
        if self.done == len(self.commands):
            self.status = "finished"
        return True


class Runs:
    """All runs of a study, and the file that keeps their state."""

    def __init__(self, folder: Path, head: Mapping[str, Any], planned: Sequence[Run]) -> None:
        self.folder = folder
        self.head = dict(head)
        self.planned = list(planned)
        path = folder / STUDY_FILE
        stored_runs = read_json(path, STUDY).get("runs", [])
        with reading(path):
            runs = [Run(**run) for run in stored_runs]
        earlier = {run.folder: run for run in runs if (folder / run.folder).exists()}  # a user may remove a folder
        for run in planned:
            earlier_run = earlier.pop(run.folder, None)
            if earlier_run is not None and not run.resume(earlier_run):
                raise ConfigError(f"{folder / run.folder} was started with other options; remove it or change --out")
        self.other_runs = list(earlier.values())
        readable = {run.folder for run in planned} | {run.folder for run in self.other_runs if run.status == "finished"}
        for run in self.unfinished:
            if missing := [need for need in run.needs if need not in readable]:
                raise ConfigError(f"arms: {run.arm} reads {missing[0]}, which does not exist; add its arm and seed")

    @property
    def finished(self) -> list[Run]:
        """All finished runs, including those of earlier starts, by seed."""
        runs = [run for run in [*self.planned, *self.other_runs] if run.status == "finished"]
        return sorted(runs, key=lambda run: run.seed)

    @property
    def unfinished(self) -> list[Run]:
        """The planned runs that have not finished."""
        return [run for run in self.planned if run.status != "finished"]

    def write(self) -> None:
        """Writes ``study.json`` atomically."""
        runs = [asdict(run) for run in self.planned + self.other_runs]
        replace_json(self.folder / STUDY_FILE, {**self.head, "runs": runs})
        seal(self.folder, STUDY_FILE)

    def set_status(self, run: Run, status: str) -> None:
        """Sets, writes and prints the status of a run."""
        run.status = status
        self.write()
        done = sum(run.status == "finished" for run in self.planned)
        step = f", command {run.done + 1} of {len(run.commands)}" if status == "running" and run.commands[1:] else ""
        print(f"{status}: {run.folder}{step} ({done} of {len(self.planned)} finished)", flush=True)


def check_commands(runs: Sequence[Run], jobs: int) -> dict[str, dict[str, Any]]:
    """Checks the unfinished commands, each once for all seeds; returns the settings of each run's next command."""
    kinds: dict[str, tuple[list[str], bool]] = {}
    for run in runs:
        for command in run.commands[run.done :]:
            kinds.setdefault(_without_seed(command), (command, not run.needs))
    print(f"checking: {len(kinds)} commands", flush=True)
    with ThreadPoolExecutor(jobs) as pool:
        parts = pool.map(_settings, [dict(list(kinds.items())[turn::jobs]) for turn in range(jobs)])
    settings = {kind: text for part in parts for kind, text in part.items()}
    return {run.folder: _with_logger(settings[_without_seed(run.commands[run.done])]) for run in runs}


def _without_seed(command: Sequence[str]) -> str:
    return " ".join(_SEED.sub("seed", word) for word in command)


def _settings(commands: Mapping[str, tuple[list[str], bool]]) -> dict[str, str]:
    """Returns the commands' settings as YAML; commands of other programs are only parsed."""
    ours = {kind: entry for kind, entry in commands.items() if entry[0][0] == "lit-fednas"}
    texts = json.loads(_output(CHECK, json.dumps(list(ours.values())))) if ours else []
    parsed = {
        kind: _output([*command, "--print_config"]) for kind, (command, _) in commands.items() if kind not in ours
    }
    return {**dict(zip(ours, texts, strict=True)), **parsed}


def _output(command: Sequence[str], stdin: str | None = None) -> str:
    """Returns the output of a process; raises ConfigError with its last line if it fails."""
    try:
        process = subprocess.run(command, env=environment(1), input=stdin, capture_output=True, text=True)
    except OSError as error:
        raise ConfigError(f"command: {command[0]!r} cannot be started: {error.strerror}") from error
    if process.returncode:
        error_lines = process.stderr.strip().splitlines() or [f"exit status {process.returncode}"]
        source = "" if stdin else f" (of {shorten(' '.join(command[:-1]), 120, placeholder=' ...')})"
        raise ConfigError(f"{error_lines[-1].removeprefix('lit-fednas: ')}{source}")
    return process.stdout


def _with_logger(text: str) -> dict[str, Any]:
    settings: dict[str, Any] = yaml.safe_load(text)
    first, *_ = _loggers(settings)
    if not (isinstance(first, dict) and first["class_path"].endswith("RunLogger")):
        raise ConfigError("trainer.logger: the first logger of a study's runs must be lit_fednas.loggers.RunLogger")
    return settings


def _loggers(settings: Mapping[str, Any]) -> list[Any]:
    loggers = settings["trainer"]["logger"]
    return loggers if isinstance(loggers, list) else [loggers]


def logger_option(loggers: Sequence[Mapping[str, Any]], study: Path, run: str) -> str:
    """Returns the option that sets the loggers' folder to the run's and W&B's group to the study."""
    name, version = run.split("/")
    settings_of_loggers = []
    for logger in loggers:
        settings = dict(logger.get("init_args") or {})
        if logger["class_path"].endswith("RunLogger"):
            settings |= {"save_dir": str(study), "name": name, "version": version}
        elif logger["class_path"].endswith("WandbLogger"):
            settings |= {"save_dir": str(study), "name": run, "group": study.name}
        settings_of_loggers.append({"class_path": logger["class_path"], "init_args": settings})
    return f"--trainer.logger={json.dumps(settings_of_loggers)}"


def run_all(runs: Runs, settings: Mapping[str, Mapping[str, Any]], jobs: int, cluster: Cluster | None = None) -> int:
    """Runs all unfinished runs, ``jobs`` at a time, and prints those that fail; returns the exit status."""
    runs.write()
    with _sigterm_as_interrupt():
        _run_unfinished(runs, settings, jobs, cluster)
    failed = [run for run in runs.planned if run.status == "failed"]
    for run in failed:
        print(f"lit-fednas: {run.folder} failed; see {runs.folder / run.folder / LOG_FILE}", file=sys.stderr)
    for run in runs.planned:
        if run.status == "waiting":
            print(f"lit-fednas: {run.folder} was not started: it reads a run that failed", file=sys.stderr)
    return 1 if failed else 0


def _run_unfinished(runs: Runs, settings: Mapping[str, Mapping[str, Any]], jobs: int, cluster: Cluster | None) -> None:
    unstarted = runs.unfinished
    running: list[tuple[Run, Job]] = []
    try:
        while unstarted or running:
            finished = {run.folder for run in runs.finished}
            ready = [run for run in unstarted if finished.issuperset(run.needs)]
            for run in ready[: jobs - len(running)]:
                unstarted.remove(run)
                loggers = logger_option(_loggers(settings[run.folder]), runs.folder, run.folder)
                words, folder = [*run.commands[run.done], loggers], runs.folder / run.folder
                command = Command(words, folder, 1 if cluster else jobs)
                running.append((run, cluster.start(command) if cluster else LocalJob(command)))
                runs.set_status(run, "running")
            if not running:
                break  # the other runs read a run that failed
            time.sleep(0.2)
            for run, job in list(running):
                if (status := _poll(run, job)) is not None:
                    running.remove((run, job))
                    run.done += not status
                    if not status and run.done < len(run.commands):
                        unstarted.insert(0, run)  # a run ends before the next one starts
                    else:
                        runs.set_status(run, "failed" if status else "finished")
    finally:  # if the study ends early, its runs end, too, and save their state
        for _, job in running:
            job.terminate()
        for run, job in running:
            while _poll(run, job) is None:
                time.sleep(0.05)
            runs.set_status(run, "stopped")


def _poll(run: Run, job: Job) -> int | None:
    """Returns the exit status of an ended job, and adds its processor time to the run."""
    status = job.poll()
    if status is not None:
        run.minutes += job.minutes
    return status


@contextmanager
def _sigterm_as_interrupt() -> Iterator[None]:
    """Handles SIGTERM like Ctrl-C, and prints how to resume."""

    def leave(signum: int, frame: FrameType | None) -> None:
        signal.signal(signum, signal.SIG_IGN)  # some senders signal the process and its group
        raise KeyboardInterrupt

    handler = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    except KeyboardInterrupt:
        print("lit-fednas: stopped; the same command resumes the study", file=sys.stderr)
        raise
    finally:
        signal.signal(signal.SIGTERM, handler)
