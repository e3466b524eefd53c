"""The table of all commands with their modules and summaries; parses the options of commands that are functions."""

import ast
import inspect
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, get_args, get_origin

from lit_fednas.config_files import expanded
from lit_fednas.errors import did_you_mean
from lit_fednas.ranges import check_values

_ROOT = Path(__file__).parents[2]


class Command(NamedTuple):
    """The place of a command: a module, and a function or a ``Class.method`` in it."""

    module: str
    names: str

    @property
    def method(self) -> str:
        """The name of the function or method."""
        return self.names.rpartition(".")[2]

    @property
    def summary(self) -> str:
        """The first line of the docstring, read from the source because an import takes seconds."""
        path = _ROOT.joinpath(*self.module.split("."))
        node: Any = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_bytes())
        for name in self.names.split("."):
            node = next(part for part in node.body if getattr(part, "name", None) == name)
        return str(ast.get_docstring(node)).partition("\n")[0]

    def load(self) -> Any:
        """Imports the command's function or class."""
        return getattr(import_module(self.module), self.names.partition(".")[0])


#: Commands that LightningCLI runs with a configuration: methods of the trainer and of classes that take ``trainer``,
#: ``model`` or ``datamodule`` in their constructor. The method's arguments are the options.
TRAINING = {
    **{
        name: Command("lit_fednas.federation.trainer", f"FederatedTrainer.{name}")
        for name in ("fit", "validate", "test")
    },
    "search": Command("lit_fednas.search.command", "Search.run"),
    "finetune": Command("lit_fednas.finetune.finetuning", "Finetune.run"),
    "export": Command("lit_fednas.export", "Export.run"),
    "partition": Command("lit_fednas.cli.show_partition", "ShowPartition.run"),
}
#: Commands that start without importing Lightning, which takes seconds: functions with the options as arguments.
LIGHT = {
    "configs": Command("lit_fednas.config_files", "configs"),
    "study": Command("lit_fednas.studies.command", "study"),
    "compare": Command("lit_fednas.analysis.comparison", "compare"),
    "runs": Command("lit_fednas.analysis.run_list", "runs"),
    "flower init": Command("lit_fednas.flower.folder", "init"),
    "hub push": Command("lit_fednas.hub", "push"),
    "hub pull": Command("lit_fednas.hub", "pull"),
    "report": Command("lit_fednas.analysis.report", "report"),
    "completion": Command("lit_fednas.cli.completion", "completion"),
}
COMMANDS = {**TRAINING, **LIGHT}


def parsed(name: str, function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """Returns a function's validated arguments from the words after a command's name."""
    parser = parser_of(name, function)
    try:
        options = expanded(vars(parser.parse_args(words)))
    except ArgumentError as error:
        unknown = str(error).partition("unrecognized arguments: --")[2].partition(" ")[0].partition("=")[0]
        hint = did_you_mean(unknown, [action.dest for action in parser._actions]) if unknown else ""
        raise ArgumentError(None, f"{error}{hint}") from error
    parameters = inspect.signature(function, eval_str=True).parameters
    check_values(options, {name: parameter.annotation for name, parameter in parameters.items()})
    return options


def parser_of(name: str, function: Callable[..., Any]) -> Any:
    """Returns the parser of a function's arguments; their help texts come from its docstring."""
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
        if list_type := next((part for part in (hint, *get_args(hint)) if get_origin(part) is list), None):
            (hint,), settings["nargs"] = get_args(list_type), "+"
            settings.update({} if positional else {"action": "extend"})
        parser.add_argument(argument if positional else f"--{argument}", type=hint, **settings)
    return parser
