"""The command line ``lit-fednas``, which imports no more than a command needs.

:mod:`lit_fednas.cli.commands` has the table of all commands. Those of a configuration are read by a LightningCLI
(:mod:`lit_fednas.cli.lightning_cli`); the others are functions, whose arguments are the options, and start without
Lightning.
"""

from lit_fednas.cli.entry import main

__all__ = ["main"]
