"""Shell completion of commands, options and configurations: a script that shtab writes once."""

from argparse import SUPPRESS, ArgumentParser
from collections.abc import Mapping
from typing import Any, Literal

from lit_fednas.cli.commands import COMMANDS, LIGHT, parser_of
from lit_fednas.config_files import names
from lit_fednas.errors import ConfigError


def completion(shell: Literal["bash", "zsh"]) -> None:
    """Prints a completion script of commands, options, files and the package's configurations for a shell.

    Args:
        shell: The shell that sources the script, bash or zsh.

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
    """Returns a parser of all commands without types, since jsonargparse's completion would try every class."""
    configs, function = " ".join(names()), "_lit_fednas_config_files"  # shtab completes paths for a name with _files
    folders = " ".join(sorted({f"{name.partition('/')[0]}/" for name in names()}))
    complete = f'[ "$1" ] && compgen -W "{configs}" -- "$1" || compgen -W "{folders}" -- "$1"'
    definitions = {
        "bash": f'{function}() {{ compgen -f -- "$1"; {complete}; }}',
        "zsh": f"{function}() {{ _files; _multi_parts / '({configs})'; }}",
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
                if (
                    action.nargs is None or not action.option_strings
                ):  # after a list of files, bash would complete no option
                    added.complete = config if "--config" in words else file
    return root
