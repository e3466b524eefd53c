"""A window of units that rolls over the whole network from round to round.

After Alam, Liu, Yan and Zhang (2022, "FedRolex: Model-Heterogeneous Federated Learning with Rolling Sub-Model
Extraction", NeurIPS): in every round a client's sub-model is a window of adjacent units in each layer, which goes
on by one unit per round and wraps around the layer's end. So all of the large model's weights are trained even if
no client can hold it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lit_fednas.assignment.base import Assignment
from lit_fednas.assignment.by_tier import tier_architectures
from lit_fednas.errors import ConfigError
from lit_fednas.supernets import SearchSpace, Supernet
from lit_fednas.supernets.width.space import Width
from lit_fednas.supernets.width.supernet import WidthSupernet
from lit_fednas.tiers import Population


class RollingWidths(Assignment):
    """Every client trains its tier's width, at the round's place.

    The window's first unit is the number of steps so far; each layer takes it modulo its own number of units, as
    the publication does with the round, and so it is not reduced here. A window that holds whole layers has
    nowhere to roll and stays at 0. The publication rounds a window's number of units down; the supernet rounds it
    up (:meth:`WidthSupernet.sizes`).

    Args:
        archs: Per tier, ``smallest``, ``largest``, or a width as the space writes it; if not given, the greatest
            that its limits allow.
        step: Units that the window goes on; 0 for a window that stays, as in HeteroFL.
        every: Rounds between two steps.

    Raises:
        ConfigError: The step is negative or ``every`` not positive; or, told before training: the supernet is not
            cut by width; there are no tiers; a tier has no width, one that it cannot afford, or one with a shift.

    Example:
        >>> from lit_fednas.tiers import Tier
        >>> tiers = (Tier("phones", {}), Tier("laptops", {}))
        >>> rolling = RollingWidths({"phones": "width: 0.5", "laptops": "largest"})
        >>> net = WidthSupernet()
        >>> rolling.setup(net, Population(2, tiers, (0, 1)))
        >>> [str(arch) for arch in rolling.assign(3, [0, 1], net.space, np.random.default_rng(0))]
        ['width: 0.5, shift: 3', 'width: 1']
    """

    def __init__(self, archs: Mapping[str, str] | None = None, step: int = 1, every: int = 1) -> None:
        if step < 0:
            raise ConfigError(f"assignment.step: {step} must be 0, for a window that stays, or above")
        if every < 1:
            raise ConfigError(f"assignment.every: {every} must be at least 1")
        self.archs = archs
        self.step = step
        self.every = every

    def setup(self, supernet: Supernet, population: Population) -> None:
        """Finds each tier's width."""
        if not isinstance(supernet, WidthSupernet):
            raise ConfigError(
                f"model.assignment: RollingWidths rolls over units, which {type(supernet).__name__} does not cut; "
                f"use a WidthSupernet, or another assignment"
            )
        self._supernet = supernet
        self._population = population
        self.of_tier = tier_architectures(supernet, population, self.archs)
        for name, arch in self.of_tier.items():
            if not isinstance(arch, Width) or arch.shift:
                raise ConfigError(
                    f"assignment.archs.{name}: {str(arch)!r} says itself which units it has; give a width alone, "
                    f"as 'width: 0.5'"
                )

    def assign(
        self, round: int, cohort: Sequence[int], space: SearchSpace[Any], rng: np.random.Generator
    ) -> list[Any]:
        """The widths, with the round's shift."""
        shift = round // self.every * self.step
        tiers = [self._population.tier(client) for client in cohort]
        return [self._shifted(self.of_tier[tier.name], shift) for tier in tiers if tier is not None]

    def deployed(self, client: int) -> Any:
        """Its tier's width, without a shift: the first units, which are evaluated as that width."""
        tier = self._population.tier(client)
        assert tier is not None
        return self.of_tier[tier.name]

    def _shifted(self, width: Width, shift: int) -> Width:
        whole = self._supernet.sizes(width.ratio) == self._supernet.units
        return width if whole else Width(width.ratio, shift)
