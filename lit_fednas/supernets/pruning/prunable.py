"""A family's network with any numbers of units, and where its filters are (FedNAS, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.axes import find_axes
from lit_fednas.supernets.width_families import WidthFamily


class Prunable:
    """What must be known of a family's network to take filters out of it.

    A filter is a row of a convolution's or a linear layer's weight. The rows of a group of units may lie in
    several layers: all that write into a residual stream. A depthwise convolution's do not count: its channels
    follow those that it gets.

    Args:
        family: The networks.
        input_shape: Shape of one example.
        num_classes: Classes.

    Attributes:
        sizes: The groups of units and their full numbers.
        axes: For every tensor and each of its dimensions, the group of units that lies there.
        writers: For every group, the weights whose rows are its filters.

    Raises:
        ConfigError: A group has no filters.

    Example:
        >>> from lit_fednas.supernets.sliced_cnn import SlicedCNN
        >>> prunable = Prunable(SlicedCNN((8, 16)), (3, 8, 8), 10)
        >>> prunable.sizes, prunable.writers["layer1"]
        ({'layer0': 8, 'layer1': 16}, ('layer1.conv.weight',))
    """

    def __init__(self, family: WidthFamily, input_shape: Sequence[int], num_classes: int) -> None:
        self.family = family
        self.input_shape = tuple(input_shape)
        self.num_classes = num_classes
        self.multiple = family.multiple
        self.sizes = family.units(self.input_shape)
        self.axes = find_axes(self.build, self.sizes, self.multiple, type(family).__name__)
        self.writers = self._writers()

    def build(self, sizes: Mapping[str, int]) -> nn.Module:
        """The network with these numbers of units."""
        return self.family.build(sizes, self.input_shape, self.num_classes)

    def _writers(self) -> dict[str, tuple[str, ...]]:
        with torch.device("meta"):
            network = self.build(self.sizes)
        found: dict[str, list[str]] = {group: [] for group in self.sizes}
        for name, module in network.named_modules():
            if not isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
                continue
            group = self.axes[f"{name}.weight"][0][0]
            if group is not None and getattr(module, "groups", 1) == 1:
                found[group].append(f"{name}.weight")
        for group, names in found.items():
            if not names:
                raise ConfigError(
                    f"supernet.family: no convolution or linear layer of {type(self.family).__name__} writes the "
                    f"units {group!r}; such networks cannot lose filters by their norms"
                )
        return {group: tuple(names) for group, names in found.items()}
