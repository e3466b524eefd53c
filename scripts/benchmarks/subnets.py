"""Time per client step of small and large subnets, with the library and with a hand-written loop.

The loop trains the extracted subnet on the same batches and must reach the same weights after every client. The time
of a step is a fit's time over its steps; it includes sending weights, making the optimizer and returning the update.
MACs are those of one example's forward pass; ns per MAC divide a step's time by MACs and batch size. If a subnet's
time is proportional to its MACs, ns per MAC are constant.
"""

from __future__ import annotations

import argparse
from statistics import median
from typing import Any

from benchmarks.library import Fits
from benchmarks.measuring import WHO, between, check_equal, compared, greatest_difference, in_turns
from benchmarks.plain import PlainLoop
from benchmarks.tasks import Setting, architecture


def measure(options: argparse.Namespace) -> dict[str, Any]:
    task = Setting.of(options, network="elastic", examples=options.steps * options.batch_size, clients=4)
    net, data = task.supernet(), task.data()
    archs = {text: architecture(net, text) for text in options.archs}
    pairs = {text: (Fits(task, net, data, arch), PlainLoop(task, net, data, arch)) for text, arch in archs.items()}
    differences = []

    def compare(unit: int) -> None:
        for text, (fits, loop) in pairs.items():
            differences.append(greatest_difference(fits.params, loop.params))
            check_equal(differences[-1], options.tolerance, text)

    workers = {
        f"{who} {text}": side.train_unit for text, pair in pairs.items() for who, side in zip(WHO, pair, strict=True)
    }
    seconds = in_turns(workers, options.fits, options.device, compare, warmup=options.warmup)
    subnets: list[dict[str, Any]] = []
    for text, arch in archs.items():
        ms = {who: [1000 * second / options.steps for second in seconds[f"{who} {text}"]] for who in WHO}
        medians = {who: median(values) for who, values in ms.items()}
        cost = net.cost(arch)
        row = {
            "name": text,
            "arch": str(arch),
            "macs": cost.macs,
            "parameters": cost.parameters,
            "ms_per_step": ms,
            "median_ms_per_step": medians,
            **compared(ms["library"], ms["plain"]),
            "ns_per_mac": 1e6 * medians["library"] / (cost.macs * options.batch_size),
        }
        first = subnets[0] if subnets else row
        row["macs_to_first"] = cost.macs / first["macs"]
        row["time_to_first"] = medians["library"] / first["median_ms_per_step"]["library"]
        subnets.append(row)
    return {"greatest_difference": max(differences), "subnets": subnets}


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "subnet": row["name"],
            "MMACs": f"{row['macs'] / 1e6:.2f}",
            "library ms/step": f"{row['median_ms_per_step']['library']:.2f}",
            "plain ms/step": f"{row['median_ms_per_step']['plain']:.2f}",
            "ratio": f"{row['ratio']:.3f}",
            "quartiles": between(row["ratios"]),
            "ns/MAC": f"{row['ns_per_mac']:.3g}",
            "MACs x first": f"{row['macs_to_first']:.2f}",
            "time x first": f"{row['time_to_first']:.2f}",
        }
        for row in report["subnets"]
    ]
