"""A search's files without a search: a random sample of a space, its real costs, made-up accuracies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from lit_fednas.records import SearchFiles
from lit_fednas.rng import numpy_generator
from lit_fednas.search.pareto import hypervolume, pareto_front
from lit_fednas.search.tier_models import tier_model
from lit_fednas.supernets import Supernet

GENERATION = 8


def write_search(
    folder: Path, supernet: Supernet, method: str = "NSGA2", seed: int = 0, count: int = 40, gain: float = 0.0
) -> SearchFiles:
    """Writes a consistent search of two tiers; more MACs are more accurate, up to noise and the gain."""
    files = SearchFiles(folder)
    rows = evaluations(supernet, seed, count, gain)
    costs = np.array([row["macs"] for row in rows])
    budgets = {"small": float(np.quantile(costs, 0.5)), "large": float(costs.max())}
    files.write_settings(
        {
            "seed": seed,
            "method": {"class": method},
            "evaluations": count,
            "cost": "macs",
            "tiers": [{"name": name, "at_most": {"macs": at}, "above": {}} for name, at in budgets.items()],
            "supernet": type(supernet).__name__,
            "checkpoint": "last.ckpt",
            "num_examples": 40,
            "reference": budgets,
            "latency": None,
            "complete": True,
        }
    )
    files.write("evaluations", rows)
    files.write("history", [row for name, at in budgets.items() for row in history(rows, name, at)])
    files.write("front", [row for name, at in {**budgets, "*": np.inf}.items() for row in front(rows, name, at)])
    files.write("tiers", [best(files, supernet, rows, name, at) for name, at in budgets.items()])
    return files


def evaluations(supernet: Supernet, seed: int, count: int, gain: float) -> list[dict[str, Any]]:
    rng = numpy_generator(seed, "made-up search")
    space = supernet.space
    archs = [space.smallest, space.largest, *(space.sample(rng) for _ in range(9 * count))]
    largest = supernet.cost(space.largest).macs
    rows = []
    for number, arch in enumerate(list(dict.fromkeys(archs))[:count]):
        cost = supernet.cost(arch)
        accuracy = min(1.0, 0.5 + gain + 0.4 * (cost.macs / largest) ** 0.5 + rng.normal(0, 0.03))
        rows.append(
            {
                "number": number,
                "arch": str(arch),
                "encoding": "-".join(map(str, space.encode(arch))),
                "accuracy": round(accuracy, 6),
                "loss": round(1.5 - accuracy, 6),
                "macs": cost.macs,
                "parameters": cost.parameters,
                "bytes": cost.bytes,
                "activation_bytes": cost.macs // 4,
                "latency_ms": None,
                "seconds": 0.01,
            }
        )
    return rows


def within(rows: list[dict[str, Any]], budget: float) -> list[dict[str, Any]]:
    return [row for row in rows if row["macs"] <= budget]


def volume(rows: list[dict[str, Any]], budget: float) -> float:
    fitting = within(rows, budget)
    return hypervolume([row["macs"] for row in fitting], [row["accuracy"] for row in fitting], budget)


def history(rows: list[dict[str, Any]], tier: str, budget: float) -> list[dict[str, Any]]:
    lines = []
    for generation, end in enumerate(range(GENERATION, len(rows) + 1, GENERATION)):
        seen = within(rows[:end], budget)
        lines.append(
            {
                "tier": tier,
                "generation": generation,
                "evaluations": len(seen),
                "best_accuracy": max(row["accuracy"] for row in seen),
                "hypervolume": round(volume(seen, budget), 6),
            }
        )
    return lines


def front(rows: list[dict[str, Any]], tier: str, budget: float) -> list[dict[str, Any]]:
    fitting = within(rows, budget)
    places = pareto_front([row["macs"] for row in fitting], [row["accuracy"] for row in fitting])
    return [{"tier": tier, **fitting[place]} for place in places]


def best(files: SearchFiles, supernet: Supernet, rows: list[dict[str, Any]], tier: str, budget: float) -> Any:
    fitting = [place for place, row in enumerate(rows) if row["macs"] <= budget]
    place = min(fitting, key=lambda place: (-rows[place]["accuracy"], rows[place]["macs"]), default=None)
    assert place is not None
    row = rows[place]
    metrics = {"val_accuracy": row["accuracy"], "val_loss": row["loss"]}
    costs = {name: row[name] for name in ("macs", "parameters", "bytes", "activation_bytes")}
    arch = supernet.space.parse(row["arch"])
    files.write_tier_model(tier_model(supernet, tier, arch, False, costs=costs, metrics=metrics))
    return {
        "tier": tier,
        "arch": row["arch"],
        **metrics,
        **costs,
        "latency_ms": None,
        "test_accuracy": row["accuracy"] - 0.01,
        "test_loss": row["loss"] + 0.01,
        "evaluations": len(within(rows, budget)),
        "hypervolume": volume(rows, budget),
    }
