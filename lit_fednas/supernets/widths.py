"""A network that is cut in width: subnets keep a share of every layer's units.

The shared weights of HeteroFL (Diao et al., 2021), FjORD (Horvath et al., 2021), FedRolex (Alam et al., 2022), FLuID,
which differ in which subnet a client gets, what it optimises, and how updates are merged.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import isclose
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.costs.counting import on_meta
from lit_fednas.errors import ConfigError
from lit_fednas.ranges import NonNegativeInt, PositiveShare, checked
from lit_fednas.supernets.base import Region, Supernet
from lit_fednas.supernets.families import NetworkFamily, Sizes, entries_of, find_axes, multiplied, shapes_of
from lit_fednas.supernets.layers import Scaler
from lit_fednas.supernets.sliced import SlicedCNN
from lit_fednas.supernets.space import Ladder

_NUMBER = r"[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?"
_WIDTH = re.compile(rf"\s*(?:width\s*:\s*)?({_NUMBER})\s*(?:,\s*shift\s*:\s*([0-9]+)\s*)?")
_KEPT = re.compile(r"\s*kept\s*:([0-9,\-/\s]*)")
_WHOLE = slice(None)


@checked("architecture")
@dataclass(frozen=True)
class Width:
    """A share of every layer's units: channels, hidden units, attention heads.

    Attributes:
        ratio: The share, above 0 and at most 1.
        shift: The first unit that is kept, modulo each layer's units; the others follow it, from the first unit on
            after the last (FedRolex). 0 keeps the first ones (HeteroFL, FjORD).

    Example:
        >>> str(Width(0.5)), str(Width(0.5, shift=3))
        ('width: 0.5', 'width: 0.5, shift: 3')
    """

    ratio: PositiveShare
    shift: NonNegativeInt = 0

    def __str__(self) -> str:
        return f"width: {_shortest(self.ratio)}" + (f", shift: {self.shift}" if self.shift else "")


@dataclass(frozen=True)
class UnitMask:
    """The units that are kept, one by one (FLuID); the others are dropped.

    Attributes:
        units: For each group of units, in the order of the supernet's ``units``, the positions of those kept,
            ascending.

    Example:
        >>> str(UnitMask(((0, 1, 2, 3, 5), (0, 2))))
        'kept: 0-3,5/0,2'
    """

    units: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        return "kept: " + "/".join(map(_ranges, self.units))


#: What a client may train; only widths without a shift are decoded, drawn and searched.
WidthArch: TypeAlias = Width | UnitMask


class WidthSpace(Ladder[WidthArch]):
    """The widths in ascending order; clients can train shifted widths and unit masks as well, in one round."""

    kind = Width, UnitMask
    refusal = "is what a client trains in a round, not one to search; name a width without a shift"

    def __init__(self, widths: Sequence[float], units: Mapping[str, int], multiple: int = 1) -> None:
        self.widths = tuple(sorted(float(width) for width in widths))
        if 1 not in self.widths or len(set(self.widths)) < len(self.widths):
            raise ConfigError(f"supernet.widths: {list(widths)} must be distinct, with 1 as one of them")
        self.units = dict(units)
        self.multiple = multiple
        super().__init__([Width(width) for width in self.widths])

    @override
    def validate(self, arch: WidthArch) -> None:
        if isinstance(arch, UnitMask):
            self._validate_kept(arch)
        elif not isinstance(arch, Width):
            raise ConfigError(f"architecture: {arch!r} is not a width; {self._remedy}")
        elif arch.ratio not in self.widths:
            raise ConfigError(f"architecture {arch}: is not one of the widths; {self._remedy}")

    @override
    def read(self, text: Any) -> WidthArch:
        if isinstance(text, Mapping):  # YAML reads such lines as mappings
            text = ", ".join(f"{key}: {value}" for key, value in text.items())
        width, kept = _WIDTH.fullmatch(str(text)), _KEPT.fullmatch(str(text))
        if width:
            ratio = float(width[1])
            known = (rung for rung in self.widths if isclose(rung, ratio, rel_tol=1e-6))
            return Width(next(known, ratio), int(width[2] or 0))
        if kept:
            with suppress(ValueError):  # reported below
                most = max(self.units.values())
                return UnitMask(tuple(_read_ranges(units, most) for units in kept[1].split("/")))
        raise ConfigError(f"architecture: {text!r} cannot be read; {self._remedy}")

    def _validate_kept(self, arch: UnitMask) -> None:
        if len(arch.units) != len(self.units):
            raise ConfigError(
                f"architecture: kept names the units of {len(arch.units)} groups; name those of "
                f"{len(self.units)}: {', '.join(self.units)}"
            )
        for positions, (group, full) in zip(arch.units, self.units.items(), strict=True):
            whole = len(positions) % self.multiple == 0 or len(positions) == full
            if not positions or not whole or list(positions) != sorted({*positions} & {*range(full)}):
                raise ConfigError(
                    f"architecture: kept units {_ranges(positions)} of {group} must be ascending positions from 0 to "
                    f"{full - 1}, in number a multiple of {self.multiple}, at least one"
                )

    @property
    def _remedy(self) -> str:
        known = ", ".join(_shortest(width) for width in self.widths)
        return f"write 'width: 0.5' or 'width: 0.5, shift: 3' with one of {known}, or 'kept: 0-3,5/0,2'"


@checked("supernet")
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
        units: Groups of units that are cut together, with their full numbers.
        axes: For every tensor of the network and each of its dimensions: the group that it is cut by (``None``: it
            is never cut), and how many adjacent entries one unit takes.

    Example:
        >>> net = WidthSupernet((3, 8, 8), 10, SlicedCNN((8, 16)), widths=[1, 0.5])
        >>> net.axes["layer1.conv.weight"], net.kept(Width(0.5, shift=6))["layer0"]
        ((('layer1', 1), ('layer0', 1), (None, 1), (None, 1)), [6, 7, 0, 1])
        >>> net(torch.zeros(2, 3, 8, 8), Width(0.5)).shape
        torch.Size([2, 10])
    """

    network: nn.Module

    def __init__(
        self,
        input_shape: Iterable[int] = (3, 32, 32),
        num_classes: int = 10,
        family: NetworkFamily | None = None,
        widths: Sequence[PositiveShare] = (1, 0.5, 0.25, 0.125, 0.0625),
        scaler: bool = False,
    ) -> None:
        super().__init__(input_shape, num_classes)
        # no family as the default: of one in a signature, jsonargparse hands settings on to another that is given
        family = SlicedCNN() if family is None else family
        self.family = family
        self.input_dtype = family.input_dtype
        self.scaler = scaler
        self.units = family.units(self.input_shape)
        self.space: WidthSpace = WidthSpace(widths, self.units, family.multiple)
        self.network = self._network(self.units)
        scaled = on_meta(self._network, self.units, 2.0) if scaler else None
        if scaled is not None and not any(isinstance(module, Scaler) for module in scaled.modules()):
            raise ConfigError(f"supernet.scaler: networks of {type(family).__name__} have no scalers; give false")
        for less, more in pairwise(self.space.widths):
            if self.sizes(less) == self.sizes(more):
                raise ConfigError(
                    f"supernet.widths: {less:g} and {more:g} are the same network, {self.sizes(more)}; leave one out"
                )
        self._shapes = shapes_of(self.network)
        self.axes = find_axes(self._network, self.units, family.multiple, type(family).__name__)

    @property
    @override
    def default_eval_archs(self) -> tuple[str, ...]:
        return tuple(map(str, self.space.rungs))

    def sizes(self, ratio: float) -> dict[str, int]:
        """Returns how many units of each group a ratio, above 0 and up to 1, keeps: rounded up to the multiple."""
        return multiplied(self.units, ratio, self.family.multiple)

    def kept(self, arch: WidthArch) -> dict[str, Sequence[int]]:
        """Returns the kept units by group, in the subnet's order; a group that is kept whole is not shifted."""
        if isinstance(arch, UnitMask):
            self.space.validate(arch)
            return dict(zip(self.units, arch.units, strict=True))
        return {
            group: [((arch.shift if size < full else 0) + offset) % full for offset in range(size)]
            for (group, size), full in zip(self.sizes(arch.ratio).items(), self.units.values(), strict=True)
        }

    @override
    def build(self, arch: WidthArch) -> nn.Module:
        sizes = {group: len(positions) for group, positions in self.kept(arch).items()}
        shares = [sizes[group] / full for group, full in self.units.items()]
        ratio = sum(shares) / len(shares) if isinstance(arch, UnitMask) else arch.ratio
        return self._network(sizes, ratio if self.scaler else 1.0)

    @override
    def index(self, arch: WidthArch) -> dict[str, Region]:
        kept = self.kept(arch)
        return {name: Region(f"network.{name}", self._index_within(name, kept)) for name in self.axes}

    def _network(self, sizes: Sizes, scale: float = 1.0) -> nn.Module:
        return self.family.build(sizes, self.input_shape, self.num_classes, scale)

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
    first, end = tensors[0], tensors[-1] + 1
    sized = zip(parts[first:end], shape[first:end], strict=True)
    entries = [torch.arange(size, device="cpu")[part] for part, size in sized]
    return (*parts[:first], *map(torch.from_numpy, np.ix_(*entries)), *parts[end:])


def _shortest(ratio: float) -> str:
    """Returns the shortest text that is read back as the same number."""
    return f"{ratio:g}" if float(f"{ratio:g}") == ratio else repr(float(ratio))


def _ranges(positions: Sequence[int]) -> str:
    """Writes ``(0, 1, 2, 5)`` as ``0-2,5``."""
    apart = [0, *(at for at in range(1, len(positions)) if positions[at] != positions[at - 1] + 1), len(positions)]
    runs = [positions[first:end] for first, end in pairwise(apart)]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _read_ranges(text: str, most: int) -> tuple[int, ...]:
    """Reads ``0-2,5`` as ``(0, 1, 2, 5)``; of a run at most so many more are read, which no group has."""
    positions: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        positions += range(int(first), min(int(last or first), int(first) + most) + 1)
    return tuple(positions)
