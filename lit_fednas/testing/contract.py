"""What all contracts have in common: their tests run once per instance that a subclass names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch


def global_generators() -> list[list[int]]:
    """Returns the states of NumPy's and torch's global generators, which no part may move."""
    _, numpy_state, *_ = np.random.get_state(legacy=True)  # noqa: NPY002
    return [np.asarray(numpy_state).tolist(), torch.get_rng_state().tolist()]


class Case(NamedTuple):
    """An instance of a contract.

    Attributes:
        name: Of the instance, in the tests' names.
        make: Makes a fresh one.
    """

    name: str
    make: Callable[..., Any]


class Contract:
    """Tests that a subclass, whose name begins with ``Test``, runs on its instances.

    Attributes:
        instances: What makes each instance, by its name; small ones, as tests make many. With marks, as
            ``pytest.param(make, marks=pytest.mark.slow)``.
    """

    instances: ClassVar[Mapping[str, Any]] = {}
    #: The attributes that name what makes cases, by the tests' arguments.
    cases: ClassVar[Mapping[str, str]] = {"case": "instances"}

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Called by pytest for each test."""
        for argument, attribute in self.cases.items():
            if argument in metafunc.fixturenames:
                metafunc.parametrize(argument, self.parameters(attribute))

    @classmethod
    def parameters(cls, attribute: str = "instances") -> list[Any]:
        """Returns an attribute's cases as pytest's parameters.

        Raises:
            pytest.UsageError: There are none.
        """
        makes = getattr(cls, attribute)
        if not makes:
            raise pytest.UsageError(f"{cls.__name__}.{attribute}: is empty; name one, as {{'small': lambda: Mine()}}")
        return [
            pytest.param(Case(name, make), id=name)
            if callable(make)
            else pytest.param(Case(name, *make.values), id=name, marks=make.marks)
            for name, make in makes.items()
        ]
