"""Reads a study's file, or a sweep file of Weights & Biases, and validates it before training.

Combinations of parameters and their commands equal those of W&B's agent. But W&B's server draws ``random`` sweeps; here
a draw depends only on (seed, parameter, number), so that more draws do not change the earlier ones.
"""

import inspect
import math
import os
import re
from argparse import ArgumentError
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from itertools import product
from pathlib import Path
from typing import Any

from lit_fednas.analysis.comparison import compare
from lit_fednas.analysis.networks import checked_tiers
from lit_fednas.cli.commands import parsed
from lit_fednas.config_files import find, read_yaml
from lit_fednas.errors import ConfigError
from lit_fednas.records.files import check_folder_name, check_folder_names
from lit_fednas.studies.findings import LEDGER, METRICS, MINUTES, SOURCES, STATISTICS, figure
from lit_fednas.studies.study import SEED, STEPS, Arm, Claim, Step, Study, check_seeds, folder_of, require_known

_SHARED = ("configs", "options", "then")
_ARM = (*_SHARED, "tiers")
_KEYS = ("name", "protocol", "seeds", *_ARM, "arms", "method", "parameters", "compare", "measures", "claims")
_COMPARE = ("metric", "macs", "bytes", "rounds", "targets")  # methods, tiers and the folder are the study's
#: Valid keys of a sweep file; some are only for W&B's server and pages.
SWEEP_KEYS = ("method", "parameters", "command", "program", "metric", "name", "description", "project", "entity")
#: W&B's default of ``command``.
DEFAULT_COMMAND = ["${env}", "${interpreter}", "${program}", "${args}"]
MOST_RUNS = 10_000
_VARIABLE = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")

#: Quantile functions by W&B's names: map the parameter's settings and a number from 0 to 1 to a value.
DISTRIBUTIONS: dict[str, Callable[[dict[str, Any], float], Any]] = {
    "constant": lambda p, u: p["value"],
    "categorical": lambda p, u: p["values"][int(u * len(p["values"]))],
    "int_uniform": lambda p, u: p["min"] + int(u * (p["max"] - p["min"] + 1)),
    "uniform": lambda p, u: p["min"] + u * (p["max"] - p["min"]),
    "q_uniform": lambda p, u: round((p["min"] + u * (p["max"] - p["min"])) / p.get("q", 1)) * p.get("q", 1),
    "log_uniform_values": lambda p, u: p["min"] * math.exp(u * math.log(p["max"] / p["min"])),
}


def read_study(path: Path | str, count: int | None = None, draw_seed: int = 0) -> Study:
    """Reads a study's file, or a sweep file of Weights & Biases; a random study has no arms without ``count``."""
    path = Path(path)
    content = read_yaml(find(path))
    try:
        of_wandb = isinstance(content, dict) and "parameters" in content and not {"arms", "configs"} & content.keys()
        return _parse_study(_mapping(content, "", SWEEP_KEYS if of_wandb else _KEYS), path.stem, count, draw_seed)
    except ConfigError as error:
        raise ConfigError(f"{path}: {str(error).removeprefix(': ')}") from error


def _parse_study(content: dict[str, Any], stem: str, count: int | None, draw_seed: int) -> Study:
    if isinstance(content.get("name"), bool):
        raise ConfigError("name: yes, no, on and off are true and false in YAML; quote the name")
    name = str(content.get("name") or stem)
    check_folder_name("name", name)
    method, parameters = content.get("method", "grid"), content.get("parameters")
    grid: list[dict[str, Any]] = [{}]
    if parameters is not None or "method" in content:
        if not isinstance(parameters, dict) or not parameters:
            raise ConfigError("parameters: missing; give at least one with its values")
        grid = [] if method == "random" and count is None else combinations(method, parameters, count, draw_seed)
    elif count is not None:
        raise ConfigError(f"count: {count} is for a study with method: random; leave it out")
    if "arms" not in content and "configs" not in content:
        arms = _sweep_arms(content, grid)
        check_folder_names("parameters", [arm.folder for arm in arms.values()])
        return Study(name, arms, compare=_sweep_comparison(_mapping(content.get("metric") or {}, "metric")))
    tiers = None if content.get("tiers") is None else checked_tiers(content["tiers"], "tiers")
    check_folder_names("tiers", tiers or ())
    arms = _arms(content, grid, tiers)
    seeds = content.get("seeds", [0])
    if not isinstance(seeds, list):
        raise ConfigError(f"seeds: {seeds} is not a list of numbers; write [0, 1]")
    check_seeds(seeds)
    comparison = None if content.get("compare") is None else _compare_options(_mapping(content["compare"], "compare"))
    measures = _mapping(content.get("measures") or {}, "measures")
    for measure, arguments in measures.items():
        _check_measure(f"measures.{measure}", arguments, arms)
    claims = [
        _parse_claim(f"claims[{index}]", claim, arms, {*measures, MINUTES})
        for index, claim in enumerate(content.get("claims") or ())
    ]
    protocol = str(content.get("protocol", "")).strip()
    return Study(name, arms, protocol, seeds, tiers, comparison, measures, claims)


