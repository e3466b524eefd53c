"""What all contracts have in common: one test per instance checks all promises."""

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
    """An instance of a contract: its name in the tests' names, and what makes a fresh one."""

    name: str
    make: Callable[..., Any]


class Contract:
    """A test that a subclass, whose name begins with ``Test``, runs on its instances.

    Each method whose name begins with ``check_`` is a promise; its docstring says what to keep to.

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
        """Checks all promises; a failure names each that is broken, with what to keep to."""
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
        marked = {name: make if hasattr(make, "marks") else pytest.param(make) for name, make in cls.instances.items()}
        return [pytest.param(Case(name, *one.values), id=name, marks=one.marks) for name, one in marked.items()]


@contextmanager
def global_seed(seed: int) -> Iterator[None]:
    """Seeds NumPy's and torch's global generators, which nothing inside may move."""

    def states() -> dict[str, Any]:
        return leaves([np.random.get_state(), torch.get_rng_state()])  # noqa: NPY002

    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)
    before = states()
    yield
    assert states() == before, "a global generator was moved; draw from the generator that is given"


def reloaded(state: Any) -> Any:
    """Returns a state as it comes back from a checkpoint."""
    stream = io.BytesIO()
    torch.save(state, stream)
    stream.seek(0)
    return torch.load(stream, weights_only=True)


def leaves(state: Any, place: str = "") -> dict[str, Any]:
    """Returns the values inside a state by their place, to the bit; what is called ``seconds`` is left out."""
    if isinstance(state, Tensor):
        state = state.detach().cpu().contiguous()
        return {place: (state.dtype, state.shape, state.flatten().view(torch.uint8).numpy().tobytes())}
    if not isinstance(state, dict | list | tuple):
        return {place: repr(state)}  # in which NaN equals itself
    found = {place: type(state).__name__}
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        found |= {} if key == "seconds" else leaves(value, f"{place}/{key}")
    return found


def assert_alike(found: Any, expected: Any) -> None:
    """Validates that two states are equal to the bit; names the places where they are not."""
    one, other = leaves(found), leaves(expected)
    places = [place for place in sorted(one.keys() | other.keys()) if one.get(place) != other.get(place)]
    if places:
        raise AssertionError(f"{len(places)} places differ, first {', '.join(places[:5])}")
