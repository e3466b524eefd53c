"""A W&B sweep file, and the combinations of its parameters.

W&B draws ``random`` sweeps on its server; here a draw belongs to (seed, parameter, number), so that more draws
leave the earlier ones as they were.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import yaml

from lit_fednas.config_files import find
from lit_fednas.errors import ConfigError

#: Keys with a meaning here, and those that only W&B's server and pages need.
KNOWN = {"method", "parameters", "command", "program", "metric"} | {"name", "description", "project", "entity"}

#: What W&B takes where a file has no ``command``.
DEFAULT_COMMAND = ["${env}", "${interpreter}", "${program}", "${args}"]

#: Quantiles by W&B's names: from the parameter's settings and a number from 0 to 1 to a value.
DISTRIBUTIONS: dict[str, Callable[[dict[str, Any], float], Any]] = {
    "constant": lambda p, u: p["value"],
    "categorical": lambda p, u: p["values"][int(u * len(p["values"]))],
    "int_uniform": lambda p, u: p["min"] + int(u * (p["max"] - p["min"] + 1)),
    "uniform": lambda p, u: p["min"] + u * (p["max"] - p["min"]),
    "q_uniform": lambda p, u: round((p["min"] + u * (p["max"] - p["min"])) / p.get("q", 1)) * p.get("q", 1),
    "log_uniform_values": lambda p, u: p["min"] * math.exp(u * math.log(p["max"] / p["min"])),
}


def read_sweep_file(path: Path) -> dict[str, Any]:
    """Reads a sweep file, and validates that it can be run without a server.

    Returns:
        The file's settings.

    Raises:
        ConfigError: It needs the server, or lacks what a sweep needs.
    """
    try:
        sweep = yaml.safe_load(find(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(sweep, dict) or not isinstance(sweep.get("parameters"), dict) or not sweep["parameters"]:
        raise ConfigError(f"{path}: parameters: missing; name at least one with its values")
    if sweep.get("method") not in ("grid", "random"):
        raise ConfigError(
            f"{path}: method: {sweep.get('method')} needs W&B's server (wandb sweep); only grid and random do not"
        )
    if unknown := sorted(sweep.keys() - KNOWN):
        raise ConfigError(f"{path}: {unknown[0]}: works with W&B's server only (wandb sweep); leave it out")
    for name, parameter in sweep["parameters"].items():
        if not isinstance(name, str) or not isinstance(parameter, dict):
            raise ConfigError(f"{path}: parameters.{name}: {parameter} is not settings; write {{value: {parameter}}}")
        kind = distribution(parameter)
        allowed = DISTRIBUTIONS if sweep["method"] == "random" else ("constant", "categorical")
        if kind not in allowed:
            raise ConfigError(
                f"{path}: parameters.{name}: {kind} is not among {', '.join(allowed)} of a {sweep['method']} sweep"
            )
        try:
            DISTRIBUTIONS[kind](parameter, 0.5)
            right = isinstance(parameter.get("values", []), list) and parameter.get("min", 0) <= parameter.get(
                "max", math.inf
            )
        except (ArithmeticError, LookupError, TypeError, ValueError):
            right = False
        if not right:
            raise ConfigError(f"{path}: parameters.{name}: {parameter} leaves nothing to choose from; correct it")
    sweep = {"command": DEFAULT_COMMAND, "program": "", **sweep}
    if not isinstance(sweep["command"], list) or not sweep["command"]:
        raise ConfigError(f"{path}: command: {sweep['command']!r} is not a list of words; write one, or leave it out")
    if "${program}" in sweep["command"] and not sweep["program"]:
        raise ConfigError(f"{path}: program: missing; the command needs it, such as lit-fednas")
    return sweep


def distribution(parameter: dict[str, Any]) -> str:
    """Returns the name of a parameter's distribution, which W&B guesses from the keys where none is given.

    Example:
        >>> [distribution(p) for p in ({"value": 1}, {"min": 1, "max": 8}, {"min": 0.0, "max": 1})]
        ['constant', 'int_uniform', 'uniform']
    """
    if "distribution" in parameter:
        return str(parameter["distribution"])
    if "value" in parameter:
        return "constant"
    if "values" in parameter:
        return "categorical_w_probabilities" if "probabilities" in parameter else "categorical"
    if {"min", "max"} <= parameter.keys():
        whole = isinstance(parameter["min"], int) and isinstance(parameter["max"], int)
        return "int_uniform" if whole else "uniform"
    return "nested" if "parameters" in parameter else "nothing"


def combinations(sweep: dict[str, Any], count: int | None, seed: int = 0) -> list[dict[str, Any]]:
    """Returns the values of every run, by parameter.

    Args:
        sweep: From :func:`read_sweep_file`.
        count: Draws of a random sweep; a grid has as many as it has.
        seed: Of the draws.

    Raises:
        ConfigError: A grid is given a count, or a random sweep none.

    Example:
        >>> grid = {"method": "grid", "parameters": {"a": {"values": [1, 2]}, "b": {"value": 3}}}
        >>> combinations(grid, None)
        [{'a': 1, 'b': 3}, {'a': 2, 'b': 3}]
    """
    parameters = sweep["parameters"]
    if sweep["method"] == "grid":
        if count is not None:
            raise ConfigError(f"count: {count} is for random sweeps; a grid has all its combinations")
        values = [
            parameter["values"] if "values" in parameter else [parameter["value"]] for parameter in parameters.values()
        ]
        return [dict(zip(parameters, chosen, strict=True)) for chosen in product(*values)]
    if count is None or count < 1:
        raise ConfigError(f"count: {count} for a random sweep; give the number of draws, 1 or more")
    from lit_fednas.rng import numpy_generator  # imports torch, which takes seconds

    return [
        {
            name: DISTRIBUTIONS[distribution(parameter)](
                parameter, numpy_generator(seed, f"sweep {name}", number).random()
            )
            for name, parameter in parameters.items()
        }
        for number in range(count)
    ]
