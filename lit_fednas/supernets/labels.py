"""Label sets: what of the data's classes a client's labels tell (FedorAS, App. H).

Clients of different tiers may label the same data more or less finely: CIFAR-100's 20 superclasses and its 100
classes. The data's own classes are the finest; every other set groups them, so an example's label in a set follows
from its class. A supernet has one classifier per set and an architecture names the one that it ends in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lit_fednas.errors import ConfigError

#: The name of the data's own classes.
OWN = "own"
#: What stands for all sets, where an architecture holds all weights.
ALL = "*"


class LabelSets:
    """Label sets beside the data's own classes.

    Args:
        num_classes: The data's classes.
        sets: By name, for each class its label in the set, from 0.

    Raises:
        ConfigError: A set does not say one label per class, leaves a number out, or has a name that is taken.

    Example:
        >>> sets = LabelSets(4, {"coarse": [0, 0, 1, 1]})
        >>> sets.size("coarse"), sets.targets("coarse", torch.tensor([3, 0])).tolist()
        (2, [1, 0])
    """

    def __init__(self, num_classes: int, sets: Mapping[str, Sequence[int]] | None = None) -> None:
        self.num_classes = num_classes
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
        """How many labels a set has."""
        return self._sizes[name]

    def targets(self, name: str, classes: Tensor) -> Tensor:
        """The labels of examples, given their classes; both ``[batch]``."""
        if name == OWN:
            return classes
        if self._tables[name].device != classes.device:
            self._tables[name] = self._tables[name].to(classes.device)
        return self._tables[name][classes]
