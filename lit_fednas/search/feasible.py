"""The part of a space that fits a tier: sampling it, and repairing architectures that do not fit."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from lit_fednas.errors import ConfigError
from lit_fednas.search.proxies import Batch
from lit_fednas.supernets.space import SearchSpace
from lit_fednas.tiers import ArchitectureCosts, Tier

_DRAWS = 8  # before an architecture is moved into the tier
_STARTS, _STEPS = 32, 400  # of the search for a first architecture that fits
_ANCHORS = 256
_REPEATS = 2000  # known architectures in a row after which a tier counts as exhausted


class Feasible:
    """The architectures that fit a tier.

    Architectures are drawn until one fits. In a narrow tier that would not end: there, the genes of one that does not
    fit are moved one by one, in random order, towards those of one that does.

    Args:
        space: The space.
        costs: Its costs.
        tier: The limits.
        rng: For the search for a first architecture that fits.
        starts: Architectures that are drawn before random ones, if they fit.
        batch: Examples that a proxy may look at, if there are any.

    Raises:
        ConfigError: No architecture fits, as far as could be found.
    """

    def __init__(
        self,
        space: SearchSpace[Any],
        costs: ArchitectureCosts,
        tier: Tier,
        rng: np.random.Generator,
        starts: Sequence[Any] = (),
        batch: Batch | None = None,
    ) -> None:
        self.space, self.costs, self.tier, self.batch = space, costs, tier, batch
        #: By how much an architecture breaks the limits; kept, as narrow tiers are drawn from again and again.
        self.excess: Callable[[Any], float] = cache(partial(costs.excess, tier=tier))
        self._anchors = [space.encode(self._first(rng))]
        self._starts = [arch for arch in dict.fromkeys(starts) if self.fits(arch)]

    def fits(self, arch: Any) -> bool:
        """Returns whether an architecture is within all limits."""
        return self.excess(arch) == 0

    def sample(self, rng: np.random.Generator) -> Any:
        """Draws an architecture that fits."""
        for _ in range(_DRAWS):
            arch = self.space.sample(rng)
            if self.fits(arch):
                self._remember(arch, rng)
                return arch
        return self.space.decode(self.repaired(self.space.encode(arch), rng))

    def distinct(self, known: set[Any], count: int, rng: np.random.Generator) -> list[Any]:
        """Returns ``count`` architectures that fit and are not known, the starts first; fewer if no more are found.

        Args:
            known: Those that are known; the new ones are added.
            count: The number of architectures to draw.
            rng: Random numbers.
        """
        drawn = [arch for arch in self._starts if arch not in known][:count]
        known.update(drawn)
        repeats = 0
        while len(drawn) < count and repeats < _REPEATS:
            arch = self.sample(rng)
            repeats = repeats + 1 if arch in known else 0
            if arch not in known:
                known.add(arch)
                drawn.append(arch)
        return drawn

    def repaired(self, genes: Sequence[int], rng: np.random.Generator) -> tuple[int, ...]:
        """Returns genes moved into the tier; those that fit stay, written canonically."""
        genes, arch = list(genes), self.space.decode(genes)
        if not self.fits(arch):
            anchor = self._anchors[int(rng.integers(len(self._anchors)))]
            for position in rng.permutation(len(genes)):
                if genes[position] != anchor[position]:
                    genes[position] = anchor[position]
                    arch = self.space.decode(genes)
                    if self.fits(arch):
                        break
        self._remember(arch, rng)
        return self.space.encode(arch)

    def _remember(self, arch: Any, rng: np.random.Generator) -> None:
        genes = self.space.encode(arch)
        if len(self._anchors) < _ANCHORS:
            self._anchors.append(genes)
        else:
            self._anchors[int(rng.integers(_ANCHORS))] = genes

    def _first(self, rng: np.random.Generator) -> Any:
        """Returns a fitting architecture: the smallest or the largest, or one found by descending the excess."""
        least = min([self.space.smallest, self.space.largest], key=self.excess)
        for _ in range(_STARTS):
            if not self.fits(least):
                least = min([least, self._descended(self.space.sample(rng), rng)], key=self.excess)
        if self.fits(least):
            return least
        has = ", ".join(f"{name} {self.costs.cost(least, name):g}" for name in self.tier.limited)
        raise ConfigError(
            f"search.tiers.{self.tier.name}: no architecture was found with {self.tier}; the nearest "
            f"has {has} ({least}); change the limits"
        )

    def _descended(self, arch: Any, rng: np.random.Generator) -> Any:
        """Follows single-gene changes that do not raise the excess."""
        excess = self.excess(arch)
        for _ in range(_STEPS):
            if excess == 0:
                break
            genes = list(self.space.encode(arch))
            position = int(rng.integers(len(genes)))
            genes[position] = int(rng.integers(self.space.cardinalities[position]))
            changed = self.space.decode(genes)
            if (changed_excess := self.excess(changed)) <= excess:
                arch, excess = changed, changed_excess
        return arch
