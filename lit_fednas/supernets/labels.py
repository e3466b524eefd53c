"""Label sets: how finely a client's labels distinguish the data's classes (FedorAS, App. H).

Clients of different tiers may label the same data more or less finely: CIFAR-100's 20 superclasses and its 100
classes. The data's own classes are the finest; every other set groups them. A supernet has one classifier per set
and an architecture names its own.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.space import OWN, SearchSpace

#: All label sets, where an architecture holds all weights.
ALL = "*"


class LabelSets:
    """Label sets beside the data's own classes: by name, for each class its label in the set, from 0."""

    def __init__(self, num_classes: int, sets: Mapping[str, Sequence[int]] | None = None) -> None:
        self._sizes = {OWN: num_classes}
        self._tables: dict[str, Tensor] = {}
        for name, labels in (sets or {}).items():
            if name in (OWN, ALL) or not name.isidentifier():
                raise ConfigError(f"supernet.label_sets: {name!r} cannot name a set; use letters, digits and _")
            if len(labels) != num_classes:
                raise ConfigError(
                    f"supernet.label_sets.{name}: has {len(labels)} labels; give one for each of the data's "
                    f"{num_classes} classes"
                )
            if sorted(set(labels)) != list(range(len(set(labels)))):
                raise ConfigError(f"supernet.label_sets.{name}: labels must be 0, 1, ... without a gap")
            self._sizes[name] = len(set(labels))
            self._tables[name] = torch.tensor(labels, dtype=torch.int64)

    @property
    def names(self) -> tuple[str, ...]:
        """All sets, the data's own classes first."""
        return tuple(self._sizes)

    def size(self, name: str) -> int:
        """Returns the number of labels of a set."""
        return self._sizes[name]

    def targets(self, name: str, classes: Tensor) -> Tensor:
        """Returns the labels of examples, given their classes; both ``[batch]``."""
        if name == OWN:
            return classes
        if self._tables[name].device != classes.device:
            self._tables[name] = self._tables[name].to(classes.device)
        return self._tables[name][classes]


def labels_of(arch: Any) -> str:
    """Returns the label set of an architecture's classifier: the data's own unless it names another."""
    return getattr(arch, "labels", OWN)


def with_labels(space: SearchSpace[Any], arch: Any, labels: str, field: str = "labels") -> Any:
    """Returns an architecture with the classifier of a label set that is otherwise the same.

    Args:
        space: The architecture's space.
        arch: The architecture.
        labels: The label set.
        field: The setting that names it, for errors.

    Raises:
        ConfigError: The space does not have the label set.
    """
    if labels_of(arch) == labels:
        return arch
    known = getattr(space, "label_sets", (OWN,))
    if labels not in known:
        raise ConfigError(f"{field}: {labels!r} is not a label set of the supernet; there are: {', '.join(known)}")
    return replace(arch, labels=labels)


def labelled_space(space: SearchSpace[Any], labels: str, field: str = "labels") -> SearchSpace[Any]:
    """Returns the part of a space whose architectures have the classifier of a label set.

    Args:
        space: The space.
        labels: The label set.
        field: The setting that names it, for errors.

    Raises:
        ConfigError: The space does not have the label set.
    """
    with_labels(space, space.smallest, labels, field)
    if labels == space.labels:
        return space
    labelled = copy.copy(space)
    labelled.labels = labels
    return labelled
