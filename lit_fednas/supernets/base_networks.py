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
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets.families import NetworkFamily
from lit_fednas.supernets.side_by_side import Members, NetworkCollection, SideBySide
from lit_fednas.supernets.space import Ladder


@dataclass(frozen=True)
class Bases(Members):
    """Some of the base networks, by their numbers in ascending order.

    Example:
        >>> str(Bases((0, 2, 3)))
        'bases: 0,2,3'
    """

    members: tuple[int, ...]

    def __str__(self) -> str:
        return f"bases: {','.join(map(str, self.members))}"


class BaseSpace(Ladder[Bases]):
    """The number of base networks that are mixed: the first, the first two, and so on are searched.

    :meth:`parse` knows any subset, which a client may train. The base networks have the same structure, so a
    search needs no other subsets of the same size.

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
        """Returns the first ``count`` base networks."""
        return Bases(tuple(range(count)))

    @override
    def validate(self, arch: Bases) -> None:
        members = list(arch.members)
        known = all(0 <= member < self.count for member in members)
        if not members or not known or members != sorted(set(members)):
            raise ConfigError(
                f"architecture {arch}: name at least one of the bases 0 to {self.count - 1}, each once and "
                f"ascending"
            )

    @override
    def parse(self, text: Any) -> Bases:
        """Reads ``bases: 0,2,3``, or a ``Bases``."""
        if isinstance(text, Bases):
            arch = text
        else:
            match = re.fullmatch(r"\s*bases:\s*(\d+(?:\s*,\s*\d+)*)\s*", str(text))
            if match is None:
                raise ConfigError(f"architecture {text!r}: cannot be read; write it as 'bases: 0,2,3'")
            arch = Bases(tuple(int(member) for member in match[1].split(",")))
        self.validate(arch)
        return arch


class Mix(SideBySide):
    """Base networks side by side; ``forward`` returns the mean of their logits."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(self.outputs(x)).mean(0)


@checked("supernet")
class BaseNetworks(NetworkCollection):
    """Independent base networks, each with one ``count``-th of a family's units.

    The publication averages the outputs of the base networks; here these are logits. Each group of units is
    divided with rounding up (to the family's multiple), so that every base network has units. Each has its own
    initial weights and its own norms; the publication's dual batch norms, for robustness against adversarial
    examples, are left out.

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

    def __init__(
        self, input_shape: Iterable[int], num_classes: int, family: NetworkFamily, count: PositiveInt
    ) -> None:
        super().__init__(input_shape, num_classes)
        self.family = family
        self.count = int(count)
        units = family.units(self.input_shape)
        if self.count > max(units.values()):
            raise ConfigError(
                f"supernet.count: {count} must be at most the number of units of the widest layer, "
                f"{max(units.values())}"
            )
        self._sizes = {group: self._share(full) for group, full in units.items()}
        self.space: BaseSpace = BaseSpace(self.count)
        self.networks = nn.ModuleList(map(self.build_member, range(self.count)))

    @override
    def build_member(self, member: int) -> nn.Module:
        return self.family.build(self._sizes, self.input_shape, self.num_classes, 1.0)

    @override
    def location(self, member: int) -> str:
        return f"networks.{member}"

    @override
    def build(self, arch: Bases) -> Mix:
        """Builds the mean of the members' logits."""
        return Mix(map(self.build_member, arch.members))

    def _share(self, full: int) -> int:
        multiple = self.family.multiple
        share = -(-full // self.count)  # in whole numbers: 1 / count times a width may come out a little above
        return min(full, -(-share // multiple) * multiple)
