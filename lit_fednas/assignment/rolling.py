"""A window of units that rolls over the whole network from round to round.

After Alam, Liu, Yan and Zhang (2022, "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
Extraction", NeurIPS): in every round a client's sub-model is a window of adjacent units in each layer, which goes on by
one unit per round and wraps around the layer's end. So all weights are trained even if no client can hold them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from typing_extensions import override

from lit_fednas.assignment.base import Round
from lit_fednas.assignment.by_tier import ByTier
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.ranges import NonNegativeInt, PositiveInt, checked
from lit_fednas.supernets.width.space import Width
from lit_fednas.supernets.width.supernet import WidthSupernet


@checked("assignment")
class RollingWidths(ByTier):
    """Every client trains its tier's width, from the round's first unit on.

    The window's first unit is the number of steps so far; each layer takes it modulo its own number of units, as
    the publication does with the round, and so it is not reduced here. A window of whole layers stays at 0. The
    publication rounds a window's number of units down; :meth:`WidthSupernet.sizes` rounds it up.

    Args:
        archs: Per tier, ``smallest``, ``largest``, or a width as the space writes it; by default the greatest that
            it affords.
        step: Units that the window goes on; 0 for a window that stays, as in HeteroFL.
        every: Rounds between two steps.

    Raises:
        ConfigError: A setting is out of range; or, reported before training: the supernet is not cut by width;
            there are no tiers; a tier has no width, one that it cannot afford, or one with a shift.

    Example:
        >>> from lit_fednas.tiers import Population, Tier
        >>> tiers = (Tier("phones", {}), Tier("laptops", {}))
        >>> rolling = RollingWidths({"phones": "width: 0.5", "laptops": "largest"})
        >>> net = WidthSupernet()
        >>> rolling.setup(net, Population(2, tiers, (0, 1)))
        >>> str(rolling.shifted(Width(0.5), shift=3)), str(rolling.shifted(Width(1.0), shift=3))
        ('width: 0.5, shift: 3', 'width: 1')
    """

    supernet_kind: ClassVar[type] = WidthSupernet

    def __init__(
        self, archs: Mapping[str, str] | None = None, step: NonNegativeInt = 1, every: PositiveInt = 1
    ) -> None:
        super().__init__(archs)
        self.step = step
        self.every = every

    @override
    def named(self, text: str) -> Width:
        width = super().named(text)
        if getattr(width, "shift", True):
            raise ConfigError(f"assignment.archs: {text!r} selects its units itself; give 'width: 0.5' or the like")
        return width

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        shift = round.number // self.every * self.step
        return [round.task(client, self.shifted(self.deployed(client), shift)) for client in round.cohort]

    def shifted(self, width: Width, shift: int) -> Width:
        """Returns a width whose window begins at a unit; the whole network has no window."""
        whole = self._supernet.sizes(width.ratio) == self._supernet.units
        return width if whole else Width(width.ratio, shift)
