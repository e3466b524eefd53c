"""A network that is cut in width: subnets keep a share of every layer's units.

HeteroFL (Diao et al., 2021), FjORD (Horvath et al., 2021), FedRolex (Alam et al., 2022) and FLuID share weights in this
way. They differ in the assigned subnets, the local loss and the aggregation.
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
from lit_fednas.supernets.families import NetworkFamily, Sizes, entries_of, find_axes, multiply_units, shapes_of
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
        shift: First kept unit, modulo each layer's number of units. The next units follow it cyclically (FedRolex);
            0 keeps the first units (HeteroFL, FjORD).

    Example:
        >>> str(Width(0.5)), str(Width(0.5, shift=3))
        ('width: 0.5', 'width: 0.5, shift: 3')
    """

    ratio: PositiveShare
    shift: NonNegativeInt = 0

    def __str__(self) -> str:
        return f"width: {_shortest_text(self.ratio)}" + (f", shift: {self.shift}" if self.shift else "")


@dataclass(frozen=True)
class UnitMask:
    """Any selection of kept units (FLuID); the others are dropped.

    Attributes:
        units: Ascending positions of the kept units per group, in the order of the supernet's ``units``.

    Example:
        >>> str(UnitMask(((0, 1, 2, 3, 5), (0, 2))))
        'kept: 0-3,5/0,2'
    """

    units: tuple[tuple[int, ...], ...]

    def __str__(self) -> str:
        return "kept: " + "/".join(map(_format_ranges, self.units))


#: Architectures that a client may train; only widths without a shift are decoded, drawn and searched.
WidthArch: TypeAlias = Width | UnitMask


class WidthSpace(Ladder[WidthArch]):
    """The widths in ascending order; in a round, clients can also train shifted widths and unit masks."""

    kind = Width, UnitMask
    refusal = "can be trained but not searched; name a width without a shift"

    def __init__(self, widths: Sequence[float], units: Mapping[str, int], multiple: int = 1) -> None:
        self.widths = tuple(sorted(float(width) for width in widths))
        if 1 not in self.widths or len(set(self.widths)) < len(self.widths):
            raise ConfigError(f"supernet.widths: {list(widths)} must be distinct and contain 1")
        self.units = dict(units)
        self.multiple = multiple
        super().__init__([Width(width) for width in self.widths])

    @override
    def validate(self, arch: WidthArch) -> None:
        if isinstance(arch, UnitMask):
            self._validate_mask(arch)
        elif not isinstance(arch, Width):
            raise ConfigError(f"architecture: {arch!r} is not a width; {self._remedy}")
        elif arch.ratio not in self.widths:
            raise ConfigError(f"architecture {arch}: is not in supernet.widths; {self._remedy}")

    @override
    def read(self, text: Any) -> WidthArch:
        if isinstance(text, Mapping):  # YAML reads "width: 0.5" as a mapping
            text = ", ".join(f"{key}: {value}" for key, value in text.items())
        if match := _WIDTH.fullmatch(str(text)):
            ratio = float(match[1])
            equal_widths = (width for width in self.widths if isclose(width, ratio, rel_tol=1e-6))
            return Width(next(equal_widths, ratio), int(match[2] or 0))
        if match := _KEPT.fullmatch(str(text)):
            with suppress(ValueError):  # reported below
                largest = max(self.units.values())
                return UnitMask(tuple(_read_ranges(units, largest) for units in match[1].split("/")))
        raise ConfigError(f"architecture: {text!r} cannot be read; {self._remedy}")

    def _validate_mask(self, arch: UnitMask) -> None:
        if len(arch.units) != len(self.units):
            groups = ", ".join(self.units)
            raise ConfigError(f"architecture: kept has {len(arch.units)} groups; give {len(self.units)}: {groups}")
        for positions, (group, full) in zip(arch.units, self.units.items(), strict=True):
            divisible = len(positions) % self.multiple == 0 or len(positions) == full
            if not positions or not divisible or list(positions) != sorted({*positions} & {*range(full)}):
                raise ConfigError(
                    f"architecture: kept units {_format_ranges(positions)} of {group} must be ascending positions from "
                    f"0 to {full - 1}; their number must be a positive multiple of {self.multiple}"
                )

    @property
    def _remedy(self) -> str:
        widths = ", ".join(map(_shortest_text, self.widths))
        return f"write 'width: 0.5' or 'width: 0.5, shift: 3' with one of {widths}, or 'kept: 0-3,5/0,2'"


