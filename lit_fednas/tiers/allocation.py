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
        """Returns for each client the position of its tier, int ``[clients]``.

        Args:
            tiers: The tiers, from the least to the most capable.
            num_clients: The number of clients.
            rng: The source of randomness.
            speeds: Multiply-accumulates per second that each client's device has measured, if there are devices.

        Raises:
            ConfigError: The clients or their tiers do not fit the settings.
        """


@dataclass(frozen=True)
class TierShares(Allocation):
    """Given shares, kept as exactly as whole clients allow.

    Args:
        shares: Per tier, in their order, adding up to 1; equal ones if not given.
        shuffle: Whether clients are drawn at random; else the first ones belong to the first tier (FedHeN's "first
            50 devices"), and so on.

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
            raise ConfigError(f"tiers.allocation.shares: {list(shares)} must not be negative and add up to 1")

    @override
    def places(
        self, tiers: Sequence[Tier], num_clients: int, rng: np.random.Generator, speeds: Sequence[float] | None = None
    ) -> np.ndarray:
        shares = self.shares or [1 / len(tiers)] * len(tiers)
        if len(shares) != len(tiers):
            raise ConfigError(
                f"tiers.allocation.shares: {list(shares)} are {len(shares)} for {len(tiers)} tiers; give one each"
            )
        wanted = np.array(shares) / sum(shares) * num_clients  # rounded by the largest remainders
        counts = np.floor(wanted + 1e-9).astype(int)
        by_remainder = np.argsort(counts - wanted, kind="stable")
        counts[by_remainder[: num_clients - counts.sum()]] += 1
        in_order = np.repeat(np.arange(len(tiers)), counts)
        return rng.permutation(in_order) if self.shuffle else in_order


@dataclass(frozen=True)
class ListedTiers(Allocation):
    """An explicit list.

    Args:
        clients: Per tier its clients' numbers; every client is listed once.
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
                f"tiers.allocation.clients: lists {len(listed)} clients; list 0 to {num_clients - 1}, each once"
            )
        return np.array([position for _, position in listed])


@checked("tiers.allocation")
@dataclass(frozen=True)
class TraceTiers(Allocation):
    """By the speeds of devices: those of a trace, as in FedorAS with Oort's (App. J.3), or those that train.

    The device at the quantile ``full`` just affords the most capable tier, others in proportion to their speed, which
    is compared with the tiers' first limit. Each belongs to the highest tier that it affords, or the lowest.

    Args:
        trace: The devices, of which every client is one that is drawn. If not given, the clients' own devices, by the
            speeds that they have measured with the run's network (``lit_fednas.flower``).
        full: Which quantile of the speeds affords the most capable tier.

    Raises:
        ConfigError: Once the tiers are known, one has no such limit, limits fall, or there is no trace and no device
            has measured its speed.
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
                "tiers.allocation.trace: null takes the speeds that devices measure, and a simulation has none; give a "
                "trace, such as SyntheticTrace, or train over devices (lit-fednas flower init)"
            )
        cost = next(iter(tiers[0].at_most), "macs")
        missing = [tier.name for tier in tiers if cost not in tier.at_most]
        if missing:
            raise ConfigError(
                f"tiers.allocation: the tier {missing[0]!r} has no limit of {cost!r}, as the first has; give it one"
            )
        limits = np.array([tier.at_most[cost] for tier in tiers], dtype=float)
        if (np.diff(limits) < 0).any():
            raise ConfigError(
                f"tiers.allocation: the tiers' limits of {cost!r}, "
                f"{', '.join(f'{limit:g}' for limit in limits)}, must not fall; list the tiers "
                f"from the least to the most capable"
            )
        reached = np.searchsorted(limits, affords * limits[-1] * (1 + 1e-12), side="right") - 1
        return np.maximum(reached, 0)


@dataclass(frozen=True)
class ClientTiers:
    """Divides the clients into tiers.

    Args:
        source: What the tiers can afford, from the least to the most capable.
        allocation: Which clients belong to which.
        unsupported: Per tier, operators that its devices cannot run.
        enforced: Whether an assignment must keep to the limits; without, they count for times, search and fine-tuning.

    Raises:
        ConfigError: A tier or an operator is unknown (raised when the tiers are known).
    """

    source: TierSource
    allocation: Allocation = field(default_factory=TierShares)
    unsupported: Mapping[str, Sequence[str]] = field(default_factory=dict)
    enforced: bool = True

    def tiers(self, supernet: Supernet, seed: int) -> tuple[Tier, ...]:
        """Returns the tiers, the same for a seed; raises ConfigError as above."""
        rng = numpy_generator(seed, "tiers")
        tiers = self.source.tiers(supernet.space, ArchitectureCosts(supernet), rng)
        names = [tier.name for tier in tiers]
        check_folder_names("tiers", names)
        names_of_choices = (name for choices in supernet.space.choices for name in choices)
        known = list(dict.fromkeys(name for name in names_of_choices if isinstance(name, str)))  # its operators
        _check_known("tiers.unsupported", self.unsupported, names)
        for name, operators in self.unsupported.items():
            _check_known(f"tiers.unsupported.{name}", operators, known, f"an operator of {type(supernet).__name__}")
        return tuple(replace(tier, unsupported=tuple(self.unsupported.get(tier.name, ()))) for tier in tiers)

    def population(
        self, supernet: Supernet, num_clients: int, seed: int, speeds: Sequence[float] | None = None
    ) -> Population:
        """Returns the tiers and the position of each client's, the same for a seed; devices may have speeds."""
        tiers = self.tiers(supernet, seed)
        places = self.allocation.places(tiers, num_clients, numpy_generator(seed, "client-tiers"), speeds)
        of_tier = np.bincount(places, minlength=len(tiers))
        if empty := [tier.name for tier, count in zip(tiers, of_tier, strict=True) if not count]:
            log.warning("model.tiers: no client is of tier %s", ", ".join(empty))
        return Population(num_clients, tiers, places, enforced=self.enforced)


def _check_known(field: str, names: Iterable[str], known: Sequence[str], kind: str = "a tier") -> None:
    for name in names:
        if name not in known:
            raise ConfigError(f"{field}: {name!r} is not {kind}; there are: {', '.join(known) or 'none'}")
