"""Settings of all tests: their order, savings of time, and a fixture for refused commands."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Moves the test that waits for devices to the start, since it would run alone at the end."""
    items.sort(key=lambda item: "test_devices" not in item.nodeid)


def pytest_collection_finish() -> None:
    """Spares the garbage collector the half million objects of imports, which live to the end.

    The process that distributes tests collects none, so it does not import torch.
    """
    import torch
    from lightning.fabric.utilities import registry

    # the first gradient decides whether autograd has threads, and forked processes cannot compute gradients with them:
    # so it is computed here, before a test adds another device
    torch.ones(1, requires_grad=True).sum().backward()
    # every Trainer, also a client's, searches all installed packages for callbacks, which takes 10 ms
    registry.entry_points = functools.cache(registry.entry_points)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Calls a command that cannot work; returns its one line of error."""
    from lit_fednas.cli import main

    def told(*words: str, code: int = 2) -> str:
        capsys.readouterr()
        assert main([*words]) == code
        err = capsys.readouterr().err.strip()
        lines = [line for line in err.splitlines() if not line.startswith(("computing with ", "training starts"))]
        assert len(lines) == 1, err
        assert lines[0].startswith("lit-fednas: ")
        return lines[0]

    return told
