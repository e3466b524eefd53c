"""Weights & Biases' sweeps: combinations of parameters, and the command of each, as W&B's agent makes them.

W&B draws ``random`` sweeps on its server; here a draw belongs to (seed, parameter, number), so that more draws leave
the earlier ones as they were.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from typing import Any

from lit_fednas.errors import ConfigError

#: Keys of a sweep file with a meaning here, and those that only W&B's server and pages need.
SWEEP_KEYS = ("method", "parameters", "command", "program", "metric", "name", "description", "project", "entity")
#: What W&B takes where a file has no ``command``.
DEFAULT_COMMAND = ["${env}", "${interpreter}", "${program}", "${args}"]
_VARIABLE = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")

#: Quantiles by W&B's names: from the parameter's settings and a number from 0 to 1 to a value.
DISTRIBUTIONS: dict[str, Callable[[dict[str, Any], float], Any]] = {
    "constant": lambda p, u: p["value"],
    "categorical": lambda p, u: p["values"][int(u * len(p["values"]))],
    "int_uniform": lambda p, u: p["min"] + int(u * (p["max"] - p["min"] + 1)),
    "uniform": lambda p, u: p["min"] + u * (p["max"] - p["min"]),
    "q_uniform": lambda p, u: round((p["min"] + u * (p["max"] - p["min"])) / p.get("q", 1)) * p.get("q", 1),
    "log_uniform_values": lambda p, u: p["min"] * math.exp(u * math.log(p["max"] / p["min"])),
}


def distribution(parameter: Mapping[str, Any]) -> str:
    """Returns the name of a parameter's distribution, which W&B guesses from the keys where none is given."""
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


def combinations(
    method: str, parameters: Mapping[str, Mapping[str, Any]], count: int | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """Returns the values of every run, by parameter."""
    if method not in ("grid", "random"):
        raise ConfigError(f"method: {method} needs W&B's server (wandb sweep); only grid and random do not")
    if (method == "grid") != (count is None):
        remedy = "a grid has all its combinations" if count else "give the number of draws, --count 20"
        raise ConfigError(f"count: {count} does not fit method: {method}; {remedy}")
    for name, parameter in parameters.items():
        _check_parameter(method, name, parameter)
    if count is None:
        values = [how["values"] if "values" in how else [how["value"]] for how in parameters.values()]
        return [dict(zip(parameters, chosen, strict=True)) for chosen in product(*values)]
    from lit_fednas.rng import numpy_generator  # imports torch, which takes seconds

    def drawn(name: str, number: int) -> Any:
        share = numpy_generator(seed, f"sweep {name}", number).random()
        return DISTRIBUTIONS[distribution(parameters[name])](dict(parameters[name]), share)

    return [{name: drawn(name, number) for name in parameters} for number in range(count)]


def _check_parameter(method: str, name: str, parameter: Any) -> None:
    if not isinstance(name, str) or not isinstance(parameter, dict):
        raise ConfigError(f"parameters.{name}: {parameter} is not settings; write {{value: {parameter}}}")
    if name == "seed_everything":
        raise ConfigError("parameters.seed_everything: is set by the seeds; give them to the command (--seeds 0 1)")
    allowed = DISTRIBUTIONS if method == "random" else ("constant", "categorical")
    kind = distribution(parameter)
    if kind not in allowed:
        raise ConfigError(f"parameters.{name}: {kind} is not among {', '.join(allowed)} of method: {method}")
    try:
        DISTRIBUTIONS[kind](parameter, 0.5)
        right = isinstance(parameter.get("values", []), list)
        right &= parameter.get("min", 0) <= parameter.get("max", math.inf)
    except (ArithmeticError, LookupError, TypeError, ValueError):
        right = False
    if not right:
        raise ConfigError(f"parameters.{name}: {parameter} leaves nothing to choose from; correct it")


def combination_names(combined: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a name for each combination, also of its folder: the parameters' last words, and their values."""
    names = [",".join(f"{key.split('.')[-1]}={_text(value)}" for key, value in values.items()) for values in combined]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"parameters: two combinations are called {name}; make their values differ")
    return names


def _text(value: Any) -> str:
    text = f"{value:.5g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^\w.+-]+", "_", text)


def expand(command: Sequence[Any], program: str, values: Mapping[str, Any]) -> list[str]:
    """Replaces the macros of a sweep file's ``command`` (as ``wandb/wandb_agent.py``, ``Agent._command_run``)."""
    flags = [f"{name}={value}" for name, value in values.items()]
    chosen = {name: value for name, value in values.items() if value is not False}
    macros = {
        "${env}": ["/usr/bin/env"],
        "${interpreter}": ["python"],
        "${program}": [str(program)],
        "${args}": [f"--{flag}" for flag in flags],
        "${args_no_hyphens}": flags,
        "${args_no_equals}": [word for name, value in values.items() for word in (f"--{name}", str(value))],
        "${args_no_boolean_flags}": [
            f"--{name}" if value is True else f"--{name}={value}" for name, value in chosen.items()
        ],
        "${args_json}": [json.dumps(dict(values))],
    }
    words: list[str] = []
    for part in command:
        word = _VARIABLE.sub(lambda match: os.environ.get(match.group(1), match.group(1)), str(part))
        if word not in macros and "${" in word:
            raise ConfigError(f"command: {word} is none of {', '.join(macros)}, ${{envvar:NAME}}")
        words += macros.get(word, [word])
    return words
