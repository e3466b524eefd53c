"""An elastic perceptron for tables: residual blocks of a fixed width with elastic hidden units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod

from torch import nn
from typing_extensions import override

from lit_fednas.ranges import NonNegativeInt, PositiveFloat, PositiveInt, checked
from lit_fednas.supernets.base import NestedSupernet
from lit_fednas.supernets.elastic_space import ElasticArch, ElasticSpace
from lit_fednas.supernets.layers import Residual, sequential


@checked("supernet")
class ElasticMLP(NestedSupernet):
    """Elastic residual perceptron, after the ResNet for tabular data of Gorishniy et al. (2021).

    A linear layer maps the flattened input to ``dim`` entries; each block adds ``Linear(ReLU(Linear(norm(x))))`` to
    them; the head is ``Linear(ReLU(norm(x)))``. Two deviations: a layer norm replaces
    their batch norm, as its size is always ``dim`` and it keeps no running statistics, and dropout is omitted.

    Args:
        input_shape: Shape of one example; it is flattened.
        num_classes: Width of the output.
        dim: Entries that the blocks add to.
        depths: Choices for the number of blocks beyond the first.
        ratios: Choices of a block's hidden units, as multiples of ``dim``.

    Raises:
        ConfigError: The choices are empty, not ascending, or out of range.

    Example:
        >>> net = ElasticMLP((30,), 2, dim=16, depths=[0, 1], ratios=[0.5, 1, 2])
        >>> net.space.size, str(net.space.smallest)
        (12, 'd: [0], e: 0.5')
    """

    def __init__(
        self,
        input_shape: Iterable[int],
        num_classes: int,
        dim: PositiveInt = 128,
        depths: Sequence[NonNegativeInt] = (0, 1, 2),
        ratios: Sequence[PositiveFloat] = (0.25, 0.5, 1.0, 2.0),
    ) -> None:
        super().__init__(input_shape, num_classes)
        self.dim = dim
        self.space: ElasticSpace = ElasticSpace(depths, ratios, (dim,))
        self.network = self.build(self.space.largest)

    @override
    def build(self, arch: ElasticArch) -> nn.Module:
        dim, blocks = self.dim, nn.Sequential()
        for _, middle, _, _ in self.space.blocks_of(arch):
            hidden, output = nn.Linear(dim, middle), nn.Linear(middle, dim)
            blocks.append(
                Residual(sequential(norm=nn.LayerNorm(dim), hidden=hidden, relu=nn.ReLU(inplace=True), output=output))
            )
        return sequential(
            flatten=nn.Flatten(),
            stem=nn.Linear(prod(self.input_shape), dim),
            blocks=blocks,
            norm=nn.LayerNorm(dim),
            relu=nn.ReLU(inplace=True),
            classifier=nn.Linear(dim, self.num_classes),
        )
