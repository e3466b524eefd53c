"""FedRolex' windows of units, which roll over a tier's width (Alam et al., 2022)."""

from dataclasses import dataclass
from typing import ClassVar

from typing_extensions import override

from lit_fednas.assignment.base import Round
from lit_fednas.assignment.by_tier import ByTier
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.ranges import NonNegativeInt, PositiveInt, checked
from lit_fednas.supernets import Width, WidthSupernet


@checked("assignment")
@dataclass(eq=False)
class RollingWidths(ByTier):
    """Every client trains a window of its tier's width, which rolls over each layer from round to round (FedRolex).

    After Alam, Liu, Yan and Zhang (2022, "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
    Extraction", NeurIPS): all weights are trained even if no client can hold them all. The window's first unit is
    the number of steps so far, modulo each layer's number of units; that of units is rounded up, in the paper down.

    Args:
        archs: Per tier, ``smallest``, ``largest``, or a width as the space writes it; the greatest that its limits
            allow if not given.
        step: Units that the window goes on; 0 for a window that stays, as in HeteroFL.
        every: Rounds between two steps.

    Raises:
        ConfigError: A setting is out of range; before training: as :class:`ByTier`, the supernet is not cut by width,
            or a tier's width has a shift.
    """

    supernet_kind: ClassVar[type] = WidthSupernet

    step: NonNegativeInt = 1
    every: PositiveInt = 1

    @override
    def named(self, text: str) -> Width:
        width = super().named(text)
        if getattr(width, "shift", True):
            raise ConfigError(f"assignment.archs: {text!r} selects its units itself; give 'width: 0.5' or the like")
        return width

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        shift = round.number // self.every * self.step
        return [round.task(client, self._shifted(self.deployed(client), shift)) for client in round.cohort]

    def _shifted(self, width: Width, shift: int) -> Width:
        """Returns a width whose window begins at a unit; the whole network has no window."""
        whole = self._supernet.sizes(width.ratio) == self._supernet.units
        return width if whole else Width(width.ratio, shift)
