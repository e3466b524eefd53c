"""The content of a study: arms that are trained with the same seeds, the commands after training, and claims."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lit_fednas.errors import ConfigError, did_you_mean

#: Commands after training, and the prefixes of their options.
STEPS = {"validate": "", "test": "", "search": "search.", "finetune": "finetune.", "export": ""}
SEED = "seed"
_BUDGETS = "lit_fednas.tiers.Budgets"
_REFERENCE = re.compile(r"\$\{([^}]+)\}")


@dataclass(frozen=True)
class Step:
    """A command after training."""

    command: str  # one of :data:`STEPS`
    # options of the command without their prefix; ``configs`` are files, which the study's seed and tiers override
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name of its folder in the run's folder, for a search or a fine-tuning."""
        return folder_of(str(self.options.get("name", self.command)))

    def words(self) -> list[str]:
        """Returns the options as words of a command line, without the configuration files."""
        name_option = {"name": self.name} if "name" in self.options else {}
        return option_words({**self.options, **name_option, "configs": None}, STEPS[self.command])


@dataclass(frozen=True)
class Arm:
    """Settings that are trained with every seed."""

    configs: list[str] = field(default_factory=list)  # configuration files in order
    options: dict[str, Any] = field(default_factory=dict)  # settings by dotted name
    then: list[Step] = field(default_factory=list)  # commands after training
    tiers: list[str] | None = None  # names of the study's tiers to search; all if not given
    parameters: dict[str, Any] = field(default_factory=dict)  # values by which arms differ, by name
    folder: str = ""  # name of the arm's folder
    command: list[str] = field(default_factory=list)  # words of a sweep file's command; replaces all settings above

    def needs(self) -> list[str]:
        """Returns the labels of the arms that this arm refers to."""
        content = json.dumps([self.configs, self.options, [step.options for step in self.then]])
        return [label for label in dict.fromkeys(_REFERENCE.findall(content)) if label != SEED]


@dataclass(frozen=True)
class Claim:
    """A finding of a paper, and the result that would confirm it."""

    paper: str  # name of the method
    where: str  # table, figure or section
    claim: str  # statement of the paper
    result: tuple[str, str] | None = None  # arm and measure; None for a claim that needs the paper's scale
    baseline: tuple[str, str] | None = None  # arm and measure to compare with, seed by seed; None for no baseline
    effect: Literal["difference", "ratio"] = "difference"  # between result and baseline
    above: float = -float("inf")  # lower bound of effects that confirm the claim
    below: float = float("inf")  # upper bound of effects that confirm the claim
    note: str = ""  # cause of the result, or of a missing result at this size


@dataclass(frozen=True)
class Study:
    """The content of a study's file."""

    name: str  # name of the study and of its folder
    arms: dict[str, Arm] = field(default_factory=dict)  # arms by label
    protocol: str = ""  # reasons for the settings
    seeds: list[int] = field(default_factory=lambda: [0])  # seeds of every arm
    tiers: dict[str, dict[str, float]] | None = None  # limits of a network by tier
    # arguments of lit_fednas.analysis.comparison.compared; ``None`` for no comparison
    compare: dict[str, Any] | None = None
    # figures of a run by name: arguments of lit_fednas.studies.findings.figure
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)

    def select(self, labels: Sequence[str] | None) -> list[str]:
        """Returns the labels of the arms to run; all labels by default."""
        for label in labels or ():
            require_known(label, self.arms, f"arms: {label}", "an arm")
        return [label for label in self.arms if not labels or label in labels]

    def folder(self, label: str, seed: int, out: Path = Path("runs")) -> Path:
        """Returns the folder of a run."""
        return out / self.name / self.arms[label].folder / f"seed{seed}"

    def commands(self, label: str, seed: int, extra: Sequence[str] = (), out: Path = Path("runs")) -> list[list[str]]:
        """Returns an arm's commands in order, each with ``extra`` words."""
        arm = self.arms[label]
        last_words = [f"--seed_everything={seed}", *extra]
        if arm.command:
            return [[*arm.command, *last_words]]
        settings = option_words({"configs": arm.configs, **arm.options})
        commands = [["lit-fednas", "fit", *settings, *last_words]]
        for step in arm.then:
            tiers: list[str] = []
            if step.command == "search" and self.tiers is not None:
                budgets = {name: self.tiers[name] for name in map(str, arm.tiers or self.tiers)}
                tiers = option_words({"tiers": {"class_path": _BUDGETS, "init_args": {"budgets": budgets}}}, "search.")
            # later words override earlier ones: the arm's settings, the step's files, the step's options
            files = option_words({"configs": step.options.get("configs")})
            commands.append(["lit-fednas", step.command, *settings, *files, *last_words, *tiers, *step.words()])
        # references to the seed and to the folders of other arms' runs
        values = {SEED: str(seed), **{need: str(self.folder(need, seed, out)) for need in arm.needs()}}
        return [[_REFERENCE.sub(lambda match: values[match[1]], word) for word in words] for words in commands]


def check_seeds(seeds: Sequence[Any]) -> None:
    """Validates seeds: at least one, and no duplicates."""
    for seed in seeds:
        if type(seed) is not int or not 0 <= seed < 2**32:
            raise ConfigError(f"seeds: {seed!r} is not a number from 0 to 2^32 - 1; write [0, 1]")
    if duplicates := [seed for seed, count in Counter(seeds).items() if count > 1]:
        raise ConfigError(f"seeds: {duplicates[0]} is duplicated; give each seed once")
    if not seeds:
        raise ConfigError("seeds: is empty; give at least one, such as [0]")


def option_words(settings: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Returns settings as words of a command line, after the configuration files that ``configs`` lists."""
    files = [word for path in settings.get("configs") or () for word in ("--config", path)]
    options = {name: value for name, value in settings.items() if name != "configs"}
    texts = {name: value if isinstance(value, str) else json.dumps(value) for name, value in options.items()}
    return [*files, *(f"--{prefix}{name}={text}" for name, text in texts.items())]


def folder_of(label: str) -> str:
    """Returns the name of an arm's folder."""
    return "_".join("".join(char if char.isalnum() or char in ".+-" else " " for char in label).split())


def require_known(name: str, choices: Sequence[str] | Mapping[str, Any], where: str, kind: str) -> None:
    """Validates that a name is one of the choices."""
    if name not in choices:
        suggestion = did_you_mean(name, list(choices))
        raise ConfigError(f"{where}: is not {kind}{suggestion}; choose from {', '.join(choices)}")
