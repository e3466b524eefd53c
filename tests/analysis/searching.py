"""A search's files without a search: a random sample of a space, its real costs, made-up accuracies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lit_fednas.records import SearchFiles
from lit_fednas.rng import numpy_generator
from lit_fednas.search.tier_models import tier_model
from lit_fednas.search.tier_search import hypervolume, pareto_front
from lit_fednas.supernets import Supernet
from tests.analysis.made_runs import SETTINGS


def write_search(
    folder: Path, supernet: Supernet, method: str = "NSGA2", seed: int = 0, count: int = 40, gain: float = 0.0
) -> SearchFiles:
    """Writes a consistent search of two tiers; more MACs are more accurate, up to noise and the gain."""
    files = SearchFiles(folder)
    rows = evaluations(supernet, seed, count, gain)
    costs = [row["macs"] for row in rows]
    budgets = {"small": float(np.quantile(costs, 0.5)), "large": float(max(costs))}
    tiers = [{"name": name, "at_most": {"macs": budget}, "above": {}} for name, budget in budgets.items()]
    settings = {"seed": seed, "method": {"class": method}, "cost": "macs", "tiers": tiers, "complete": True}
    files.write_settings({**SETTINGS, **settings, "evaluations": count, "latency": None})
    files.write("evaluations", rows)
    front, history, best = [], [], []
    for tier, budget in {**budgets, "*": np.inf}.items():
        fitting = [row for row in rows if row["macs"] <= budget]
        front += [{"tier": tier, **fitting[place]} for place in pareto_front(*_points(fitting))]
        if tier not in budgets:
            continue
        generations = [[row for row in fitting if row["number"] < end] for end in range(8, count + 1, 8)]
        history += [
            {
                "tier": tier,
                "generation": number,
                "evaluations": len(seen),
                "architectures": len(seen),
                "best_accuracy": max(row["accuracy"] for row in seen),
                "hypervolume": round(hypervolume(*_points(seen), budget), 6),
            }
            for number, seen in enumerate(generations)
        ]
        found = max(fitting, key=lambda row: (row["accuracy"], -row["macs"]))
        metrics = {"val_accuracy": found["accuracy"], "val_loss": found["loss"]}
        costs = {name: found[name] for name in ("macs", "parameters", "bytes", "activation_bytes")}
        arch = supernet.space.parse(found["arch"])
        files.write_tier_model(tier_model(supernet, tier, arch, False, costs=costs, metrics=metrics))
        tested = {"test_accuracy": found["accuracy"] - 0.01, "test_loss": found["loss"] + 0.01}
        spent = {"evaluations": len(fitting), "hypervolume": hypervolume(*_points(fitting), budget)}
        best.append({"tier": tier, "arch": found["arch"], **metrics, **costs, **tested, **spent})
    files.write("front", front)
    files.write("history", history)
    files.write("tiers", best)
    files.finish(files.settings())
    return files


def evaluations(supernet: Supernet, seed: int, count: int, gain: float) -> list[dict[str, Any]]:
    rng = numpy_generator(seed, "made-up search")
    space = supernet.space
    archs = dict.fromkeys([space.smallest, space.largest, *(space.sample(rng) for _ in range(9 * count))])
    largest = supernet.cost(space.largest).macs
    rows = []
    for number, arch in enumerate(list(archs)[:count]):
        cost = supernet.cost(arch)
        accuracy = round(min(1.0, 0.5 + gain + 0.4 * (cost.macs / largest) ** 0.5 + rng.normal(0, 0.03)), 6)
        encoding = "-".join(map(str, space.encode(arch)))
        measured = {"accuracy": accuracy, "loss": round(1.5 - accuracy, 6), "seconds": 0.01}
        costs = {"macs": cost.macs, "parameters": cost.parameters, "bytes": cost.bytes}
        costs["activation_bytes"] = cost.macs // 4
        rows.append({"number": number, "arch": str(arch), "encoding": encoding, **measured, **costs})
    return rows


def _points(rows: list[dict[str, Any]]) -> tuple[list[int], list[float]]:
    return [row["macs"] for row in rows], [row["accuracy"] for row in rows]
