"""The threads of a process during a run, and the memory that it keeps.

Threads: an operation is split among threads and then waits for the last, which costs some hundredths of a
millisecond (more where threads sleep while they wait, as ``lit_fednas`` sets it, so that a busy neighbour does
not cost a multiple). Operations of small networks take less time than that. Ranks on one node share its cores.

Memory: glibc hands large freed blocks back to the system at once and gets them again, zeroed page by page, in the
next step. It is told to keep them.
"""

from __future__ import annotations

import ctypes
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch

from lit_fednas.errors import ConfigError
from lit_fednas.supernets import Supernet

log = logging.getLogger(__name__)

#: Multiply-accumulates of one operation below which one thread is faster than several.
SMALL_OPERATION = 2e7

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES, _LARGEST_KEPT_BLOCK = 2**30, 2**25  # the latter is the most that glibc allows


def suggested_threads(supernet: Supernet, batch_size: int, ranks_here: int, present: int) -> int:
    """Returns the number of threads that a rank should compute with on a CPU.

    A network whose work cannot be counted is taken for a large one.

    Args:
        supernet: The network; the work of its largest architecture decides.
        batch_size: Examples per step.
        ranks_here: Ranks on this node.
        present: Threads that torch would use, usually one per core.

    Example:
        >>> from lit_fednas.supernets import SmallCNN
        >>> suggested_threads(SmallCNN((3, 32, 32), 10), 32, ranks_here=1, present=8)
        8
        >>> suggested_threads(SmallCNN((3, 32, 32), 10), 32, ranks_here=4, present=8)
        2
        >>> suggested_threads(SmallCNN((1, 8, 8), 10), 8, ranks_here=1, present=8)
        1
    """
    largest = supernet.space.largest
    try:
        macs = supernet.cost(largest).macs
    except ConfigError:
        return max(1, present // ranks_here)
    layers = sum(tensor.ndim > 1 for tensor in supernet.skeleton(largest).parameters())
    if batch_size * macs / max(1, layers) < SMALL_OPERATION:
        return 1
    return max(1, present // ranks_here)


@contextmanager
def threads_set(threads: int | None, supernet: Supernet, batch_size: int, ranks_here: int) -> Iterator[Sequence[int]]:
    """Sets the number of threads inside the block, and logs it if it differs from torch's."""
    before = torch.get_num_threads()
    free = threads is None and "OMP_NUM_THREADS" not in os.environ
    if threads is None and not free:
        threads = before
    number = threads or suggested_threads(supernet, batch_size, ranks_here, before)
    if number != before or ranks_here > 1:
        log.info(
            "%s%d of %d threads (trainer.threads sets another number)",
            f"{ranks_here} ranks on this node, each with " if ranks_here > 1 else "computing with ",
            number,
            before,
        )
    torch.set_num_threads(number)
    try:
        yield tuple(dict.fromkeys([number, 1, max(1, before // ranks_here)] if free else [number]))
    finally:
        torch.set_num_threads(before)


def keep_freed_memory() -> bool:
    """Returns whether glibc has been told to keep freed memory for the next step.

    Options of glibc in the environment take precedence; other C libraries are left alone.
    """
    mine = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
    if not sys.platform.startswith("linux") or any(name in os.environ for name in mine):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
    if mallopt is None:
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK) and mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))
