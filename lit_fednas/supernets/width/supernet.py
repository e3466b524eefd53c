"""A network that is cut in width: subnets keep a share of every layer's units.

The shared weights of HeteroFL (Diao et al., 2021), FjORD (Horvath et al., 2021) and FedRolex (Alam et al., 2022),
and of all that drop units. These methods differ in which subnet a client gets, what it optimises, and how updates
are merged.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.base import Region, Supernet, _Skeleton
from lit_fednas.supernets.families import NetworkFamily, Sizes, entries_of, find_axes, multiplied, shapes_of, tensors_of
from lit_fednas.supernets.width.cnn import SlicedCNN
from lit_fednas.supernets.width.space import UnitMask, Width, WidthArch, WidthSpace

_WHOLE = slice(None)


class WidthSupernet(Supernet):
    """The whole network of a family as shared weights; subnets keep some units of every group.

    Args:
        input_shape: Shape of one example.
        num_classes: Width of the output, which is never cut.
        family: The networks; ``SlicedCNN`` if not given.
        widths: Ratios of the units; 1 is one of them.
        scaler: Whether the output of a cut layer is divided by the subnet's width in training (HeteroFL). For kept
            units the width is the mean over groups of the share that is kept.

    Attributes:
        network: The whole network.
        family: The networks.
        units: Groups of units that are cut together, with their full numbers.
        axes: For every tensor of the network and each of its dimensions: the group that it is cut by (``None``: it
            is never cut), and how many adjacent entries one unit takes.

    Raises:
        ConfigError: The widths or the inputs do not fit the family.

    Example:
        >>> net = WidthSupernet((3, 8, 8), 10, SlicedCNN((8, 16)), widths=[1, 0.5])
        >>> net.sizes(0.5)
        {'layer0': 4, 'layer1': 8}
        >>> net.axes["layer1.conv.weight"]
        (('layer1', 1), ('layer0', 1), (None, 1), (None, 1))
        >>> net.kept(Width(0.5, shift=6))["layer0"]
        tensor([6, 7, 0, 1])
        >>> net(torch.zeros(2, 3, 8, 8), Width(0.5)).shape
        torch.Size([2, 10])
    """

    network: nn.Module

    def __init__(
        self,
        input_shape: Iterable[int] = (3, 32, 32),
        num_classes: int = 10,
        family: NetworkFamily | None = None,
        widths: Sequence[float] = (1, 0.5, 0.25, 0.125, 0.0625),
        scaler: bool = False,
    ) -> None:
        super().__init__(input_shape, num_classes)
        # no family as the default: of one in a signature, jsonargparse hands settings on to another that is given
        family = SlicedCNN() if family is None else family
        self.family = family
        self.scaler = scaler
        self.units = family.units(self.input_shape)
        self.space: WidthSpace = WidthSpace(widths, self.units, family.multiple)
        self.network = self._network(self.units)
        for less, more in pairwise(self.space.widths):
            if self.sizes(less) == self.sizes(more):
                raise ConfigError(
                    f"supernet.widths: {less:g} and {more:g} are the same network, with the units "
                    f"{self.sizes(more)}; leave one out"
                )
        self._shapes = shapes_of(self.network)
        self.axes = find_axes(self._network, self.units, family.multiple, type(family).__name__)
        self._inner_nets: dict[float, _Skeleton] = {}

    @property
    @override
    def default_eval_archs(self) -> tuple[str, ...]:
        return tuple(str(Width(width)) for width in self.space.widths)

    def sizes(self, ratio: float) -> dict[str, int]:
        """Returns how many units of each group a ratio, above 0 and up to 1, keeps: rounded up to the multiple."""
        return multiplied(self.units, ratio, self.family.multiple)

    def kept(self, arch: WidthArch) -> dict[str, Tensor]:
        """Returns the positions of the kept units by group, in the subnet's order, as int64 on the CPU."""
        return {group: torch.tensor(positions, device="cpu") for group, positions in self._positions(arch).items()}

    @override
    def build(self, arch: WidthArch) -> nn.Module:
        """Builds the network of as many units as are kept; it does not depend on which they are."""
        sizes = {group: len(positions) for group, positions in self._positions(arch).items()}
        shares = [sizes[group] / full for group, full in self.units.items()]
        ratio = sum(shares) / len(shares) if isinstance(arch, UnitMask) else arch.ratio
        return self._network(sizes, ratio if self.scaler else 1.0)

    @override
    def index(self, arch: WidthArch) -> dict[str, Region]:
        positions = self._positions(arch)
        return {name: Region(f"network.{name}", self._index_within(name, positions)) for name in self.axes}

    def run_inside(self, network: nn.Module, ratio: float, x: Tensor) -> Tensor:
        """Runs a narrower net inside a client's network, in that network's mode.

        Its tensors are the corners of the network's own: the first entries of each dimension. Gradients flow into
        them, and running statistics are moved in place. The narrower nets are built in the first call, for all
        widths; under ``torch.func.vmap``, which allows no random numbers, they must have been built before.

        Args:
            network: A subnet of any width that is not below the ratio, shifted or not.
            ratio: The width to run, above 0 and up to 1.
            x: ``[batch, *input_shape]``.

        Returns:
            Logits, ``[batch, num_classes]``.

        Raises:
            ConfigError: The network is narrower than the ratio.
        """
        if ratio not in self._inner_nets:
            for width in {ratio, *self.space.widths} - set(self._inner_nets):
                self._inner_nets[width] = self._skeleton(Width(width))
        inner = self._inner_nets[ratio]
        if inner.network.training != network.training:
            inner.network.train(network.training)
        own = tensors_of(network)
        return inner.run({name: _corner(own[name], shape, ratio) for name, shape in inner.shapes.items()}, x)

    def _network(self, sizes: Sizes, scale: float = 1.0) -> nn.Module:
        return self.family.build(sizes, self.input_shape, self.num_classes, scale)

    def _positions(self, arch: WidthArch) -> dict[str, Sequence[int]]:
        """Returns the kept units by group, in the subnet's order; a group that is kept whole is not shifted."""
        if isinstance(arch, UnitMask):
            self.space.validate(arch)
            return dict(zip(self.units, arch.units, strict=True))
        return {
            group: [((arch.shift if size < full else 0) + offset) % full for offset in range(size)]
            for (group, size), full in zip(self.sizes(arch.ratio).items(), self.units.values(), strict=True)
        }

    def _index_within(self, name: str, kept: Mapping[str, Sequence[int]]) -> tuple[slice | Tensor, ...] | None:
        """Returns where the kept units lie in a tensor; slices as far as they are adjacent."""
        parts: list[slice | Tensor] = []
        for group, repeat in self.axes[name]:
            cut = group is not None and len(kept[group]) < self.units[group]
            parts.append(_entries(kept[group], repeat) if group is not None and cut else _WHOLE)
        return None if all(part is _WHOLE for part in parts) else _crossed(parts, self._shapes[name])


