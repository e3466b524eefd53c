"""Clients' devices: their tiers, traces of their speeds, and the simulated times of rounds.

FedTrans, App. C, Table 6; FedNAS, Algorithm 4.1.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import NormalDist
from typing import Annotated, Any

import numpy as np
from typing_extensions import override

from lit_fednas.config_files import find
from lit_fednas.costs import RoundCost
from lit_fednas.data.sources.tables import numbers, read_table, require_columns
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.messages import ClientTask
from lit_fednas.ranges import PositiveFloat, Range, checked
from lit_fednas.rng import numpy_generator
from lit_fednas.tiers.limits import EVERYBODY, Tier


class DeviceTrace(ABC):
    """Speeds of a population's devices, in multiply-accumulates per second."""

    @abstractmethod
    def speeds(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Draws devices and returns the speed of each, ``[count]``."""

    @abstractmethod
    def quantile(self, share: float) -> float:
        """Returns the speed that this share of the devices does not exceed."""


@checked("trace")
@dataclass(frozen=True)
class SyntheticTrace(DeviceTrace):
    """A log-normal population of devices: a few fast ones and a long tail of slow ones, as among phones.

    Args:
        median: Median speed, in multiply-accumulates per second.
        spread: Ratio of the 95 % to the 5 % quantile; about an order of magnitude in benchmarks of phones.
    """

    median: PositiveFloat = 2e9
    spread: Annotated[float, Range(above=1)] = 12.0

    @property
    def _sigma(self) -> float:
        return float(np.log(self.spread) / (2 * NormalDist().inv_cdf(0.95)))

    @override
    def speeds(self, count: int, rng: np.random.Generator) -> np.ndarray:
        return self.median * np.exp(self._sigma * rng.standard_normal(count))

    @override
    def quantile(self, share: float) -> float:
        # the distribution is unbounded: a share of 1 means the 99.9 % quantile
        return float(self.median * np.exp(self._sigma * NormalDist().inv_cdf(min(share, 0.999))))


@dataclass(frozen=True)
class CSVTrace(DeviceTrace):
    """A measured trace: one device per row.

    Args:
        path: CSV file with a line of column names; also a file of the package, such as ``fedtrans/devices.csv``.
        column: Column of speeds, in multiply-accumulates per second or a proportional unit.

    Raises:
        DataError: The file cannot be read, has no such column, or a value is not a positive number.
    """

    path: Path
    column: str = "macs_per_second"

    @cached_property
    def _all(self) -> np.ndarray:
        path = find(self.path)
        table = read_table(path, "trace.path")
        require_columns(table, path, "trace.column", [self.column])
        speeds = numbers(table[self.column], path, "trace.column").astype(float)
        if speeds[row := int(speeds.argmin())] <= 0:
            raise DataError(f"trace.column: {self.column!r} of {path} is {speeds[row]:g} in row {row}; must be above 0")
        return speeds

    @override
    def speeds(self, count: int, rng: np.random.Generator) -> np.ndarray:
        return rng.choice(self._all, size=count)

    @override
    def quantile(self, share: float) -> float:
        return float(np.quantile(self._all, share))


@dataclass(frozen=True, eq=False)
class Population:
    """All clients and their tiers.

    Attributes:
        num_clients: Number of clients.
        tiers: The tiers, from the least to the most capable; empty without tiers.
        places: Position of each client's tier in ``tiers``, int ``[clients]``; empty without tiers.
        sizes: Training examples of each client, int ``[clients]``; empty if no part needs them.
        enforced: Whether clients train only within their tiers' limits.

    Example:
        >>> small, large = Tier("small", {"macs": 1e6}), Tier("large", {"macs": 2e6})
        >>> population = Population(3, (small, large), (0, 1, 0))
        >>> population.eligible("large"), population.eligible("small")
        ([1], [0, 1, 2])
    """

    num_clients: int
    tiers: tuple[Tier, ...] = ()
    places: Sequence[int] | np.ndarray = ()
    sizes: Sequence[int] | np.ndarray = ()
    enforced: bool = True

    def __post_init__(self) -> None:
        for name in ("places", "sizes"):
            object.__setattr__(self, name, np.asarray(getattr(self, name), dtype=np.int64))

    def tier(self, client: int) -> Tier:
        """Returns a client's tier, or a tier without limits if there are no tiers."""
        return self.tiers[self.places[client]] if self.tiers else EVERYBODY

    def eligible(self, tier: str) -> list[int]:
        """Returns the clients of this and higher tiers that can run all of the tier's models (FedorAS, section 3.3)."""
        lowest = self._position(tier)
        unused = set(self.tiers[lowest].unsupported)  # operators that this tier's models do not have
        can_run = [index >= lowest and unused.issuperset(tier.unsupported) for index, tier in enumerate(self.tiers)]
        return np.flatnonzero(np.array(can_run)[self.places]).tolist()

    def members(self, tier: str) -> list[int]:
        """Returns the clients of a tier; raises ConfigError if it is unknown."""
        return np.flatnonzero(np.asarray(self.places) == self._position(tier)).tolist()

    def _position(self, tier: str) -> int:
        names = [known_tier.name for known_tier in self.tiers]
        if tier not in names:
            raise ConfigError(
                f"model.tiers: no tier {tier!r}; there are: {', '.join(names) or 'none; set model.tiers'}"
            )
        return names.index(tier)


@dataclass(frozen=True)
class ClientSpeed:
    """The speed and the bandwidth of a client's device.

    Example:
        >>> ClientSpeed(1e6, 8.0).seconds(RoundCost(macs=10**6, bytes_down=10**6, bytes_up=0))
        4.0
    """

    macs_per_second: float  # sustained multiply-accumulates per second
    bandwidth_mbps: float  # bandwidth of the connection, each way, in 10^6 bits per second

    def seconds(self, cost: RoundCost, tested: int = 0) -> float:
        """Returns the simulated seconds of download, training, test and upload; ``tested`` are the test's MACs."""
        # costs count forward passes; a backward pass takes about two of them (gradients of inputs and of weights)
        computed = 3 * (cost.macs - tested) + tested
        return computed / self.macs_per_second + 8 * cost.bytes / (1e6 * self.bandwidth_mbps)


@checked("round_time.speeds")
@dataclass(frozen=True)
class DeviceSpeeds:
    """Every client's speed and bandwidth, drawn once for a whole run from its seed and the client's number.

    Args:
        compute: Speeds of devices, in multiply-accumulates per second.
        bandwidth: Bandwidths of their connections, equal each way, in 10^6 bits per second; drawn independently of the
            speeds. The default is not a measurement.
        latency_ms: Milliseconds in which every tier's devices run its limit of multiply-accumulates; replaces
            ``compute``. Speeds are then proportional to limits, which FedTrans (App. C) leaves open.

    Example:
        >>> population = Population(2, (Tier("slow", {"macs": 1e6}), Tier("fast", {"macs": 4e6})), (0, 1))
        >>> speeds = DeviceSpeeds(latency_ms=10)
        >>> [speeds.client_speed(client, population, seed=0).macs_per_second for client in (0, 1)]
        [100000000.0, 400000000.0]
    """

    compute: DeviceTrace = field(default_factory=SyntheticTrace)
    bandwidth: DeviceTrace = field(default_factory=lambda: SyntheticTrace(median=10, spread=20))
    latency_ms: PositiveFloat | None = None

    def check(self, population: Population) -> None:
        """Validates that every client's speed is known, before training; raises ConfigError."""
        if self.latency_ms is None:
            return
        unlimited = [tier.name for tier in population.tiers if "macs" not in tier.at_most]
        if unlimited or not population.tiers:
            reason = f"the tier {unlimited[0]!r} has no limit of macs" if unlimited else "there are no tiers"
            remedy = "set model.tiers to tiers with a limit of macs, or latency_ms to null"
            raise ConfigError(f"round_time.speeds.latency_ms: {self.latency_ms:g} needs limits, but {reason}; {remedy}")

    def client_speed(self, client: int, population: Population, seed: int) -> ClientSpeed:
        """Returns a client's speed in a run with this seed; raises DataError if a trace's file cannot be read."""
        tier = population.tier(client)
        if self.latency_ms is not None and population.tiers:
            speed = 1000 * tier.at_most["macs"] / self.latency_ms
        else:
            speed = float(self.compute.speeds(1, numpy_generator(seed, "device-speed", client))[0])
        bandwidth = float(self.bandwidth.speeds(1, numpy_generator(seed, "device-bandwidth", client))[0])
        return ClientSpeed(speed, bandwidth)


def round_seconds(parts: Iterable[tuple[ClientTask, float]]) -> tuple[list[float], float]:
    """Returns each client's simulated seconds in a round, and the round's seconds, from those of the tasks."""
    # a client's tasks follow one another; groups of clients work in parallel. A group begins its next candidate when
    # all its clients have finished, so its slowest client decides (FedNAS, Alg. 4.1, lines 14-24). In lines 27-32
    # updates are sent after all groups; here each client sends its own at once
    clients: dict[int, float] = defaultdict(float)
    slowest: dict[int, dict[Any, float]] = defaultdict(lambda: defaultdict(float))
    for task, seconds in parts:
        clients[task.client] += seconds
        if task.group is not None:
            slowest[task.group][task.arch] = max(seconds, slowest[task.group][task.arch])
    groups = [sum(candidates.values()) for candidates in slowest.values()]
    return [*clients.values()], max([*groups, *clients.values()], default=0.0)


@dataclass(frozen=True)
class CompletionTimes:
    """Statistics of clients' times in a run's rounds; :meth:`after` adds a round."""

    parts: int = 0  # number of times: one for each client in each round
    mean: float = 0.0  # mean time, in seconds
    squares: float = 0.0  # sum of squared deviations from the mean
    total: float = 0.0  # simulated seconds of all rounds; a round ends with its last client

    @property
    def deviation(self) -> float:
        """The standard deviation (of the whole population, not of a sample); 0 for none."""
        return math.sqrt(self.squares / self.parts) if self.parts else 0.0

    def after(self, seconds: Sequence[float], whole: float) -> CompletionTimes:
        """Returns the statistics with a round of ``whole`` seconds, in which clients took ``seconds``."""
        parts, mean, squares = self.parts, self.mean, self.squares
        for time in seconds:  # Welford's algorithm loses no digits, as a sum of squares would
            parts += 1
            deviation = time - mean
            mean += deviation / parts
            squares += deviation * (time - mean)
        return CompletionTimes(parts, mean, squares, self.total + whole)
