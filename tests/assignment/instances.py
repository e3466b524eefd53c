"""One instance or several of every assignment: what the contract's tests run over.

A new assignment needs a line in ``INSTANCES``; a test fails as long as it has none.
"""

from __future__ import annotations

from collections.abc import Callable

from lit_fednas.assignment import (
    Assignment,
    FixedArchitecture,
    RandomArchitectures,
    Sandwich,
    TrackingSandwich,
)

INSTANCES: dict[str, Callable[[], Assignment]] = {
    "fixed-largest": FixedArchitecture,
    "fixed-smallest": lambda: FixedArchitecture("smallest"),
    "random": RandomArchitectures,
    "sandwich": Sandwich,
    "tracking-sandwich": TrackingSandwich,
}
