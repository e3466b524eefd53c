"""The command line ``lit-fednas``: LightningCLI runs the commands of a configuration; the others are functions.

The arguments of a function are the command's options. Functions start without importing Lightning.
"""

from lit_fednas.cli.entry import main

__all__ = ["main"]