@checked("supernet")
class WidthSupernet(Supernet):
    """The whole network of a family holds the shared weights; subnets keep some units of every group.

    Args:
        input_shape: Shape of one example.
        num_classes: Width of the output, which is never cut.
        family: The networks; by default a ``SlicedCNN``.
        widths: Shares of the units that subnets keep; they must contain 1.
        scaler: Whether the output of a cut layer is divided by the subnet's width in training (HeteroFL). The width of
            a unit mask is the mean share of kept units over groups.

    Attributes:
        network: The whole network.
        units: The full number of units of each group.
        axes: The group (``None`` if it is never cut) and the entries per unit of each tensor's dimensions.

    Example:
        >>> net = WidthSupernet((3, 8, 8), 10, SlicedCNN((8, 16)), widths=[1, 0.5])
        >>> net.axes["layer1.conv.weight"], net.kept_units(Width(0.5, shift=6))["layer0"]
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
        # no family in the signature: jsonargparse would pass its settings to another family
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
        for narrow, wide in pairwise(self.space.widths):
            if (sizes := self.sizes(wide)) == self.sizes(narrow):
                raise ConfigError(f"supernet.widths: {narrow:g} and {wide:g} are the same network, {sizes}; remove one")
        self._shapes = shapes_of(self.network)
        self.axes = find_axes(self._network, self.units, family.multiple, type(family).__name__)

    @property
    @override
    def default_eval_archs(self) -> tuple[str, ...]:
        return tuple(map(str, self.space.rungs))

    def sizes(self, ratio: float) -> dict[str, int]:
        """Returns the number of units that a ratio, above 0 and up to 1, keeps of each group; it is rounded up."""
        return multiply_units(self.units, ratio, self.family.multiple)

    def kept_units(self, arch: WidthArch) -> dict[str, Sequence[int]]:
        """Returns the kept units by group, in the subnet's order; whole groups are not shifted."""
        if isinstance(arch, UnitMask):
            self.space.validate(arch)
            return dict(zip(self.units, arch.units, strict=True))
        return {
            group: [((arch.shift if size < full else 0) + offset) % full for offset in range(size)]
            for (group, size), full in zip(self.sizes(arch.ratio).items(), self.units.values(), strict=True)
        }

    @override
    def build(self, arch: WidthArch) -> nn.Module:
        sizes = {group: len(positions) for group, positions in self.kept_units(arch).items()}
        shares = [sizes[group] / full for group, full in self.units.items()]
        ratio = sum(shares) / len(shares) if isinstance(arch, UnitMask) else arch.ratio
        return self._network(sizes, ratio if self.scaler else 1.0)

    @override
    def index(self, arch: WidthArch) -> dict[str, Region]:
        kept_units = self.kept_units(arch)
        return {name: Region(f"network.{name}", self._index_within(name, kept_units)) for name in self.axes}

    def _network(self, sizes: Sizes, scale: float = 1.0) -> nn.Module:
        return self.family.build(sizes, self.input_shape, self.num_classes, scale)

    def _index_within(self, name: str, kept_units: Mapping[str, Sequence[int]]) -> tuple[slice | Tensor, ...] | None:
        """Returns the index of the kept units in a tensor, with slices for adjacent units."""
        parts: list[slice | Tensor] = []
        for group, repeat in self.axes[name]:
            if group is None or len(kept_units[group]) == self.units[group]:
                parts.append(_WHOLE)
            else:
                parts.append(_entries(kept_units[group], repeat))
        return None if all(part is _WHOLE for part in parts) else _cross(parts, self._shapes[name])


def _entries(positions: Sequence[int], repeat: int) -> slice | Tensor:
    """Returns the index of units with ``repeat`` entries each: a slice if the units are adjacent."""
    if list(positions) == list(range(positions[0], positions[0] + len(positions))):
        return slice(positions[0] * repeat, (positions[-1] + 1) * repeat)
    return entries_of(torch.tensor(positions, device="cpu"), repeat)


def _cross(parts: list[slice | Tensor], shape: Sequence[int]) -> tuple[slice | Tensor, ...]:
    """Shapes several integer tensors, and the slices between them, so that they broadcast against each other."""
    tensors = [dimension for dimension, part in enumerate(parts) if isinstance(part, Tensor)]
    if len(tensors) < 2:
        return tuple(parts)
    first, end = tensors[0], tensors[-1] + 1
    sized = zip(parts[first:end], shape[first:end], strict=True)
    entries = [torch.arange(size, device="cpu")[part] for part, size in sized]
    return (*parts[:first], *map(torch.from_numpy, np.ix_(*entries)), *parts[end:])


def _shortest_text(ratio: float) -> str:
    """Returns the shortest text that parses to the same number."""
    return f"{ratio:g}" if float(f"{ratio:g}") == ratio else repr(float(ratio))


def _format_ranges(positions: Sequence[int]) -> str:
    """Writes ``(0, 1, 2, 5)`` as ``0-2,5``."""
    starts = [i for i in range(1, len(positions)) if positions[i] != positions[i - 1] + 1]
    runs = [positions[first:end] for first, end in pairwise([0, *starts, len(positions)])]
    return ",".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def _read_ranges(text: str, longest: int) -> tuple[int, ...]:
    """Reads ``0-2,5`` as ``(0, 1, 2, 5)``; ``longest`` limits the length of a run, and thereby the memory."""
    positions: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        positions += range(int(first), min(int(last or first), int(first) + longest) + 1)
    return tuple(positions)
