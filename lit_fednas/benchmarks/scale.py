"""How the library's speed and memory behave as populations, cohorts, subnets, processes and clients per fit grow.

Each sub-command is one measurement, with a table on the standard output and, where asked for, all its numbers as
JSON and a picture. --help of a sub-command says what exactly is measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import torch

from lit_fednas.benchmarks import evaluations, layout, levers, memory, population, ranks, showing, subnets, together
from lit_fednas.benchmarks.child import silence

COMMANDS: dict[str, Any] = {
    "memory": memory,
    "population": population,
    "subnets": subnets,
    "layout": layout,
    "levers": levers,
    "ranks": ranks,
    "together": together,
    "evaluations": evaluations,
}


def parse(words: Sequence[str]) -> argparse.Namespace:
    """Reads the options."""
    parser = showing.Parser(prog="lit-fednas benchmark scale", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name, module in COMMANDS.items():
        first = module.__doc__.splitlines()[0]
        command = commands.add_parser(name, help=first, description=module.__doc__)
        module.add_options(command)
        showing.common_options(command)
    return parser.parse_args(words)


def scale(words: Sequence[str]) -> None:
    """Measures speed and memory as populations, cohorts, subnets, processes and clients per fit grow.

    Args:
        words: A measurement and its options, as ``--help`` lists them.
    """
    options = parse(words)
    silence()
    if options.threads:
        torch.set_num_threads(options.threads)
    module = COMMANDS[options.command]
    report = {"command": options.command, **showing.circumstances(options)}
    print(f"{options.command}: torch {torch.__version__}, {options.device}", end="")
    print(f", {showing.counted(options.threads, 'thread')}" if options.threads else "")
    report |= module.measure(options)
    showing.show(report, module.rows(report), module.draw, options)
