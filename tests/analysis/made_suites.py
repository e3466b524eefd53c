"""Runs of growing suites, written by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lit_fednas.analysis.runs import Run
from lit_fednas.records import append_round, write_suite

#: Parent, round, MACs and steps of each model.
Grown = Sequence[tuple[int | None, int | None, int, Sequence[Mapping[str, Any]]]]

WIDEN, DEEPEN = {"widen": "conv1", "sizes": {"conv1.out": 16}}, {"deepen": "conv2", "names": ["conv2_m2"]}
THREE: Grown = [(None, None, 1000, []), (0, 1, 2500, [WIDEN]), (1, 2, 6_000_000, [WIDEN, DEEPEN])]


def made_suite(
    folder: Path, grown: Grown = THREE, rounds: Sequence[Sequence[Mapping[str, Any]]] = (), complete: bool = True
) -> Run:
    """A run of a suite; a model has a tenth as many parameters as MACs, of four bytes each.

    Args:
        folder: Where.
        grown: The models.
        rounds: What is recorded of each client of each round, beside its status and its costs.
        complete: Whether no larger model fits.
    """
    models = [
        {
            "number": number,
            "parent": parent,
            "round": round,
            "cells": f"conv1 {8 + number}, head",
            "macs": macs,
            "parameters": macs // 10,
            "bytes": 4 * (macs // 10),
            "steps": list(steps),
            "degree_of_convergence": None if parent is None else 0.002,
            "activeness": {} if parent is None else {"conv1": 0.5, "conv2": 0.25},
        }
        for number, (parent, round, macs, steps) in enumerate(grown)
    ]
    for number, clients in enumerate(rounds):
        costs = {"status": "ok", "macs": 50, "bytes_down": 20, "bytes_up": 20}
        append_round(folder, {"round": number, "metrics": {}, "clients": [{**costs, **one} for one in clients]})
    write_suite(folder, models, complete)
    return Run(folder)
