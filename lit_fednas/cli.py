"""The command line: finds the command, builds its parser alone, and tells errors in one line.

Commands of :data:`lit_fednas.commands.LIGHT` start without Lightning, which takes seconds to import; all others are
those of a LightningCLI (``lit_fednas.lightning_cli``).
"""

from __future__ import annotations

import errno
import inspect
import os
import signal
import sys
import threading
from argparse import ArgumentError
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise

from lit_fednas import __doc__ as package
from lit_fednas import __version__
from lit_fednas.commands import COMMANDS, LIGHT, MOVED, TRAINING, Command
from lit_fednas.config_files import find_config
from lit_fednas.errors import ClientError, ConfigError, FedNASError, RankError, did_you_mean
from lit_fednas.formatting import listing
from lit_fednas.options import parsed


def main(args: Sequence[str] | None = None) -> int:
    """Runs a command.

    Args:
        args: The words after ``lit-fednas``; those of the process if not given.

    Returns:
        The exit status: 0; 2 for an error that the user can mend, told in one line; 1 if a client failed and the
        policy is to stop, or another rank has gone; 128 and the signal's number if a signal stopped the run, whose
        state is saved.
    """
    if "" not in sys.path:
        sys.path.append("")  # the user's own parts are in modules of the working directory
    words = sys.argv[1:] if args is None else list(args)
    name = _name(words)
    return told(lambda: _run(name, words), name)


def told(run: Callable[[], int], name: str | None = None) -> int:
    """Runs something and prints an error that the user can mend in one line.

    Args:
        run: What is run.
        name: The command that it is.

    Returns:
        The exit status, as :func:`main`.

    Raises:
        BrokenPipeError: What a run writes to has ended.
        OSError: An error of the system that names no file.
        ValueError: An error that the user cannot mend.
    """
    try:
        status = run()
        sys.stdout.flush()
        return status
    except BrokenPipeError:  # what reads the output, such as head, has seen enough
        if name in TRAINING:
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except ArgumentError as error:
        own = _own_error(error)
        if own is not None:
            return _tell(own)
        return _tell(
            ConfigError(f"{' '.join(str(error).split())} (lit-fednas {name or 'fit'} --help lists all options)")
        )
    except (ClientError, RankError) as error:
        return _tell(error)
    except OSError as error:
        if error.filename is None:
            raise
        remedy = "; free some space, then go on" if error.errno in (errno.ENOSPC, errno.EDQUOT) else ""
        return _tell(ConfigError(f"{error.filename}: {error.strerror}{remedy}"))
    except KeyboardInterrupt:  # before or after a run, which handles it itself
        return 128 + signal.SIGINT
    except UnicodeDecodeError as error:
        return _tell(ConfigError(f"a file is not UTF-8 text ({error}); save it as UTF-8"))
    except ValueError as error:
        own = _own_error(error)
        if own is None:
            raise
        return _tell(own)


def _name(words: Sequence[str]) -> str | None:
    """Returns the command that the first words name, which may be two."""
    candidates = (" ".join(words[:count]) for count in (2, 1))
    return next((name for name in candidates if name in COMMANDS), None)


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
    if name is None and not first.startswith("-"):  # an option may name a file that names the command
        if group := {one: command for one, command in COMMANDS.items() if one.startswith(f"{first} ")}:
            print(_help(group))
            return 0 if words[1:] in (["-h"], ["--help"]) else 2
        if first in MOVED:
            raise ConfigError(f"{first}: is no longer a command; run {MOVED[first]}")
        near = did_you_mean(first, COMMANDS)
        raise ConfigError(f"{first}: is not a command{near}; lit-fednas --help lists them")
    words = with_paths(words)
    _check_rank()
    with _ending_at_once():
        from lit_fednas.lightning_cli import run
    return run(words)


def _help(commands: Mapping[str, Command]) -> str:
    return "\n".join(
        [
            "usage: lit-fednas COMMAND [options]",
            "",
            str(package).partition("\n")[0],
            "",
            "commands (lit-fednas COMMAND --help shows a command's options):",
            listing({name: command.summary.rstrip(".") for name, command in commands.items()}),
            "",
            "options:",
            listing({"-h, --help": "Shows this text", "--version": "Shows the version"}),
        ]
    )


def _check_rank() -> None:
    """Validates the process's rank in the environment, which Lightning reads when it is imported."""
    for name in ("RANK", "LOCAL_RANK", "SLURM_PROCID", "JSM_NAMESPACE_RANK"):
        if not (value := os.environ.get(name, "0")).isdecimal():
            raise ConfigError(f"{name}: {value!r} in the environment is not the number of a process; unset {name}")


def with_paths(words: Sequence[str]) -> list[str]:
    """Returns the words with the paths of the configurations that they name.

    Args:
        words: A command and its options.
    """
    found = list(words)
    for place, (before, word) in enumerate(pairwise(["", *words])):
        if before in ("-c", "--config"):
            found[place] = find_config(word)
        elif word.startswith("--config="):
            found[place] = f"--config={find_config(word.removeprefix('--config='))}"
    return found


def _run_light(name: str, words: Sequence[str]) -> int:
    """Runs a function with its options; its result is the exit status, nothing is 0."""
    with _ending_at_once():
        function = LIGHT[name].load()
        parameters = inspect.signature(function, eval_str=True).parameters
        handed_on = any(one.kind is one.VAR_POSITIONAL for one in parameters.values())
        place = words.index("--") if handed_on and "--" in words else len(words)
        options = parsed(name, function, words[:place])
    by_place = [options.pop(one.name) for one in parameters.values() if one.kind < one.VAR_POSITIONAL]
    return function(*by_place, *words[place + 1 :], **options) or 0


@contextmanager
def _ending_at_once() -> Iterator[None]:
    """Lets Ctrl-C end the process at once while the parts of a command are imported, which takes seconds."""
    main_thread = threading.current_thread() is threading.main_thread()
    if not main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield  # ignored, as in the background
        return
    signal.signal(signal.SIGINT, lambda signum, frame: os._exit(128 + signum))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _own_error(error: BaseException | None) -> BaseException | None:
    """Returns the error of ours behind one that jsonargparse has wrapped, if there is one."""
    while error is not None and not isinstance(error, FedNASError | ClientError | RankError):
        error = error.__cause__ or error.__context__
    return error


def _tell(error: BaseException) -> int:
    """Prints an error of ours as one line; returns the exit status."""
    lightning = sys.modules.get("lightning.pytorch.utilities")  # knows the rank, if it has been imported
    rank = int(getattr(lightning.rank_zero_only, "rank", None) or 0) if lightning else 0
    print(f"lit-fednas{f' (rank {rank})' if rank else ''}: {error}", file=sys.stderr)
    return 2 if isinstance(error, FedNASError) else 1
