"""Seconds per round of federated averaging: through the library, and in a hand-written PyTorch loop.

Both train the same clients from the same weights, on the same batches in the same order with the same dropout,
and must come to the same weights in every round; then the plain loop takes the library's, because rounding
grows over rounds. Rounds take turns in one process, and who is first changes from round to round, so that a busy
machine slows both alike: a ratio is the median over rounds of library / plain, with the quartiles beside it, and
the extra time per client the median of their difference. CPU seconds are those of all threads and ranks. The
peak memory is what each adds, alone in a process of its own, to what the imports take; the data are part of it.

A round's time is all of it: from the end of the round before to its own end, hooks and server's step included.
On a GPU both begin and end with a synchronisation, and there is none of the benchmark's between.

With --ranks N, N processes share every cohort: the library by strategy="ddp", the plain loop by dealing the
cohort round-robin and one all_reduce of a flat buffer of sums. A time is rank 0's, from one barrier of all ranks
to the next, so that whoever is last counts; CPU seconds and memory are sums over the ranks.

When a fit begins, the library sets options of the C library's allocator and, without --threads, a number of
threads that suits the network; in one process the plain loop has both, too. So these ratios say what the
library's own work costs, and understate what it gains. With --separate each is timed alone, in processes of its
own, in turns, the plain loop as torch starts it; a repetition's ratio is that of the medians of its rounds, and
median and quartiles are over the repetitions. Several ranks share the cores evenly, without --threads, on both
sides.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch
from matplotlib.figure import Figure

from lit_fednas.benchmarks import rounds, showing
from lit_fednas.benchmarks.child import call_in_child, silence
from lit_fednas.benchmarks.measuring import WHO
from lit_fednas.benchmarks.tasks import Setting

#: Network, and examples per client.
TASKS = {"cnn-500": ("cnn", 500), "cnn-32": ("cnn", 32), "resnet18-32": ("resnet18", 32)}


def cells_of(row: dict[str, Any]) -> dict[str, str]:
    """A task's results as they are printed."""
    cells = {"task": row["task"], "threads": "/".join(str(number) for number in row["threads_used"])}
    if "only" in row:
        return cells | {
            f"{row['only']} s": f"{row[row['only']]['median_seconds']:.3f}",
            "peak MiB": f"{row['peak_mib']:.0f}",
        }
    cells |= {
        "library s": f"{row['library']['median_seconds']:.3f}",
        "plain s": f"{row['plain']['median_seconds']:.3f}",
        "ratio": f"{row['ratio']:.3f}",
        "quartiles": showing.between(row["ratios"]),
        "CPU ratio": f"{row['cpu_ratio']:.3f}",
        "extra ms/client": f"{row['extra_ms_per_client']:.2f}",
    }
    if "greatest_difference" in row:
        cells["difference"] = f"{row['greatest_difference']:.0e}"
    if "peak_mib" in row:
        cells |= {f"{who} MiB": f"{row['peak_mib'][who]:.0f}" for who in WHO}
    return cells


def draw(report: dict[str, Any]) -> Figure:
    """Per task the ratios as points, filled where the library was first, and their median as a bar."""
    tasks = report["tasks"]
    figure, (axes,) = showing.figure(2.4 + 1.7 * len(tasks), 4.2)
    unit = "repetition" if report["separate"] else "round"
    for place, row in enumerate(tasks):
        showing.points_and_median(axes, place, row["ratios"], row["library_first"])
        if report["goals"]:
            goal = report["goals"][place % len(report["goals"])]
            axes.plot([place - 0.4, place + 0.4], [goal] * 2, color=showing.PLAIN, linestyle="--", linewidth=1.2)
    axes.axhline(1, color="black", linewidth=0.8)
    names = [f"{row['task']}\n{row['ratio']:.3f}" for row in tasks]
    axes.set_xticks(range(len(tasks)), names)
    axes.set_xlim(-0.6, len(tasks) - 0.4)
    showing.frame(axes, "task, and median of its ratios", "seconds per round, library / plain", title(report))
    handles = [
        axes.scatter([], [], s=20, color=showing.LIBRARY, label=f"{unit}, library first"),
        axes.scatter([], [], s=20, facecolor="white", edgecolor=showing.LIBRARY, label=f"{unit}, plain first"),
        *axes.plot([], [], color=showing.LIBRARY, linewidth=2.5, label="median; shaded: quartiles"),
    ]
    if report["goals"]:
        handles += axes.plot([], [], color=showing.PLAIN, linestyle="--", linewidth=1.2, label="goal")
    axes.legend(handles=handles, fontsize=8, frameon=False, loc="upper left", bbox_to_anchor=(1, 1))
    return figure


