"""The processes that share a run's work.

Every rank holds all weights, plans the same round, trains its share of the cohort, and adds up the updates of its own
clients. Then the ranks exchange the results, add their sums, and each takes the same server step.
"""

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed
from typing_extensions import override

from lit_fednas.errors import ClientError, RankError, in_one_line
from lit_fednas.federation.process import Interrupted

T = TypeVar("T")

_PERIOD = 0.2  # seconds between two polls of the other processes
_GRACE = 30.0  # seconds that a process gets to end by itself after the death of another

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def gather(self, value: T) -> list[T]:
        """Returns every rank's value, in the order of the ranks; values must be picklable."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def gather_unless(self, value: T, failure: Exception | None) -> list[T]:
        """Returns every rank's value unless one of them has failed."""
        told = failure
        if failure is not None and not isinstance(failure, ClientError | Interrupted):
            told = RankError(f"rank {self.rank}: {in_one_line(failure)}")
        answers = self.gather((value, told))
        for error in (failure, *(error for _, error in answers)):
            if error is not None:
                raise error
        return [value for value, _ in answers]

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replaces each tensor by its sum over the ranks, in place."""
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for alike in by_dtype.values():  # one message for all; NCCL knows the GPU's memory only
            total = torch.cat([tensor.flatten().to(self.device) for tensor in alike])
            distributed.all_reduce(total)
            for tensor, added in zip(alike, total.split([tensor.numel() for tensor in alike]), strict=True):
                tensor.copy_(added.view(tensor.shape))


def deal(work: Sequence[float], ranks: int) -> list[list[int]]:
    """Returns for each rank the indices of its pieces of work: the longest first, each to the rank with the least."""
    # Graham's rule: the longest share is at most 4/3 of the best possible one
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for index in sorted(range(len(work)), key=lambda index: (-work[index], index)):
        rank = loads.index(min(loads))
        shares[rank].append(index)
        loads[rank] += work[index]
    return [sorted(share) for share in shares]


class RankWatch(threading.Thread):
    """Polls the processes of the other ranks on this node, or in these rank 0, so that a death is reported."""

    # a dead rank breaks the connections of the others, which then fail with a message about sockets, or (with NCCL, and
    # while they wait for each other at the start) hang

    def __init__(self, children: Sequence[subprocess.Popen[bytes]], parent: int | None = None) -> None:
        super().__init__(daemon=True, name="rank-watch")
        self.children = children  # rank 1, 2, ... of this node
        self.parent = parent  # rank 0, in those that it has started
        self.reason: str | None = None
        self._known = threading.Event()
        self._ended = threading.Event()

    def stop(self) -> None:
        """Stops watching."""
        self._ended.set()

    def wait_for_reason(self, seconds: float) -> str | None:
        """Returns who has died and why, as soon as it is known; ``None`` if nobody has after so many seconds."""
        self._known.wait(seconds)
        return self.reason

    def end_children(self, seconds: float = 10.0) -> None:
        """Waits for the children to end, and kills those that do not."""
        for child in self.children:
            try:
                child.wait(seconds)
            except subprocess.TimeoutExpired:
                child.kill()

    @override
    def run(self) -> None:
        while not self._ended.wait(_PERIOD):
            dead = next((rank for rank, child in enumerate(self.children, 1) if child.poll()), None)
            if dead is not None:
                self.reason = _reason(dead, self.children[dead - 1].returncode)
            elif self.parent not in (None, os.getppid()):
                self.reason = "rank 0 has ended; its own message, or who has killed it, says why"
            if self.reason is not None:
                self._known.set()
                break
        else:
            return
        if not self._ended.wait(_GRACE):
            log.error("%s; this process has been hanging for %g s and is killed", self.reason, _GRACE)
            for child in self.children:
                child.kill()
            os.kill(os.getpid(), signal.SIGKILL)


def _reason(rank: int, status: int) -> str:
    """Describes a child's end."""
    if status > 0:
        return f"rank {rank} has ended with status {status}; its own message says why"
    name = signal.Signals(-status).name
    hint = " (often: the machine has no memory left)" if name == "SIGKILL" else ""
    return f"rank {rank} was killed by {name}{hint}"
