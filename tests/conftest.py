"""What holds for all tests: two things that would take a sixth of their time."""

from __future__ import annotations

import functools
import gc

from lightning.fabric.utilities import registry


def pytest_collection_finish() -> None:
    """Spares the garbage collector the half million objects that imports leave and that live to the end."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 50)


def pytest_unconfigure() -> None:
    gc.unfreeze()


# Every Trainer, also of a client, looks for plug-ins of callbacks in all that is installed: 10 ms.
registry.entry_points = functools.cache(registry.entry_points)
