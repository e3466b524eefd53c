"""Where the commands of a study run: in processes of this machine, or in jobs of a cluster (submitit)."""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lit_fednas.errors import ConfigError

LOG_FILE = "study.log"
#: What a job gets where nothing is said: a day, and as many times again if it was not enough.
_TIMEOUT_MINUTES, _MOST_TIMEOUTS = 24 * 60, 30


@dataclass(frozen=True)
class Command:
    """A command of a run, which goes on from the run's last checkpoint if there is one."""

    words: list[str]
    folder: Path
    jobs: int = 1  # that share the machine

    def start(self, group: int | None = None) -> subprocess.Popen[bytes]:
        """Starts the process, in a process group (0 for a new one); its output is kept in the run's folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        last = self.folder / "checkpoints" / "last.ckpt"
        words = [*self.words, *([f"--ckpt_path={last}"] if last.exists() else [])]
        with open(self.folder / LOG_FILE, "ab") as log:
            return subprocess.Popen(
                words, env=environment(self.jobs), stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=group
            )

    def __call__(self) -> tuple[int, float]:
        """Runs it to its end, in a cluster's job; returns its exit status and minutes."""
        # Slurm sends it to all processes of a job whose time ends; this one's handler is submitit's, and ends the other
        handler = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        process = self.start()
        signal.signal(signal.SIGUSR2, handler)
        try:
            status = process.wait()
        finally:  # also of a job that is cancelled, or has had its time
            process.terminate()
            process.wait()
        return status, _children_minutes()

    def checkpoint(self) -> Any:
        """Returns what a job does that is queued again: it goes on."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class LocalJob:
    """A process of this machine."""

    def __init__(self, command: Command) -> None:
        # a group of its own: Ctrl-C reaches the study alone, which then ends the runs in order
        self._process = command.start(group=0)
        self.minutes = 0.0  # of processors, once it has ended

    def poll(self) -> int | None:
        """Returns the exit status, or nothing before its end."""
        before = _children_minutes()
        status = self._process.poll()
        self.minutes += _children_minutes() - before  # by what poll has collected
        return status

    def terminate(self) -> None:
        """Ends it, which then saves its state."""
        self._process.terminate()


class ClusterJob:
    """A job of a cluster."""

    def __init__(self, job: Any) -> None:
        self._job = job
        self.minutes = 0.0

    def poll(self) -> int | None:
        """Returns the exit status, or nothing before its end; 1 of a job that the cluster ended."""
        from submitit.core.utils import FailedJobError, UncompletedJobError

        if not self._job.done():
            return None
        try:
            status, self.minutes = self._job.result()
        except (FailedJobError, UncompletedJobError):  # why is in the job's log
            return 1
        return int(status)

    def terminate(self) -> None:
        """Cancels it."""
        self._job.cancel()


Job = LocalJob | ClusterJob


class Cluster:
    """Starts jobs by submitit, whose files are in one folder, that of the study.

    Args:
        name: ``slurm``, or ``local`` for processes of this machine.
        folder: Of the scripts and logs of jobs.
        options: Of ``submitit.AutoExecutor.update_parameters``.

    Raises:
        ConfigError: submitit is missing, or has no such cluster or options.
    """

    def __init__(self, name: str, folder: Path, options: Mapping[str, Any]) -> None:
        try:
            import submitit
        except ImportError:
            raise ConfigError("cluster: needs submitit; pip install lit-fednas[cluster]") from None
        # a shell's background jobs ignore it, and so would theirs, which submitit cancels by it
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self._executor = submitit.AutoExecutor(folder, cluster=name, slurm_max_num_timeout=_MOST_TIMEOUTS)
            self._executor.update_parameters(**{"timeout_min": _TIMEOUT_MINUTES, **options})
        except RuntimeError as error:
            raise ConfigError(f"cluster: {name}: {error}") from error
        except (AssertionError, NameError, TypeError, ValueError) as error:
            raise ConfigError(f"cluster: {name} with {dict(options)}: {' '.join(str(error).split())}") from error
        asked = subprocess.run("sacct" if name == "slurm" else ":", shell=True, capture_output=True, text=True)
        if asked.returncode:
            raise ConfigError(
                f"cluster: slurm: sacct, which says how jobs have ended, does not work here ({asked.stderr.strip()}); "
                f"have Slurm keep its accounts, or use --cluster local"
            )

    def start(self, command: Command) -> ClusterJob:
        """Queues a command."""
        return ClusterJob(self._executor.submit(command))


def environment(jobs: int) -> dict[str, str]:
    """A run's: W&B without a server, the commands of this Python first, and its share of the cores."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))} if jobs > 1 else {}
    # a job of Slurm is the study's to queue again, not Lightning's, which would if it knew
    known = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return {**threads, **known, "PATH": path, "WANDB_MODE": "offline"}


def _children_minutes() -> float:
    """Returns the processor time of the children that have ended."""
    times = os.times()
    return (times.children_user + times.children_system) / 60
