"""What a study holds: arms that are trained with the same seeds, and what follows, is compared and is claimed."""

import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from lit_fednas.errors import ConfigError, did_you_mean

#: Commands that may follow training, and what their options begin with.
STEPS = {"validate": "", "test": "", "search": "search.", "finetune": "finetune.", "export": ""}
SEED = "seed"
_BUDGETS = "lit_fednas.tiers.Budgets"
_REFERENCE = re.compile(r"\$\{([^}]+)\}")


@dataclass(frozen=True)
class Step:
    """A command after training."""

    command: str  # one of :data:`STEPS`
    # its own, without what they begin with; ``configs`` are files, which seed and tiers of the study override
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Of the folder in a run's that a search or a fine-tuning writes."""
        return folder_of(str(self.options.get("name", self.command)))

    def words(self) -> list[str]:
        """Returns its options as words of a command line, without its configurations."""
        named = {"name": self.name} if "name" in self.options else {}
        return option_words({**self.options, **named, "configs": None}, STEPS[self.command])


@dataclass(frozen=True)
class Arm:
    """What is trained with every seed."""

    configs: list[str] = field(default_factory=list)  # configuration files, in their order
    options: dict[str, Any] = field(default_factory=dict)  # settings by dotted name
    then: list[Step] = field(default_factory=list)  # what follows training
    tiers: list[str] | None = None  # names of the study's tiers that are searched; all if not given
    parameters: dict[str, Any] = field(default_factory=dict)  # what distinguishes it from the other arms, by name
    folder: str = ""  # the name of its folder
    command: list[str] = field(default_factory=list)  # the words of a sweep file's own command, in place of all above

    def needs(self) -> list[str]:
        """Returns the labels of arms whose folders it reads."""
        content = json.dumps([self.configs, self.options, [step.options for step in self.then]])
        return [label for label in dict.fromkeys(_REFERENCE.findall(content)) if label != SEED]


@dataclass(frozen=True)
class Claim:
    """A finding of a paper, and what would show it here."""

    paper: str  # the method's name
    where: str  # table, figure or section
    claim: str  # what the paper says
    result: tuple[str, str] | None = None  # arm and measure that are judged; without, it needs the paper's scale
    baseline: tuple[str, str] | None = None  # what the result is compared with, in the same seed; nothing if not given
    effect: Literal["difference", "ratio"] = "difference"  # of the two
    above: float = -float("inf")  # the effect that confirms the claim is above this
    below: float = float("inf")  # and below this
    note: str = ""  # the cause of what was found, or why it cannot be found at this size


@dataclass(frozen=True)
class Study:
    """The content of a study's file."""

    name: str  # of its folder
    arms: dict[str, Arm] = field(default_factory=dict)  # by label
    protocol: str = ""  # how settings were chosen
    seeds: list[int] = field(default_factory=lambda: [0])  # of every arm
    tiers: dict[str, dict[str, float]] | None = None  # budgets of a network, by tier
    # arguments of lit_fednas.analysis.comparison.compared; ``None`` for no comparison
    compare: dict[str, Any] | None = None
    # figures that are read from a run's folder: arguments of lit_fednas.studies.findings.figure
    measures: dict[str, dict[str, Any]] = field(default_factory=dict)
    claims: list[Claim] = field(default_factory=list)  # what is judged

    def chosen(self, labels: Sequence[str] | None) -> list[str]:
        """Returns the labels of the arms to be run, all if none is given."""
        for label in labels or ():
            require_known(label, self.arms, f"arms: {label}", "an arm")
        return [label for label in self.arms if not labels or label in labels]

    def folder(self, label: str, seed: int, out: Path = Path("runs")) -> Path:
        """Returns the folder of a run."""
        return out / self.name / self.arms[label].folder / f"seed{seed}"

    def commands(self, label: str, seed: int, extra: Sequence[str] = (), out: Path = Path("runs")) -> list[list[str]]:
        """Returns an arm's commands, one after the other, each with ``extra`` words."""
        arm = self.arms[label]
        end = [f"--seed_everything={seed}", *extra]
        if arm.command:
            return [[*arm.command, *end]]
        settings = option_words({"configs": arm.configs, **arm.options})
        commands = [["lit-fednas", "fit", *settings, *end]]
        for step in arm.then:
            tiers: list[str] = []
            if step.command == "search" and self.tiers is not None:
                budgets = {name: self.tiers[name] for name in map(str, arm.tiers or self.tiers)}
                tiers = option_words({"tiers": {"class_path": _BUDGETS, "init_args": {"budgets": budgets}}}, "search.")
            # a step reads its own files after the arm's settings, so that they decide; its options come last
            files = option_words({"configs": step.options.get("configs")})
            commands.append(["lit-fednas", step.command, *settings, *files, *end, *tiers, *step.words()])
        # references to the seed and to the folders of other arms' runs
        filled = {SEED: str(seed), **{need: str(self.folder(need, seed, out)) for need in arm.needs()}}
        return [[_REFERENCE.sub(lambda match: filled[match[1]], word) for word in words] for words in commands]


def check_seeds(seeds: Sequence[Any]) -> None:
    """Validates that there are seeds, each once."""
    for seed in seeds:
        if type(seed) is not int or not 0 <= seed < 2**32:
            raise ConfigError(f"seeds: {seed!r} is not a number from 0 to 2^32 - 1; write [0, 1]")
    if twice := [seed for seed, count in Counter(seeds).items() if count > 1]:
        raise ConfigError(f"seeds: {twice[0]} is duplicated; give each seed once")
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


def require_known(name: str, known: Sequence[str] | Mapping[str, Any], where: str, kind: str) -> None:
    """Validates that a name is among those that are known."""
    if name not in known:
        near = did_you_mean(name, list(known))
        raise ConfigError(f"{where}: is not {kind}{near}; choose from {', '.join(known)}")
