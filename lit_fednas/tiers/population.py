"""The clients by tier."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lit_fednas.errors import ConfigError
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import Supernet, labelled_space
from lit_fednas.tiers.allocation import Allocation, TierShares
from lit_fednas.tiers.costs import ArchitectureCosts
from lit_fednas.tiers.limits import Tier, TierSource


@dataclass(frozen=True)
class Population:
    """All clients, and the tier of each.

    Attributes:
        num_clients: Their number.
        tiers: From the least to the most capable; none if nobody asked for tiers.
        places: For each client the place of its tier among them.

    Example:
        >>> small, large = Tier("small", {"macs": 1e6}), Tier("large", {"macs": 2e6})
        >>> population = Population(3, (small, large), (0, 1, 0))
        >>> population.tier(1).name, population.eligible("large"), population.eligible("small")
        ('large', [1], [0, 1, 2])
    """

    num_clients: int
    tiers: tuple[Tier, ...] = ()
    places: tuple[int, ...] = ()

    def tier(self, client: int) -> Tier | None:
        """A client's tier, if there are tiers."""
        return self.tiers[self.places[client]] if self.tiers else None

    def eligible(self, tier: str) -> list[int]:
        """The clients that can run a tier's models: those of that tier and above (FedorAS, section 3.3).

        Raises:
            ConfigError: There is no such tier.
        """
        least = self._place(tier)
        return [client for client, place in enumerate(self.places) if place >= least]

    def members(self, tier: str) -> list[int]:
        """The clients of a tier.

        Raises:
            ConfigError: There is no such tier.
        """
        own = self._place(tier)
        return [client for client, place in enumerate(self.places) if place == own]

    def _place(self, tier: str) -> int:
        names = [one.name for one in self.tiers]
        if tier not in names:
            known = ", ".join(names) or "none; set model.tiers"
            raise ConfigError(f"model.tiers: has no tier {tier!r}; there are: {known}")
        return names.index(tier)


@dataclass(frozen=True)
class ClientTiers:
    """Divides the clients into tiers.

    Args:
        source: What the tiers can afford, from the least to the most capable.
        allocation: Which clients belong to which.
        unsupported: Per tier, operators that its devices cannot run.
        labels: Per tier, the label set that its clients have; the data's own classes where nothing is said.

    Raises:
        ConfigError: A tier, an operator or a label set is named that there is not (told when the tiers are known).
    """

    source: TierSource
    allocation: Allocation = field(default_factory=TierShares)
    unsupported: Mapping[str, Sequence[str]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)

    def tiers(self, supernet: Supernet, seed: int) -> tuple[Tier, ...]:
        """The tiers; what is sampled to find them belongs to the run's seed."""
        rng = numpy_generator(seed, "tiers")
        tiers = self.source.tiers(supernet.space, ArchitectureCosts(supernet), rng)
        names = [tier.name for tier in tiers]
        there = _operators(supernet)
        for name, operators in self.unsupported.items():
            if name not in names:
                raise ConfigError(f"tiers.unsupported: {name!r} is no tier; there are: {', '.join(names)}")
            unknown = [operator for operator in operators if operator not in there]
            if unknown:
                raise ConfigError(
                    f"tiers.unsupported.{name}: {unknown[0]!r} is no operator of {type(supernet).__name__}; "
                    f"there are: {', '.join(there) or 'none'}"
                )
        for name, labels in self.labels.items():
            if name not in names:
                raise ConfigError(f"tiers.labels: {name!r} is no tier; there are: {', '.join(names)}")
            labelled_space(supernet.space, labels)
        return tuple(
            replace(
                tier,
                unsupported=tuple(self.unsupported.get(tier.name, ())),
                labels=self.labels.get(tier.name, tier.labels),
            )
            for tier in tiers
        )

    def population(self, supernet: Supernet, num_clients: int, seed: int) -> Population:
        """The tiers and the clients' places in them, the same for a seed."""
        tiers = self.tiers(supernet, seed)
        places = self.allocation.places(tiers, num_clients, numpy_generator(seed, "client-tiers"))
        return Population(num_clients, tiers, tuple(places))


def _operators(supernet: Supernet) -> list[str]:
    """Returns the names that a supernet's architectures choose from: its operators, if it has any."""
    names = (name for choices in supernet.space.choices for name in choices if isinstance(name, str))
    return list(dict.fromkeys(names))
