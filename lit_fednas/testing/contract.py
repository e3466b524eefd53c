"""The base of all contracts: one test per instance checks all promises."""

import inspect
import io
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor


class Case(NamedTuple):
    """An instance of a contract: its name in test names, and a function that makes a fresh one."""

    name: str
    make: Callable[..., Any]


class Contract:
    """A test of all ``instances``; pytest collects subclasses with a name that begins with ``Test``.

    Each method ``check_...`` is a promise, and its docstring states the promise.

    Attributes:
        instances: Functions that make small instances, by name, or ``pytest.param(make, marks=pytest.mark.slow)``.
        case: The instance under test.
        folder: An empty folder for the test.
    """

    instances: ClassVar[Mapping[str, Any]] = {}
    case: Case
    folder: Path

    def test_keeps_every_promise(self, case: Case, tmp_path: Path) -> None:
        """Checks all promises; a failure lists every broken promise with its docstring."""
        self.case, self.folder = case, tmp_path
        broken: dict[str, BaseException] = {}
        for promise, check in self.promises():
            try:
                check()
            except (Exception, pytest.fail.Exception) as error:
                error.add_note(f"broken promise of {case.name}: {promise}: {inspect.getdoc(check)}")
                broken[promise] = error
        if broken:
            raise BaseExceptionGroup(f"broken promises: {', '.join(broken)}", list(broken.values()))

    def promises(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yields the promises' names with the methods that check them."""
        for name in dir(type(self)):
            if name.startswith("check_"):
                yield name.removeprefix("check_"), getattr(self, name)

    def pytest_generate_tests(self, metafunc: pytest.Metafunc) -> None:
        """Makes a test for each instance; pytest calls it."""
        if "case" in metafunc.fixturenames:
            metafunc.parametrize("case", self.parameters())

    @classmethod
    def parameters(cls) -> list[Any]:
        """Returns the instances as pytest's parameters."""
        if not cls.instances:
            raise pytest.UsageError(f"{cls.__name__}.instances: is empty; name one, as {{'small': lambda: Mine()}}")
        marked = {name: make if hasattr(make, "marks") else pytest.param(make) for name, make in cls.instances.items()}
        return [pytest.param(Case(name, *item.values), id=name, marks=item.marks) for name, item in marked.items()]


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Seeds NumPy's and torch's global generators; validates that the block does not move them."""

    def states() -> dict[str, Any]:
        return leaves([np.random.get_state(), torch.get_rng_state()])  # noqa: NPY002

    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    initial = states()
    yield
    assert states() == initial, "a global generator was moved; draw from the generator that is given"


def reloaded(state: Any) -> Any:
    """Returns a state after saving and loading it like a checkpoint."""
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


def leaves(state: Any, path: str = "") -> dict[str, Any]:
    """Returns the values inside a state by their path, to the bit, without those of the key ``seconds``."""
    if isinstance(state, Tensor):
        state = state.detach().cpu().contiguous()
        return {path: (state.dtype, state.shape, state.flatten().view(torch.uint8).numpy().tobytes())}
    if not isinstance(state, dict | list | tuple):
        return {path: repr(state)}  # NaN equals itself as text
    values = {path: type(state).__name__}
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        values |= {} if key == "seconds" else leaves(value, f"{path}/{key}")
    return values


def assert_alike(actual: Any, expected: Any) -> None:
    """Validates that two states are equal to the bit; the error has the paths of different values."""
    values, others = leaves(actual), leaves(expected)
    paths = [path for path in sorted(values.keys() | others.keys()) if values.get(path) != others.get(path)]
    if paths:
        raise AssertionError(f"{len(paths)} places differ, first {', '.join(paths[:5])}")