def _entries(positions: Sequence[int], repeat: int) -> slice | Tensor:
    """Returns the entries of units that take ``repeat`` each: a slice if they are adjacent."""
    if list(positions) == list(range(positions[0], positions[0] + len(positions))):
        return slice(positions[0] * repeat, (positions[-1] + 1) * repeat)
    return entries_of(torch.tensor(positions, device="cpu"), repeat)


def _crossed(parts: list[slice | Tensor], shape: Sequence[int]) -> tuple[slice | Tensor, ...]:
    """Shapes several integer tensors so that they are crossed, with what lies between them."""
    tensors = [dimension for dimension, part in enumerate(parts) if isinstance(part, Tensor)]
    if len(tensors) < 2:
        return tuple(parts)
    crossed = list(parts)
    for dimension in range(tensors[0], tensors[-1] + 1):
        part = parts[dimension]
        if isinstance(part, slice):
            part = torch.arange(*part.indices(shape[dimension]), device="cpu")
        crossed[dimension] = part.view(-1, *[1] * (tensors[-1] - dimension))
    return tuple(crossed)


def _corner(tensor: Tensor, shape: tuple[int, ...], ratio: float) -> Tensor:
    """Returns the first entries of each dimension: a view."""
    if tensor.shape == shape:
        return tensor
    if any(size > full for size, full in zip(shape, tensor.shape, strict=True)):
        raise ConfigError(
            f"width {ratio:g} needs a tensor of {list(shape)} where the client's network has "
            f"{list(tensor.shape)}; run a width that is not above the network's own"
        )
    return tensor[tuple(slice(0, size) for size in shape)]
