"""For all tests: their order, three things that would take a fifth of their time, and what commands refuse."""

from __future__ import annotations

import functools
import gc
from collections.abc import Callable

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Begins with the test that waits for devices for minutes, which would else run alone at the end."""
    items.sort(key=lambda item: "test_devices" not in item.nodeid)


def pytest_collection_finish() -> None:
    """Spares the garbage collector the half million objects that imports leave and that live to the end.

    What distributes the tests over processes collects none, and does not have to import torch.
    """
    import torch
    from lightning.fabric.utilities import registry

    # the first gradient decides for good whether autograd has threads, with which no forked process computes any: here,
    # before a test brings a device of its own
    torch.ones(1, requires_grad=True).sum().backward()
    # every Trainer, also of a client, looks for plug-ins of callbacks in all that is installed: 10 ms
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