def _sweep_comparison(metric: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the comparison's options for a sweep file's metric such as ``val/mean/accuracy``."""
    name, goal = str(metric.get("name", "")), metric.get("goal")
    measure = name.rpartition("/")[2]
    if name and not name.startswith(("val/", "test/")):
        raise ConfigError(f"metric.name: {name} is not a metric of networks; use one such as val/mean/accuracy")
    best = "maximize" if measure == "accuracy" else "minimize"
    if measure in METRICS["val"] and goal not in (None, best):
        raise ConfigError(f"metric.goal: {goal} selects the worst {measure}; write {best}")
    return {"metric": measure} if name else {}


def _sweep_arms(content: Mapping[str, Any], grid: list[dict[str, Any]]) -> dict[str, Arm]:
    """Returns one arm with the file's command for each combination of a sweep file."""
    command, program = content.get("command", DEFAULT_COMMAND), content.get("program", "")
    if not isinstance(command, list) or not command:
        raise ConfigError(f"command: {command!r} is not a list of words; write one, or leave it out")
    if "${program}" in command and not program:
        raise ConfigError("program: missing; the command needs it, such as lit-fednas")
    return {
        name: Arm(parameters=values, folder=name, command=expand(command, program, values))
        for name, values in zip(combination_names(grid), grid, strict=True)
    }


def _arms(content: Mapping[str, Any], grid: list[dict[str, Any]], tiers: Mapping[str, Any] | None) -> dict[str, Arm]:
    """Returns every arm with every combination of the parameters, by label."""
    shared = _parse_arm({name: content.get(name) for name in _SHARED}, "", tiers)
    single = "arms" not in content
    arms_content = {"": {}} if single else _mapping(content["arms"], "arms")
    if not arms_content:
        raise ConfigError("arms: missing; name at least one with its configs")
    arms: dict[str, Arm] = {}
    for label, settings in arms_content.items():
        where = f"arms.{label}"
        arm_settings = _parse_arm(_mapping(settings or {}, where, _ARM), f"{where}.", tiers)
        configs = [*arm_settings.get("configs", []), *shared.get("configs", [])]
        if not configs:
            raise ConfigError(f"{where}.configs: missing; name at least one configuration")
        defaults, overrides = shared.get("options", {}), arm_settings.get("options", {})
        options = {**{key: value for key, value in defaults.items() if key not in overrides}, **overrides}
        steps = arm_settings["then"] if "then" in arm_settings else shared.get("then", [])
        for values, name in zip(grid, combination_names(grid), strict=True):
            full = ", ".join(part for part in (str(label), name) if part)
            folder = ",".join(part for part in (folder_of(str(label)), name) if part)
            distinct = values if single else {"arm": str(label), **values}
            arms[full] = Arm(configs, {**options, **values}, steps, arm_settings.get("tiers"), distinct, folder)
    check_folder_names("arms", [arm.folder for arm in arms.values()])
    for label, arm in arms.items():
        for other in arm.needs():
            earlier = list(arms)[: list(arms).index(label)]
            require_known(other, [*earlier, SEED], f"arms.{label}: ${{{other}}}", "an arm before it")
    return arms


def _parse_arm(content: Mapping[str, Any], where: str, tiers: Mapping[str, Any] | None) -> dict[str, Any]:
    """Returns the settings of an arm without those that are null, with :class:`Step` objects."""
    settings = {name: value for name, value in content.items() if value is not None}
    for name in ("configs", "tiers", "then"):
        if not isinstance(settings.get(name, []), list):
            raise ConfigError(f"{where}{name}: {settings[name]} is not a list; write [...]")
    for name in _mapping(settings.get("options", {}), f"{where}options"):
        if name in ("trainer", "model", "data", "search", "finetune"):
            raise ConfigError(f"{where}options.{name}: is a group; give each option, as model.client.steps: 8")
    for tier in map(str, settings.get("tiers", ())):
        require_known(tier, tiers or {}, f"{where}tiers: {tier}", "a tier")
    if "then" in settings:
        settings["then"] = [_parse_step(f"{where}then[{index}]", step) for index, step in enumerate(settings["then"])]
    # an arm's search with the default name is compared with those of other arms
    searches = [step for step in settings.get("then", ()) if step.name == step.command == "search"]
    options = [*settings.get("options", ()), *(f"search.{option}" for step in searches for option in step.options)]
    if tiers and (budgets := [option for option in options if f"{option}.".startswith("search.tiers.")]):
        raise ConfigError(f"{where}{budgets[0]}: conflicts with the study's tiers; remove one of the two")
    return settings


def _parse_step(where: str, content: Any) -> Step:
    options_of_commands = {content: {}} if isinstance(content, str) else _mapping(content, where)
    if len(options_of_commands) != 1:
        raise ConfigError(f"{where}: {content} is not one command; write search: {{...}}")
    ((command, options),) = options_of_commands.items()
    require_known(str(command), STEPS, f"{where}: {command}", "a command after training")
    options = _mapping(options or {}, f"{where}.{command}")
    files = options.get("configs") or []
    if not isinstance(files, list) or not all(isinstance(path, str) for path in files):
        raise ConfigError(f"{where}.{command}.configs: {files} is not a list of files; write [...]")
    for path in map(find, reversed(files)):  # the last file with a name decides
        config = read_yaml(path) if path.is_file() else {}
        groups = config if isinstance(config, dict) else {}
        for key, group in ((f"{command}.name", groups), ("name", groups.get(command))):
            if isinstance(group, dict) and key in group:
                options = {"name": group[key], **options}
    step = Step(command, options)
    check_folder_name(f"{where}.{command}.name", step.name)
    return step


def _compare_options(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments of ``compared``, parsed like the options of ``lit-fednas compare``."""
    words = []
    for name, value in settings.items():
        require_known(str(name), _COMPARE, f"compare: {name}", "an option")
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *map(str, values)] if values and value is not None else []
    try:
        options = parsed("compare", compare, ["the study's", *words])
    except (ArgumentError, ConfigError) as error:
        raise ConfigError(f"compare: {' '.join(str(error).split())}") from error
    return {name: options[name] for name in settings}


def _check_measure(where: str, arguments: Any, arms: Mapping[str, Arm]) -> None:
    arguments = _mapping(arguments, where, list(inspect.signature(figure).parameters)[1:])
    sources = [source for source in SOURCES if source in arguments]
    if len(sources) != 1:
        raise ConfigError(
            f"{where}: has the sources {' and '.join(sources) or '(none)'}; give one of {', '.join(SOURCES)}"
        )
    for name in arguments:
        if name not in (sources[0], *SOURCES[sources[0]]):
            raise ConfigError(f"{where}.{name}: {arguments[name]} is not for {sources[0]}; leave it out")
    for name in ("last", "macs"):
        if name in arguments and "target" in arguments:
            raise ConfigError(f"{where}.{name}: {arguments[name]} has no effect with target; leave one of them out")
    if "ledger" in arguments:
        require_known(str(arguments["ledger"]), LEDGER, f"{where}.ledger: {arguments['ledger']}", "counted")
    if "table" in arguments and "column" not in arguments:
        raise ConfigError(f"{where}.column: missing; name a column of {arguments['table']}")
    if "statistic" in arguments:
        statistic = str(arguments["statistic"])
        require_known(statistic, STATISTICS, f"{where}.statistic: {statistic}", "a statistic")
        if "share" in arguments:
            raise ConfigError(f"{where}.statistic: {statistic} needs several rows; leave out share, which selects one")
    folder = str(arguments.get("tau") or Path(arguments.get("table", "")).parent)
    step_folders = {step.name for arm in arms.values() for step in arm.then}
    if folder != "." and arms:
        require_known(folder, sorted(step_folders), f"{where}: {folder}", "the folder of a search or a fine-tuning")


def _parse_claim(where: str, content: Any, arms: Mapping[str, Arm], measures: set[str]) -> Claim:
    settings = dict(_mapping(content, where, [attribute.name for attribute in fields(Claim)]))
    for name in ("paper", "where", "claim"):
        if name not in settings:
            raise ConfigError(f"{where}.{name}: missing; give paper, where and claim")
    for name in ("result", "baseline"):
        if name in settings:
            pair = settings[name]
            if not isinstance(pair, list) or len(pair) != 2:
                raise ConfigError(f"{where}.{name}: {pair} is not an arm and a measure; write [arm, measure]")
            require_known(str(pair[0]), arms, f"{where}.{name}: {pair[0]}", "an arm")
            require_known(str(pair[1]), sorted(measures), f"{where}.{name}: {pair[1]}", "a measure")
            settings[name] = str(pair[0]), str(pair[1])
    require_known(settings.get("effect", "ratio"), ("difference", "ratio"), f"{where}.effect", "difference or ratio")
    return Claim(**settings)


def _mapping(content: Any, where: str, keys: Sequence[str] = ()) -> dict[Any, Any]:
    """Validates that the content is a mapping; its keys must be among ``keys``, if given."""
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: {content!r} is not settings by name; write {', '.join(keys) or 'name'}: ...")
    for name in content if keys else ():
        require_known(str(name), keys, f"{where}: {name}", "a key")
    return content


def distribution(parameter: Mapping[str, Any]) -> str:
    """Returns the name of a parameter's distribution, by default the one that W&B infers from the keys."""
    if "distribution" in parameter:
        return str(parameter["distribution"])
    if "value" in parameter:
        return "constant"
    if "values" in parameter:
        return "categorical_w_probabilities" if "probabilities" in parameter else "categorical"
    if {"min", "max"} <= parameter.keys():
        are_integers = isinstance(parameter["min"], int) and isinstance(parameter["max"], int)
        return "int_uniform" if are_integers else "uniform"
    return "nested" if "parameters" in parameter else "nothing"


def combinations(
    method: str, parameters: Mapping[str, Mapping[str, Any]], count: int | None = None, seed: int = 0
) -> list[dict[str, Any]]:
    """Returns the values of every run by parameter."""
    if method not in ("grid", "random"):
        raise ConfigError(f"method: {method} needs W&B's server (wandb sweep); only grid and random do not")
    if (method == "grid") != (count is None):
        remedy = "a grid has all its combinations" if count else "give the number of draws, --count 20"
        raise ConfigError(f"count: {count} does not fit method: {method}; {remedy}")
    for name, parameter in parameters.items():
        _check_parameter(method, name, parameter)
    values = [settings.get("values", [settings.get("value")]) for settings in parameters.values()]
    number = math.prod(map(len, values)) if count is None else count
    if number > MOST_RUNS:
        raise ConfigError(f"parameters: {number:,} combinations; give at most {MOST_RUNS:,}")
    if count is None:
        return [dict(zip(parameters, choice, strict=True)) for choice in product(*values)]
    from lit_fednas.rng import numpy_generator  # imports torch, which takes seconds

    def draw(name: str, number: int) -> Any:
        share = numpy_generator(seed, f"sweep {name}", number).random()
        return DISTRIBUTIONS[distribution(parameters[name])](dict(parameters[name]), share)

    return [{name: draw(name, number) for name in parameters} for number in range(count)]


def _check_parameter(method: str, name: str, parameter: Any) -> None:
    if not isinstance(name, str) or not isinstance(parameter, dict):
        raise ConfigError(f"parameters.{name}: {parameter} is not settings; write {{value: {parameter}}}")
    if name == "seed_everything":
        raise ConfigError("parameters.seed_everything: is set by the seeds; give them to the command (--seeds 0 1)")
    allowed = DISTRIBUTIONS if method == "random" else ("constant", "categorical")
    kind = distribution(parameter)
    if kind not in allowed:
        raise ConfigError(f"parameters.{name}: {kind} is not among {', '.join(allowed)} of method: {method}")
    values, low, high = parameter.get("values", []), parameter.get("min", 0), parameter.get("max", math.inf)
    try:
        DISTRIBUTIONS[kind](parameter, 0.5)
        if not (isinstance(values, list) and low <= high):
            raise ValueError
    except (ArithmeticError, LookupError, TypeError, ValueError):
        raise ConfigError(f"parameters.{name}: {parameter} has no valid value; correct it") from None


def combination_names(combined: Sequence[Mapping[str, Any]]) -> list[str]:
    """Returns a name for each combination and its folder: the parameters' last words with their values."""
    names = [",".join(f"{key.split('.')[-1]}={_text(value)}" for key, value in values.items()) for values in combined]
    for name, count in Counter(names).items():
        if count > 1:
            raise ConfigError(f"parameters: two combinations have the name {name}; change a value")
    return names


def _text(value: Any) -> str:
    text = f"{value:.5g}" if isinstance(value, float) else str(value)
    return re.sub(r"[^\w.+-]+", "_", text)


def expand(command: Sequence[Any], program: str, values: Mapping[str, Any]) -> list[str]:
    """Replaces the macros of a sweep file's ``command`` like ``Agent._command_run`` of ``wandb/wandb_agent.py``."""
    macros = {
        "${env}": ["/usr/bin/env"],
        "${interpreter}": ["python"],
        "${program}": [str(program)],
        "${args}": [f"--{name}={value}" for name, value in values.items()],
    }
    words: list[str] = []
    for part in command:
        word = _VARIABLE.sub(lambda match: os.environ.get(match.group(1), match.group(1)), str(part))
        if word not in macros and "${" in word:
            raise ConfigError(f"command: {word} is none of {', '.join(macros)}, ${{envvar:NAME}}")
        words += macros.get(word, [word])
    return words
