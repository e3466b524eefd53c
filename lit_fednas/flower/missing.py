"""Says what is missing where Flower is not installed."""

from __future__ import annotations

from importlib.util import find_spec

from lit_fednas.errors import ConfigError


def check_flower() -> None:
    """Validates that Flower is installed."""
    if find_spec("flwr") is None:
        raise ConfigError("flower: needs the package flwr; pip install 'lit-fednas[flower]'")
