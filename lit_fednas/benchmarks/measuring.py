"""Clocks, memory, and the order in which those who are compared take turns."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from math import isclose
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any

import torch
from torch import Tensor, distributed

WHO = ("library", "plain")


@dataclass(frozen=True)
class Time:
    """Seconds on the clock, and of all threads of this process."""

    wall: float
    cpu: float

    def __sub__(self, other: Time) -> Time:
        return Time(self.wall - other.wall, self.cpu - other.cpu)


def now(device: str) -> Time:
    """The time once the device, and every rank, has done all that was asked of it."""
    if device == "cuda":
        torch.cuda.synchronize()
    if distributed.is_initialized():
        distributed.barrier()
        if device == "cuda":
            torch.cuda.synchronize()
    return Time(perf_counter(), process_time())


def timed(work: Callable[[], Any], device: str) -> Time:
    """How long a piece of work takes."""
    began = now(device)
    work()
    return now(device) - began


def gathered(values: Sequence[float], device: str) -> list[list[float]]:
    """The values of every rank, in the order of the ranks; this process's alone if there are no others."""
    if not distributed.is_initialized():
        return [list(values)]
    own = torch.tensor(values, dtype=torch.float64, device=device)
    ranks = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(ranks, own)
    return [rank.tolist() for rank in ranks]


class Turns:
    """Times two who do the same units of work in turns, so that a busy machine slows both alike.

    The library's unit is what happens between :meth:`begin` and :meth:`end`; the plain loop's is called. The
    library is first in even units and second in odd ones, so that each of them as often follows itself as the
    other, and neither profits from what the other has left in the caches.

    Args:
        device: Where the work is done.
        plain: Does the unit of a number; nobody, if the library is alone.
    """

    def __init__(self, device: str, plain: Callable[[int], None] | None) -> None:
        self.device = device
        self.plain = plain
        self.library_times: list[Time] = []
        self.plain_times: list[Time] = []

    def begin(self) -> None:
        """Begins a unit."""
        unit = len(self.library_times)
        if unit % 2:
            self._time_plain(unit)
        self._began = now(self.device)

    def end(self) -> None:
        """Ends it: when this returns, both have done it."""
        unit = len(self.library_times)
        self.library_times.append(now(self.device) - self._began)
        if unit % 2 == 0:
            self._time_plain(unit)

    def _time_plain(self, unit: int) -> None:
        plain = self.plain
        if plain is not None:
            self.plain_times.append(timed(lambda: plain(unit), self.device))


def in_turns(
    workers: Mapping[str, Callable[[int], Any]],
    units: int,
    device: str,
    after: Callable[[int], None] | None = None,
) -> dict[str, list[float]]:
    """Times any number of workers who do units of work in turns.

    Args:
        workers: What does the unit of a number, by name. Who is first changes from unit to unit, and of any two
            each is as often before the other as after.
        units: How many.
        device: Where the work is done.
        after: Called when all have done a unit.

    Returns:
        The seconds of each unit, by the workers' names.
    """
    names = list(workers)
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for unit in range(units):
        first = unit // 2 % len(names)
        order = names[first:] + names[:first]
        for name in order[::-1] if unit % 2 else order:
            seconds[name].append(timed(partial(workers[name], unit), device).wall)
        if after is not None:
            after(unit)
    return seconds


def summary(times: Sequence[Time], device: str) -> dict[str, Any]:
    """Medians, and what they are medians of; CPU seconds are those of all ranks."""
    walls = [time.wall for time in times]
    cpus = [sum(ranks) for ranks in zip(*gathered([time.cpu for time in times], device), strict=True)]
    return {
        "median_seconds": median(walls),
        "median_cpu_seconds": median(cpus),
        "seconds": walls,
        "cpu_seconds": cpus,
    }


def ratios(ones: Sequence[float], others: Sequence[float]) -> list[float]:
    """One over the other, unit by unit."""
    return [one / other for one, other in zip(ones, others, strict=True)]


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Between which half of the values lie."""
    if len(values) < 2:
        return values[0], values[0]
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    return lower, upper


@torch.no_grad()
def greatest_difference(these: Sequence[Tensor], those: Sequence[Tensor]) -> float:
    """The greatest absolute difference of any element."""
    return max(float((one - other).abs().max()) for one, other in zip(these, those, strict=True))


def check_equal(difference: float, tolerance: float, what: str) -> None:
    """Refuses a measurement of two who did not do the same work.

    Raises:
        AssertionError: The difference exceeds the tolerance, or is not a number.
    """
    assert difference <= tolerance, (
        f"{what}: the weights differ by {difference:.2g}, more than {tolerance:g}; the two did not do the same work"
    )


def check_losses(ones: Sequence[float], others: Sequence[float], tolerance: float, what: str) -> None:
    """Refuses a measurement whose losses say that the work was not the same.

    Raises:
        AssertionError: Two losses differ by more than a share ``tolerance`` of them.
    """
    for one, other in zip(ones, others, strict=True):
        assert isclose(one, other, rel_tol=tolerance), (
            f"{what}: losses of {one:.6g} and {other:.6g}; the two did not do the same work"
        )


def memory(device: str) -> float:
    """MiB: the GPU's tensors, or what the process has resident; NaN where that is unknown."""
    return torch.cuda.memory_allocated() / 2**20 if device == "cuda" else _status("VmRSS")


def peak_memory(device: str) -> float:
    """The most that :func:`memory` has been since :func:`forget_peak`."""
    # not getrusage's ru_maxrss: a new process inherits that from the one that has started it
    return torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else _status("VmHWM")


def forget_peak(device: str) -> None:
    """Lets the peak start anew from the present memory, where the system allows it."""
    if device == "cuda":
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):  # imports may then have the peak, if they needed more than what follows
        Path("/proc/self/clear_refs").write_text("5")


def _status(field: str) -> float:
    """A field of the process's status, which Linux has, in MiB."""
    status = Path("/proc/self/status")
    found = re.search(rf"{field}:\s*(\d+) kB", status.read_text()) if status.exists() else None
    return int(found[1]) / 1024 if found else float("nan")
