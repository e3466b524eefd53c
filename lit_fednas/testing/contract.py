"""What all contracts have in common: one test per instance checks all promises."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch


def global_generators() -> list[list[int]]:
    """Returns the states of NumPy's and torch's global generators, which no part may move."""
    _, numpy_state, *_ = np.random.get_state(legacy=True)  # noqa: NPY002
    return [np.asarray(numpy_state).tolist(), torch.get_rng_state().tolist()]


class Case(NamedTuple):
    """An instance of a contract: its name in the tests' names, and what makes a fresh one."""

    name: str
    make: Callable[..., Any]


class Contract:
    """A test that a subclass, whose name begins with ``Test``, runs on its instances.

    Each method whose name begins with ``check_`` is a promise.

    Attributes:
        instances: What makes each instance, by its name; small ones, as checks make many. With marks, as
            ``pytest.param(make, marks=pytest.mark.slow)``.
        case: The instance that is being tested.
        folder: An empty folder of the test's own.
    """

    instances: ClassVar[Mapping[str, Any]] = {}
    case: Case
    folder: Path

    def test_keeps_every_promise(self, case: Case, tmp_path: Path) -> None:
        """Checks all promises; a failure names each that is broken."""
        self.case, self.folder = case, tmp_path
        broken: dict[str, BaseException] = {}
        for promise, check in self.promises():
            try:
                check()
            except (Exception, pytest.fail.Exception) as error:
                error.add_note(f"broken promise of {case.name}: {promise}")
                broken[promise] = error
        if broken:
            raise BaseExceptionGroup(f"broken promises: {', '.join(broken)}", list(broken.values()))

    def promises(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yields the promises' names and what checks them."""
        for name in dir(type(self)):
            if name.startswith("check_"):
                yield name.removeprefix("check_"), getattr(self, name)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Called by pytest for each test."""
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", self.parameters())

    @classmethod
    def parameters(cls) -> list[Any]:
        """Returns the instances as pytest's parameters."""
        if not cls.instances:
            raise pytest.UsageError(f"{cls.__name__}.instances: is empty; name one, as {{'small': lambda: Mine()}}")
        return [
            pytest.param(Case(name, make), id=name)
            if callable(make)
            else pytest.param(Case(name, *make.values), id=name, marks=make.marks)
            for name, make in cls.instances.items()
        ]
