"""Benchmarks in this process."""

import sys
from importlib import import_module
from typing import Any

import pytest

from tests.scripts.conftest import SCRIPTS, as_quiet_as_before

__all__ = ["as_quiet_as_before"]  # benchmarks silence Lightning as scripts do

sys.path.insert(0, str(SCRIPTS))


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in child processes are made here, which is quick; memory then means little."""

    def call(function: str, arguments: dict[str, Any], ranks: int = 1, threads: int = 1) -> Any:
        assert ranks == 1
        module, name = function.split(":")
        return getattr(import_module(module), name)(**arguments)

    for module in ("rounds", "population"):
        monkeypatch.setattr(import_module(f"benchmarks.{module}"), "call_in_child", call)
