"""Clients one by one against ClientSettings(clients_per_fit=K), K clients of one architecture in one fit.

For every K the library's rounds take turns with the plain loop's, which trains one by one, and must come to the
same weights (on a GPU, a network with dropout: to about the same loss, since the masks differ). The speed-up over
K = 1 is that of the ratios to the plain loop, so that a busy machine does not matter.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from benchmarks.measuring import WHO, between
from benchmarks.rounds import interleaved
from benchmarks.tasks import Setting


def measure(options: argparse.Namespace) -> dict[str, Any]:
    found = []
    for network in options.networks:
        setting = asdict(Setting.of(options, network=network))
        for together in options.together:
            other_masks = options.device == "cuda" and network == "cnn" and together > 1
            tolerance = None if other_masks else options.tolerance
            made = interleaved(setting, options.rounds, options.warmup, tolerance, clients_per_fit=together)
            if together == options.together[0]:
                first = made["ratio"]
            speeds = {who: options.cohort / made[who]["median_seconds"] for who in WHO}
            more = {"speed_up": first / made["ratio"], "clients_per_second": speeds}
            found.append({"network": network, "together": together, **made, **more})
    return {"runs": found}


def rows(report: dict[str, Any]) -> list[dict[str, str]]:
    return [
        {
            "network": row["network"],
            "together": str(row["together"]),
            "s/round": f"{row['library']['median_seconds']:.3f}",
            "plain s/round": f"{row['plain']['median_seconds']:.3f}",
            "ratio": f"{row['ratio']:.3f}",
            "quartiles": between(row["ratios"]),
            "clients/s": f"{row['clients_per_second']['library']:.0f}",
            "speed-up": f"{row['speed_up']:.2f}",
            "difference": f"{row['greatest_difference']:.0e}",
        }
        for row in report["runs"]
    ]
