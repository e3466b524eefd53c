"""Ranges of settings, declared in annotations (``epochs: PositiveInt``) and validated by :func:`checked` constructors.

jsonargparse validates its restricted types only while it parses, with messages of five lines.
"""

import functools
import inspect
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from lit_fednas.errors import ConfigError

T = TypeVar("T")


@dataclass(frozen=True)
class Range:
    """The range of numbers that a setting allows."""

    at_least: float = -math.inf
    above: float = -math.inf
    at_most: float = math.inf
    below: float = math.inf

    def __contains__(self, value: float) -> bool:
        return self.at_least <= value <= self.at_most and self.above < value < self.below

    def __str__(self) -> str:
        bounds = {"at least": self.at_least, "above": self.above, "at most": self.at_most, "below": self.below}
        return " and ".join(f"{word} {bound:g}" for word, bound in bounds.items() if math.isfinite(bound))


class Filled:
    """Marks a list or a mapping that must not be empty."""


PositiveInt = Annotated[int, Range(at_least=1)]
PositiveInts = Annotated[Sequence[PositiveInt], Filled]
NonNegativeInt = Annotated[int, Range(at_least=0)]
#: A number of items that are drawn or made one by one.
Count = Annotated[int, Range(at_least=1, at_most=10**6)]
PositiveFloat = Annotated[float, Range(above=0)]
NonNegativeFloat = Annotated[float, Range(at_least=0)]
#: A share, including 0 and 1.
UnitInterval = Annotated[float, Range(at_least=0, at_most=1)]
#: A share above 0.
PositiveShare = Annotated[float, Range(above=0, at_most=1)]
#: A rate or share below 1.
ShareBelowOne = Annotated[float, Range(at_least=0, below=1)]
#: A share above 0 and below 1.
OpenUnitInterval = Annotated[float, Range(above=0, below=1)]


def checked(field: str) -> Callable[[type[T]], type[T]]:
    """Returns a class decorator that validates the constructor's arguments; ``field`` begins the names in errors.

    On a dataclass it comes above ``@dataclass``.

    Example:
        >>> @checked("client")
        ... class Client:
        ...     def __init__(self, epochs: PositiveInt = 1) -> None: ...
        >>> Client(epochs=0)
        Traceback (most recent call last):
        lit_fednas.errors.ConfigError: client.epochs: 0 must be at least 1
    """

    def decorate(cls: type[T]) -> type[T]:
        construct = cls.__init__
        hints: dict[str, Any] = {}
        signature = inspect.signature(construct)

        @functools.wraps(construct)
        def checking(self: Any, *args: Any, **kwargs: Any) -> None:
            if not hints:  # annotations may name later imports, so they are read at the first construction
                hints.update(get_type_hints(cls, include_extras=True) if is_dataclass(cls) else {})
                hints.update(get_type_hints(construct, include_extras=True))
            check_values(signature.bind(self, *args, **kwargs).arguments, hints, f"{field}.")
            construct(self, *args, **kwargs)

        cls.__init__ = checking  # type: ignore[method-assign]
        return cls

    return decorate


def check_values(values: Mapping[str, Any], hints: Mapping[str, Any], prefix: str = "") -> None:
    """Validates values by name against the ranges and literals in annotations; ``prefix`` begins the errors."""
    for name, value in values.items():
        for path, reason in _faults(value, hints.get(name)):
            raise ConfigError(f"{prefix}{name}{path}: {reason}")


def _faults(value: Any, hint: Any, path: str = "") -> Iterator[tuple[str, str]]:
    """Yields the path and the reason of each value outside of its annotation's ranges or literals."""
    origin, args = get_origin(hint), get_args(hint)
    if isinstance(value, float) and math.isnan(value):
        yield path, "nan is not a number; give one"
    elif origin is Annotated:
        for extent in (arg for arg in args[1:] if isinstance(arg, Range)):
            if not isinstance(value, int | float) or isinstance(value, bool) or value not in extent:
                finite = "" if not isinstance(value, float) or math.isfinite(value) else " and finite"
                yield path, f"{value!r} must be {extent}{finite}"
        if Filled in args and not value:
            yield path, "is empty; give at least one"
        yield from _faults(value, args[0], path)
    elif origin in (Union, UnionType):
        if value is None and NoneType in args:
            return
        kinds = [arg for arg in args if arg is not NoneType]
        same_container = [arg for arg in kinds if _container(get_origin(arg)) == _container(type(value))]
        faults = [list(_faults(value, arg, path)) for arg in same_container or kinds]
        if all(faults):  # reasons at one path are alternatives, such as a number or a word
            first = faults[0][0][0]
            yield first, ", or ".join(reason for (other, reason), *_ in faults if other == first)
    elif origin is Literal:
        if value not in args:
            yield path, f"{value!r} is unknown; choose from {', '.join(map(str, args))}"
    elif isinstance(value, Mapping):
        for key, item in value.items() if len(args) == 2 else ():
            if args[0] is str and not isinstance(key, str):
                yield path, f"the name {key!r} is not text, as YAML reads it; quote it ('{key}')"
            yield from _faults(item, args[1], f"{path}.{key}")
    elif isinstance(value, list | tuple) and args and origin is not Callable:
        for number, item in enumerate(value):
            item_hint = args[0] if args[-1] is Ellipsis or len(args) == 1 else args[number]
            yield from _faults(item, item_hint, f"{path}[{number}]")


def _container(kind: Any) -> type | None:
    """Returns the kind of container of a class of values or annotations, or ``None``."""
    if not isinstance(kind, type) or issubclass(kind, str):
        return None
    return next((container for container in (Mapping, Sequence) if issubclass(kind, container)), None)
