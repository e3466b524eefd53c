"""The base of a method's exchangeable parts, which declare their needs of each other."""

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
from lit_fednas.messages import Statistics


class Part:
    """An exchangeable part of a method, or a callback; ``setup`` refuses parts that do not fit, before training.

    A subclass declares its needs as class attributes. :class:`~lit_fednas.assignment.Assignment`,
    :class:`~lit_fednas.objectives.Objective` and :class:`~lit_fednas.federation.FederatedCallback` add more of them.

    Attributes:
        field: Key of the part in a configuration, for errors.
        supernet_kind: Class of supernets that the part works with; ``None`` for any.
        needs: Types of statistics that the part needs of every client; the objective must list them in
            ``statistics_types``.
        reads: Types of a round's values that the part uses, if a callback ``gives`` them.
        state_names: Attributes that are the part's state, tensors and plain values; checkpoints hold them.
        requires: Keys of callbacks that the part cannot train without, such as ``beta_decay``.
    """

    field: ClassVar[str]
    supernet_kind: ClassVar[type | None] = None
    needs: ClassVar[tuple[type[Statistics], ...]] = ()
    reads: ClassVar[tuple[type, ...]] = ()
    state_names: ClassVar[tuple[str, ...]] = ()
    requires: ClassVar[tuple[str, ...]] = ()

    def check_supernet(self, supernet: Any) -> None:
        """Validates that the part works with the supernet."""
        kind = type(self).supernet_kind
        if kind is not None and not isinstance(supernet, kind):
            fault = f"{type(self).__name__} does not work with model.supernet {type(supernet).__name__}"
            raise ConfigError(f"{self.field}: {fault}; use {kind.__name__}, or change {self.field}")

    def check_statistics(self, types: tuple[type[Statistics], ...], objective: str) -> None:
        """Validates that the objective returns all statistics that the part needs."""
        for kind in self.needs:
            if not any(issubclass(other, kind) for other in types):
                need = f"needs every client's {kind.__name__}, which model.objective {objective} does not give"
                raise ConfigError(f"{self.field}: {type(self).__name__} {need}; use an objective that returns them")

    def state_dict(self) -> dict[str, Any]:
        """Returns the part's state for a checkpoint: the values that later rounds need."""
        return {name: deepcopy(getattr(self, name)) for name in self.state_names}

    def load_state_dict(self, state: dict[str, Any], /) -> None:
        """Restores a saved state; its entries must be those of :meth:`state_dict`."""
        names = set(self.state_dict())
        if set(state) != names:
            saved, present = (", ".join(sorted(keys)) or "no state" for keys in (state, names))
            difference = f"the checkpoint holds {saved}, but {type(self).__name__} has {present}"
            raise CheckpointError(f"{self.field}: {difference}; use the part that the run was started with")
        for name in self.state_names:
            setattr(self, name, deepcopy(state[name]))


def check_callbacks(field: str, part: Any, callbacks: Iterable[Any]) -> None:
    """Validates that the callbacks include all that a part, or the ``objective`` inside it, requires by their key."""
    keys = {getattr(kind, "field", None) for callback in callbacks for kind in type(callback).__mro__}
    for key in getattr(part, "requires", ()):
        if key not in keys:
            remedy = f"add {key}: {{...}} to the configuration (your own callback to trainer.callbacks)"
            raise ConfigError(f"{field}: {type(part).__name__} needs the callback {key}; {remedy}, or change {field}")
    if (wrapped := getattr(part, "objective", None)) is not None:
        check_callbacks(field, wrapped, callbacks)


def check_state(owner: str, state: Any) -> None:
    """Validates that a state holds only tensors and plain values, as checkpoints are loaded with ``weights_only``."""
    values = [state]
    while values:
        value = values.pop()
        if type(value) in (dict, OrderedDict):
            values += [*value, *value.values()]
        elif type(value) in (list, tuple):
            values += value
        elif not isinstance(value, torch.Tensor) and type(value) not in (NoneType, bool, int, float, str):
            kinds = "tensors, numbers, texts, lists and dictionaries"
            raise ConfigError(f"{owner}: its state holds a {type(value).__name__}; keep only {kinds}")


def described(part: Any) -> dict[str, Any] | None:
    """Returns a part in the form of a configuration; ``None`` unless it is a dataclass of plain values and such parts.

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
    """Returns the part, an instance of ``kind``, of a description by :func:`described`."""
    parser = ArgumentParser(exit_on_error=False)
    parser.add_argument("--part", type=kind)
    try:
        return parser.instantiate(parser.parse_object({"part": dict(description)})).part
    except Exception as error:  # importing, parsing or the class itself may fail
        raise ConfigError(f"{description.get('class_path')}: cannot be restored: {error}") from None
