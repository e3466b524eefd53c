"""The part of a space that fits a tier: samples, and repaired architectures."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from lit_fednas.errors import ConfigError
from lit_fednas.search.proxies import Batch
from lit_fednas.supernets.space import SearchSpace
from lit_fednas.tiers import ArchitectureCosts, Tier

_DRAWS = 8  # draws before an architecture is repaired
_STARTS, _STEPS = 32, 400  # descents, and their steps, to find the first architecture that fits
_ANCHORS = 256  # architectures that fit, as targets of repairs
_REPEATS = 2000  # excluded architectures in a row after which a tier counts as exhausted


class Feasible:
    """The architectures that fit a tier.

    Sampling draws until an architecture fits. Few draws fit a narrow tier: after some, the genes of the last draw are
    replaced one by one, in random order, by those of an architecture that fits.

    Args:
        rng: Random numbers for the search for a first architecture that fits.
        starts: Architectures that :meth:`distinct` returns before random ones, if they fit.
        batch: Examples for proxies; ``None`` without data on the server.

    Raises:
        ConfigError: No architecture that fits was found.
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
        #: An architecture's excess over the limits; cached, because narrow tiers are sampled often.
        self.excess: Callable[[Any], float] = cache(partial(costs.excess, tier=tier))
        self._anchors = [space.encode(self._first(rng))]
        self._starts = [arch for arch in dict.fromkeys(starts) if self.fits(arch)]

    def fits(self, arch: Any) -> bool:
        """Returns whether an architecture is within all limits."""
        return self.excess(arch) == 0

    def sample(self, rng: np.random.Generator) -> Any:
        """Returns a random architecture that fits."""
        for _ in range(_DRAWS):
            arch = self.space.sample(rng)
            if self.fits(arch):
                self._add_anchor(arch, rng)
                return arch
        return self.space.decode(self.repaired(self.space.encode(arch), rng))

    def distinct(self, excluded: set[Any], count: int, rng: np.random.Generator) -> list[Any]:
        """Returns ``count`` architectures that fit and are not in ``excluded``, and adds them to this set.

        The starts come first. There are fewer than ``count`` if no more are found.
        """
        archs = [arch for arch in self._starts if arch not in excluded][:count]
        excluded.update(archs)
        repeats = 0
        while len(archs) < count and repeats < _REPEATS:
            arch = self.sample(rng)
            repeats = repeats + 1 if arch in excluded else 0
            if arch not in excluded:
                excluded.add(arch)
                archs.append(arch)
        return archs

    def repaired(self, genes: Sequence[int], rng: np.random.Generator) -> tuple[int, ...]:
        """Returns canonical genes of an architecture that fits: the same one if it does, else a near one."""
        genes, arch = list(genes), self.space.decode(genes)
        if not self.fits(arch):
            anchor = self._anchors[int(rng.integers(len(self._anchors)))]
            for position in rng.permutation(len(genes)):
                if genes[position] != anchor[position]:
                    genes[position] = anchor[position]
                    arch = self.space.decode(genes)
                    if self.fits(arch):
                        break
        self._add_anchor(arch, rng)
        return self.space.encode(arch)

    def _add_anchor(self, arch: Any, rng: np.random.Generator) -> None:
        genes = self.space.encode(arch)
        if len(self._anchors) < _ANCHORS:
            self._anchors.append(genes)
        else:
            self._anchors[int(rng.integers(_ANCHORS))] = genes

    def _first(self, rng: np.random.Generator) -> Any:
        """Returns an architecture that fits: the smallest, the largest, or the result of a descent of the excess."""
        nearest = min([self.space.smallest, self.space.largest], key=self.excess)
        for _ in range(_STARTS):
            if not self.fits(nearest):
                nearest = min([nearest, self._descend(self.space.sample(rng), rng)], key=self.excess)
        if self.fits(nearest):
            return nearest
        costs_text = ", ".join(f"{name} {self.costs.cost(nearest, name):g}" for name in self.tier.limited)
        raise ConfigError(
            f"search.tiers.{self.tier.name}: no architecture was found with {self.tier}; the nearest "
            f"has {costs_text} ({nearest}); change the limits"
        )

    def _descend(self, arch: Any, rng: np.random.Generator) -> Any:
        """Descends the excess: accepts changes of single genes that do not raise it."""
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
