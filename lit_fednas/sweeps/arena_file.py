"""An arena file: methods that are trained on the same data with the same seeds, and compared at the same tiers.

::

    name: digits                  # of the folder; the file's own name if not given
    seeds: [0, 1]
    tiers:                        # budgets of a network; as the searches found them if not given
      small: {macs: 0.8e+6}
      large: {macs: 2.5e+6}
    common:                       # what all methods share, over their own configurations
      configs: [common.yaml]
      options: {data.num_clients: 20}

Methods:
      SuperFed:
        configs: [superfed/digits.yaml]
        options: {trainer.max_rounds: 40}     # over what is common
        search: {evaluations: 100}            # the options of lit-fednas search; else lit-fednas test is run
      HeteroFL:
        configs: [width/digits.yaml]
      FedorAS:
        configs: [fedoras/digits.yaml]
        search: {}
        finetune:                             # after the search, by name; each is compared as a method of its own
          fine-tuned: {configs: [fedoras/finetune/digits.yaml], rounds: 5}
          from scratch: {rounds: 20, initial: random}
    compare: {macs: equal, targets: [0.9]}    # of lit-fednas compare: metric, macs, bytes, rounds, targets

In configurations and options, ``${seed}`` is the seed: a method can begin with another's run of the same seed, such as
``runs/digits/SuperFed/seed${seed}/checkpoints/last.ckpt``, if that method comes before it and ``--jobs`` is 1.
"""

from __future__ import annotations

import json
from argparse import ArgumentError
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import yaml

from lit_fednas.comparison.command import compare
from lit_fednas.comparison.tiers import checked_tiers
from lit_fednas.config_files import find
from lit_fednas.errors import ConfigError, did_you_mean
from lit_fednas.options import parsed
from lit_fednas.records.files import check_folder_name

_BUDGETS = "lit_fednas.tiers.Budgets"
_SEED = "${seed}"
_CONFIGS = "configs"
_COMPARE = ("metric", "macs", "bytes", "rounds", "targets")  # the arena has methods, tiers and a folder of its own


@dataclass(frozen=True)
class Settings:
    """What goes to the commands of a method, or of all methods.

    Attributes:
        configs: Configuration files, in their order.
        options: Settings by dotted name.
    """

    configs: list[str] = field(default_factory=list)
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method(Settings):
    """One method.

    Attributes:
        search: Options of ``lit-fednas search``; without them ``lit-fednas test`` evaluates the run's own subnets.
        finetune: Options of ``lit-fednas finetune``, after a search, by the fine-tuning's name.
        tiers: Names of the tiers that are searched; all if not given.
    """

    search: dict[str, Any] | None = None
    finetune: dict[str, dict[str, Any]] = field(default_factory=dict)
    tiers: list[str] | None = None


@dataclass(frozen=True)
class Arena:
    """The content of an arena file.

    Attributes:
        name: Of the folder.
        methods: By label.
        common: What all methods share.
        seeds: Of every method.
        tiers: Budgets of a network, by tier.
        compare: Further arguments of :func:`lit_fednas.comparison.command.compared`.
    """

    name: str
    methods: dict[str, Method]
    common: Settings = Settings()
    seeds: list[int] = field(default_factory=lambda: [0])
    tiers: dict[str, dict[str, float]] | None = None
    compare: dict[str, Any] = field(default_factory=dict)

    def commands(self, label: str, seed: int, extra: Sequence[str] = ()) -> list[list[str]]:
        """Returns a method's commands, one after the other.

        Args:
            label: Of the method.
            seed: The seed.
            extra: What goes to each command.

        Example:
            >>> arena = Arena("a", {"X": Method(["x.yaml"], {"data.num_clients": 5})})
            >>> for words in arena.commands("X", 1):
            ...     print(*words)
            lit-fednas fit --config x.yaml --data.num_clients=5 --seed_everything=1
            lit-fednas test --config x.yaml --data.num_clients=5 --seed_everything=1
        """
        method = self.methods[label]
        configs = {_CONFIGS: [*method.configs, *self.common.configs]}
        settings = _words("", {**configs, **self.common.options, **method.options})
        settings += [f"--seed_everything={seed}", *extra]
        commands = [["lit-fednas", "fit", *settings]]
        if method.search is None:
            commands.append(["lit-fednas", "test", *settings])
        else:
            commands.append(
                ["lit-fednas", "search", *settings, *self._tiers(method), *_words("search.", method.search)]
            )
        for name, options in method.finetune.items():
            own = _words("finetune.", {"name": folder_of(name), **options})
            commands.append(["lit-fednas", "finetune", *settings, *own])
        return [[word.replace(_SEED, str(seed)) for word in command] for command in commands]

    def _tiers(self, method: Method) -> Iterator[str]:
        if self.tiers is not None:
            budgets = {name: self.tiers[name] for name in method.tiers or self.tiers}
            yield from _words("search.", {"tiers": {"class_path": _BUDGETS, "init_args": {"budgets": budgets}}})


