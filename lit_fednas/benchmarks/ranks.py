"""Rounds per second with one process and with several, where clients differ in size and draw their architectures.

Each way to use the cores, RANKSxTHREADS, runs alone, in turns with the others, and must come to the same loss in
its first round. How evenly the work was dealt is the CPU time of the busiest rank over the mean of all ranks, the
median over rounds; 1 is perfect (waiting for the others takes no CPU time).
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from lit_fednas.assignment import RandomArchitectures
from lit_fednas.benchmarks import showing
from lit_fednas.benchmarks.child import call_in_child
from lit_fednas.benchmarks.library import run_library
from lit_fednas.benchmarks.measuring import check_losses, gathered
from lit_fednas.benchmarks.rounds import Rounds
from lit_fednas.benchmarks.subnets import elastic_options
from lit_fednas.benchmarks.tasks import Setting


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the measurement's options."""
    cores = showing.cores()
    elastic_options(parser)
    parser.add_argument(
        "--grid",
        nargs="+",
        type=ranks_and_threads,
        default=[(1, cores), (cores, 1), (1, 1)],
        metavar="RANKSxTHREADS",
        help=f"ways to use the cores; the first is what the others are compared with (1x{cores} {cores}x1 1x1)",
    )
    parser.add_argument("--rounds", type=int, default=8, help="rounds that count, of each run (8)")
    parser.add_argument("--warmup", type=int, default=2, help="rounds before them that do not (2)")
    parser.add_argument("--repetitions", type=int, default=2, help="runs of each way (2)")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--cohort", type=int, default=20, help="clients per round (20)")
    parser.add_argument("--examples", type=int, default=128, help="most examples that a client has (128)")
    parser.add_argument("--unequal", type=float, default=8, help="the largest client over the smallest (8)")


def ranks_and_threads(text: str) -> tuple[int, int]:
    """Reads ``RANKSxTHREADS``, as 2x1."""
    ranks, threads = text.split("x")
    return int(ranks), int(threads)


class Shares(Rounds):
    """Also keeps how much CPU time each rank has taken."""

    def on_train_end(self, trainer: Any, module: Any) -> None:
        """Collects what all ranks have to say."""
        super().on_train_end(trainer, module)
        times = self.turns.library_times[self.warmup :]
        self.cpu_by_rank = gathered([time.cpu for time in times], self.device)


def alone(setting: dict[str, Any], rounds: int, warmup: int) -> dict[str, Any]:
    """One run, in as many processes as the setting says."""
    task = Setting(**setting)
    callback = Shares(task.device, warmup=warmup)
    run_library(task, warmup + rounds, callback, task.supernet(), task.data(), RandomArchitectures())
    return {
        "seconds": callback.made["library"]["seconds"],
        "cpu_by_rank": callback.cpu_by_rank,
        "first_loss": callback.losses[0],
    }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measures what the options ask for; returns what JSON can carry."""
    runs: list[list[dict[str, Any]]] = [[] for _ in options.grid]
    for repetition in range(options.repetitions):
        places = list(range(len(options.grid)))
        for place in places[::-1] if repetition % 2 else places:
            ranks, threads = options.grid[place]
            arguments = {
                "setting": asdict(task_of(options, ranks)),
                "rounds": options.rounds,
                "warmup": options.warmup,
            }
            runs[place].append(call_in_child("lit_fednas.benchmarks.ranks:alone", arguments, ranks, threads))
    losses = [run["first_loss"] for made in runs for run in made]
    check_losses(losses, losses[:1] * len(losses), 1e-3, "ranks")  # batch norms amplify the order of sums
    found = []
    for (ranks, threads), made in zip(options.grid, runs, strict=True):
        seconds = [second for run in made for second in run["seconds"]]
        shares = [shares for run in made for shares in zip(*run["cpu_by_rank"], strict=True)]
        found.append(
            {
                "ranks": ranks,
                "threads": threads,
                "seconds": seconds,
                "rounds_per_second": 1 / median(seconds),
                "by_run": [1 / median(run["seconds"]) for run in made],
                "busiest_to_mean": median(max(each) * len(each) / sum(each) for each in shares),
                "cpu_by_rank": [run["cpu_by_rank"] for run in made],
            }
        )
    for row in found:
        row["speed_up"] = row["rounds_per_second"] / found[0]["rounds_per_second"]
    return {"cohort": options.cohort, "examples": options.examples, "unequal": options.unequal, "ways": found}


def task_of(options: argparse.Namespace, ranks: int) -> Setting:
    """Returns the data and the network that the options ask for."""
    return Setting(
        network="elastic",
        examples=options.examples,
        clients=options.clients,
        cohort=options.cohort,
        seed=options.seed,
        device=options.device,
        ranks=ranks,
        image=options.image,
        unequal=options.unequal,
        stem=options.stem,
        widths=tuple(options.widths),
    )


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the printed table's rows, cells by column."""
    return [
        {
            "ranks x threads": f"{row['ranks']} x {row['threads']}",
            "rounds/s": f"{row['rounds_per_second']:.3f}",
            "quartiles": showing.between([1 / second for second in row["seconds"]]),
            "speed-up": f"{row['speed_up']:.2f}",
            "busiest/mean rank": f"{row['busiest_to_mean']:.3f}",
        }
        for row in report["ways"]
    ]


def draw(report: dict[str, Any]) -> Figure:
    """Rounds per second: every round as a point, the median as a bar."""
    ways = report["ways"]
    figure, (axes,) = showing.figure(2.2 + 1.7 * len(ways), 4.2)
    for place, row in enumerate(ways):
        showing.points_and_median(axes, place, [1 / second for second in row["seconds"]])
    names = [
        f"{showing.counted(row['ranks'], 'rank')} x {showing.counted(row['threads'], 'thread')}\n"
        f"speed-up {row['speed_up']:.2f}\nbusiest/mean {row['busiest_to_mean']:.2f}"
        for row in ways
    ]
    axes.set_xticks(range(len(ways)), names)
    axes.set_ylim(bottom=0)
    axes.set_xlim(-0.6, len(ways) - 0.4)
    title = f"{report['cohort']} clients of unequal size, random architectures"
    showing.frame(axes, "", "rounds per second (points: rounds; bar: median)", title)
    return figure
