"""The command line ``lit-fednas``, which imports no more than the command that is used needs."""

from lit_fednas.cli.entry import main

__all__ = ["main"]