def title(report: dict[str, Any]) -> str:
    """How it was measured."""
    return (
        f"{showing.counted(report['ranks'], 'rank')}"
        f"{' x ' + showing.counted(report['threads'], 'thread') if report['threads'] else ''}, "
        f"{report['device']}, {showing.counted(report['rounds'], 'round')}"
        f"{', each alone' if report['separate'] else ''}"
    )


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Reads the options."""
    parser = showing.Parser(prog="lit-fednas benchmark round", description=__doc__)
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--rounds", type=int, default=15, help="rounds that count (15)")
    parser.add_argument("--warmup", type=int, default=3, help="rounds before them that do not (3)")
    parser.add_argument("--ranks", type=int, default=1, help="processes that share a cohort (1)")
    parser.add_argument("--clients", type=int, default=100)
    parser.add_argument("--cohort", type=int, default=10, help="clients per round (10)")
    parser.add_argument("--examples", type=int, help="examples per client (as the task's name says)")
    parser.add_argument("--tolerance", type=float, default=1e-6, help="greatest difference of weights (1e-6)")
    parser.add_argument("--no-memory", action="store_true", help="leave the peak memory out")
    parser.add_argument("--only", choices=WHO, help="one of the two by itself")
    parser.add_argument("--separate", action="store_true", help="each in processes of its own, in turns")
    parser.add_argument("--repetitions", type=int, default=4, help="processes of each with --separate (4)")
    parser.add_argument(
        "--goals", nargs="+", type=float, default=[], help="ratios to draw as lines, one for all or one per task"
    )
    showing.common_options(parser)
    options = parser.parse_args(words)
    if options.only and options.plot:
        parser.error("plot: draws ratios of both; leave it out with --only")
    return options


def measure(options: argparse.Namespace, task: str) -> dict[str, Any]:
    """Measures what the options ask for; returns what JSON can carry."""
    network, examples = TASKS[task]
    made = Setting(
        network=network,
        examples=options.examples or examples,
        clients=options.clients,
        cohort=options.cohort,
        seed=options.seed,
        device=options.device,
        ranks=options.ranks,
        threads=showing.threads_of(options),
    )
    setting = asdict(made)
    counts = {"rounds": options.rounds, "warmup": options.warmup}
    if options.only:
        found = in_ranks("alone", {**counts, "setting": setting, "who": options.only})
    elif options.separate:
        found = rounds.separate(setting, **counts, repetitions=options.repetitions)
    else:
        found = in_ranks("interleaved", {**counts, "setting": setting, "tolerance": options.tolerance})
        if not options.no_memory:
            found["peak_mib"] = {who: peak_alone(setting, who) for who in WHO}
    return {"task": task, **setting, **found}


def in_ranks(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Calls one of the measurements: here if one process is enough, else in as many as there are ranks."""
    setting = arguments["setting"]
    if setting["ranks"] > 1:
        return call_in_child(
            f"lit_fednas.benchmarks.rounds:{function}", arguments, setting["ranks"], setting["threads"]
        )
    return getattr(rounds, function)(**arguments)


def peak_alone(setting: dict[str, Any], who: str) -> float:
    """The peak memory of one of the two in processes of its own."""
    arguments = {"setting": setting, "rounds": 2, "warmup": 0, "who": who}
    found = call_in_child("lit_fednas.benchmarks.rounds:alone", arguments, setting["ranks"], setting["threads"])
    return float(found["peak_mib"])


def round_times(words: Sequence[str]) -> None:
    """Measures the seconds per round of federated averaging, beside those of a hand-written PyTorch loop.

    Args:
        words: Options, as ``--help`` lists them.
    """
    options = parse(words)
    silence()
    if options.threads:
        torch.set_num_threads(options.threads)
    circumstances = showing.circumstances(options)
    report = {
        **circumstances,
        "ranks": options.ranks,
        "rounds": options.rounds,
        "separate": options.separate,
        "goals": options.goals,
        "tasks": [measure(options, task) for task in options.tasks],
    }
    print(f"torch {torch.__version__}, {title(report)}")
    showing.show(report, [cells_of(row) for row in report["tasks"]], draw, options)
