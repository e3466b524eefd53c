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

from benchmarks.library import Fits
from benchmarks.measuring import between, compared, in_turns
from benchmarks.settings import LEVERS
from benchmarks.tasks import Setting, architecture
from lit_fednas.errors import ClientError

BASE = "float32"


def measure(options: argparse.Namespace) -> dict[str, Any]:
    common = {"examples": options.steps * options.batch_size, "clients": 4}
    tasks = {network: Setting.of(options, network=network, **common) for network in (*options.networks, "elastic")}
    return {
        "layouts": [row for network in options.networks for row in layouts(tasks[network], options)],
        "evaluation": evaluation(tasks["elastic"], options),
    }


def layouts(task: Setting, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The variants of one network, its largest architecture."""
    net, data = task.supernet(), task.data()
    fits, left_out = {}, {}
    for name in (BASE, *options.variants):
        fit = Fits(task, net, data, net.space.largest, **LEVERS.get(name, {}))
        try:
            fit.train_client(0, 0)
            fits[name] = fit
        except ClientError as error:
            left_out[name] = str(error).splitlines()[0]
    losses: dict[str, list[float]] = {name: [] for name in fits}

    def compare(unit: int) -> None:
        for name, fit in fits.items():
            assert fit.result.num_steps == options.steps, f"{name}: {fit.result.num_steps} steps"
            losses[name].append(fit.result.loss)

    workers = {name: fit.train_unit for name, fit in fits.items()}
    seconds = in_turns(workers, options.fits, task.device, compare, warmup=options.warmup)
    found: list[dict[str, Any]] = []
    for name in fits:
        speeds = compared(seconds[BASE], seconds[name])
        found.append(
            {
                "network": task.network,
                "variant": name,
                "ms_per_step": [1000 * second / options.steps for second in seconds[name]],
                "speed_ups": speeds["ratios"],
                "speed_up": speeds["ratio"],
                "mean_loss": sum(losses[name]) / len(losses[name]),
            }
        )
    return found + [{"network": task.network, "variant": name, "left_out": reason} for name, reason in left_out.items()]


def evaluation(task: Setting, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Forward passes of a few subnets, in place and extracted."""
    net = task.supernet().eval()
    inputs = task.data().inputs[: options.batch_size].float() / 255
    found = []
    for text in ("smallest", "middle", "largest"):
        arch = architecture(net, text)
        calls = {"in place": partial(net, inputs, arch), "extracted": partial(net.subnet(arch).eval(), inputs)}
        workers = {way: lambda unit, call=call: call() for way, call in calls.items()}
        with torch.inference_mode():
            torch.testing.assert_close(*(call() for call in calls.values()), rtol=1e-3, atol=1e-3)
            seconds = in_turns(workers, options.passes, task.device, warmup=options.warmup)
        ms = {way: 1000 * median(taken) for way, taken in seconds.items()}
        found.append({"name": text, "macs": net.cost(arch).macs, "median_ms": ms, **compared(*seconds.values())})
    return found


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    found = []
    for row in report["layouts"]:
        measured = "left_out" not in row
        found.append(
            {
                "what": f"{row['network']}, {row['variant']}",
                "ms": f"{median(row['ms_per_step']):.2f}" if measured else "",
                "speed-up": f"{row['speed_up']:.2f}" if measured else "left out",
                "quartiles": between(row["speed_ups"], 2) if measured else "",
                "ratio": "",
            }
        )
    for row in report["evaluation"]:
        found.append(
            {
                "what": f"evaluation in place, {row['name']}",
                "ms": f"{row['median_ms']['in place']:.2f}",
                "speed-up": "",
                "quartiles": between(row["ratios"], 2),
                "ratio": f"{row['ratio']:.2f}",
            }
        )
    return found
