"""Jobs of a study's commands: local processes, or jobs of a cluster (submitit)."""

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
#: Defaults of a job: one day, and the maximum of continuations after a timeout.
_TIMEOUT_MINUTES, _MAX_TIMEOUTS = 24 * 60, 30


@dataclass(frozen=True)
class Command:
    """A command of a run; it continues from the run's last checkpoint if there is one."""

    words: list[str]
    folder: Path
    jobs: int = 1  # number of jobs that share the machine

    def start(self, group: int | None = None) -> subprocess.Popen[bytes]:
        """Starts the process in a process group (0 for a new one); its output goes to the run's folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        last = self.folder / "checkpoints" / "last.ckpt"
        words = [*self.words, *([f"--ckpt_path={last}"] if last.exists() else [])]
        with open(self.folder / LOG_FILE, "ab") as log:
            return subprocess.Popen(
                words, env=environment(self.jobs), stdin=subprocess.DEVNULL, stdout=log, stderr=log, process_group=group
            )

    def __call__(self) -> tuple[int, float]:
        """Runs the command in a cluster's job; returns its exit status and processor minutes."""
        # Slurm signals a timeout to all processes of a job. The child ignores it: submitit's handler in this process
        # ends the child, which then saves its state.
        handler = signal.signal(signal.SIGUSR2, signal.SIG_IGN)
        process = self.start()
        signal.signal(signal.SIGUSR2, handler)
        try:
            status = process.wait()
        finally:  # a job that is cancelled or timed out ends here, too
            process.terminate()
            process.wait()
        return status, _children_minutes()

    def checkpoint(self) -> Any:
        """Returns the submission of a job that is queued again: the same command, which continues."""
        from submitit.helpers import DelayedSubmission

        return DelayedSubmission(self)


class LocalJob:
    """A process of this machine."""

    def __init__(self, command: Command) -> None:
        # with a separate group, Ctrl-C reaches only the study, which then ends the runs in order
        self._process = command.start(group=0)
        self.minutes = 0.0  # processor time, set at the end

    def poll(self) -> int | None:
        """Returns the exit status; ``None`` while the job runs."""
        minutes_before = _children_minutes()
        status = self._process.poll()
        self.minutes += _children_minutes() - minutes_before  # os.times counts children after poll has collected them
        return status

    def terminate(self) -> None:
        """Ends the process, which then saves its state."""
        self._process.terminate()


class ClusterJob:
    """A job of a cluster."""

    def __init__(self, job: Any) -> None:
        self._job = job
        self.minutes = 0.0

    def poll(self) -> int | None:
        """Returns the exit status, 1 for a job that the cluster ended; ``None`` while the job runs."""
        from submitit.core.utils import FailedJobError, UncompletedJobError

        if not self._job.done():
            return None
        try:
            status, self.minutes = self._job.result()
        except (FailedJobError, UncompletedJobError):  # the job's log has the reason
            return 1
        return int(status)

    def terminate(self) -> None:
        """Cancels the job."""
        self._job.cancel()


Job = LocalJob | ClusterJob


class Cluster:
    """Starts jobs by submitit.

    Args:
        name: ``slurm``, or ``local`` for local processes.
        folder: The folder for scripts and logs of jobs.
        options: Options of ``submitit.AutoExecutor.update_parameters``.

    Raises:
        ConfigError: submitit is missing, or has no such cluster or options.
    """

    def __init__(self, name: str, folder: Path, options: Mapping[str, Any]) -> None:
        try:
            import submitit
        except ImportError:
            raise ConfigError("cluster: needs submitit; pip install lit-fednas[cluster]") from None
        # jobs inherit it, and submitit cancels them by SIGINT, which background jobs of a shell ignore
        signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            self._executor = submitit.AutoExecutor(folder, cluster=name, slurm_max_num_timeout=_MAX_TIMEOUTS)
            self._executor.update_parameters(**{"timeout_min": _TIMEOUT_MINUTES, **options})
        except RuntimeError as error:
            raise ConfigError(f"cluster: {name}: {error}") from error
        except (AssertionError, NameError, TypeError, ValueError) as error:
            raise ConfigError(f"cluster: {name} with {dict(options)}: {' '.join(str(error).split())}") from error
        sacct = subprocess.run("sacct" if name == "slurm" else ":", shell=True, capture_output=True, text=True)
        if sacct.returncode:
            raise ConfigError(
                f"cluster: slurm: sacct, which gives the status of ended jobs, does not work here "
                f"({sacct.stderr.strip()}); enable Slurm's accounting, or use --cluster local"
            )

    def start(self, command: Command) -> ClusterJob:
        """Queues a command."""
        return ClusterJob(self._executor.submit(command))


def environment(jobs: int) -> dict[str, str]:
    """Returns a run's environment: W&B offline, this Python's commands first, and a share of the cores."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    threads = {"OMP_NUM_THREADS": str(max(1, (os.cpu_count() or 1) // jobs))} if jobs > 1 else {}
    # without Slurm's variables Lightning does not requeue a job; the study does
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return {**threads, **inherited, "PATH": path, "WANDB_MODE": "offline"}


def _children_minutes() -> float:
    times = os.times()
    return (times.children_user + times.children_system) / 60
