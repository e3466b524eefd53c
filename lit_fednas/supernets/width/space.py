"""Widths of a network: the share of every layer's units that a subnet keeps, and which of them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from math import isclose
from typing import Any, TypeAlias

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import NonNegativeInt, PositiveShare, checked
from lit_fednas.supernets.space import Ladder

_NUMBER = r"[0-9]*\.?[0-9]+(?:[eE][-+]?[0-9]+)?"
_WIDTH = re.compile(rf"\s*(?:width\s*:\s*)?({_NUMBER})\s*(?:,\s*shift\s*:\s*([0-9]+)\s*)?")
_KEPT = re.compile(r"\s*kept\s*:([0-9,\-/\s]*)")


@checked("architecture")
@dataclass(frozen=True)
class Width:
    """A share of every layer's units: channels, hidden units, attention heads.

    Attributes:
        ratio: The share, above 0 and at most 1.
        shift: The first unit that is kept, modulo each layer's units; the others follow it, from the first unit on
            after the last (FedRolex). 0 keeps the first ones (HeteroFL, FjORD).

    Raises:
        ConfigError: One of them is out of range.

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
        return "kept: " + "/".join(_ranges(positions) for positions in self.units)


#: What a client may train; only widths without a shift are decoded, drawn and searched.
WidthArch: TypeAlias = Width | UnitMask


class WidthSpace(Ladder[WidthArch]):
    """The widths in ascending order; clients can train shifted widths and unit masks as well, in one round."""

    refusal = "is what a client trains in a round, not one to search; name a width without a shift"

    def __init__(self, widths: Sequence[float], units: Mapping[str, int], multiple: int = 1) -> None:
        self.widths = tuple(sorted(float(width) for width in widths))
        if not self.widths or self.widths[-1] != 1 or self.widths[0] <= 0:
            raise ConfigError(f"supernet.widths: {list(widths)} must lie above 0 and up to 1, with 1 as one of them")
        if len(set(self.widths)) < len(self.widths):
            raise ConfigError(f"supernet.widths: {list(widths)} has a duplicate; name each once")
        self.units = dict(units)
        self.multiple = multiple
        super().__init__([Width(width) for width in self.widths])

    def validate(self, arch: WidthArch) -> None:
        """Raises ``ConfigError`` if it is not a width of the space, or keeps unknown units."""
        if isinstance(arch, UnitMask):
            self._validate_kept(arch)
        elif not isinstance(arch, Width):
            raise ConfigError(f"architecture: {arch!r} is not a width; {self._remedy}")
        elif arch.ratio not in self.widths:
            raise ConfigError(f"architecture {arch}: is not one of the widths; {self._remedy}")

    def parse(self, text: Any) -> WidthArch:
        """Reads ``width: 0.5``, ``width: 0.5, shift: 3``, ``kept: 0-3,5/0,2``, a number, or an architecture."""
        if isinstance(text, Mapping):  # YAML reads such lines as mappings
            text = ", ".join(f"{key}: {value}" for key, value in text.items())
        arch = text if isinstance(text, Width | UnitMask) else self._read(text)
        self.validate(arch)
        return arch

    def _read(self, text: Any) -> WidthArch:
        width, kept = _WIDTH.fullmatch(str(text)), _KEPT.fullmatch(str(text))
        if width:
            ratio = float(width[1])
            known = (one for one in self.widths if isclose(one, ratio, rel_tol=1e-6))
            return Width(next(known, ratio), int(width[2] or 0))
        if kept:
            with suppress(ValueError):  # reported below
                return UnitMask(tuple(_read_ranges(group) for group in kept[1].split("/")))
        raise ConfigError(f"architecture: {text!r} cannot be read; {self._remedy}")

    def _validate_kept(self, arch: UnitMask) -> None:
        if len(arch.units) != len(self.units):
            raise ConfigError(
                f"architecture: kept names the units of {len(arch.units)} groups; name those of "
                f"{len(self.units)}: {', '.join(self.units)}"
            )
        for positions, (group, full) in zip(arch.units, self.units.items(), strict=True):
            ascending = all(first < second for first, second in pairwise(positions))
            if not positions or not ascending or positions[0] < 0 or positions[-1] >= full:
                raise ConfigError(
                    f"architecture: kept units {_ranges(positions)} of {group} must be ascending positions from 0 "
                    f"to {full - 1}, at least one"
                )
            if len(positions) % self.multiple and len(positions) < full:
                raise ConfigError(
                    f"architecture: {len(positions)} kept units of {group} must be a multiple of {self.multiple}, "
                    f"which the network's normalisation needs"
                )

    @property
    def _remedy(self) -> str:
        known = ", ".join(_shortest(width) for width in self.widths)
        return f"write 'width: 0.5' or 'width: 0.5, shift: 3' with one of {known}, or 'kept: 0-3,5/0,2'"


def _shortest(ratio: float) -> str:
    """Returns the shortest text that is read back as the same number."""
    return f"{ratio:g}" if float(f"{ratio:g}") == ratio else repr(float(ratio))


def _ranges(positions: Sequence[int]) -> str:
    """Writes ``(0, 1, 2, 5)`` as ``0-2,5``."""
    runs: list[list[int]] = []
    for position in positions:
        if runs and position == runs[-1][-1] + 1:
            runs[-1][1:] = [position]
        else:
            runs.append([position])
    return ",".join("-".join(str(end) for end in run) for run in runs)


def _read_ranges(text: str) -> tuple[int, ...]:
    """Reads ``0-2,5`` as ``(0, 1, 2, 5)``."""
    positions: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        positions += range(int(first), int(last or first) + 1)
    return tuple(positions)
