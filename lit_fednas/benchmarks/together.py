"""Clients one by one against ClientSettings(clients_per_fit=K), K clients of one architecture in one fit.

For every K the library's rounds take turns with the plain loop's, which trains one by one, and must come to the
same weights (on a GPU, a network with dropout: to about the same loss, since the masks differ). The speed-up over
K = 1 is that of the ratios to the plain loop, so that a busy machine does not matter.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from lit_fednas.benchmarks import rounds, showing
from lit_fednas.benchmarks.tasks import Setting


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the measurement's options."""
    parser.add_argument("--networks", nargs="+", choices=["cnn", "tiny"], default=["cnn", "tiny"])
    parser.add_argument("--together", nargs="+", type=int, default=[1, 5, 10, 25, 50], metavar="K")
    parser.add_argument("--rounds", type=int, default=4, help="rounds that count (4)")
    parser.add_argument("--warmup", type=int, default=1, help="rounds before them that do not (1)")
    parser.add_argument("--clients", type=int, default=1000)
    parser.add_argument("--cohort", type=int, default=50, help="clients per round (50)")
    parser.add_argument("--examples", type=int, default=50, help="examples per client (50)")
    parser.add_argument("--batch-size", type=int, default=10)
    parser.add_argument("--image", type=int, default=32, help="pixels along an image's side (32)")
    parser.add_argument("--tolerance", type=float, default=1e-4, help="greatest difference of weights (1e-4)")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measures what the options ask for; returns what JSON can carry."""
    found = []
    for network in options.networks:
        task = Setting(
            network=network,
            examples=options.examples,
            clients=options.clients,
            cohort=options.cohort,
            batch_size=options.batch_size,
            seed=options.seed,
            device=options.device,
            threads=options.threads,
            image=options.image,
        )
        for together in options.together:
            other_masks = options.device == "cuda" and network == "cnn" and together > 1
            tolerance = None if other_masks else options.tolerance
            made = rounds.interleaved(asdict(task), options.rounds, options.warmup, tolerance, clients_per_fit=together)
            found.append({"network": network, "together": together, **made})
    for row in found:
        first = next(other for other in found if other["network"] == row["network"])
        row["speed_up"] = first["ratio"] / row["ratio"]
        row["clients_per_second"] = {who: options.cohort / row[who]["median_seconds"] for who in ("library", "plain")}
    return {
        "clients": options.clients,
        "cohort": options.cohort,
        "examples": options.examples,
        "batch_size": options.batch_size,
        "image": options.image,
        "runs": found,
    }


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the printed table's rows, cells by column."""
    return [
        {
            "network": row["network"],
            "together": str(row["together"]),
            "s/round": f"{row['library']['median_seconds']:.3f}",
            "plain s/round": f"{row['plain']['median_seconds']:.3f}",
            "ratio": f"{row['ratio']:.3f}",
            "quartiles": showing.between(row["ratios"]),
            "clients/s": f"{row['clients_per_second']['library']:.0f}",
            "speed-up": f"{row['speed_up']:.2f}",
            "difference": f"{row['greatest_difference']:.0e}",
        }
        for row in report["runs"]
    ]


def draw(report: dict[str, Any]) -> Figure:
    """Clients per second over K, a panel per network, and the plain loop's as a line."""
    networks = list(dict.fromkeys(row["network"] for row in report["runs"]))
    figure, panels = showing.figure(0.6 + 4.4 * len(networks), 4, len(networks))
    for axes, network in zip(panels, networks, strict=True):
        runs = [row for row in report["runs"] if row["network"] == network]
        counts = [row["together"] for row in runs]
        for row in runs:
            axes.scatter(
                [row["together"]] * len(row["library"]["seconds"]),
                [report["cohort"] / second for second in row["library"]["seconds"]],
                s=14,
                color=showing.LIBRARY,
                alpha=0.4,
                linewidths=0,
            )
        speeds = [row["clients_per_second"]["library"] for row in runs]
        axes.plot(counts, speeds, color=showing.LIBRARY, marker="o", label="library, K together (points: rounds)")
        plain = median(row["clients_per_second"]["plain"] for row in runs)
        axes.axhline(plain, color=showing.PLAIN, linestyle="--", label="plain loop, one by one")
        for row, speed in zip(runs, speeds, strict=True):
            axes.annotate(
                f"x{row['speed_up']:.2f}",
                (row["together"], speed),
                xytext=(0, 8),
                textcoords="offset points",
                fontsize=8,
                ha="center",
            )
        axes.set_xscale("log")
        axes.set_xticks(counts, [str(count) for count in counts])
        axes.minorticks_off()
        axes.margins(x=0.1)
        axes.set_ylim(0, 1.3 * max(*speeds, plain))
        showing.frame(axes, "K, clients trained together", "clients per second", network)
        axes.legend(fontsize=8, frameon=False, loc="upper left")
    return figure
