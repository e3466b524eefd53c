"""Completion of commands, options and configurations in a shell: a script that shtab writes once."""

from argparse import SUPPRESS, Action, ArgumentParser
from collections.abc import Mapping
from typing import Any, Literal

from lit_fednas.cli.commands import COMMANDS, LIGHT, parser_of
from lit_fednas.config_files import names
from lit_fednas.errors import ConfigError


def completion(shell: Literal["bash", "zsh"]) -> None:
    """Prints a script with which a shell completes commands, options and configurations.

    Args:
        shell: The shell that reads it, bash or zsh.

    Raises:
        ConfigError: The package shtab is not installed.
    """
    try:
        import shtab
    except ImportError:
        raise ConfigError("completion: needs the package shtab; pip install 'lit-fednas[completion]'") from None
    from lit_fednas.cli.lightning_cli import FederatedCLI

    class PrintCompletion(FederatedCLI):
        def parse_arguments(self, parser: Any, args: Any) -> None:
            light = {name: parser_of(name, command.load()) for name, command in LIGHT.items()}
            print(shtab.complete(_plain({**self._subcommand_parsers, **light}, shtab.FILE), shell))
            raise SystemExit(0)

    PrintCompletion([])


def _plain(parsers: Mapping[str, ArgumentParser], file: Mapping[str, Any]) -> ArgumentParser:
    """Returns the parser of all commands without types, of which jsonargparse's own completion tries each class."""
    known, function = " ".join(names()), "_lit_fednas_config_files"  # shtab completes as paths what is named so
    folders = " ".join(sorted({f"{name.partition('/')[0]}/" for name in names()}))
    either = f'[ "$1" ] && compgen -W "{known}" -- "$1" || compgen -W "{folders}" -- "$1"'
    definitions = {
        "bash": f'{function}() {{ compgen -f -- "$1"; {either}; }}',
        "zsh": f"{function}() {{ _files; _multi_parts / '({known})'; }}",
    }
    config = {**dict.fromkeys(definitions, function), "preamble": definitions}
    root = ArgumentParser("lit-fednas")
    root.add_argument("--version", action="version", version="")
    groups: dict[str, Any] = {"": root.add_subparsers()}
    for name, command in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        if group not in groups:
            groups[group] = groups[""].add_parser(group, help=f"Commands of {group}").add_subparsers()
        parser = groups[group].add_parser(word, help=command.summary)
        for action in parsers[name]._actions:
            if action.help != SUPPRESS and "--help" not in action.option_strings:
                _add(parser, action, config if "--config" in action.option_strings else file)
    return root


def _add(parser: ArgumentParser, action: Action, complete: Mapping[str, Any]) -> None:
    """Adds an option or argument, which may be repeated."""
    settings: dict[str, Any] = {"action": "append", "nargs": action.nargs} if action.nargs != 0 else {"action": "count"}
    help = str(action.help or "").replace("%", "%%")
    added: Any = parser.add_argument(*(action.option_strings or [action.dest]), **settings, help=help)
    if action.nargs is None or not action.option_strings:  # in bash no option would be completed after several files
        added.complete = complete
