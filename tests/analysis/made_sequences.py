"""Runs that prune a network step by step, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_fednas.analysis.runs import Run
from lit_fednas.records import FinetuneFiles, SearchFiles, append_round, write_sequence

#: Unit, the sizes of conv1, conv2 and fc that are left, MACs, and accuracy on the clients' data.
Steps = Sequence[tuple[str, tuple[int, int, int], int, float | None]]

GROUPS = ("conv1.out", "conv2.out", "fc.out")
UNITS = {"conv1": ["conv1.out"], "conv2": ["conv2.out"], "fc": ["fc.out"]}
FOUR: Steps = [
    ("", (8, 16, 20), 1000, 0.75),
    ("conv2", (8, 12, 20), 750, 0.7),
    ("fc", (8, 12, 10), 600, 0.5),
    ("conv2", (8, 4, 10), 400, 0.625),
]


def candidate(unit: str, accuracies: Sequence[float | None], dropped: int | None, resource: float) -> dict[str, Any]:
    """A candidate; it loses a filter."""
    ranked = {"accuracies": list(accuracies), "degradations": [0.001] * len(accuracies), "dropped": dropped}
    made = {"unit": unit, "removed": {f"{unit}.out": 1}, "resource": resource, "macs": resource, "group": 0}
    return {**made, **ranked}


def made_sequence(
    folder: Path,
    steps: Steps = FOUR,
    clients: int = 10,
    cost: int = 1_000_000,
    units: Mapping[str, Sequence[str]] = UNITS,
    complete: bool = True,
) -> Run:
    """A run; iteration t takes t + 1 rounds and costs t times as much.

    Args:
        folder: Where.
        steps: The models.
        clients: Of the population.
        cost: Of all clients in the first iteration, in bytes up; ten times as many down, and a thousand MACs for
            each. The initial model cost 7 bytes up, 9 down and 5 MACs.
        units: That may be pruned.
        complete: Whether no iteration follows.
    """
    models = []
    last = -1
    for number, (unit, sizes, macs, accuracy) in enumerate(steps):
        rounds = number + 1 if number else 0
        others = [one for one in units if one != unit]
        tested = (accuracy or 0.0, None, *[accuracy] * rounds)[-rounds:] if number else ()
        candidates = []
        if number:
            candidates = [candidate(unit, tested, None, macs), candidate(others[0], [0.25], 1, macs + 10)]
        costs = {"macs": 1000 * number * cost, "bytes_down": 10 * number * cost, "bytes_up": number * cost}
        models.append(
            {
                "number": number,
                "round": last + rounds if number else None,
                "first_round": last + 1 if number else None,
                "unit": unit or None,
                "budget": macs + 20 if number else None,
                "resource": macs,
                "macs": macs,
                "parameters": macs // 10,
                "bytes": 4 * (macs // 10),
                "sizes": {**dict(zip(GROUPS, sizes, strict=True)), "classes": 4},
                "accuracy": accuracy,
                "rounds": rounds,
                "groups": [{"clients": 5, "examples": 50, "distance": 0.02}] * 2 if number else [],
                "candidates": candidates,
                "costs": costs if number else {"macs": 5, "bytes_down": 9, "bytes_up": 7},
            }
        )
        last += rounds
    for number in range(last + 1):
        costs = {"status": "ok", "macs": 50, "bytes_down": 20, "bytes_up": 20, "client": 0}
        append_round(folder, {"round": number, "metrics": {"clients/loss": 1.0}, "clients": [costs]})
    sequence = {"resource": "macs", "initial": steps[0][2], "budget": steps[-1][2], "clients": clients}
    whole = {**sequence, "units": dict(units), "complete": complete, "models": models, "under_way": None}
    write_sequence(folder, whole)
    return Run(folder)


def finetuned(run: Run, tiers: Mapping[str, tuple[int, float, float | None]], name: str = "finetune") -> Run:
    """Fine-tunes networks of tiers: the model's number, its validation accuracy after and its test accuracy.

    Before, its accuracy was half of that on the validation data.
    """
    files = FinetuneFiles(run.folder / name)
    rows = [
        {
            "tier": tier,
            "number": 0,
            "arch": f"model: {model}",
            "val_accuracy_before": val / 2,
            "val_accuracy": val,
            "test_accuracy": test,
        }
        for tier, (model, val, test) in tiers.items()
    ]
    files.write("tiers", rows)
    files.write_settings({"search": "searched", "complete": True})
    return run


def by_clients(run: Run, models: Mapping[int, tuple[float, float | None]], name: str = "finetune") -> Run:
    """All clients have tested models of a sequence: their accuracies before and after fine-tuning."""
    rows = [{"arch": f"model: {model}", "accuracy_before": x, "accuracy": y} for model, (x, y) in models.items()]
    FinetuneFiles(run.folder / name).write("models", rows)
    return run


def searched(run: Run, tiers: Mapping[str, tuple[int, float]], evaluations: Mapping[int, float]) -> Run:
    """The search that a fine-tuning followed: each tier's model and its test accuracy; validated models."""
    files = SearchFiles(run.folder / "searched")
    best = [{"tier": name, "arch": f"model: {model}", "test_accuracy": x} for name, (model, x) in tiers.items()]
    files.write("tiers", best)
    files.write("evaluations", [{"arch": f"model: {model}", "accuracy": x} for model, x in evaluations.items()])
    return run
