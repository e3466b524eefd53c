"""What the exchangeable parts of a method have in common: they state what they need of each other."""

import json
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import fields, is_dataclass
from types import NoneType
from typing import Any, ClassVar

import torch
from jsonargparse import ArgumentParser

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.messages import Report


class Part:
    """An exchangeable part of a method, or a callback; ``setup`` refuses one that does not fit, before training.

    A subclass declares what it depends on as class attributes. Bases of one kind of part add some:
    :class:`~lit_fednas.assignment.Assignment`, :class:`~lit_fednas.objectives.Objective` and
    :class:`~lit_fednas.federation.FederatedCallback`.

    Attributes:
        field: The key of the part in a configuration, which errors name.
        supernet_kind: The class of supernets that the part works with; ``None`` for any.
        needs: The report types that it needs of every client; the objective must list them in ``report_types``.
        reads: The types of a round's values that it uses, if a callback ``gives`` them.
        state_names: The attributes that are its state: tensors and plain values. Checkpoints hold them.
        requires: The keys of callbacks without which it cannot train, such as ``beta_decay``.
    """

    field: ClassVar[str]
    supernet_kind: ClassVar[type | None] = None
    needs: ClassVar[tuple[type[Report], ...]] = ()
    reads: ClassVar[tuple[type, ...]] = ()
    state_names: ClassVar[tuple[str, ...]] = ()
    requires: ClassVar[tuple[str, ...]] = ()

    def check_supernet(self, supernet: Any) -> None:
        """Validates that the supernet is of the kind that the part works with."""
        kind = type(self).supernet_kind
        if kind is not None and not isinstance(supernet, kind):
            raise ConfigError(
                f"{self.field}: {type(self).__name__} does not work with model.supernet "
                f"{type(supernet).__name__}; use {kind.__name__}, or change {self.field}"
            )

    def check_reports(self, reports: tuple[type[Report], ...], objective: str) -> None:
        """Validates that the objective of this name reports what the part needs."""
        for kind in self.needs:
            if not any(issubclass(given, kind) for given in reports):
                raise ConfigError(
                    f"{self.field}: {type(self).__name__} needs every client's {kind.__name__}, which "
                    f"model.objective {objective} does not give; use an objective that reports it"
                )

    def state_dict(self) -> dict[str, Any]:
        """Returns what the part must remember for the next round, for the checkpoint."""
        return {name: deepcopy(getattr(self, name)) for name in self.state_names}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Restores a saved state, whose entries must be those of :meth:`state_dict`."""
        names = set(self.state_dict())
        if set(state) != names:
            raise CheckpointError(
                f"{self.field}: the checkpoint holds {', '.join(sorted(state)) or 'no state'}, and "
                f"{type(self).__name__} keeps {', '.join(sorted(names)) or 'none'}; use what the run was started with"
            )
        for name in self.state_names:
            setattr(self, name, deepcopy(state[name]))


def check_callbacks(field: str, part: Any, callbacks: Iterable[Any]) -> None:
    """Validates that what a part requires is among the callbacks; a part is whatever a method is made of.

    Args:
        field: Where the part stands in a configuration.
        part: The part; what it wraps as ``objective`` is validated as well.
        callbacks: Those of the trainer, each known by its key or by that of a class that it extends.

    Raises:
        ConfigError: A callback is missing.
    """
    known = {getattr(kind, "field", None) for callback in callbacks for kind in type(callback).__mro__}
    for key in getattr(part, "requires", ()):
        if key not in known:
            raise ConfigError(
                f"{field}: {type(part).__name__} needs the callback {key}; add {key}: {{...}} to the configuration "
                f"(your own callback to trainer.callbacks), or change {field}"
            )
    if (wrapped := getattr(part, "objective", None)) is not None:
        check_callbacks(field, wrapped, callbacks)


def check_state(owner: str, state: Any) -> None:
    """Validates that a state holds only tensors and plain values: checkpoints are loaded with ``weights_only``."""
    values = [state]
    while values:
        value = values.pop()
        if type(value) in (dict, OrderedDict):
            values += [*value, *value.values()]
        elif type(value) in (list, tuple):
            values += value
        elif not isinstance(value, torch.Tensor) and type(value) not in (NoneType, bool, int, float, str):
            raise ConfigError(
                f"{owner}: its state holds a {type(value).__name__}, and a checkpoint is loaded without such; "
                f"keep tensors, numbers, texts, and lists and dictionaries of them"
            )


def described(part: Any) -> dict[str, Any] | None:
    """Returns a part as a configuration has it, for :func:`instantiated`; ``None`` if it cannot be written as that.

    A part is written if it is a dataclass, and its fields are such parts, or plain values.

    Example:
        >>> from lit_fednas.supernets import GroupNorm
        >>> described(GroupNorm(4))
        {'class_path': 'lit_fednas.supernets.layers.GroupNorm', 'init_args': {'group_size': 4}}
    """
    if not is_dataclass(part):
        return None
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    arguments = {name: described(value) or value for name, value in values.items()}
    try:
        json.dumps(arguments)
    except TypeError:
        return None
    return {"class_path": f"{type(part).__module__}.{type(part).__qualname__}", "init_args": arguments}


def instantiated(kind: type, description: Mapping[str, Any]) -> Any:
    """Returns the part, of a subclass of ``kind``, that :func:`described` has described."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--part", type=kind)
    try:
        return parser.instantiate(parser.parse_object({"part": dict(description)})).part
    except Exception as error:  # of importing, of parsing, or of the class itself
        raise ConfigError(f"{description.get('class_path')}: cannot be made again: {error}") from None
