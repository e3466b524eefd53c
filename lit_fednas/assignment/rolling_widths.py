"""FedRolex' windows, which roll over each layer's units (Alam et al., 2022)."""

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
    Extraction", NeurIPS): all weights are trained even if no client can hold the whole network. The window's first unit
    is the sum of the steps so far, modulo the layer's number of units. The window's size is rounded up (the
    paper: down).

    Args:
        archs: Width of each tier: ``smallest``, ``largest``, or its text; by default the greatest within its limits.
        step: Number of units by which the window moves; 0 keeps it in place, as in HeteroFL.
        every: Number of rounds between two steps.

    Raises:
        ConfigError: A setting is out of range; before training: the errors of :class:`ByTier`, the supernet does not
            have widths, or a tier's width has a shift.
    """

    supernet_kind: ClassVar[type] = WidthSupernet

    step: NonNegativeInt = 1
    every: PositiveInt = 1

    @override
    def named(self, text: str) -> Width:
        width = super().named(text)
        if getattr(width, "shift", True):
            raise ConfigError(f"assignment.archs: {text!r} has a shift or mask; set a width such as 'width: 0.5'")
        return width

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        shift = round.number // self.every * self.step
        return [round.task(client, self._shifted(self.deployed(client), shift)) for client in round.cohort]

    def _shifted(self, width: Width, shift: int) -> Width:
        """Returns a width with a shifted window; the whole network has no window."""
        whole = self._supernet.sizes(width.ratio) == self._supernet.units
        return width if whole else Width(width.ratio, shift)
