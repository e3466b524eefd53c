"""A wide network as independent narrow ones: split to train, mixed to predict.

After Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and In-Situ
Customization", ICLR): the wide network's units are divided among base networks of equal width that share no
weights, and a network of any width is an ensemble of as many of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.base import OutputsNetwork, Region, Supernet
from lit_fednas.supernets.families import NetworkFamily
from lit_fednas.supernets.space import Ladder


@dataclass(frozen=True)
class Bases:
    """Some of the base networks.

    Attributes:
        members: Their numbers, ascending.

    Example:
        >>> str(Bases((0, 2, 3)))
        'bases: 0,2,3'
    """

    members: tuple[int, ...]

    def __str__(self) -> str:
        """The numbers, joined by commas."""
        return f"bases: {','.join(map(str, self.members))}"


class BaseSpace(Ladder[Bases]):
    """How many base networks are mixed: what is searched are the first, the first two, and so on.

    :meth:`parse` knows any subset, which a client may train. The base networks are alike, so that other subsets
    of as many are no other architectures to a search.

    Args:
        count: The number of base networks.

    Example:
        >>> space = BaseSpace(4)
        >>> space.size, str(space.smallest), str(space.decode([2])), str(space.parse("bases: 1,3"))
        (4, 'bases: 0', 'bases: 0,1,2', 'bases: 1,3')
    """

    refusal = "is a client's choice of bases; name the first ones, from 0 on"

    def __init__(self, count: int) -> None:
        self.count = count
        super().__init__([self.first(number) for number in range(1, count + 1)])

    @staticmethod
    def first(count: int) -> Bases:
        """The first ``count`` base networks."""
        return Bases(tuple(range(count)))

    def validate(self, arch: Bases) -> None:
        """Raises ``ConfigError`` if there is none, one is unknown, or they are not ascending."""
        members = list(arch.members)
        known = all(0 <= member < self.count for member in members)
        if not members or not known or members != sorted(set(members)):
            raise ConfigError(
                f"architecture {arch}: name at least one of the bases 0 to {self.count - 1}, each once and "
                f"ascending"
            )

    def parse(self, text: Any) -> Bases:
        """Reads ``bases: 0,2,3``, or a ``Bases``."""
        if isinstance(text, Bases):
            arch = text
        else:
            found = re.fullmatch(r"\s*bases:\s*(\d+(?:\s*,\s*\d+)*)\s*", str(text))
            if found is None:
                raise ConfigError(f"architecture {text!r}: cannot be read; write it as 'bases: 0,2,3'")
            arch = Bases(tuple(int(member) for member in found[1].split(",")))
        self.validate(arch)
        return arch


class Mix(OutputsNetwork):
    """Base networks side by side; their mix is the mean of their logits.

    Args:
        networks: The base networks, by number.
    """

    def __init__(self, networks: dict[int, nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleDict({str(number): network for number, network in networks.items()})

    def outputs(self, x: Tensor) -> list[Tensor]:
        """Each one's logits, ``[batch, num_classes]``, in ascending order of the numbers."""
        return [network(x) for network in self.networks.values()]

    def forward(self, x: Tensor) -> Tensor:
        """The mean of the logits, ``[batch, num_classes]``."""
        return torch.stack(self.outputs(x)).mean(0)


class BaseNetworks(Supernet):
    """Independent base networks, each with one ``count``-th of a family's units.

    The publication averages what the base networks say; here these are logits. Each group of units is divided
    with rounding up (to the family's multiple), so that no base network is without units. Each has its own
    initial weights and its own norms; the publication's dual batch norms, which serve robustness against
    adversarial examples, are left out.

    Args:
        input_shape: Shape of one example.
        num_classes: Classes.
        family: The wide network, and how narrower ones are built.
        count: The number of base networks.

    Raises:
        ConfigError: The count is below 1, or above the units of the family's widest group.

    Example:
        >>> from lit_fednas.supernets.width.cnn import SlicedCNN
        >>> net = BaseNetworks((3, 8, 8), 10, SlicedCNN((8, 16)), count=4)
        >>> net.networks[3].layer1.conv.weight.shape[:2]
        torch.Size([4, 2])
        >>> net(torch.zeros(2, 3, 8, 8), Bases((1, 3))).shape
        torch.Size([2, 10])
    """

    def __init__(self, input_shape: Iterable[int], num_classes: int, family: NetworkFamily, count: int) -> None:
        super().__init__(input_shape, num_classes)
        self.family = family
        self.count = int(count)
        units = family.units(self.input_shape)
        if not 1 <= self.count <= max(units.values()):
            raise ConfigError(
                f"supernet.count: {count} must be at least 1, and at most the units of the widest layer, "
                f"{max(units.values())}"
            )
        self._sizes = {group: self._share(full) for group, full in units.items()}
        self._space = BaseSpace(self.count)
        self.networks = nn.ModuleList(self._base() for _ in range(self.count))

    @property
    def space(self) -> BaseSpace:
        """How many are mixed."""
        return self._space

    def build(self, arch: Bases) -> Mix:
        """The members, side by side."""
        return Mix({member: self._base() for member in arch.members})

    def index(self, arch: Bases) -> dict[str, Region]:
        """Each tensor is the whole one of the same name."""
        starts = tuple(f"networks.{member}." for member in arch.members)
        return {name: Region(name) for name in self.shared_tensors() if name.startswith(starts)}

    def _base(self) -> nn.Module:
        return self.family.build(self._sizes, self.input_shape, self.num_classes, 1.0)

    def _share(self, full: int) -> int:
        multiple = self.family.multiple
        share = -(-full // self.count)  # in whole numbers: 1 / count times a width may come out a little above
        return min(full, -(-share // multiple) * multiple)
