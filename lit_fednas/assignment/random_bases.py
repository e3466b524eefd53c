"""Assignment of SplitMix' base networks, as many as a tier's limits allow (Hong et al., 2022)."""

from collections.abc import Mapping
from itertools import cycle, islice
from typing import ClassVar

from typing_extensions import override

from lit_fednas.assignment.base import Round
from lit_fednas.assignment.by_tier import ByTier
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.supernets.side_by_side import BaseNetworks, Bases


class RandomBases(ByTier):
    """Every client trains as many base networks as its tier's limits allow, with a new draw in every round.

    After Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and In-Situ
    Customization", ICLR). Draws are balanced: a round's shuffled base networks are dealt to the cohort in turn.

    Args:
        counts: Number of base networks that each tier's clients train; by default the most within the tier's limits.

    Raises:
        ConfigError: Before training: the supernet has no base networks; the counts do not match the tiers; a count is
            out of range or above the tier's limits.
    """

    supernet_kind: ClassVar[type] = BaseNetworks
    depends_on = "cohort"
    setting: ClassVar[str] = "counts"
    needs_tiers = False

    def __init__(self, counts: Mapping[str, int] | None = None) -> None:
        super().__init__(None if counts is None else {tier: str(count) for tier, count in counts.items()})

    @override
    def plan(self, round: Round) -> list[ClientTask]:
        order = cycle(round.rng.permutation(self._supernet.count).tolist())
        counts = [len(self.deployed(client).members) for client in round.cohort]
        bases = [Bases(tuple(sorted(islice(order, count)))) for count in counts]
        return [round.task(client, members) for client, members in zip(round.cohort, bases, strict=True)]

    @override
    def named(self, text: str) -> Bases:
        if not 1 <= int(text) <= self._supernet.count:
            raise ConfigError(f"assignment.counts: {text} must be 1 to {self._supernet.count}, the number of bases")
        return self._supernet.space.first(int(text))
