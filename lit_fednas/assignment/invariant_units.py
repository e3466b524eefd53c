"""FLuID's invariant dropout: stragglers do not train units that have stopped changing (Wang et al., 2023)."""

from collections.abc import Mapping, Sequence
from math import ceil, log
from typing import Annotated, Any, ClassVar

import numpy as np
from typing_extensions import override

from lit_fednas.assignment.by_tier import ByTier
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, UnitChangeStatistics
from lit_fednas.ranges import Range, checked
from lit_fednas.supernets import Supernet
from lit_fednas.supernets.widths import UnitMask, Width, WidthArch, WidthSupernet
from lit_fednas.tiers import Population


@checked("assignment")
class InvariantUnits(ByTier):
    """Stragglers leave out the units that have stopped changing for clients that train the whole network.

    After Wang, Nair and Mahajan (2023, "FLuID: Mitigating Stragglers in Federated Learning using Invariant Dropout"). A
    unit is invariant if its relative change over local training is at most its layer group's threshold, for the
    majority of the non-stragglers. The threshold starts at the group's smallest positive change, and is multiplied by
    ``step`` until enough units are invariant. Of the invariant units the straggler leaves out those with the smallest
    mean change, and of ties the last.

    Changes are those of the last round in which a non-straggler sent them
    (:class:`~lit_fednas.objectives.UnitChanges`); before that, stragglers train the first units. Tiers come from the
    settings or from a trace (:class:`~lit_fednas.tiers.TraceTiers`); the paper measures the times of past rounds.

    Args:
        ratios: Share of units that each tier's clients train, 1 for non-stragglers; by default the greatest allowed.
        step: The factor by which the threshold grows, above 1.

    Raises:
        ConfigError: The step is not above 1; before training: the errors of :class:`ByTier`, the supernet does not have
            widths, the objective does not return changes, or no tier has the ratio 1.
    """

    supernet_kind: ClassVar[type] = WidthSupernet
    needs = (UnitChangeStatistics,)
    state_names = ("unit_changes",)
    depends_on = "statistics"
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
                f"assignment.ratios: {ratios}; the clients of at least one tier must train the whole network, "
                f"as their changes select the stragglers' units; set a ratio to 1"
            )
        self.unit_changes: list[Mapping[str, Sequence[float]]] = []
        self._masks: dict[float, UnitMask] = {}  # masks for these changes, by ratio

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
        statistics = [result.find(UnitChangeStatistics) for result in survivors]
        changes = [item.changes for item in statistics if item is not None]
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
        for group, num_units in self._supernet.units.items():
            changes = np.array([of_client[group] for of_client in self.unit_changes])  # [clients, units]
            dropped = left_out(changes, num_units - sizes[group], self.step)
            trained_units.append(tuple(unit for unit in range(num_units) if unit not in dropped))
        return UnitMask(tuple(trained_units))


def left_out(changes: np.ndarray, count: int, step: float) -> list[int]:
    """Returns the ``count`` units of a group that stragglers leave out; ``changes`` are ``[non-stragglers, units]``."""
    if count == 0:
        return []
    # A unit is invariant at this threshold or above: more than half of the clients have at most this change.
    unit_thresholds = np.sort(changes, axis=0)[len(changes) // 2]
    invariant = np.flatnonzero(unit_thresholds <= _threshold(changes, float(np.sort(unit_thresholds)[count - 1]), step))
    mean_changes = changes.mean(axis=0)
    return sorted(sorted(invariant.tolist(), key=lambda unit: (mean_changes[unit], -unit))[:count])


def _threshold(changes: np.ndarray, bound: float, step: float) -> float:
    """Returns the first of m, m step, m step², ... that is at least ``bound``; m is the smallest positive change."""
    positive_changes = changes[changes > 0]
    if bound <= 0 or len(positive_changes) == 0:
        return 0.0
    smallest = float(positive_changes.min())
    return max(bound, smallest * step ** ceil(log(bound / smallest) / log(step)))
