"""Seconds per round of federated averaging: through the library, and in a hand-written PyTorch loop.

Both train the same clients from the same weights, on the same batches in the same order with the same dropout,
and must come to the same weights in every round; then the plain loop takes the library's, because rounding
grows over rounds. Rounds take turns in one process, and who is first changes from round to round, so that a busy
machine slows both alike: a ratio is the median over rounds of library / plain, with the quartiles beside it, and
the extra time per client the median of their difference. CPU seconds are those of all threads and ranks. The
peak memory is what each adds, alone in a process of its own, to what the imports take; the data are part of it.

A round's time is all of it: from the end of the round before to its own end, hooks and server's step included.
On a GPU both begin and end with a synchronisation, and there is none of the benchmark's between.

With --together K ..., K clients of one architecture are trained in one fit (ClientSettings(clients_per_fit=K)); the
plain loop trains one by one, and the speed-up over the first K is that of the ratios to it, so that a busy machine does
not matter. The CNN, which has dropout, is trained one by one alone.

With --ranks N, N processes share every cohort: the library by strategy="ddp", the plain loop by dealing the
cohort round-robin and one all_reduce of a flat buffer of sums. A time is rank 0's, from one barrier of all ranks
to the next, so that whoever is last counts; CPU seconds and memory are sums over the ranks.

When a fit begins, the library sets options of the C library's allocator and, without --threads, a number of
threads that suits the network; in one process the plain loop has both, too. So these ratios say what the
library's own work costs, and understate what it gains. Several ranks share the cores evenly, without --threads.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

import torch

from benchmarks.child import call_in_child, joined
from benchmarks.library import run_library
from benchmarks.measuring import (
    WHO,
    Turns,
    between,
    check_equal,
    check_losses,
    compared,
    forget_peak,
    gathered,
    greatest_difference,
    memory,
    order,
    peak_memory,
)
from benchmarks.plain import PlainLoop
from benchmarks.settings import CORES, TASKS
from benchmarks.tasks import Setting
from lit_fednas.federation import FederatedCallback
from lit_fednas.federation.process import keep_freed_memory


class Rounds(FederatedCallback):
    """Times rounds of the library, of the plain loop, or of both in turns, whose weights it then compares."""

    def __init__(
        self, device: str, rounds: int, warmup: int, who: Sequence[str] = WHO[:1], loop: PlainLoop | None = None
    ) -> None:
        self.device = device
        self.warmup = warmup
        self.loop = loop
        works = {"library": None, "plain": loop.round if loop is not None else None}
        self.turns = Turns({name: works[name] for name in who}, rounds, device, self._after)
        self.losses: dict[str, list[float]] = {name: [] for name in who}
        self.differences: list[float] = []
        self.mib: list[float] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Begins the first round."""
        self.trainer, self.module = trainer, module
        self.turns.advance()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Ends a round, and begins the next."""
        self.turns.advance()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Collects what all ranks have to say while they are connected."""
        self.collect()

    def _after(self, unit: int) -> None:
        self.threads = torch.get_num_threads()
        self.mib.append(memory(self.device))
        if "library" in self.losses:
            self.losses["library"].append(float(self.trainer.callback_metrics["clients/loss"]))
        if self.loop is not None:
            self.losses["plain"].append(self.loop.loss)
        if len(self.losses) == 2:
            weights = [param.detach() for param in self.module.supernet.parameters()]
            self.differences.append(greatest_difference(weights, self.loop.weights))
            self.loop.adopt(weights)  # rounding grows over rounds

    def collect(self) -> None:
        """Gathers times, memory and differences of all ranks."""
        counted = {who: times[self.warmup :] for who, times in self.turns.times.items()}
        self.seconds = {who: [time.wall for time in times] for who, times in counted.items()}
        self.cpu = {who: gathered([time.cpu for time in times], self.device) for who, times in counted.items()}
        self.peak = sum(rank[0] for rank in gathered([peak_memory(self.device)], self.device))
        self.difference = max(max(rank) for rank in gathered([0.0, *self.differences], self.device))


