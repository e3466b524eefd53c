"""A round of federated averaging: through the library and through the hand-written loop."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from statistics import median
from typing import Any

import torch
from lightning import Callback

from lit_fednas.benchmarks.child import call_in_child, joined
from lit_fednas.benchmarks.library import run_library
from lit_fednas.benchmarks.measuring import (
    WHO,
    Turns,
    check_equal,
    check_losses,
    forget_peak,
    gathered,
    greatest_difference,
    memory,
    peak_memory,
    quartiles,
    ratios,
    summary,
    timed,
)
from lit_fednas.benchmarks.plain import PlainLoop
from lit_fednas.benchmarks.tasks import Setting


class Rounds(Callback):
    """Times the library's rounds, has the plain loop do the same ones in turn, and compares the weights.

    Args:
        device: Where the work is done.
        plain: The plain loop; nothing if the library is alone.
        warmup: First rounds that do not count.
    """

    def __init__(self, device: str, plain: PlainLoop | None = None, warmup: int = 0) -> None:
        self.device = device
        self.plain = plain
        self.warmup = warmup
        self.turns = Turns(device, plain.round if plain is not None else None)
        self.differences: list[float] = []
        self.losses: list[float] = []
        self.plain_losses: list[float] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Begins the first round."""
        self.threads = torch.get_num_threads()
        self.turns.begin()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Ends a round for both, compares, and begins the next."""
        self.turns.end()
        self.losses.append(float(trainer.callback_metrics["clients/loss"]))
        if self.plain is not None:
            weights = [param.detach() for param in module.supernet.parameters()]
            self.plain_losses.append(self.plain.loss)
            self.differences.append(greatest_difference(weights, self.plain.weights))
            self.plain.adopt(weights)  # rounding grows over rounds
        if trainer.current_round + 1 < trainer.max_rounds:
            self.turns.begin()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Collects what all ranks have to say while they are connected."""
        turns, device = self.turns, self.device
        self.peak = sum(rank[0] for rank in gathered([peak_memory(device)], device))
        self.made = {"library": summary(turns.library_times[self.warmup :], device)}
        if self.plain is not None:
            self.made["plain"] = summary(turns.plain_times[self.warmup :], device)
            self.difference = max(max(rank) for rank in gathered(self.differences, device))


def interleaved(
    setting: dict[str, Any], rounds: int, warmup: int, tolerance: float | None, **client: Any
) -> dict[str, Any]:
    """Measures both, round by round in turns.

    Args:
        setting: The task.
        rounds: Rounds that count.
        warmup: Rounds before them.
        tolerance: The greatest difference of weights after a round that is taken for rounding; nothing if
            they draw different dropout masks, so that only their losses can be compared.
        **client: Further settings of the library's clients.

    Returns:
        The row of the table.

    Raises:
        AssertionError: A round ends with different weights, or losses that differ by more than a tenth.
    """
    task = Setting(**setting)
    net, data = task.supernet(), task.data()
    callback = Rounds(task.device, PlainLoop(task, net, data), warmup)
    run_library(task, warmup + rounds, callback, net, data, **client)
    if tolerance is not None:
        check_equal(callback.difference, tolerance, task.network)
    check_losses(callback.losses, callback.plain_losses, 0.1, task.network)
    made = callback.made
    seconds, cpu_seconds = ({who: made[who][key] for who in WHO} for key in ("seconds", "cpu_seconds"))
    return {
        **made,
        "threads_used": [callback.threads],
        "library_first": [(warmup + number) % 2 == 0 for number in range(rounds)],
        **compared(seconds, cpu_seconds, task.cohort),
        "greatest_difference": callback.difference,
    }


def compared(
    seconds: Mapping[str, Sequence[float]], cpu_seconds: Mapping[str, Sequence[float]], cohort: int
) -> dict[str, Any]:
    """Ratios of seconds per round, pair by pair, and what they come to."""
    library, plain = (seconds[who] for who in WHO)
    each = ratios(library, plain)
    extra = median(one - other for one, other in zip(library, plain, strict=True))
    return {
        "ratio": median(each),
        "ratio_quartiles": quartiles(each),
        "ratios": each,
        "cpu_ratio": median(ratios(cpu_seconds["library"], cpu_seconds["plain"])),
        "extra_ms_per_client": 1000 * extra / cohort,
    }


def alone(setting: dict[str, Any], rounds: int, warmup: int, who: str) -> dict[str, Any]:
    """One of the two by itself: its times, the memory that it has added at its peak, its first round's loss."""
    task = Setting(**setting)
    device = task.device
    forget_peak(device)
    before = memory(device)
    net, data = task.supernet(), task.data()
    if who == "library":
        callback = Rounds(device, warmup=warmup)
        run_library(task, warmup + rounds, callback, net, data)
        made, peak, loss = callback.made["library"], callback.peak, callback.losses[0]
        threads = callback.threads
    else:
        plain, threads = PlainLoop(task, net, data), torch.get_num_threads()
        del net
        times, losses = [], []
        with joined(device):
            for number in range(warmup + rounds):
                times.append(timed(partial(plain.round, number), device))
                losses.append(plain.loss)
            made, loss = summary(times[warmup:], device), losses[0]
            peak = sum(rank[0] for rank in gathered([peak_memory(device)], device))
    return {
        "only": who,
        "threads_used": [threads],
        who: made,
        "peak_mib": peak - task.ranks * before,
        "first_loss": loss,
    }


def separate(setting: dict[str, Any], rounds: int, warmup: int, repetitions: int) -> dict[str, Any]:
    """Measures both, each alone in processes of its own, in turns.

    Returns:
        The row of the table.

    Raises:
        AssertionError: The first round's loss differs.
    """
    runs: dict[str, list[dict[str, Any]]] = {who: [] for who in WHO}
    for repetition in range(repetitions):
        for who in WHO if repetition % 2 == 0 else WHO[::-1]:
            arguments = {"setting": setting, "rounds": rounds, "warmup": warmup, "who": who}
            runs[who].append(
                call_in_child("lit_fednas.benchmarks.rounds:alone", arguments, setting["ranks"], setting["threads"])
            )
    losses = {who: [run["first_loss"] for run in runs[who]] for who in WHO}
    check_losses(losses["library"], losses["plain"], 1e-4, setting["network"])
    made = {who: pooled([run[who] for run in runs[who]]) for who in WHO}
    medians = {
        key: {who: [run[who][key] for run in runs[who]] for who in WHO}
        for key in ("median_seconds", "median_cpu_seconds")
    }
    return {
        **made,
        "threads_used": [runs[who][0]["threads_used"][0] for who in WHO],
        "library_first": [repetition % 2 == 0 for repetition in range(repetitions)],
        **compared(medians["median_seconds"], medians["median_cpu_seconds"], setting["cohort"]),
        "peak_mib": {who: median(run["peak_mib"] for run in runs[who]) for who in WHO},
    }


def pooled(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """The rounds of several runs as one."""
    seconds = [second for run in runs for second in run["seconds"]]
    cpu_seconds = [second for run in runs for second in run["cpu_seconds"]]
    return {
        "median_seconds": median(seconds),
        "median_cpu_seconds": median(cpu_seconds),
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
    }
