"""Benchmarks in this process."""

import logging
import warnings
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def as_quiet_as_before() -> Iterator[None]:
    """Benchmarks silence Lightning for their process, which here is that of other tests, too."""
    logs = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [log.level for log in logs]
    with warnings.catch_warnings():
        yield
    for log, level in zip(logs, levels, strict=True):
        log.setLevel(level)


@pytest.fixture
def in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls in child processes are made here, which is quick; memory then means nothing."""

    def call(function: str, arguments: dict[str, Any], ranks: int = 1, threads: int = 1) -> Any:
        assert ranks == 1
        module, name = function.split(":")
        return getattr(import_module(module), name)(**arguments)

    for module in ("rounds", "memory", "ranks"):
        monkeypatch.setattr(import_module(f"lit_fednas.benchmarks.{module}"), "call_in_child", call)
