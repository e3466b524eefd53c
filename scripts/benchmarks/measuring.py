"""Measurement of workers that take turns: clocks, memory and checks."""

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
    """Seconds on the clock, and CPU seconds of all threads of this process."""

    wall: float
    cpu: float


def now(device: str) -> Time:
    """Returns the time after the device and all ranks have finished their work."""
    if device == "cuda":
        torch.cuda.synchronize()
    if distributed.is_initialized():
        distributed.barrier()
        if device == "cuda":
            torch.cuda.synchronize()
    return Time(perf_counter(), process_time())


def order(names: Sequence[str], unit: int) -> list[str]:
    """Returns the order of the workers in a unit; over the units, any two precede each other equally often."""
    first = (unit - unit % 2) % len(names)
    turned = [*names[first:], *names[:first]]
    return turned[::-1] if unit % 2 else turned


class Turns:
    """Times workers that take turns, so that other load on the machine slows all of them alike.

    A worker of None runs in the caller: it starts when :meth:`advance` returns, and its unit ends at the next call.
    ``after_unit`` is called when all workers have finished a unit, ``prepare`` before each worker; neither is timed.
    """

    def __init__(
        self,
        workers: Mapping[str, Callable[[int], Any] | None],
        units: int,
        device: str,
        after_unit: Callable[[int], None] = lambda unit: None,
        prepare: Callable[[], None] = lambda: None,
    ) -> None:
        self.workers = workers
        self.device = device
        self.after_unit = after_unit
        self.prepare = prepare
        self.times: dict[str, list[Time]] = {name: [] for name in workers}
        self._waits = self._run(units)

    def advance(self) -> None:
        """Continues until the caller's worker is due, or to the end."""
        next(self._waits, None)

    def _run(self, units: int) -> Iterator[None]:
        for unit in range(units):
            for name in order(list(self.workers), unit):
                self.prepare()
                work = self.workers[name]
                start = now(self.device)
                if work is None:
                    yield
                else:
                    work(unit)
                end = now(self.device)
                self.times[name].append(Time(end.wall - start.wall, end.cpu - start.cpu))
            self.after_unit(unit)


def in_turns(
    workers: Mapping[str, Callable[[int], Any]],
    units: int,
    device: str,
    after_unit: Callable[[int], None] = lambda unit: None,
    *,
    warmup: int = 0,
    prepare: Callable[[], None] = lambda: None,
) -> dict[str, list[float]]:
    """Returns each worker's seconds per unit, without the warm-up; no worker may be None."""
    turns = Turns(workers, warmup + units, device, after_unit, prepare)
    turns.advance()
    return {name: [time.wall for time in times[warmup:]] for name, times in turns.times.items()}


def repeated(runs: Mapping[str, Callable[[], Any]], repetitions: int) -> dict[str, list[Any]]:
    """Returns the results of runs that take turns and measure themselves."""
    results: dict[str, list[Any]] = {name: [] for name in runs}
    for repetition in range(repetitions):
        for name in order(list(runs), repetition):
            results[name].append(runs[name]())
    return results


def gathered(values: Sequence[float], device: str) -> list[list[float]]:
    """Returns the values of every rank, in their order; only this process's values without other ranks."""
    if not distributed.is_initialized():
        return [list(values)]
    local_values = torch.tensor(values, dtype=torch.float64, device=device)
    ranks = [torch.empty_like(local_values) for _ in range(distributed.get_world_size())]
    distributed.all_gather(ranks, local_values)
    return [rank.tolist() for rank in ranks]


def compared(numerators: Sequence[float], denominators: Sequence[float]) -> dict[str, Any]:
    """Returns the ratios of paired values, with their median and quartiles."""
    ratios = [numerator / denominator for numerator, denominator in zip(numerators, denominators, strict=True)]
    return {"ratio": median(ratios), "ratio_quartiles": quartiles(ratios), "ratios": ratios}


def quartiles(values: Sequence[float]) -> tuple[float, float]:
    if len(values) < 2:
        return values[0], values[0]
    lower, _, upper = quantiles(values, n=4, method="inclusive")
    return lower, upper


def between(values: Sequence[float], digits: int = 3) -> str:
    lower, upper = quartiles(values)
    return f"{lower:.{digits}f}-{upper:.{digits}f}"


def counted(count: int, noun: str) -> str:
    """Returns a count with its noun: ``1 rank``, ``2 ranks``."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


@torch.no_grad()
def greatest_difference(first: Sequence[Tensor], second: Sequence[Tensor]) -> float:
    """Returns the greatest absolute difference between two elements."""
    return max(float((tensor - other).abs().max()) for tensor, other in zip(first, second, strict=True))


def check_equal(difference: float, tolerance: float, subject: str) -> None:
    """Raises an error if the weights differ by more than the tolerance."""
    assert difference <= tolerance, (
        f"{subject}: the weights differ by {difference:.2g}, more than {tolerance:g}; the workers did different work"
    )


def check_losses(first: Sequence[float], second: Sequence[float], tolerance: float, subject: str) -> None:
    """Raises an error if two paired losses differ by more than the relative tolerance."""
    for loss, other in zip(first, second, strict=True):
        assert isclose(loss, other, rel_tol=tolerance), (
            f"{subject}: losses of {loss:.6g} and {other:.6g}; the workers did different work"
        )


def memory(device: str) -> float:
    """Returns MiB of the GPU's tensors or of the process's resident memory; NaN where this is unknown."""
    return torch.cuda.memory_allocated() / 2**20 if device == "cuda" else _status("VmRSS")


def peak_memory(device: str) -> float:
    """Returns the maximum of :func:`memory` since :func:`forget_peak`."""
    # not getrusage's ru_maxrss, which a new process inherits from its parent
    return torch.cuda.max_memory_allocated() / 2**20 if device == "cuda" else _status("VmHWM")


def forget_peak(device: str) -> None:
    """Resets the peak to the present memory where the system allows it."""
    if device == "cuda":
        torch.cuda.init()
        torch.cuda.reset_peak_memory_stats()
        return
    with suppress(OSError):  # without the reset, the imports may hold the peak
        Path("/proc/self/clear_refs").write_text("5")


def _status(field: str) -> float:
    """Returns a field of Linux' /proc/self/status in MiB."""
    status = Path("/proc/self/status")
    match = re.search(rf"{field}:\s*(\d+) kB", status.read_text()) if status.exists() else None
    return int(match[1]) / 1024 if match else float("nan")
