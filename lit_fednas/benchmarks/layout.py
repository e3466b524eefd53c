"""Time per client step in float32, bfloat16 (mixed), channels innermost, and compiled; and evaluation in place.

All are client fits of the library, in turns; a speed-up is the median over clients of float32 contiguous / this.
Below, evaluation without copying (supernet(x, arch)) against the forward pass of the extracted subnet, which
must give the same numbers: the ratio is in place / extracted.
"""

from __future__ import annotations

import argparse
from functools import partial
from statistics import median
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor

from lit_fednas.benchmarks import showing
from lit_fednas.benchmarks.library import Fits
from lit_fednas.benchmarks.measuring import in_turns, quartiles, ratios
from lit_fednas.benchmarks.subnets import chosen, elastic_options, task_of
from lit_fednas.benchmarks.tasks import Setting
from lit_fednas.errors import ClientError

BASE = "float32"
VARIANTS: dict[str, dict[str, Any]] = {
    BASE: {},
    "bf16": {"precision": "bf16-mixed"},
    "channels last": {"channels_last": True},
    "bf16, ch. last": {"precision": "bf16-mixed", "channels_last": True},
    "compiled": {"compile": True},
}
ARCHS = ("smallest", "middle", "largest")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the measurement's options."""
    elastic_options(parser)
    networks = ["cnn", "resnet18", "elastic"]
    parser.add_argument("--networks", nargs="+", choices=networks, default=networks)
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS)[1:], default=list(VARIANTS)[1:])
    parser.add_argument("--steps", type=int, default=4, help="steps per client (4)")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--fits", type=int, default=12, help="clients that count, of each variant (12)")
    parser.add_argument("--warmup", type=int, default=2, help="clients before them that do not (2)")
    parser.add_argument("--passes", type=int, default=20, help="forward passes per subnet and way (20)")


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Measures what the options ask for; returns what JSON can carry."""
    return {
        "batch_size": options.batch_size,
        "steps": options.steps,
        "image": options.image,
        "stem": options.stem,
        "widths": options.widths,
        "layouts": [row for network in options.networks for row in layouts(task_of(options, network), options)],
        "evaluation": evaluation(task_of(options, "elastic"), options),
    }


def layouts(task: Setting, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The variants of one network, its largest architecture."""
    net, data = task.supernet(), task.data()
    largest = net.space.largest
    fits, left_out = {}, {}
    for name in (BASE, *options.variants):
        fit = Fits(task, net, data, **VARIANTS[name])
        try:
            fit.train(0, 0, largest)
            fits[name] = fit
        except ClientError as error:
            left_out[name] = str(error).splitlines()[0]
    workers = {name: partial(fit.train_unit, largest) for name, fit in fits.items()}
    losses: dict[str, list[float]] = {name: [] for name in fits}

    def compare(unit: int) -> None:
        for name, fit in fits.items():
            assert fit.result.num_steps == options.steps, f"{name}: {fit.result.num_steps} steps"
            losses[name].append(fit.result.loss)

    seconds = in_turns(workers, options.warmup + options.fits, task.device, compare)
    found = []
    for name in fits:
        ms = [1000 * second / options.steps for second in seconds[name][options.warmup :]]
        base = [1000 * second / options.steps for second in seconds[BASE][options.warmup :]]
        found.append(
            {
                "network": task.network,
                "variant": name,
                "ms_per_step": ms,
                "median_ms_per_step": median(ms),
                "speed_ups": ratios(base, ms),
                "speed_up": median(ratios(base, ms)),
                "mean_loss": sum(losses[name]) / len(losses[name]),
            }
        )
    return found + [{"network": task.network, "variant": name, "left_out": reason} for name, reason in left_out.items()]


def evaluation(task: Setting, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Measures forward passes of a few subnets, in place and extracted.

    Returns:
        A row per subnet.

    Raises:
        AssertionError: They give different numbers.
    """
    net = task.supernet().eval()
    inputs = task.data().inputs[: options.batch_size].float() / 255
    found = []
    for text in ARCHS:
        arch = chosen(net, text)
        subnet = net.subnet(arch).eval()

        def in_place(unit: int, arch: Any = arch) -> Tensor:
            return net(inputs, arch)

        def extracted(unit: int, subnet: Any = subnet) -> Tensor:
            return subnet(inputs)

        with torch.inference_mode():
            torch.testing.assert_close(in_place(0), extracted(0), rtol=1e-3, atol=1e-3)
            ways = {"in place": in_place, "extracted": extracted}
            seconds = in_turns(ways, options.warmup + options.passes, task.device)
        ms = {way: [1000 * second for second in taken[options.warmup :]] for way, taken in seconds.items()}
        each = ratios(ms["in place"], ms["extracted"])
        found.append(
            {
                "name": text,
                "macs": net.cost(arch).macs,
                "median_ms": {way: median(values) for way, values in ms.items()},
                "ratio": median(each),
                "ratios": each,
            }
        )
    return found


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    """Returns the printed table's rows, cells by column."""
    found = []
    for row in report["layouts"]:
        measured = "left_out" not in row
        found.append(
            {
                "what": f"{row['network']}, {row['variant']}",
                "ms": f"{row['median_ms_per_step']:.2f}" if measured else "",
                "speed-up": f"{row['speed_up']:.2f}" if measured else "left out",
                "quartiles": showing.between(row["speed_ups"], 2) if measured else "",
                "ratio": "",
            }
        )
    for row in report["evaluation"]:
        found.append(
            {
                "what": f"evaluation in place, {row['name']}",
                "ms": f"{row['median_ms']['in place']:.2f}",
                "speed-up": "",
                "quartiles": showing.between(row["ratios"], 2),
                "ratio": f"{row['ratio']:.2f}",
            }
        )
    return found


def draw(report: dict[str, Any]) -> Figure:
    """Bars of speed-up per network and variant; points for evaluation in place."""
    figure, (left, right) = showing.figure(10.5, 4.2, 2)
    measured = [row for row in report["layouts"] if "left_out" not in row]
    networks = list(dict.fromkeys(row["network"] for row in measured))
    variants = list(dict.fromkeys(row["variant"] for row in measured))
    width = 0.8 / len(variants)
    for row in measured:
        place = variants.index(row["variant"])
        x = networks.index(row["network"]) + width * (place - (len(variants) - 1) / 2)
        lower, upper = quartiles(row["speed_ups"])
        name = row["variant"] if row["network"] == networks[0] else None
        left.bar(x, row["speed_up"], width * 0.9, color=showing.SERIES[place], label=name)
        left.plot([x, x], [lower, upper], color="black", linewidth=1)
        left.text(x, upper, f"{row['speed_up']:.2f}", ha="center", va="bottom", fontsize=7)
    left.axhline(1, color="black", linewidth=0.8)
    left.set_xticks(range(len(networks)), networks)
    left.set_ylim(0, 1.35 * max(quartiles(row["speed_ups"])[1] for row in measured))
    showing.frame(left, "network", "speed-up over float32 (median, quartiles)", "client steps")
    left.legend(fontsize=8, frameon=False, ncols=2, loc="upper left")
    for place, row in enumerate(report["evaluation"]):
        showing.points_and_median(right, place, row["ratios"])
    right.axhline(1, color="black", linewidth=0.8)
    names = [f"{row['name']}\n{row['ratio']:.2f}" for row in report["evaluation"]]
    right.set_xticks(range(len(names)), names)
    showing.frame(right, "subnet, and median ratio", "time of a forward pass, in place / extracted", "evaluation")
    return figure
