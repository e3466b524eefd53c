"""Seconds per round of federated averaging, with the library and with a hand-written PyTorch loop.

Both train the same clients from the same weights, on the same batches in the same order with the same dropout. They
must reach the same weights in every round. Then the plain loop copies the library's weights, because rounding grows
over rounds. The two take turns in one process and alternate in going first, so that other load slows both alike. A
ratio is the median over rounds of library / plain, with its quartiles. The extra time per client is the median of
the difference. CPU seconds are those of all threads and ranks. The peak memory, measured in a process of its own, is
the memory above the imports, with the data.

A round's time is complete: from the end of the previous round to its own end, with hooks and the server's step. On a
GPU, the benchmark synchronises only at the start and the end of a round.

With --together K ..., one fit trains K clients of one architecture (ClientSettings(clients_per_fit=K)), and the
plain loop trains them one by one. The speed-up over the first K compares the ratios to the plain loop, so that other
load does not matter. The CNN has dropout, so its clients always train one by one.

With --ranks N, N processes share every cohort: the library with strategy="ddp", the plain loop round-robin with one
all_reduce of a flat buffer of sums. A time is rank 0's, from one barrier of all ranks to the next, so the slowest
rank counts. CPU seconds and memory are sums over the ranks.

When a fit begins, the library sets options of the C library's allocator and, without --threads, a number of threads
that suits the network. In one process the plain loop profits from both. So these ratios show the cost of the
library's work and understate its gain. Without --threads, several ranks share the cores evenly.
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
    """Times rounds of the library, of the plain loop, or of both in turns; compares the weights of both."""

    def __init__(
        self, device: str, rounds: int, warmup: int, who: Sequence[str] = WHO[:1], loop: PlainLoop | None = None
    ) -> None:
        self.device = device
        self.warmup = warmup
        self.loop = loop
        workers = {"library": None, "plain": loop.round if loop is not None else None}
        self.turns = Turns({name: workers[name] for name in who}, rounds, device, self._record)
        self.losses: dict[str, list[float]] = {name: [] for name in who}
        self.differences: list[float] = []
        self.mib: list[float] = []

    def on_train_start(self, trainer: Any, module: Any) -> None:
        """Starts the first round."""
        self.trainer, self.module = trainer, module
        self.turns.advance()

    def on_train_epoch_end(self, trainer: Any, module: Any) -> None:
        """Ends a round and starts the next."""
        self.turns.advance()

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Collects the measurements while the ranks are connected."""
        self.collect()

    def _record(self, unit: int) -> None:
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
        """Gathers the times, memory and differences of all ranks."""
        counted = {who: times[self.warmup :] for who, times in self.turns.times.items()}
        self.seconds = {who: [time.wall for time in times] for who, times in counted.items()}
        self.cpu = {who: gathered([time.cpu for time in times], self.device) for who, times in counted.items()}
        self.peak = sum(rank[0] for rank in gathered([peak_memory(self.device)], self.device))
        self.difference = max(max(rank) for rank in gathered([0.0, *self.differences], self.device))


def interleaved(setting: dict[str, Any], rounds: int, warmup: int, tolerance: float, **client: Any) -> dict[str, Any]:
    """Measures the library and the plain loop in turns, round by round."""
    task = Setting(**setting)
    net, data = task.supernet(), task.data()
    watch = Rounds(task.device, warmup + rounds, warmup, WHO, PlainLoop(task, net, data))
    run_library(task, warmup + rounds, watch, net, data, **client)
    check_equal(watch.difference, tolerance, task.network)
    check_losses(watch.losses["library"], watch.losses["plain"], 0.1, task.network)
    cpu = {who: [sum(ranks) for ranks in zip(*watch.cpu[who], strict=True)] for who in WHO}
    extra = median(library - plain for library, plain in zip(*watch.seconds.values(), strict=True))
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
    """Measures one of the two alone: seconds, memory above the imports per round, first loss."""
    task = Setting(**setting)
    keep_freed_memory()  # also for the plain loop, which else is a tenth slower and holds less memory
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
    arguments = {"setting": setting, "rounds": rounds, "warmup": warmup, "who": who}
    return call_in_child("benchmarks.rounds:alone", arguments, setting["ranks"], setting["threads"])


def measured(options: argparse.Namespace, name: str) -> list[dict[str, Any]]:
    """Returns a task's rows, one for each number of clients in one fit."""
    threads = options.threads or (None if options.ranks == 1 else max(1, CORES // options.ranks))
    overrides = {key: value for key in ("examples", "batch_size") if (value := getattr(options, key)) is not None}
    setting = asdict(Setting.of(options, **TASKS[name] | overrides | {"threads": threads}))
    task_rows: list[dict[str, Any]] = []
    for together in options.together:
        tolerance = options.tolerance if together == 1 else max(options.tolerance, 1e-4)
        arguments = {"setting": setting, "rounds": options.rounds, "warmup": options.warmup, "tolerance": tolerance}
        arguments["clients_per_fit"] = together
        if options.ranks > 1:
            result = call_in_child("benchmarks.rounds:interleaved", arguments, options.ranks, threads)
        else:
            result = interleaved(**arguments)
        speed_up = (task_rows[0] if task_rows else result)["ratio"] / result["ratio"]
        task_rows.append({"task": name, "together": together, **setting, **result, "speed_up": speed_up})
    if not options.no_memory:
        task_rows[0]["peak_mib"] = {who: alone_in_child(setting, 2, 0, who)["peak_mib"] for who in WHO}
    return task_rows


def measure(options: argparse.Namespace) -> dict[str, Any]:
    return {"tasks": [row for name in options.tasks for row in measured(options, name)]}


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    has_together = len({row["together"] for row in report["tasks"]}) > 1
    has_memory = any("peak_mib" in row for row in report["tasks"])
    return [
        {
            "task": row["task"],
            **({"together": str(row["together"]), "speed-up": f"{row['speed_up']:.2f}"} if has_together else {}),
            "threads": str(row["threads_used"]),
            "library s": f"{row['library']['median_seconds']:.3f}",
            "plain s": f"{row['plain']['median_seconds']:.3f}",
            "ratio": f"{row['ratio']:.3f}",
            "quartiles": between(row["ratios"]),
            "CPU ratio": f"{row['cpu_ratio']:.3f}",
            "extra ms/client": f"{row['extra_ms_per_client']:.2f}",
            "difference": f"{row['greatest_difference']:.0e}",
            **{f"{who} MiB": f"{row['peak_mib'][who]:.0f}" if "peak_mib" in row else "" for who in WHO if has_memory},
        }
        for row in report["tasks"]
    ]
