"""A wide network as independent narrow ones: split to train, mixed to predict.

After Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and In-Situ
Customization", ICLR): the wide network's units are divided among base networks of equal width that share no
weights, and a network of any width is an ensemble of as many of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import isclose
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, PositiveShare, checked
from lit_fednas.supernets.families import NetworkFamily, multiplied
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


class BaseSpace(SubsetSpace[Bases]):
    """Base networks; :meth:`parse` also reads ``width: 0.5``: as many of the first ones as have this share."""

    def __init__(self, count: int) -> None:
        super().__init__(Bases, range(count))

    @override
    def parse(self, text: Any) -> Bases:
        word, _, share = str(text).partition(":")
        if word.strip() != "width" or not share.replace(".", "", 1).strip().isdecimal():
            return super().parse(text)
        return self.first(_whole(float(share), len(self.numbers), "architecture"))


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
        count: The number of base networks, up to the units of the widest group; if not given, one over the narrowest
            width.
        widths: Shares of the whole width, as those of a ``WidthSupernet``, which are evaluated by default; each is
            that of some base networks.

    Example:
        >>> from lit_fednas.supernets.sliced import SlicedCNN
        >>> net = BaseNetworks((3, 8, 8), 10, SlicedCNN((8, 16)), count=4)
        >>> net(torch.zeros(2, 3, 8, 8), Bases((1, 3))).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        input_shape: Iterable[int],
        num_classes: int,
        family: NetworkFamily,
        count: PositiveInt | None = None,
        widths: Sequence[PositiveShare] | None = None,
    ) -> None:
        super().__init__(input_shape, num_classes)
        if count is None and not widths:
            raise ConfigError("supernet.count: is null, and there are no widths; give the number of base networks")
        self.family = family
        self.widths = sorted(widths or ())
        self.count = round(1 / self.widths[0]) if count is None else int(count)
        units = family.units(self.input_shape)
        widest = max(units.values())
        if self.count > widest:
            raise ConfigError(
                f"supernet.count: {self.count} base networks are more than the units of the widest layer, {widest}; "
                f"lower it, or raise the narrowest of supernet.widths"
            )
        self._sizes = multiplied(units, 1 / self.count, family.multiple)
        self.space = BaseSpace(self.count)
        for width in self.widths:
            _whole(width, self.count, "supernet.widths")
        self.networks = nn.ModuleList(map(self.build_member, range(self.count)))

    @property
    @override
    def default_eval_archs(self) -> tuple[str, ...]:
        return tuple(f"width: {width:g}" for width in self.widths) or super().default_eval_archs

    @override
    def build_member(self, member: int) -> nn.Module:
        return self.family.build(self._sizes, self.input_shape, self.num_classes)

    @override
    def location(self, member: int) -> str:
        return f"networks.{member}"

    @override
    def build(self, arch: Bases) -> Mix:
        return Mix(map(self.build_member, arch.members))


def _whole(width: float, count: int, field: str) -> int:
    """Returns how many of the base networks have a share of the whole width."""
    bases = round(width * count)
    if not 1 <= bases <= count or not isclose(bases, width * count, rel_tol=1e-5):
        raise ConfigError(
            f"{field}: {width:g} is not the width of whole base networks, of which there are {count}; give a "
            f"multiple of 1/{count} (to five digits)"
        )
    return bases
