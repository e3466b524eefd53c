"""The threads of a process during a run, and the memory that it keeps.

Ranks on one node share its cores. An operation that is split among threads waits for the last, for some hundredths of
a millisecond, in which small operations end. Large freed blocks, which glibc would get again zeroed page by page in the
next step, are kept.
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
    """Returns the number of threads of a rank on a CPU, by the largest architecture's work; ``present`` are torch's."""
    largest = supernet.space.largest
    layers = sum(tensor.ndim > 1 for tensor in supernet.skeleton(largest).parameters())
    try:
        small = batch_size * supernet.cost(largest).macs / max(1, layers) < SMALL_OPERATION
    except ConfigError:  # it cannot be counted
        small = False
    return 1 if small else max(1, present // ranks_here)


@contextmanager
def threads_set(threads: int | None, supernet: Supernet, batch_size: int, ranks_here: int) -> Iterator[Sequence[int]]:
    """Sets the number of threads inside the block, and logs it if it differs from torch's."""
    present = torch.get_num_threads()
    free = threads is None and "OMP_NUM_THREADS" not in os.environ
    if threads is None and not free:
        threads = present
    number = threads or suggested_threads(supernet, batch_size, ranks_here, present)
    if number != present or ranks_here > 1:
        log.info(
            "%s%d of %d threads (trainer.threads sets another number)",
            f"{ranks_here} ranks on this node, each with " if ranks_here > 1 else "computing with ",
            number,
            present,
        )
    torch.set_num_threads(number)
    try:
        yield tuple(dict.fromkeys([number, 1, max(1, present // ranks_here)] if free else [number]))
    finally:
        torch.set_num_threads(present)


def keep_freed_memory() -> None:
    """Tells glibc to keep freed memory for the next step, unless its options are in the environment."""
    variables = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "GLIBC_TUNABLES")
    if sys.platform.startswith("linux") and not any(name in os.environ for name in variables):
        mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # musl has none
        if mallopt is not None and mallopt(_M_MMAP_THRESHOLD, _LARGEST_KEPT_BLOCK):
            mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)
