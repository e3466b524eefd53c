"""What a run sets in its process: signals, the number of threads, and the memory that it keeps.

Ctrl-C and SIGTERM are handled where the run's state is consistent. Ranks on one node share its cores. An operation that
is split among threads waits for the last, for some hundredths of a millisecond, in which small operations end. Large
freed blocks, which glibc would get again zeroed page by page in the next step, are kept.
"""

import ctypes
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import FrameType

import torch

from lit_fednas.errors import ConfigError
from lit_fednas.supernets import Supernet

log = logging.getLogger(__name__)

#: Multiply-accumulates of one operation below which one thread is faster than several.
SMALL_OPERATION = 2e7

#: Whether the user has set it: Lightning sets it as well, when it starts ranks.
_OMP_NUM_THREADS = "OMP_NUM_THREADS" in os.environ
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES, _LARGEST_KEPT_BLOCK = 2**30, 2**25  # the latter is the most that glibc allows


class Interrupted(Exception):
    """The run was asked to stop; its state is that of the last finished round."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)  # with which it is made again in another process
        self.signum = signum

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signum).name}"


class Interrupts:
    """Keeps a signal until the loop asks for it; the second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self._received: int | None = None

    def check(self) -> None:
        """Raises :class:`Interrupted` if a signal has come."""
        if self._received is not None:
            received, self._received = self._received, None
            raise Interrupted(received)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receives SIGINT and SIGTERM inside the block (in the main thread; elsewhere it does nothing)."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._received = None  # an unread one belonged to an earlier run
        previous = {signum: signal.signal(signum, self._receive) for signum in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for signum, handler in previous.items():
                signal.signal(signum, handler)

    def _receive(self, signum: int, frame: FrameType | None) -> None:
        if self._received is not None and signum == signal.SIGINT:
            raise KeyboardInterrupt
        self._received = self._received or signum


def suggested_threads(supernet: Supernet, batch_size: int, present: int) -> int:
    """Returns the number of threads on a CPU, by the largest architecture's work: one, or those that are present."""
    largest = supernet.space.largest
    layers = sum(tensor.ndim > 1 for tensor in supernet.skeleton(largest).parameters())
    try:
        small = batch_size * supernet.cost(largest).macs / max(1, layers) < SMALL_OPERATION
    except ConfigError:  # it cannot be counted
        small = False
    return 1 if small else present


@contextmanager
def threads_set(threads: int | None, supernet: Supernet, batch_size: int, ranks_here: int) -> Iterator[Sequence[int]]:
    """Sets the number of threads inside the block, and logs it if it differs from torch's."""
    present = torch.get_num_threads()  # of several ranks this one's share, which Lightning's launchers set
    free = threads is None and not _OMP_NUM_THREADS
    number = suggested_threads(supernet, batch_size, present) if free else threads or present
    if number != present or ranks_here > 1:
        doing = f"{ranks_here} ranks on this node, each" if ranks_here > 1 else "computing"
        log.info("%s with %d of %d threads (trainer.threads sets another number)", doing, number, present)
    torch.set_num_threads(number)
    try:
        yield tuple(dict.fromkeys([number, 1, present] if free else [number]))
    finally:
        torch.set_num_threads(present)


def keep_freed_memory() -> None:
    """Tells glibc to keep freed memory for the next step, unless its options are in the environment."""
    variables = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
    if sys.platform.startswith("linux") and not any(name in os.environ for name in variables):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None and mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK):
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
