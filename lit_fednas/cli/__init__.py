"""The command line ``lit-fednas``: a table of commands, of which a LightningCLI reads those of a configuration.

The others are functions, whose arguments are the options; they start without Lightning.
"""

from lit_fednas.cli.entry import main

__all__ = ["main"]
