"""Watches the processes that rank 0 has started, and in these rank 0, so that a death is reported.

A rank that has died breaks the connections of the others, which then fail with a message about sockets, or (with
NCCL, and while they wait for each other at the start) hang. So rank 0 polls its children several times a second, and
they whether rank 0 is still their parent; each keeps the reason, and ends what hangs.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import threading
from collections.abc import Sequence

log = logging.getLogger(__name__)


class RankWatch:
    """Detects which child has died, and how; or that the parent has.

    Args:
        children: The processes of rank 1, 2, ... of this node.
        parent: The process of rank 0, in those that it has started.
        grace: Seconds that this process gets to end by itself after a death.
        period: Seconds between two polls.

    Example:
        >>> watch = RankWatch([subprocess.Popen(["false"])], grace=60, period=0.01)
        >>> watch.start()
        >>> watch.wait_for_reason(10)
        'rank 1 has ended with status 1; its own message says why'
        >>> watch.stop()
    """

    def __init__(
        self,
        children: Sequence[subprocess.Popen[bytes]],
        parent: int | None = None,
        grace: float = 30.0,
        period: float = 0.2,
    ) -> None:
        self.children = children
        self.parent = parent
        self.grace = grace
        self.period = period
        self.reason: str | None = None
        self._known = threading.Event()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Starts watching, in a thread that does not keep the process alive."""
        threading.Thread(target=self._watch, daemon=True, name="rank-watch").start()

    def stop(self) -> None:
        """Stops watching."""
        self._stopped.set()

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

    def _watch(self) -> None:
        while not self._stopped.wait(self.period):
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
        if not self._stopped.wait(self.grace):
            log.error("%s; this process has been hanging for %g s and is killed", self.reason, self.grace)
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
