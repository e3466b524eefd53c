"""Completion of commands, options and configurations in a shell: a script that shtab writes once."""

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Mapping
from typing import Any, Literal

from lit_fednas.cli.commands import COMMANDS, LIGHT, parser_of
from lit_fednas.config_files import names
from lit_fednas.errors import ConfigError


def completion(shell: Literal["bash", "zsh"]) -> None:
    """Prints a script for a shell's completion.

    It completes commands, options, files and the names of the package's configurations.

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
            parsers = self._subcommand_parsers | {name: parser_of(name, LIGHT[name].load()) for name in LIGHT}
            print(shtab.complete(_plain(parsers, shtab.FILE), shell))
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
    groups: dict[str, Any] = {"": root.add_subparsers()}
    for name, command in COMMANDS.items():
        group, _, word = name.rpartition(" ")
        if group not in groups:
            groups[group] = groups[""].add_parser(group, help=f"Commands of {group}").add_subparsers()
        parser = groups[group].add_parser(word, help=command.summary)
        for action in parsers[name]._actions:
            words, settings = action.option_strings or [action.dest], {"action": "append", "nargs": action.nargs}
            if action.help != SUPPRESS and "--help" not in words:
                settings = settings if action.nargs != 0 else {"action": "count"}
                added = parser.add_argument(*words, **settings, help=str(action.help or "").replace("%", "%%"))
                if action.nargs is None or not action.option_strings:  # bash would complete no option after many files
                    added.complete = config if "--config" in words else file
    return root
