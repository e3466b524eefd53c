"""The options of a command that is a function: its arguments, with their types, ranges and texts."""

from __future__ import annotations

import inspect
from argparse import ArgumentError
from collections.abc import Callable, Sequence
from typing import Any, get_args, get_origin

from lit_fednas.errors import did_you_mean
from lit_fednas.ranges import check_values


def parsed(name: str, function: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """Returns a function's arguments out of the words of a command line.

    Args:
        name: The command.
        function: What it runs. A list takes any number of words; ``*words`` takes none of these.
        words: What follows the command.

    Raises:
        ArgumentError: A word is no option, or a value is not of its type.
        ConfigError: A value is out of range.
    """
    parser = _parser(name, function)
    try:
        options = vars(parser.parse_args(words))
    except ArgumentError as error:
        unknown = str(error).partition("unrecognized arguments: --")[2].partition(" ")[0].partition("=")[0]
        near = did_you_mean(unknown, [action.dest for action in parser._actions]) if unknown else ""
        raise ArgumentError(None, f"{error}{near}") from error
    parameters = inspect.signature(function, eval_str=True).parameters
    check_values(options, {name: parameter.annotation for name, parameter in parameters.items()})
    return options


def _parser(name: str, function: Callable[..., Any]) -> Any:
    """Returns the parser of a function's arguments; their texts are those of its docstring."""
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
        by_place = parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY
        if parameter.default is not parameter.empty:
            settings["default"] = parameter.default
            settings.update({"nargs": "?"} if by_place else {})
            settings.update({"nargs": "?", "const": True} if parameter.default is False else {})
        if many := next((one for one in (hint, *get_args(hint)) if get_origin(one) is list), None):
            (hint,), settings["nargs"] = get_args(many), "+"
            settings.update({} if by_place else {"action": "extend"})
        parser.add_argument(argument if by_place else f"--{argument}", type=hint, **settings)
    return parser
