"""The assignment of clients to tiers."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveShare, checked
from lit_fednas.records.files import check_folder_names
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import Supernet
from lit_fednas.tiers.devices import DeviceTrace, Population
from lit_fednas.tiers.limits import ArchitectureCosts, Tier, TierSource

log = logging.getLogger(__name__)


class Allocation(ABC):
    """Gives every client a tier, whatever data it has (FedorAS, App. E.4)."""

    @abstractmethod
    def places(
        self, tiers: Sequence[Tier], num_clients: int, rng: np.random.Generator, speeds: Sequence[float] | None = None
    ) -> np.ndarray:
        """Returns the position of each client's tier, int ``[clients]``; raises ConfigError for unfit settings.

        The tiers ascend in capability. ``speeds`` are the measured multiply-accumulates per second of each client's
        device; ``None`` in a simulation.
        """


@dataclass(frozen=True)
class TierShares(Allocation):
    """Shares of the clients, met as closely as whole clients allow.

    Args:
        shares: Share of each tier, in the order of the tiers; they add up to 1. By default all are equal.
        shuffle: Whether clients are drawn at random; otherwise the first tier has the first clients, as in FedHeN.

    Example:
        >>> tiers = [Tier("small", {"macs": 1.0}), Tier("large", {"macs": 2.0})]
        >>> TierShares([0.8, 0.2], shuffle=False).places(tiers, 5, np.random.default_rng(0)).tolist()
        [0, 0, 0, 0, 1]
    """

    shares: Sequence[float] | None = None
    shuffle: bool = True

    def __post_init__(self) -> None:
        shares = self.shares
        if shares is not None and (min(shares, default=-1) < 0 or abs(sum(shares) - 1) > 1e-6):
            raise ConfigError(f"tiers.allocation.shares: {list(shares)} must be at least 0 and add up to 1")

    @override
    def places(
        self, tiers: Sequence[Tier], num_clients: int, rng: np.random.Generator, speeds: Sequence[float] | None = None
    ) -> np.ndarray:
        shares = self.shares or [1 / len(tiers)] * len(tiers)
        if len(shares) != len(tiers):
            raise ConfigError(f"tiers.allocation.shares: {list(shares)} must be {len(tiers)} shares, one for each tier")
        exact_counts = np.array(shares) / sum(shares) * num_clients
        counts = np.floor(exact_counts + 1e-9).astype(int)  # the largest remainders are rounded up below
        by_remainder = np.argsort(counts - exact_counts, kind="stable")
        counts[by_remainder[: num_clients - counts.sum()]] += 1
        in_order = np.repeat(np.arange(len(tiers)), counts)
        return rng.permutation(in_order) if self.shuffle else in_order


@dataclass(frozen=True)
class ListedTiers(Allocation):
    """Explicit lists of clients.

    Args:
        clients: Numbers of the clients, by tier; every client is listed once.
    """

    clients: Mapping[str, Sequence[int]]

    @override
    def places(
        self, tiers: Sequence[Tier], num_clients: int, rng: np.random.Generator, speeds: Sequence[float] | None = None
    ) -> np.ndarray:
        names = [tier.name for tier in tiers]
        _check_known("tiers.allocation.clients", self.clients, names)
        listed = sorted((client, names.index(name)) for name in self.clients for client in self.clients[name])
        if [client for client, _ in listed] != list(range(num_clients)):
            raise ConfigError(
                f"tiers.allocation.clients: has {len(listed)} clients; list each of 0 to {num_clients - 1} once"
            )
        return np.array([position for _, position in listed])


@checked("tiers.allocation")
@dataclass(frozen=True)
class TraceTiers(Allocation):
    """Tiers by the speeds of devices: of a trace, as in FedorAS with Oort's (App. J.3), or of the clients' own devices.

    A device affords a share of the last tier's first limit in proportion to its speed; at the quantile ``full`` of the
    speeds it affords all. A client belongs to the highest tier that its device affords, or to the lowest.

    Args:
        trace: Trace from which each client's device is drawn; ``None`` for the speeds that the clients' own devices
            have measured with the run's network (``lit_fednas.flower``).
        full: Quantile of the speeds that affords the most capable tier.

    Raises:
        ConfigError: When training begins: a tier lacks the first limit, limits fall, or no speeds are known.
    """

    trace: DeviceTrace | None = None
    full: PositiveShare = 0.9

    @override
    def places(
        self, tiers: Sequence[Tier], num_clients: int, rng: np.random.Generator, speeds: Sequence[float] | None = None
    ) -> np.ndarray:
        if self.trace is not None:
            affords = self.trace.speeds(num_clients, rng) / self.trace.quantile(self.full)
        elif speeds is not None:
            affords = np.asarray(speeds) / np.quantile(speeds, self.full)
        else:
            raise ConfigError(
                "tiers.allocation.trace: null needs measured speeds, and a simulation has none; give a trace, or "
                "use lit-fednas flower init"
            )
        cost = next(iter(tiers[0].at_most), "macs")
        missing = [tier.name for tier in tiers if cost not in tier.at_most]
        if missing:
            raise ConfigError(f"tiers.allocation: the tier {missing[0]!r} has no limit of {cost!r}; give it one")
        limits = np.array([tier.at_most[cost] for tier in tiers], dtype=float)
        if (np.diff(limits) < 0).any():
            texts = ", ".join(f"{limit:g}" for limit in limits)
            raise ConfigError(
                f"tiers.allocation: limits of {cost!r}, {texts}, must not fall; list the least tier first"
            )
        positions = np.searchsorted(limits, affords * limits[-1] * (1 + 1e-12), side="right") - 1
        return np.maximum(positions, 0)


@dataclass(frozen=True)
class ClientTiers:
    """Divides the clients into tiers.

    Args:
        source: Source of the tiers and their limits.
        allocation: Rule that gives every client a tier.
        unsupported: Operators that a tier's devices cannot run, by tier.
        enforced: Whether assignments respect the limits; otherwise only times, search and fine-tuning do.

    Raises:
        ConfigError: When training begins: a tier or an operator is unknown.
    """

    source: TierSource
    allocation: Allocation = field(default_factory=TierShares)
    unsupported: Mapping[str, Sequence[str]] = field(default_factory=dict)
    enforced: bool = True

    def tiers(self, supernet: Supernet, seed: int) -> tuple[Tier, ...]:
        """Returns the tiers, the same for a supernet and a seed; raises ConfigError for unknown names."""
        rng = numpy_generator(seed, "tiers")
        tiers = self.source.tiers(supernet.space, ArchitectureCosts(supernet), rng)
        names = [tier.name for tier in tiers]
        check_folder_names("tiers", names)
        names_of_choices = (name for values in supernet.space.choices for name in values)
        choices = list(dict.fromkeys(name for name in names_of_choices if isinstance(name, str)))
        _check_known("tiers.unsupported", self.unsupported, names)
        for name, operators in self.unsupported.items():
            _check_known(f"tiers.unsupported.{name}", operators, choices, f"an operator of {type(supernet).__name__}")
        return tuple(replace(tier, unsupported=tuple(self.unsupported.get(tier.name, ()))) for tier in tiers)

    def population(
        self, supernet: Supernet, num_clients: int, seed: int, speeds: Sequence[float] | None = None
    ) -> Population:
        """Returns the clients with their tiers, which depend on the seed and on the devices' speeds, if measured."""
        tiers = self.tiers(supernet, seed)
        positions = self.allocation.places(tiers, num_clients, numpy_generator(seed, "client-tiers"), speeds)
        tier_sizes = np.bincount(positions, minlength=len(tiers))
        if empty := [tier.name for tier, count in zip(tiers, tier_sizes, strict=True) if not count]:
            log.warning("model.tiers: no client is of tier %s", ", ".join(empty))
        return Population(num_clients, tiers, positions, enforced=self.enforced)


def _check_known(field: str, names: Iterable[str], choices: Sequence[str], kind: str = "a tier") -> None:
    for name in names:
        if name not in choices:
            raise ConfigError(f"{field}: {name!r} is not {kind}; there are: {', '.join(choices) or 'none'}")
