"""Runs a command, and reports errors that a user can fix in one line."""

import errno
import inspect
import os
import re
import signal
import sys
from argparse import ArgumentError
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from lit_fednas import __doc__ as package
from lit_fednas import __version__
from lit_fednas.cli.commands import COMMANDS, LIGHT, TRAINING, Command, parsed
from lit_fednas.config_files import find_config, find_modules, read_yaml
from lit_fednas.errors import ClientError, ConfigError, FedNASError, RankError, did_you_mean, place_of
from lit_fednas.formatting import announce, listing


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        args: The words after ``lit-fednas``; by default those of this process.

    Returns:
        The exit status: 0 for success; 2 for an error that the user can fix; 1 if a client failed and the policy is to
        stop, or another rank has ended; 128 plus the signal's number if a signal stopped the run after saving it.
    """
    words = sys.argv[1:] if args is None else list(args)
    name = next((name for name in (" ".join(words[:count]) for count in (2, 1)) if name in COMMANDS), None)
    return exit_status(lambda: _run(name, words), name)


def exit_status(run: Callable[[], int], name: str | None = None) -> int:
    """Runs a command's function; prints errors that the user can fix in one line, and raises others."""
    try:
        status = run()
        sys.stdout.flush()
        return status
    except KeyboardInterrupt:  # before or after a run; a run handles it itself
        return 128 + signal.SIGINT
    except BrokenPipeError:  # the reader of the output, such as head, has ended
        if name in TRAINING:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ArgumentError as error:
        remedy = f"(lit-fednas {name or 'fit'} --help lists all options)"
        reported = cause_of(error) or ConfigError(f"{' '.join(str(error).split())} {remedy}")
    except SystemExit as end:
        if not (origin := place_of(end)):  # the parser exits after --help
            raise
        reported = RuntimeError(f"sys.exit({end.code!r}) in {origin} ended the command; raise an error there instead")
    except OSError as error:
        if error.filename is None:
            raise
        remedy = getattr(error, "__notes__", ["start the same command again"])[-1]
        remedy = f"; free some space, then {remedy}" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        reported = ConfigError(f"{error.filename}: {error.strerror}{remedy}")
    except UnicodeDecodeError as error:
        reported = ConfigError(f"a file is not UTF-8 text ({error}); save it as UTF-8")
    except (ClientError, RankError, ValueError) as error:
        if (cause := cause_of(error)) is None:
            raise
        reported = cause
    except (MemoryError, RuntimeError) as error:
        if not isinstance(error, MemoryError) and not any(word in str(error) for word in ("allocate", "overflowed")):
            raise
        reported = ConfigError(f"memory: {' '.join(str(error).split()) or 'is spent'}; give smaller sizes")
    lightning = sys.modules.get("lightning.pytorch.utilities")  # it knows the rank, if imported
    rank = int(getattr(lightning.rank_zero_only, "rank", None) or 0) if lightning else 0
    print(f"lit-fednas{f' (rank {rank})' if rank else ''}: {reported}", file=sys.stderr)
    return 2 if isinstance(reported, FedNASError) else 1


def cause_of(error: BaseException | None) -> BaseException | None:
    """Returns this package's error among the causes of an error, if there is one: jsonargparse wraps errors."""
    while error is not None and not isinstance(error, FedNASError | ClientError | RankError):
        error = error.__cause__ or error.__context__
    return error


def _run(name: str | None, words: Sequence[str]) -> int:
    first = words[0] if words else "--help"
    if first == "--version":
        print(f"lit-fednas {__version__}")
        return 0
    if first in ("-h", "--help"):
        print(_help(COMMANDS))
        return 0 if words else 2
    if name in LIGHT:
        return _run_light(name, words[len(name.split()) :])
    if name is None and not first.startswith("-"):  # after an option, a file may name the command
        if group := {name: command for name, command in COMMANDS.items() if name.startswith(f"{first} ")}:
            print(_help(group))
            return 0 if words[1:] in (["-h"], ["--help"]) else 2
        hint = did_you_mean(first, COMMANDS)
        raise ConfigError(f"{first}: is not a command{hint}; lit-fednas --help lists them")
    words = with_paths(words)
    for variable in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"):  # Lightning reads them on import
        if not (value := os.environ.get(variable, "0")).isdecimal():
            raise ConfigError(f"{variable}: {value!r} in the environment is not the number of a process; unset it")
    announce("loading PyTorch and Lightning")
    from lit_fednas.cli.lightning_cli import run

    return run(words)


def _help(commands: Mapping[str, Command]) -> str:
    summary, title = str(package).partition("\n")[0], "commands (lit-fednas COMMAND --help shows a command's options)"
    texts = listing({name: command.summary.rstrip(".") for name, command in commands.items()})
    options = listing({"-h, --help": "Shows this text", "--version": "Shows the version"})
    return f"usage: lit-fednas COMMAND [options]\n\n{summary}\n\n{title}:\n{texts}\n\noptions:\n{options}"


def with_paths(words: Sequence[str]) -> list[str]:
    """Returns a command's words with paths of configurations; makes modules beside them importable."""
    text = "\0".join(["", *words])
    if "\0--_wandb" in text:  # W&B's agent gives all settings as Python prints them
        text = re.sub(r"\0--_wandb[=\0][^\0]*", "", text)
        text = re.sub(r"(?<=[=\0 \[])None(?=[,\]}\0]|$)", "null", text)
    resolved, files = text.split("\0")[1:], []
    for position, (option, word) in enumerate(pairwise(["", *resolved])):
        start = "--config=" if word.startswith("--config=") else ""
        if start or option in ("-c", "--config"):
            config = find_config(word.removeprefix(start))
            if os.path.isfile(config):  # jsonargparse would not validate it; a pipe can be read only once
                read_yaml(config)
                files.append(config)
            resolved[position] = start + config
    find_modules(*files)
    return resolved


def _run_light(name: str, words: Sequence[str]) -> int:
    """Runs a function with its options; ``*words`` takes the words after ``--``. It returns a status or None for 0."""
    function = LIGHT[name].load()
    arguments = inspect.getfullargspec(function)
    end = words.index("--") if arguments.varargs and "--" in words else len(words)
    options = parsed(name, function, words[:end])
    positional = [options.pop(argument) for argument in arguments.args]
    return function(*positional, *words[end + 1 :], **options) or 0
