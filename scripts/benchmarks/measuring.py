"""The measuring loop in which those who are compared take turns, with clocks, memory and checks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from math import isclose
from pathlib import Path
from statistics import median, quantiles
from time import perf_counter, process_time
from typing import Any, NamedTuple

import torch
from torch import Tensor, distributed

WHO = ("library", "plain")


class Time(NamedTuple):
    """Seconds on the clock, and of all threads of this process."""

    wall: float
    cpu: float


def now(device: str) -> Time:
    """The time once the device, and every rank, has done all that was asked of it."""
    if device == "cuda":
        torch.cuda.synchronize()
    if distributed.is_initialized():
        distributed.barrier()
        if device == "cuda":
            torch.cuda.synchronize()
    return Time(perf_counter(), process_time())


def order(names: Sequence[str], unit: int) -> list[str]:
    """Who works in which order in a unit: of any two, each is as often before the other as after."""
    first = (unit - unit % 2) % len(names)
    turned = [*names[first:], *names[:first]]
    return turned[::-1] if unit % 2 else turned


class Turns:
    """Times workers who do units of work in turns, so that a busy machine slows all alike.

    A worker of None works outside: it begins when :meth:`advance` returns, and has done its unit when that is called
    again. ``after`` is called when all have done a unit, ``prepare`` before each piece of work; neither is timed.
    """

    def __init__(
        self,
        workers: Mapping[str, Callable[[int], Any] | None],
        units: int,
        device: str,
        after: Callable[[int], None] = lambda unit: None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self.workers = workers
        self.device = device
        self.after = after
        self.prepare = prepare
        self.times: dict[str, list[Time]] = {name: [] for name in workers}
        self._waits = self._run(units)

    def advance(self) -> None:
        """Goes on until the one outside is to work, or to the end."""
        next(self._waits, None)

    def _run(self, units: int) -> Iterator[None]:
        for unit in range(units):
            for name in order(list(self.workers), unit):
                self.prepare()
                work = self.workers[name]
                began = now(self.device)
                if work is None:
                    yield
                else:
                    work(unit)
                ended = now(self.device)
                self.times[name].append(Time(ended.wall - began.wall, ended.cpu - began.cpu))
            self.after(unit)


def in_turns(
    workers: Mapping[str, Callable[[int], Any]],
    units: int,
    device: str,
    after: Callable[[int], None] = lambda unit: None,
    *,
    warmup: int = 0,
    prepare: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Returns the seconds of each unit that counts, by the workers' names, of whom none works outside."""
    turns = Turns(workers, warmup + units, device, after, prepare)
    turns.advance()
    return {name: [time.wall for time in times[warmup:]] for name, times in turns.times.items()}


def repeated(runs: Mapping[str, Callable[[], Any]], repetitions: int) -> dict[str, list[Any]]:
    """Returns what runs have measured themselves, each in a process of its own, in turns."""
    found: dict[str, list[Any]] = {name: [] for name in runs}
    for repetition in range(repetitions):
        for name in order(list(runs), repetition):
            found[name].append(runs[name]())
    return found


def gathered(values: Sequence[float], device: str) -> list[list[float]]:
    """The values of every rank, in the order of the ranks; this process's alone if there are no others."""
    if not distributed.is_initialized():
        return [list(values)]
    own = torch.tensor(values, dtype=torch.float64, device=device)
    ranks = [torch.empty_like(own) for _ in range(distributed.get_world_size())]
    distributed.all_gather(ranks, own)
    return [rank.tolist() for rank in ranks]


def compared(ones: Sequence[float], others: Sequence[float]) -> dict[str, Any]:
    """One over the other, unit by unit, with median and quartiles."""
    ratios = [one / other for one, other in zip(ones, others, strict=True)]
    return {"ratio": median(ratios), "ratio_quartiles": quartiles(ratios), "ratios": ratios}


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    """Between which half of the values lie."""
    if len(values) < 2:
        return values[0], values[0]
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    return lower, upper


def between(values: Sequence[float], digits: int = 3) -> str:
    """The quartiles as text."""
    lower, upper = quartiles(values)
    return f"{lower:.{digits}f}-{upper:.{digits}f}"


def counted(count: int, what: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{count} {what}{'' if count == 1 else 's'}"


@torch.no_grad()
def greatest_difference(these: Sequence[Tensor], those: Sequence[Tensor]) -> float:
    """The greatest absolute difference of any element."""
    return max(float((one - other).abs().max()) for one, other in zip(these, those, strict=True))


def check_equal(difference: float, tolerance: float, what: str) -> None:
    """Refuses a measurement of two who did not do the same work."""
    assert difference <= tolerance, (
        f"{what}: the weights differ by {difference:.2g}, more than {tolerance:g}; the two did not do the same work"
    )


def check_losses(ones: Sequence[float], others: Sequence[float], tolerance: float, what: str) -> None:
    """Refuses a measurement with two losses that differ by more than a share ``tolerance`` of them."""
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
