"""FLuID's invariant dropout: stragglers leave out the units that have stopped changing (Wang et al., 2023)."""

from collections.abc import Mapping, Sequence
from math import ceil, log
from typing import Annotated, Any, ClassVar

import numpy as np
from typing_extensions import override

from lit_fednas.assignment.by_tier import ByTier
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, UnitChangesReport
from lit_fednas.ranges import Range, checked
from lit_fednas.supernets import Supernet
from lit_fednas.supernets.widths import UnitMask, Width, WidthArch, WidthSupernet
from lit_fednas.tiers import Population


@checked("assignment")
class InvariantUnits(ByTier):
    """Stragglers leave out the units that have stopped changing for clients that train the whole network.

    After Wang, Nair and Mahajan (2023, "FLuID: Mitigating Stragglers in Federated Learning using Invariant Dropout"). A
    unit is invariant if, for the majority of the non-stragglers, its relative change over their local training is not
    above its group's threshold. The threshold starts at the least change above zero that any of them saw in the group,
    and is multiplied by ``step`` until there are as many invariant units as the straggler must leave out. If there
    are more, those that change least on average are left out; of equals the last.

    What counts is the last round in which a non-straggler reported (by
    :class:`~lit_fednas.objectives.UnitChanges`); until then stragglers train the first units. Tiers and ratios are
    given, or follow from a trace (:class:`~lit_fednas.tiers.TraceTiers`); the paper measures the times of past rounds.

    Args:
        ratios: Per tier the share of units that its clients train, 1 for non-stragglers; if not given, the
            greatest width that its limits allow.
        step: What the threshold is multiplied with.

    Raises:
        ConfigError: The step is not above 1; before training: as :class:`ByTier`, the supernet is not cut by width,
            the objective does not report changes, or no tier has the ratio 1.
    """

    supernet_kind: ClassVar[type] = WidthSupernet
    needs = (UnitChangesReport,)
    state_names = ("unit_changes",)
    depends_on = "reports"
    setting: ClassVar[str] = "ratios"

    def __init__(self, ratios: Mapping[str, float] | None = None, step: Annotated[float, Range(above=1)] = 1.1) -> None:
        super().__init__(None if ratios is None else {tier: str(ratio) for tier, ratio in ratios.items()})
        self.step = step

    @override
    def setup(self, supernet: Supernet, population: Population) -> None:
        super().setup(supernet, population)
        if supernet.space.largest not in self.of_tier.values():
            ratios = ", ".join(f"{name} {width.ratio:g}" for name, width in self.of_tier.items())
            raise ConfigError(
                f"assignment.ratios: {ratios}; the clients of at least one tier must train the whole network "
                f"(ratio 1), because the changes there decide what stragglers leave out"
            )
        self.unit_changes: list[Mapping[str, Sequence[float]]] = []
        self._masks: dict[float, UnitMask] = {}  # by the ratio, of these changes

    @override
    def deployed(self, client: int) -> WidthArch:
        width: Width = super().deployed(client)
        if width == self._supernet.space.largest or not self.unit_changes:
            return width
        if width.ratio not in self._masks:
            self._masks[width.ratio] = self._mask(width.ratio)
        return self._masks[width.ratio]

    @override
    def observe(self, results: Sequence[ClientResult]) -> None:
        whole = self._supernet.space.largest
        survivors = [result for result in results if result.ok and result.task.arch == whole]
        reports = [result.report(UnitChangesReport) for result in survivors]
        changes = [report.changes for report in reports if report is not None]
        if changes:
            self.unit_changes, self._masks = changes, {}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._masks = {}

    def _mask(self, ratio: float) -> UnitMask:
        """Returns the units of each group that a straggler trains."""
        sizes = self._supernet.sizes(ratio)
        trained_units = []
        for group, full in self._supernet.units.items():
            changes = np.array([report[group] for report in self.unit_changes])  # [clients, units]
            out = left_out(changes, full - sizes[group], self.step)
            trained_units.append(tuple(unit for unit in range(full) if unit not in out))
        return UnitMask(tuple(trained_units))


def left_out(changes: np.ndarray, count: int, step: float) -> list[int]:
    """Returns the ``count`` units that a group's stragglers leave out; changes are ``[non-stragglers, units]``."""
    if count == 0:
        return []
    # the least threshold that more than half of the clients are not above
    needed = np.sort(changes, axis=0)[len(changes) // 2]
    invariant = np.flatnonzero(needed <= _threshold(changes, float(np.sort(needed)[count - 1]), step))
    mean = changes.mean(axis=0)
    return sorted(sorted(invariant.tolist(), key=lambda unit: (mean[unit], -unit))[:count])


def _threshold(changes: np.ndarray, enough: float, step: float) -> float:
    """Returns the first threshold of at least ``enough``: the least change above zero times 1, step, step², ..."""
    above = changes[changes > 0]
    if enough <= 0 or len(above) == 0:
        return 0.0
    least = float(above.min())
    return max(enough, least * step ** ceil(log(enough / least) / log(step)))
