"""Devices of clients: their tiers, traces of their speeds, and the time that rounds would take on them.

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
    """A log-normal population: a few fast devices and a long tail of slow ones, as among phones.

    Args:
        median: Speed of the device in the middle, in multiply-accumulates per second.
        spread: The ratio between the fastest and the slowest of the middle 90 %; about an order of magnitude among
            benchmarks of phones.
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
        # the distribution is unbounded: a share of 1 means its 99.9 %
        return float(self.median * np.exp(self._sigma * NormalDist().inv_cdf(min(share, 0.999))))


@dataclass(frozen=True)
class CSVTrace(DeviceTrace):
    """A measured trace: one device per row.

    Args:
        path: The file, with a line of column names; also one of the package's (``fedtrans/devices.csv``).
        column: The column of speeds, in multiply-accumulates per second, or in anything proportional to it.

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
            raise DataError(
                f"trace.column: {self.column!r} of {path} is {speeds[row]:g} in row {row}; give more than 0"
            )
        return speeds

    @override
    def speeds(self, count: int, rng: np.random.Generator) -> np.ndarray:
        return rng.choice(self._all, size=count)

    @override
    def quantile(self, share: float) -> float:
        return float(np.quantile(self._all, share))


@dataclass(frozen=True, eq=False)
class Population:
    """All clients, and the tier of each.

    Attributes:
        num_clients: Their number.
        tiers: From the least to the most capable; empty without tiers.
        places: For each client the position of its tier among them, int ``[clients]``; empty without tiers.
        sizes: Training examples of each client, int ``[clients]``; empty where nothing depends on them.
        enforced: Whether clients train nothing beyond their tiers' limits.

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
        """Returns a client's tier: one without limits if there are no tiers."""
        return self.tiers[self.places[client]] if self.tiers else EVERYBODY

    def eligible(self, tier: str) -> list[int]:
        """Returns the clients that can run a tier's models: those of that tier and above (FedorAS, section 3.3).

        A tier above that lacks an operator which this tier's models may have cannot run them.

        Raises:
            ConfigError: The tier is unknown.
        """
        least = self._position(tier)
        lacking = set(self.tiers[least].unsupported)
        able = [place >= least and lacking.issuperset(tier.unsupported) for place, tier in enumerate(self.tiers)]
        return np.flatnonzero(np.array(able)[self.places]).tolist()

    def members(self, tier: str) -> list[int]:
        """Returns the clients of a tier; raises ConfigError if it is unknown."""
        return np.flatnonzero(np.asarray(self.places) == self._position(tier)).tolist()

    def _position(self, tier: str) -> int:
        names = [known.name for known in self.tiers]
        if tier not in names:
            known = ", ".join(names) or "none; set model.tiers"
            raise ConfigError(f"model.tiers: has no tier {tier!r}; there are: {known}")
        return names.index(tier)


@dataclass(frozen=True)
class ClientSpeed:
    """How fast a client's device is.

    Example:
        >>> ClientSpeed(1e6, 8.0).seconds(RoundCost(macs=10**6, bytes_down=10**6, bytes_up=0))
        4.0
    """

    macs_per_second: float  # multiply-accumulates per second that it sustains
    bandwidth_mbps: float  # of its connection, each way, in units of 10^6 bits per second

    def seconds(self, cost: RoundCost, tested: int = 0) -> float:
        """Returns the simulated seconds of a client's part in a round: download, training, test and upload.

        Args:
            cost: Of all of it, with the multiply-accumulates of forward passes; backward passes come on top.
            tested: Those of its multiply-accumulates that were the test, which has no backward passes.
        """
        # a backward pass takes about two forward passes (gradients of the inputs and of the weights)
        computed = 3 * (cost.macs - tested) + tested
        return computed / self.macs_per_second + 8 * cost.bytes / (1e6 * self.bandwidth_mbps)


@checked("round_time.speeds")
@dataclass(frozen=True)
class DeviceSpeeds:
    """Every client's speed and bandwidth, drawn once for a whole run: they belong to its seed and the client.

    Args:
        compute: Speeds of the population's devices, in multiply-accumulates per second.
        bandwidth: Bandwidths of their connections, the same each way, drawn independently of the speeds; a trace's
            ``median`` and columns are here in units of 10^6 bits per second. (The default is not a measurement.)
        latency_ms: If given, in place of ``compute``: the time in which a tier's devices run its limit of
            multiply-accumulates, so that a device gets models that its speed allows (FedTrans, App. C). The paper
            does not say how its limits follow from speed; a common latency makes them proportional.

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
        without = [tier.name for tier in population.tiers if "macs" not in tier.at_most]
        if without or not population.tiers:
            reason = f"the tier {without[0]!r} has no limit of macs" if without else "there are no tiers"
            raise ConfigError(
                f"round_time.speeds.latency_ms: {self.latency_ms:g} derives speeds from limits of macs, but "
                f"{reason}; set model.tiers to tiers with a limit of macs, or latency_ms to null"
            )

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
    """Returns the simulated seconds of a round's clients, and those until the last has finished, by tasks' seconds."""
    # the tasks of a client follow one another; groups of clients work in parallel. A group begins its next candidate
    # when all its clients have finished (FedNAS, Alg. 4.1, lines 14-24), so the slowest client of each counts; in
    # lines 27-32 updates are sent after all groups, here each client's at once
    clients: dict[int, float] = defaultdict(float)
    slowest: dict[int, dict[Any, float]] = defaultdict(lambda: defaultdict(float))
    for task, taken in parts:
        clients[task.client] += taken
        if task.group is not None:
            slowest[task.group][task.arch] = max(taken, slowest[task.group][task.arch])
    groups = [sum(candidates.values()) for candidates in slowest.values()]
    return [*clients.values()], max([*groups, *clients.values()], default=0.0)


@dataclass(frozen=True)
class CompletionTimes:
    """Statistics of how long clients work in the rounds of a run; a value that :meth:`after` continues."""

    parts: int = 0  # how many there were: a client counts with each round that it took part in
    mean: float = 0.0  # their mean, in seconds
    squares: float = 0.0  # the sum of their squared deviations from it
    total: float = 0.0  # simulated time of all rounds: each takes until its last client has finished

    @property
    def deviation(self) -> float:
        """The standard deviation (of the whole population, not of a sample); 0 for none."""
        return math.sqrt(self.squares / self.parts) if self.parts else 0.0

    def after(self, seconds: Sequence[float], whole: float) -> CompletionTimes:
        """Returns the times with a round of its clients' seconds, which takes ``whole``."""
        parts, mean, squares = self.parts, self.mean, self.squares
        for time in seconds:  # Welford's algorithm loses no digits, as a sum of squares would
            parts += 1
            deviation = time - mean
            mean += deviation / parts
            squares += deviation * (time - mean)
        return CompletionTimes(parts, mean, squares, self.total + whole)
