"""The table of all commands: what each does, where it is, and how the options of those that are functions are read."""

import inspect
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple, get_args, get_origin

from lit_fednas.errors import did_you_mean
from lit_fednas.ranges import check_values


class Command(NamedTuple):
    """Where a command is, as ``module:name``, and the first line of its docstring."""

    target: str
    summary: str

    def load(self) -> Any:
        """Imports the command's function or class."""
        module, name = self.target.split(":")
        return getattr(import_module(module), name)


_TRAINER = "lit_fednas.federation:FederatedTrainer"
#: Commands of a configuration, which LightningCLI reads: the trainer's methods, and classes whose constructor says
#: what it is given of ``trainer``, ``model`` and ``datamodule``, and whose ``run`` has the options.
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
        "Writes a tier's network as a file that runs without this package, and checks it; or the supernet.",
    ),
    "partition": Command(
        "lit_fednas.data.overview:ShowPartition",
        "Shows what was understood of the data, and who has which: tables, and a picture as SuperFed's Fig. 9.",
    ),
}
#: Commands that start without Lightning, which takes seconds to import: functions whose arguments are the options.
LIGHT = {
    "configs": Command(
        "lit_fednas.config_files:configs", "Lists the configurations of the package, shows one, or copies them."
    ),
    "study": Command(
        "lit_fednas.studies.command:study",
        "Trains the arms of a study with the same seeds, compares them, and judges its claims.",
    ),
    "compare": Command(
        "lit_fednas.analysis.comparison:compare",
        "Shows methods beside each other: the best network of every device tier, and what training cost.",
    ),
    "runs": Command("lit_fednas.analysis.run_list:runs", "Lists the runs under a folder: method, best networks, size."),
    "flower init": Command(
        "lit_fednas.flower.folder:init", "Writes a folder from which a run starts over Flower's devices."
    ),
    "hub push": Command("lit_fednas.hub:push", "Uploads a supernet's folder to the Hugging Face hub."),
    "hub pull": Command(
        "lit_fednas.hub:pull", "Downloads a supernet's folder from the Hugging Face hub, or copies the package's."
    ),
    "report": Command(
        "lit_fednas.analysis.report:report", "Writes a finished run's folder as one HTML page that needs no network."
    ),
    "completion": Command("lit_fednas.cli.completion:completion", "Prints a script for a shell's completion."),
}
COMMANDS = {**TRAINING, **LIGHT}
#: Former commands, and what replaces them.
MOVED = {
    "arena": "lit-fednas study FILE (lit-fednas configs studies lists files to begin with)",
    "benchmark": "scripts/benchmark of the repository",
    "sweep": "lit-fednas study FILE, which reads sweep files as they are",
}


def parsed(name: str, function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """Returns a function's arguments, read from the words after a command's name and validated."""
    parser = parser_of(name, function)
    try:
        options = vars(parser.parse_args(words))
    except ArgumentError as error:
        unknown = str(error).partition("unrecognized arguments: --")[2].partition(" ")[0].partition("=")[0]
        near = did_you_mean(unknown, [action.dest for action in parser._actions]) if unknown else ""
        raise ArgumentError(None, f"{error}{near}") from error
    parameters = inspect.signature(function, eval_str=True).parameters
    check_values(options, {name: parameter.annotation for name, parameter in parameters.items()})
    return options


def parser_of(name: str, function: Callable[..., Any]) -> Any:
    """Returns the parser of a function's arguments, with the texts of its docstring."""
    from docstring_parser import parse
    from jsonargparse import ArgumentParser

    doc = parse(str(function.__doc__))
    texts = {part.arg_name: part.description for part in doc.params}
    parser = ArgumentParser(
        prog=f"lit-fednas {name}", description=doc.description, exit_on_error=False, allow_abbrev=False
    )
    for argument, parameter in inspect.signature(function, eval_str=True).parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            continue
        hint: Any = parameter.annotation
        settings: dict[str, Any] = {"help": texts[argument]}
        positional = parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY
        if parameter.default is not parameter.empty:
            settings["default"] = parameter.default
            settings.update({"nargs": "?"} if positional else {})
            settings.update({"nargs": "?", "const": True} if parameter.default is False else {})
        if many := next((part for part in (hint, *get_args(hint)) if get_origin(part) is list), None):
            (hint,), settings["nargs"] = get_args(many), "+"
            settings.update({} if positional else {"action": "extend"})
        parser.add_argument(argument if positional else f"--{argument}", type=hint, **settings)
    return parser
