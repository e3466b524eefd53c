"""What the exchangeable parts of a method have in common: they state what they need of each other."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any, ClassVar

from jsonargparse import ArgumentParser

from lit_fednas.errors import ConfigError
from lit_fednas.messages import Report


class Part:
    """An exchangeable part of a method, or a callback of its own.

    What does not fit together is refused by ``setup``, before any client trains.

    Attributes:
        field: Where the part stands in a configuration.
        supernet_kind: The kind of supernet that the part works with; any if ``None``.
        needs: The reports that the part needs of every client.
        reads: The types of a round's values that the part reads, if a callback gives them.
    """

    field: ClassVar[str]
    supernet_kind: ClassVar[type | None] = None
    needs: ClassVar[tuple[type[Report], ...]] = ()
    reads: ClassVar[tuple[type, ...]] = ()

    def check_supernet(self, supernet: Any) -> None:
        """Validates that the supernet is of the kind that the part works with.

        Raises:
            ConfigError: It is of another kind.
        """
        kind = type(self).supernet_kind
        if kind is not None and not isinstance(supernet, kind):
            raise ConfigError(
                f"{self.field}: {type(self).__name__} does not work with model.supernet "
                f"{type(supernet).__name__}; use {kind.__name__}, or change {self.field}"
            )

    def check_reports(self, reports: tuple[type[Report], ...], objective: str) -> None:
        """Validates that the objective reports what the part needs.

        Args:
            reports: What the objective reports.
            objective: The objective's name.

        Raises:
            ConfigError: A report is missing.
        """
        for kind in self.needs:
            if not any(issubclass(given, kind) for given in reports):
                raise ConfigError(
                    f"{self.field}: {type(self).__name__} needs every client's {kind.__name__}, which "
                    f"model.objective {objective} does not give; use an objective that reports it"
                )


def described(part: Any) -> dict[str, Any] | None:
    """Returns a part as a configuration has it, for :func:`instantiated`; ``None`` if it cannot be written as that.

    A part is written if it is a dataclass, and its fields are such parts, or plain values.

    Example:
        >>> from lit_fednas.supernets import GroupNorm
        >>> described(GroupNorm(4))
        {'class_path': 'lit_fednas.supernets.norms.GroupNorm', 'init_args': {'group_size': 4}}
    """
    if not is_dataclass(part):
        return None
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    arguments = {name: described(value) if is_dataclass(value) else value for name, value in values.items()}
    try:
        json.dumps(arguments)
    except TypeError:
        return None
    if any(value is not None and arguments[name] is None for name, value in values.items()):
        return None
    return {"class_path": f"{type(part).__module__}.{type(part).__qualname__}", "init_args": arguments}


def instantiated(kind: type, description: Mapping[str, Any]) -> Any:
    """Returns what :func:`described` has described.

    Args:
        kind: A class of which the part is a subclass.
        description: The part.

    Raises:
        ConfigError: There is no such class, or it takes other arguments.
    """
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--part", type=kind)
    try:
        return parser.instantiate(parser.parse_object({"part": dict(description)})).part
    except Exception as error:  # of importing, of parsing, or of the class itself
        raise ConfigError(f"{description.get('class_path')}: cannot be made again: {error}") from None
