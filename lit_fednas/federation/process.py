"""A run's settings of its process: signals, number of threads, and memory.

Ctrl-C and SIGTERM take effect between tasks or steps, where the run's state is consistent. Ranks on one node share its
cores. Splitting an operation among threads costs some hundredths of a millisecond, more than small operations take.
glibc keeps large freed blocks, because the system would zero new ones page by page in every step.
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

#: One thread is faster than several for an operation with fewer multiply-accumulates.
SMALL_OPERATION = 2e7

#: True if the user has set the variable; read at import, because Lightning sets it later for the ranks it starts.
_OMP_NUM_THREADS = "OMP_NUM_THREADS" in os.environ
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # constants of malloc.h
_KEPT_BYTES, _LARGEST_KEPT_BLOCK = 2**30, 2**25  # glibc allows no larger block


class Interrupted(Exception):
    """A signal stops the run; its state is that of the last finished round."""

    def __init__(self, signum: int) -> None:
        super().__init__(signum)  # unpickling in another process passes this argument
        self.signum = signum

    def __str__(self) -> str:
        return f"stopped by {signal.Signals(self.signum).name}"


class Interrupts:
    """Stores a signal until the loop checks for it; a second Ctrl-C stops at once."""

    def __init__(self) -> None:
        self._received: int | None = None

    def check(self) -> None:
        """Raises :class:`Interrupted` after a signal."""
        if self._received is not None:
            received, self._received = self._received, None
            raise Interrupted(received)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Receives SIGINT and SIGTERM inside the block; does nothing outside of the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self._received = None  # an unread signal belongs to an earlier run
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
    """Returns one thread if the largest architecture's operations are small on average, otherwise ``present``."""
    largest = supernet.space.largest
    layers = sum(tensor.ndim > 1 for tensor in supernet.skeleton(largest).parameters())
    try:
        is_small = batch_size * supernet.cost(largest).macs / max(1, layers) < SMALL_OPERATION
    except ConfigError:  # the network's costs cannot be counted
        is_small = False
    return 1 if is_small else present


@contextmanager
def threads_set(threads: int | None, supernet: Supernet, batch_size: int, ranks_here: int) -> Iterator[Sequence[int]]:
    """Sets the number of threads inside the block; yields the numbers from which ``client.fast`` may choose."""
    present = torch.get_num_threads()  # Lightning's launchers have divided the cores among the ranks
    is_free = threads is None and not _OMP_NUM_THREADS
    number = suggested_threads(supernet, batch_size, present) if is_free else threads or present
    if number != present or ranks_here > 1:
        subject = f"{ranks_here} ranks on this node, each" if ranks_here > 1 else "computing"
        log.info("%s with %d of %d threads (trainer.threads sets another number)", subject, number, present)
    torch.set_num_threads(number)
    try:
        yield tuple(dict.fromkeys([number, 1, present] if is_free else [number]))
    finally:
        torch.set_num_threads(present)


def keep_freed_memory() -> None:
    """Makes glibc keep freed memory for the next step, unless the environment sets its options."""
    variables = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
    if sys.platform.startswith("linux") and not any(name in os.environ for name in variables):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl does not have it
        if mallopt is not None and mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK):
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
