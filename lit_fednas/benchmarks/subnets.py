"""Time per client step of small and large subnets: the library's client fits against a hand-written loop.

The loop trains the extracted subnet on the same batches and must come to the same weights after every client. A
step's time is a fit's, all included (weights sent, optimizer made, update handed out), over its steps. MACs are
those of one example's forward pass; ns per MAC divide a step's time by them and by the batch. If subnets are as
fast as they are small, ns per MAC stay alike and the times lie on the line of proportionality.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median
from typing import Any

from matplotlib.figure import Figure

from lit_fednas.benchmarks import showing
from lit_fednas.benchmarks.library import Fits
from lit_fednas.benchmarks.measuring import check_equal, greatest_difference, in_turns, quartiles, ratios
from lit_fednas.benchmarks.plain import PlainLoop
from lit_fednas.benchmarks.tasks import Setting
from lit_fednas.supernets import Supernet


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the measurement's options."""
    elastic_options(parser)
    parser.add_argument(
        "--archs",
        nargs="+",
        default=["smallest", "middle", "largest"],
        help="as 'd: [0,1,0,1], e: 0.14', or smallest, middle, largest",
    )
    parser.add_argument("--steps", type=int, default=4, help="steps per client (4)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--fits", type=int, default=20, help="clients that count, of each architecture (20)")
    parser.add_argument("--warmup", type=int, default=3, help="clients before them that do not (3)")
    parser.add_argument("--tolerance", type=float, default=1e-6, help="greatest difference of weights (1e-6)")


def elastic_options(parser: argparse.ArgumentParser) -> None:
    """How large the elastic network is; SuperFed's own has --stem 64 --widths 256 512 1024 2048 --image 32."""
    parser.add_argument("--stem", type=int, default=16, help="channels of the first convolution (16)")
    parser.add_argument("--widths", type=int, nargs="+", default=[16, 32, 64, 128], help="channels per stage")
    parser.add_argument("--image", type=int, default=16, help="pixels along an image's side (16)")


def chosen(net: Supernet, text: str) -> Any:
    """An architecture by the space's words, and ``middle``: the middle of all choices."""
    space = net.space
    return space.decode([count // 2 for count in space.cardinalities]) if text == "middle" else space.named(text)


def task_of(options: argparse.Namespace, network: str) -> Setting:
    """Returns the data and the network that the options ask for."""
    return Setting(
        network=network,
        examples=options.steps * options.batch_size,
        clients=4,
        batch_size=options.batch_size,
        seed=options.seed,
        device=options.device,
        image=options.image,
        stem=options.stem,
        widths=tuple(options.widths),
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measures what the options ask for; returns what JSON can carry."""
    task = task_of(options, "elastic")
    net, data = task.supernet(), task.data()
    archs = {text: chosen(net, text) for text in options.archs}
    fits = {text: Fits(task, net, data) for text in archs}
    loops = {text: PlainLoop(task, net, data, arch) for text, arch in archs.items()}
    differences = []

    def compare(unit: int) -> None:
        for text, loop in loops.items():
            weights = fits[text].weights()
            differences.append(greatest_difference(weights, loop.params))
            check_equal(differences[-1], options.tolerance, text)

    workers: dict[str, Any] = {}
    for text, arch in archs.items():
        workers[f"library {text}"] = partial(fits[text].train_unit, arch)
        workers[f"plain {text}"] = loops[text].train_unit
    seconds = in_turns(workers, options.warmup + options.fits, options.device, compare)
    found = []
    for text, arch in archs.items():
        ms = {
            who: [1000 * second / options.steps for second in seconds[f"{who} {text}"][options.warmup :]]
            for who in ("library", "plain")
        }
        each = ratios(ms["library"], ms["plain"])
        cost = net.cost(arch)
        step = median(ms["library"])
        found.append(
            {
                "name": text,
                "arch": str(arch),
                "macs": cost.macs,
                "parameters": cost.parameters,
                "ms_per_step": ms,
                "median_ms_per_step": {who: median(values) for who, values in ms.items()},
                "ratio": median(each),
                "ratio_quartiles": quartiles(each),
                "ratios": each,
                "ns_per_mac": 1e6 * step / (cost.macs * options.batch_size),
                "macs_to_first": cost.macs / net.cost(next(iter(archs.values()))).macs,
            }
        )
    for row in found:
        row["time_to_first"] = row["median_ms_per_step"]["library"] / found[0]["median_ms_per_step"]["library"]
    return {
        "batch_size": options.batch_size,
        "steps": options.steps,
        "stem": options.stem,
        "widths": options.widths,
        "image": options.image,
        "greatest_difference": max(differences),
        "subnets": found,
    }


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the printed table's rows, cells by column."""
    return [
        {
            "subnet": row["name"],
            "MMACs": f"{row['macs'] / 1e6:.2f}",
            "library ms/step": f"{row['median_ms_per_step']['library']:.2f}",
            "plain ms/step": f"{row['median_ms_per_step']['plain']:.2f}",
            "ratio": f"{row['ratio']:.3f}",
            "quartiles": showing.between(row["ratios"]),
            "ns/MAC": f"{row['ns_per_mac']:.3g}",
            "MACs x first": f"{row['macs_to_first']:.2f}",
            "time x first": f"{row['time_to_first']:.2f}",
        }
        for row in report["subnets"]
    ]


def draw(report: dict[str, Any]) -> Figure:
    """A step's time against the subnet's MACs, and where it would lie if it were proportional to the largest's."""
    figure, (axes,) = showing.figure(6.4, 4.4)
    subnets = sorted(report["subnets"], key=lambda row: row["macs"])
    macs = [row["macs"] / 1e6 for row in subnets]
    last = subnets[-1]["median_ms_per_step"]["library"]
    axes.plot(
        macs,
        [last * mac / macs[-1] for mac in macs],
        color=showing.GREY,
        linestyle=":",
        label="proportional to MACs",
    )
    for who, marker in (("plain", "s"), ("library", "o")):
        for row, mac in zip(subnets, macs, strict=True):
            lower, upper = quartiles(row["ms_per_step"][who])
            axes.plot([mac, mac], [lower, upper], color=showing.COLOURS[who], linewidth=5, alpha=0.25)
        steps = [row["median_ms_per_step"][who] for row in subnets]
        axes.plot(
            macs,
            steps,
            color=showing.COLOURS[who],
            marker=marker,
            markersize=6 if who == "plain" else 4,
            linewidth=1.4,
            label=f"{who}: median, quartiles",
        )
    for row, mac in zip(subnets, macs, strict=True):
        axes.annotate(
            f"{row['name']}\nratio {row['ratio']:.3f}",
            (mac, row["median_ms_per_step"]["library"]),
            xytext=(7, -20),
            textcoords="offset points",
            fontsize=8,
            bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.7, "pad": 1},
        )
    axes.set_xscale("log")
    axes.set_yscale("log")
    showing.plain_numbers(axes)
    axes.margins(x=0.18, y=0.12)
    size = f"{report['image']}x{report['image']} pixels, batch of {report['batch_size']}"
    showing.frame(axes, "10⁶ MACs of one example's forward pass", "ms per client step", f"elastic ResNet, {size}")
    axes.legend(fontsize=8, frameon=False)
    return figure
