"""A wide network as independent narrow ones: split to train, mixed to predict.

After Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and In-Situ
Customization", ICLR): the wide network's units are divided among base networks of equal width that share no
weights, and a network of any width is an ensemble of as many of them.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets.families import NetworkFamily
from lit_fednas.supernets.side_by_side import Members, NetworkCollection, SideBySide
from lit_fednas.supernets.space import Subset, SubsetSpace


class Bases(Subset, Members):
    """Some of the base networks, by their numbers; they have the same structure, so the first ones are searched.

    Example:
        >>> space = SubsetSpace(Bases, range(4))
        >>> space.size, str(space.smallest), str(space.decode([2])), str(space.parse("bases: 1,3"))
        (4, 'bases: 0', 'bases: 0,1,2', 'bases: 1,3')
    """

    word = "bases"


class Mix(SideBySide):
    """Base networks side by side; ``forward`` returns the mean of their logits."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(self.outputs(x)).mean(0)


@checked("supernet")
class BaseNetworks(NetworkCollection):
    """Independent base networks, each with one ``count``-th of a family's units.

    The publication averages the outputs of the base networks; here these are logits. Each group of units is divided
    with rounding up (to the family's multiple), so that every base network has units. Each has its own initial weights
    and its own norms; the publication's dual batch norms, for robustness against adversarial examples, are left out.

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

    def __init__(self, input_shape: Iterable[int], num_classes: int, family: NetworkFamily, count: PositiveInt) -> None:
        super().__init__(input_shape, num_classes)
        self.family = family
        self.count = int(count)
        units = family.units(self.input_shape)
        widest = max(units.values())
        if self.count > widest:
            raise ConfigError(
                f"supernet.count: {count} must be at most the number of units of the widest layer, {widest}"
            )
        self._sizes = {group: self._share(full) for group, full in units.items()}
        self.space: SubsetSpace[Bases] = SubsetSpace(Bases, range(self.count))
        self.networks = nn.ModuleList(map(self.build_member, range(self.count)))

    @override
    def build_member(self, member: int) -> nn.Module:
        return self.family.build(self._sizes, self.input_shape, self.num_classes)

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