def interleaved(setting: dict[str, Any], rounds: int, warmup: int, tolerance: float, **client: Any) -> dict[str, Any]:
    """Both, round by round in turns."""
    task = Setting(**setting)
    net, data = task.supernet(), task.data()
    watch = Rounds(task.device, warmup + rounds, warmup, WHO, PlainLoop(task, net, data))
    run_library(task, warmup + rounds, watch, net, data, **client)
    check_equal(watch.difference, tolerance, task.network)
    check_losses(watch.losses["library"], watch.losses["plain"], 0.1, task.network)
    cpu = {who: [sum(ranks) for ranks in zip(*watch.cpu[who], strict=True)] for who in WHO}
    extra = median(one - other for one, other in zip(*watch.seconds.values(), strict=True))
    return {
        **{
            who: {"median_seconds": median(watch.seconds[who]), "seconds": watch.seconds[who], "cpu_seconds": cpu[who]}
            for who in WHO
        },
        "threads_used": watch.threads,
        "library_first": [order(WHO, warmup + number)[0] == "library" for number in range(rounds)],
        **compared(*watch.seconds.values()),
        "cpu_ratio": compared(*cpu.values())["ratio"],
        "extra_ms_per_client": 1000 * extra / task.cohort,
        "greatest_difference": watch.difference,
    }


def alone(setting: dict[str, Any], rounds: int, warmup: int, who: str) -> dict[str, Any]:
    """One of the two by itself: its times, the memory above the imports after every round, its first round's loss."""
    task = Setting(**setting)
    keep_freed_memory()  # in either, as a run does: else the loop, a tenth slower, would hold less between its steps
    forget_peak(task.device)
    imports = memory(task.device)
    net, data = task.supernet(), task.data()
    start = memory(task.device)
    loop = PlainLoop(task, net, data) if who == "plain" else None
    watch = Rounds(task.device, warmup + rounds, warmup, (who,), loop)
    if loop is None:
        run_library(task, warmup + rounds, watch, net, data)
    else:
        del net
        with joined(task.device):
            watch.turns.advance()
            watch.collect()
    return {
        "seconds": watch.seconds[who],
        "cpu_by_rank": watch.cpu[who],
        "first_loss": watch.losses[who][0],
        "imports_mib": imports,
        "start_mib": start - imports,
        "peak_mib": watch.peak - task.ranks * imports,
        "end_mib": watch.mib[-1] - imports,
        "mib": [value - imports for value in watch.mib],
    }


def alone_in_child(setting: dict[str, Any], rounds: int, warmup: int, who: str) -> dict[str, Any]:
    """Calls :func:`alone` in as many processes as the setting says."""
    arguments = {"setting": setting, "rounds": rounds, "warmup": warmup, "who": who}
    return call_in_child("benchmarks.rounds:alone", arguments, setting["ranks"], setting["threads"])


def measured(options: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    """A task's rows, one for each number of clients in one fit."""
    threads = options.threads or (None if options.ranks == 1 else max(1, CORES // options.ranks))
    given = {key: value for key in ("examples", "batch_size") if (value := getattr(options, key)) is not None}
    setting = asdict(Setting.of(options, **TASKS[name] | given | {"threads": threads}))
    found: list[dict[str, Any]] = []
    for together in options.together:
        tolerance = options.tolerance if together == 1 else max(options.tolerance, 1e-4)
        arguments = {"setting": setting, "rounds": options.rounds, "warmup": options.warmup, "tolerance": tolerance}
        arguments["clients_per_fit"] = together
        if options.ranks > 1:
            made = call_in_child("benchmarks.rounds:interleaved", arguments, options.ranks, threads)
        else:
            made = interleaved(**arguments)
        speed_up = (found[0] if found else made)["ratio"] / made["ratio"]
        found.append({"task": name, "together": together, **setting, **made, "speed_up": speed_up})
    if not options.no_memory:
        found[0]["peak_mib"] = {who: alone_in_child(setting, 2, 0, who)["peak_mib"] for who in WHO}
    return found


def measure(options: argparse.Namespace) -> dict[str, Any]:
    return {"tasks": [row for name in options.tasks for row in measured(options, name)]}


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    several = len({row["together"] for row in report["tasks"]}) > 1
    memory_shown = any("peak_mib" in row for row in report["tasks"])
    return [
        {
            "task": row["task"],
            **({"together": str(row["together"]), "speed-up": f"{row['speed_up']:.2f}"} if several else {}),
            "threads": str(row["threads_used"]),
            "library s": f"{row['library']['median_seconds']:.3f}",
            "plain s": f"{row['plain']['median_seconds']:.3f}",
            "ratio": f"{row['ratio']:.3f}",
            "quartiles": between(row["ratios"]),
            "CPU ratio": f"{row['cpu_ratio']:.3f}",
            "extra ms/client": f"{row['extra_ms_per_client']:.2f}",
            "difference": f"{row['greatest_difference']:.0e}",
            **{f"{who} MiB": f"{row['peak_mib'][who]:.0f}" if "peak_mib" in row else "" for who in WHO if memory_shown},
        }
        for row in report["tasks"]
    ]
