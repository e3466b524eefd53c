"""Which clients belong to which tier: in given shares, at random, listed, or by a trace of devices."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from lit_fednas.errors import ConfigError
from lit_fednas.tiers.limits import Tier
from lit_fednas.tiers.traces import DeviceTrace


class Allocation(ABC):
    """Gives every client a tier, whatever data it has (FedorAS, App. E.4)."""

    @abstractmethod
    def places(self, tiers: Sequence[Tier], num_clients: int, rng: np.random.Generator) -> list[int]:
        """Returns for each client the place of its tier."""


@dataclass(frozen=True)
class TierShares(Allocation):
    """Given shares, kept as exactly as whole clients allow.

    Args:
        shares: Per tier, in their order, adding up to 1; equal ones if not given.
        shuffle: Whether who is in which tier is random; else the first clients are of the first tier, and so on
            (FedHeN's "first 50 devices").

    Example:
        >>> tiers = [Tier("small", {"macs": 1.0}), Tier("large", {"macs": 2.0})]
        >>> TierShares([0.8, 0.2]).places(tiers, 10, np.random.default_rng(0)).count(1)
        2
    """

    shares: Sequence[float] | None = None
    shuffle: bool = True

    def __post_init__(self) -> None:
        _check(self.shares)

    def places(self, tiers: Sequence[Tier], num_clients: int, rng: np.random.Generator) -> list[int]:
        """Rounds the shares to whole clients by the largest remainders, then shuffles if asked."""
        wanted = np.array(_shares(self.shares, tiers)) * num_clients
        counts = np.floor(wanted + 1e-9).astype(int)
        by_remainder = np.argsort(counts - wanted, kind="stable")
        counts[by_remainder[: num_clients - counts.sum()]] += 1
        in_order = np.repeat(np.arange(len(tiers)), counts)
        return (rng.permutation(in_order) if self.shuffle else in_order).tolist()


@dataclass(frozen=True)
class RandomTiers(Allocation):
    """Each client's tier is drawn by itself.

    Args:
        shares: Per tier its probability; equal ones if not given.
    """

    shares: Sequence[float] | None = None

    def __post_init__(self) -> None:
        _check(self.shares)

    def places(self, tiers: Sequence[Tier], num_clients: int, rng: np.random.Generator) -> list[int]:
        """Draws them."""
        return rng.choice(len(tiers), size=num_clients, p=_shares(self.shares, tiers)).tolist()


@dataclass(frozen=True)
class ListedTiers(Allocation):
    """An explicit list.

    Args:
        clients: Per tier its clients' numbers; every client stands once.
    """

    clients: Mapping[str, Sequence[int]]

    def places(self, tiers: Sequence[Tier], num_clients: int, rng: np.random.Generator) -> list[int]:
        """Looks them up."""
        names = [tier.name for tier in tiers]
        unknown = [name for name in self.clients if name not in names]
        if unknown:
            raise ConfigError(
                f"tiers.allocation.clients: {unknown[0]!r} is no tier; there are: {', '.join(names)}"
            )
        listed = sorted((client, names.index(name)) for name, those in self.clients.items() for client in those)
        if [client for client, _ in listed] != list(range(num_clients)):
            raise ConfigError(
                f"tiers.allocation.clients: lists {len(listed)} clients, which must be 0 to {num_clients - 1}, "
                f"each once"
            )
        return [place for _, place in listed]


@dataclass(frozen=True)
class TraceTiers(Allocation):
    """By a trace of real devices' speed, as FedorAS does with Oort's (App. J.3).

    Every client is a device drawn from the trace. The device at the quantile ``full`` just affords the most
    capable tier; any other affords as much more or less as it is faster or slower, and belongs to the highest tier
    that it affords. What affords none belongs to the lowest.

    Args:
        trace: The devices.
        full: Which quantile of the trace's speeds affords the most capable tier.
        cost: The tiers' limit that speed is compared with; their first one if not given.

    Raises:
        ConfigError: ``full`` is out of range; or, once the tiers are known, one has no such limit, or the limits
            do not rise.
    """

    trace: DeviceTrace
    full: float = 0.9
    cost: str | None = None

    def __post_init__(self) -> None:
        if not 0 < self.full <= 1:
            raise ConfigError(f"tiers.allocation.full: {self.full} must be above 0 and at most 1")

    def places(self, tiers: Sequence[Tier], num_clients: int, rng: np.random.Generator) -> list[int]:
        """Draws devices and compares them with the tiers' limits."""
        cost = self.cost or next(iter(tiers[0].at_most), "macs")
        missing = [tier.name for tier in tiers if cost not in tier.at_most]
        if missing:
            raise ConfigError(f"tiers.allocation.cost: the tier {missing[0]!r} has no limit of {cost!r}")
        limits = np.array([tier.at_most[cost] for tier in tiers], dtype=float)
        if (np.diff(limits) < 0).any():
            raise ConfigError(
                f"tiers.allocation.cost: the tiers' limits of {cost!r}, "
                f"{', '.join(f'{limit:g}' for limit in limits)}, must not fall; choose another cost, or list the "
                f"tiers from the least to the most capable"
            )
        speeds = self.trace.speeds(num_clients, rng)
        affords = speeds / self.trace.quantile(self.full) * limits[-1]
        reached = np.searchsorted(limits, affords * (1 + 1e-12), side="right") - 1
        return np.maximum(reached, 0).tolist()


def _check(shares: Sequence[float] | None) -> None:
    if shares is not None and (min(shares, default=-1) < 0 or abs(sum(shares) - 1) > 1e-6):
        raise ConfigError(f"tiers.allocation.shares: {list(shares)} must not be negative and add up to 1")


def _shares(shares: Sequence[float] | None, tiers: Sequence[Tier]) -> list[float]:
    if shares is None:
        return [1 / len(tiers)] * len(tiers)
    if len(shares) != len(tiers):
        raise ConfigError(f"tiers.allocation.shares: {list(shares)} are {len(shares)}, the tiers {len(tiers)}")
    return [share / sum(shares) for share in shares]
