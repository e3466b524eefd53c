"""The command of one combination, as W&B's agent makes it (``wandb/wandb_agent.py``, ``Agent._command_run``)."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping, Sequence
from typing import Any

from lit_fednas.errors import ConfigError

_VARIABLE = re.compile(r"\$\{envvar:([A-Z0-9_]*)\}")


def expand(command: Sequence[Any], program: str, values: Mapping[str, Any]) -> list[str]:
    """Replaces the macros of a sweep file's ``command``.

    Args:
        command: Words, of which some are macros.
        program: What ``${program}`` stands for.
        values: The combination, by parameter.

    Returns:
        The words to run.

    Raises:
        ConfigError: A macro is not one of W&B's, or is for another kind of program (Hydra).

    Example:
        >>> expand(["${env}", "${program}", "fit", "${args}"], "lit-fednas", {"data.num_clients": 5})
        ['/usr/bin/env', 'lit-fednas', 'fit', '--data.num_clients=5']
    """
    flags = [f"{name}={value}" for name, value in values.items()]
    macros = {
        "${env}": ["/usr/bin/env"],
        "${interpreter}": ["python"],
        "${program}": [str(program)],
        "${args}": [f"--{flag}" for flag in flags],
        "${args_no_hyphens}": flags,
        "${args_no_equals}": [word for name, value in values.items() for word in (f"--{name}", str(value))],
        "${args_no_boolean_flags}": [
            f"--{name}" if value is True else f"--{name}={value}"
            for name, value in values.items()
            if value is not False
        ],
        "${args_json}": [json.dumps(dict(values))],
    }
    words: list[str] = []
    for part in command:
        word = _VARIABLE.sub(lambda match: os.environ.get(match.group(1), match.group(1)), str(part))
        if word not in macros and "${" in word:
            raise ConfigError(f"command: {word} is none of {', '.join(macros)}, ${{envvar:NAME}}")
        words += macros.get(word, [word])
    return words