def read_arena(path: Path) -> Arena:
    """Reads an arena file.

    Args:
        path: The file, or the name of one of the package's.

    Returns:
        Its content.

    Raises:
        ConfigError: It cannot be read, or a key is missing, unknown, or of another kind than is needed.
        DataError: A tier's budgets cannot work.
    """
    try:
        content = yaml.safe_load(find(path).read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {' '.join(str(error).split())}") from error
    given = _mapping(content, str(path), Arena)
    if not given.get("methods"):
        raise ConfigError(f"{path}: methods: missing; name at least one with its configs")
    methods = {}
    for label, settings in _mapping(given["methods"], f"{path}: methods").items():
        methods[str(label)] = Method(**_mapping(settings, f"{path}: methods.{label}", Method))
        check_folder_name(f"{path}: methods", folder_of(str(label)))
    tiers = None if given.get("tiers") is None else checked_tiers(given["tiers"], str(path))
    common = Settings(**_mapping(given.get("common") or {}, f"{path}: common", Settings))
    seeds = given.get("seeds", [0])
    if not isinstance(seeds, list) or not seeds or any(type(seed) is not int for seed in seeds):
        raise ConfigError(f"{path}: seeds: {seeds} is not a list of numbers; write [0, 1]")
    name = str(given.get("name") or path.stem)
    check_folder_name(f"{path}: name", name)
    comparison = _compare_options(_mapping(given.get("compare") or {}, f"{path}: compare"), f"{path}: compare")
    arena = Arena(name, methods, common, seeds, tiers, comparison)
    for label, method in methods.items():
        _check(arena, method, f"{path}: methods.{label}")
    if len({folder_of(label) for label in methods}) < len(methods):
        raise ConfigError(f"{path}: methods: two labels make the same folder; change one")
    return arena


def _compare_options(settings: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Returns the arguments of ``compared``, read as ``lit-fednas compare`` reads its options.

    Raises:
        ConfigError: One is unknown, or its value cannot work.
    """
    for name in settings:
        if name not in _COMPARE:
            near = did_you_mean(str(name), _COMPARE)
            raise ConfigError(f"{where}: {name}: is unknown{near}; choose from {', '.join(_COMPARE)}")
    words = []
    for name, value in settings.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *map(str, values)] if values and value is not None else []
    try:
        options = parsed("compare", compare, ["the arena's", *words])
    except (ArgumentError, ConfigError) as error:
        raise ConfigError(f"{where}: {' '.join(str(error).split())}") from error
    return {name: options[name] for name in settings}


def folder_of(label: str) -> str:
    """Returns the name of a method's folder.

    Example:
        >>> folder_of("FedAvg, smallest")
        'FedAvg_smallest'
    """
    return "_".join("".join(one if one.isalnum() or one in ".+-" else " " for one in label).split())


def _check(arena: Arena, method: Method, where: str) -> None:
    """Validates what a method is given against its arena."""
    for name in ("configs", "tiers"):
        if not isinstance(getattr(method, name) or [], list):
            raise ConfigError(f"{where}.{name}: {getattr(method, name)} is not a list; write [...]")
    for name in ("options", "search", "finetune"):
        _mapping(getattr(method, name) or {}, f"{where}.{name}")
    for name, options in method.finetune.items():
        _mapping(options, f"{where}.finetune.{name}")
    if not method.configs and not arena.common.configs:
        raise ConfigError(f"{where}.configs: missing; name at least one configuration")
    if method.finetune and method.search is None:
        raise ConfigError(f"{where}.finetune: begins with the networks of a search; add search: {{}}")
    for tier in method.tiers or ():
        if tier not in (arena.tiers or {}):
            raise ConfigError(f"{where}.tiers: {tier} is not a tier; choose from {', '.join(arena.tiers or {})}")


def _mapping(content: Any, where: str, form: type | None = None) -> dict[str, Any]:
    """Returns a mapping; with a dataclass, one of its fields."""
    known = [] if form is None else [one.name for one in fields(form)]
    if not isinstance(content, dict):
        raise ConfigError(f"{where}: {content!r} is not settings by name; write {', '.join(known) or 'name'}: ...")
    for name in content if known else ():
        if name not in known:
            near = did_you_mean(str(name), known)
            raise ConfigError(f"{where}: {name}: is unknown{near}; choose from {', '.join(known)}")
    return content


def _words(prefix: str, settings: Mapping[str, Any]) -> list[str]:
    """Returns settings as words of a command line, after those of configuration files named in them."""
    options = {name: value if isinstance(value, str) else json.dumps(value) for name, value in settings.items()}
    options.pop(_CONFIGS, None)
    files = [word for path in settings.get(_CONFIGS, ()) for word in ("--config", path)]
    return [*files, *(f"--{prefix}{name}={value}" for name, value in options.items())]
