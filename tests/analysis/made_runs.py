"""Runs written by hand, for tables with predictable values: plain ones, pruned sequences, growing suites."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from lit_fednas.analysis import Run
from lit_fednas.records import FinetuneFiles
from lit_fednas.records.files import replace_json
from lit_fednas.records.run import OF_CLASSES, SEQUENCE_FILE, SUITE_FILE, append_round
from lit_fednas.records.tiers import WHOLE_COLUMNS

#: For each model the pruned unit, the remaining sizes of conv1, conv2 and fc, the MACs, and the clients' accuracy.
Steps = Sequence[tuple[str, tuple[int, int, int], int, float | None]]

GROUPS = ("conv1.out", "conv2.out", "fc.out")
UNITS = {"conv1": ["conv1.out"], "conv2": ["conv2.out"], "fc": ["fc.out"]}
FOUR: Steps = [
    ("", (8, 16, 20), 1000, 0.75),
    ("conv2", (8, 12, 20), 750, 0.7),
    ("fc", (8, 12, 10), 600, 0.5),
    ("conv2", (8, 4, 10), 400, 0.625),
]

#: Default records of a client, of settings of a search or a fine-tuning, and of a row of a table.
CLIENT = {"client": 0, "arch": "a", "status": "ok", "reason": "", "loss": None, "seconds": 0.0}
CLIENT |= dict.fromkeys(("num_examples", "num_seen", "num_units", "num_steps", "macs", "bytes_down", "bytes_up"), 0)
SETTINGS: dict[str, Any] = {"metric": "accuracy", "metrics": OF_CLASSES, "weights": None, "tiers": [], "complete": True}
ROW = {"arch": "a", "tier": "t", **dict.fromkeys(WHOLE_COLUMNS, 0)}

#: Parent, round, MACs and steps of each model.
Grown = Sequence[tuple[int | None, int | None, int, Sequence[Mapping[str, Any]]]]

WIDEN, DEEPEN = {"widen": "conv1", "sizes": {"conv1.out": 16}}, {"deepen": "conv2", "names": ["conv2_m2"]}
THREE: Grown = [(None, None, 1000, []), (0, 1, 2500, [WIDEN]), (1, 2, 6_000_000, [WIDEN, DEEPEN])]


def made_run(
    folder: Path,
    accuracies: Mapping[str, Sequence[float | None]],
    macs: int = 100,
    seed: int | None = None,
    subnets: Mapping[str, int] | None = None,
    weights: str | None = None,
) -> Run:
    """Writes a run with each metric's value in each round, ``None`` if it was not validated.

    Its two clients spend ``macs`` in each round, and for each of these 10 bytes down and 4 up. ``seed`` is in its
    configuration, ``subnets`` are the MACs of the evaluated ones, a letter of ``weights`` is the digest of a round.
    """
    folder.mkdir(parents=True)
    for number in range(len(next(iter(accuracies.values())))):
        metrics = {name: values[number] for name, values in accuracies.items() if values[number] is not None}
        costs = {"macs": macs // 2, "bytes_down": 5 * macs, "bytes_up": 2 * macs}
        clients = [{**CLIENT, "client": client, **costs} for client in (0, 1)]
        digest = {"weights": weights[number]} if weights else {}
        metrics = {"clients/loss": 1.0, **metrics}
        append_round(folder, {"round": number, **digest, "metrics": metrics, "clients": clients})
    if seed is not None:
        (folder / "config.yaml").write_text(yaml.safe_dump({"seed_everything": seed, "ckpt_path": None}))
    if subnets is not None:
        rows = [f"{name},{name},val,0.5,1.0,{cost},1,4" for name, cost in subnets.items()]
        lines = ["subnet,arch,split,accuracy,loss,macs,parameters,bytes", *rows]
        (folder / "subnets-val.csv").write_text("\n".join(lines) + "\n")
    return Run(folder)


def candidate(unit: str, accuracies: Sequence[float | None], dropped: int | None, resource: float) -> dict[str, Any]:
    """Returns the record of a candidate that loses a filter."""
    accuracy_record = {"accuracies": list(accuracies), "degradations": [0.001] * len(accuracies), "dropped": dropped}
    costs = {"unit": unit, "removed": {f"{unit}.out": 1}, "resource": resource, "macs": resource, "group": 0}
    return {**costs, **accuracy_record}


def made_sequence(
    folder: Path, steps: Steps = FOUR, units: Mapping[str, Sequence[str]] = UNITS, complete: bool = True
) -> Run:
    """Writes a run of ten clients; iteration t takes t + 1 rounds and costs t times as much as the first.

    The first iteration costs all clients 1 MB up, ten times as much down, and a thousand MACs for each byte up; the
    initial model cost 7 bytes up, 9 down and 5 MACs.
    """
    models = []
    last = -1
    for number, (unit, sizes, macs, accuracy) in enumerate(steps):
        model = {"number": number, "unit": unit or None, "resource": macs, "macs": macs, "parameters": macs // 10}
        model |= {"bytes": 4 * (macs // 10), "sizes": {**dict(zip(GROUPS, sizes, strict=True)), "classes": 4}}
        model |= {"accuracy": accuracy, "rounds": 0, "round": None, "first_round": None, "budget": None}
        model |= {"groups": [], "candidates": [], "costs": {"macs": 5, "bytes_down": 9, "bytes_up": 7}}
        if number:
            rounds = number + 1
            series = (accuracy or 0.0, None, *[accuracy] * rounds)[-rounds:]
            other = next(name for name in units if name != unit)
            up = number * 1_000_000
            model |= {"rounds": rounds, "round": last + rounds, "first_round": last + 1, "budget": macs + 20}
            model |= {"groups": [{"clients": 5, "examples": 50, "distance": 0.02}] * 2}
            model |= {"candidates": [candidate(unit, series, None, macs), candidate(other, [0.25], 1, macs + 10)]}
            model |= {"costs": {"macs": 1000 * up, "bytes_down": 10 * up, "bytes_up": up}}
            last += rounds
        models.append(model)
    for number in range(last + 1):
        costs = {"macs": 50, "bytes_down": 20, "bytes_up": 20}
        append_round(folder, {"round": number, "metrics": {"clients/loss": 1.0}, "clients": [CLIENT | costs]})
    sequence = {"resource": "macs", "initial": steps[0][2], "budget": steps[-1][2], "clients": 10}
    record = {**sequence, "units": dict(units), "complete": complete, "models": models, "under_way": None}
    replace_json(folder / SEQUENCE_FILE, record)
    return Run(folder)


def by_clients(run: Run, models: Mapping[int, tuple[float, float | None]], name: str = "finetune") -> Run:
    """Adds the accuracies of models of a sequence over all clients, before and after fine-tuning."""
    rows = [{**ROW, "arch": f"model: {model}", "accuracy_before": x, "accuracy": y} for model, (x, y) in models.items()]
    FinetuneFiles(run.folder / name).write("models", rows)
    return run


def made_suite(
    folder: Path, grown: Grown = THREE, rounds: Sequence[Sequence[Mapping[str, Any]]] = (), complete: bool = True
) -> Run:
    """Writes a run of a suite; ``rounds`` hold the record of each client, without its status and costs.

    A model has a tenth as many parameters as MACs, of four bytes each.
    """
    models = []
    for number, (parent, round, macs, steps) in enumerate(grown):
        model = {"number": number, "parent": parent, "round": round, "cells": f"conv1 {8 + number}, head"}
        costs = {"macs": macs, "parameters": macs // 10, "bytes": 4 * (macs // 10)}
        reasons = {"degree_of_convergence": 0.002, "activeness": {"conv1": 0.5, "conv2": 0.25}}
        no_reasons = {"degree_of_convergence": None, "activeness": {}}
        models.append({**model, **costs, "steps": list(steps), **(no_reasons if parent is None else reasons)})
    for number, clients in enumerate(rounds):
        costs = {**CLIENT, "macs": 50, "bytes_down": 20, "bytes_up": 20}
        append_round(folder, {"round": number, "metrics": {}, "clients": [{**costs, **client} for client in clients]})
    replace_json(folder / SUITE_FILE, {"models": models, "complete": complete})
    return Run(folder)
