"""The table of all commands: what each does, and where it is, so that only the one that is used is imported."""

from __future__ import annotations

from importlib import import_module
from typing import Any, NamedTuple


class Command(NamedTuple):
    """One line of ``lit-fednas --help``.

    Attributes:
        target: ``module:name`` of what runs.
        summary: The first line of its docstring.
    """

    target: str
    summary: str

    def load(self) -> Any:
        """Imports what runs."""
        module, name = self.target.split(":")
        return getattr(import_module(module), name)


_TRAINER = "lit_fednas.federation:FederatedTrainer"
#: Commands of a configuration, which LightningCLI reads: the trainer's methods, and classes whose constructor says
#: what it is handed of ``trainer``, ``model`` and ``datamodule``, and whose ``run`` has the options.
TRAINING = {
    "fit": Command(_TRAINER, "Trains the global weights."),
    "validate": Command(_TRAINER, "Evaluates the subnets of the global weights on the server's validation set."),
    "test": Command(_TRAINER, "Evaluates the subnets of the global weights on the test set."),
    "search": Command(
        "lit_fednas.search:Search", "Finds the best architecture of every tier, tests it, and writes its network."
    ),
    "finetune": Command(
        "lit_fednas.finetune:Finetune",
        "Trains each tier's network federatedly on the clients of that tier and above, or models that are named.",
    ),
    "export": Command(
        "lit_fednas.export:Export",
        "Writes a tier's network as a file that runs without this package, and checks it.",
    ),
    "partition": Command(
        "lit_fednas.data.statistics:ShowPartition",
        "Shows how the data are dealt to the clients: a table, and SuperFed's Fig. 9 as a picture.",
    ),
}
#: Commands that start without Lightning: functions whose arguments are the options. Those without a default are given
#: by place, as are those before ``/``; a list takes any number of words, and ``*words`` takes what follows ``--``.
LIGHT = {
    "configs": Command(
        "lit_fednas.config_files:configs", "Lists the configurations of the package, shows one, or copies them."
    ),
    "study": Command(
        "lit_fednas.studies.command:study",
        "Trains the arms of a study with the same seeds, compares them, and judges its claims.",
    ),
    "compare": Command(
        "lit_fednas.analysis.comparison.command:compare",
        "Shows methods beside each other: the best network of every device tier, and what training cost.",
    ),
    "flower init": Command(
        "lit_fednas.flower.folder:init", "Writes a folder from which a run starts over Flower's devices."
    ),
    "report": Command(
        "lit_fednas.analysis.commands:report", "Writes a finished run's folder as one HTML page that needs no network."
    ),
}
COMMANDS = {**TRAINING, **LIGHT}
#: Former commands, and what replaces them.
MOVED = {
    "arena": "lit-fednas study FILE (lit-fednas configs studies lists files to begin with)",
    "benchmark": "scripts/benchmark of the repository",
    "sweep": "lit-fednas study FILE, which reads sweep files as they are",
}
