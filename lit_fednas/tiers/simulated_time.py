"""Simulated time: how long rounds would take on the clients' devices, from their speeds and the costs of tasks.

FedTrans, App. C, Table 6; FedNAS, Algorithm 4.1.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from lit_fednas.costs import RoundCost
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.ranges import PositiveFloat, checked
from lit_fednas.rng import numpy_generator
from lit_fednas.tiers.population import Population
from lit_fednas.tiers.traces import DeviceTrace, SyntheticTrace

_TRAINING = 3  # a backward pass takes about two forward passes (gradients of the inputs and of the weights)


@dataclass(frozen=True)
class ClientSpeed:
    """How fast a client's device is.

    Attributes:
        macs_per_second: Multiply-accumulates per second that it sustains.
        bandwidth_mbps: Of its connection, each way, in units of 10^6 bits per second.

    Example:
        >>> ClientSpeed(1e6, 8.0).seconds(RoundCost(macs=10**6, bytes_down=10**6, bytes_up=0))
        4.0
    """

    macs_per_second: float
    bandwidth_mbps: float

    def seconds(self, cost: RoundCost, tested: int = 0) -> float:
        """Returns the simulated seconds of a client's part in a round: download, training, test and upload.

        Args:
            cost: Of all of it, with the multiply-accumulates of forward passes; backward passes come on top.
            tested: Those of its multiply-accumulates that were the test, which has no backward passes.
        """
        computed = _TRAINING * (cost.macs - tested) + tested
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

    Raises:
        ConfigError: ``latency_ms`` is not positive, or (once clients are known) a tier has no limit of ``macs``.

    Example:
        >>> from lit_fednas.tiers import Tier
        >>> population = Population(2, (Tier("slow", {"macs": 1e6}), Tier("fast", {"macs": 4e6})), (0, 1))
        >>> speeds = DeviceSpeeds(latency_ms=10)
        >>> [speeds.of(client, population, seed=0).macs_per_second for client in (0, 1)]
        [100000000.0, 400000000.0]
    """

    compute: DeviceTrace = field(default_factory=SyntheticTrace)
    bandwidth: DeviceTrace = field(default_factory=lambda: SyntheticTrace(median=10, spread=20))
    latency_ms: PositiveFloat | None = None

    def check(self, population: Population) -> None:
        """Validates that every client's speed is known, before training.

        Raises:
            ConfigError: As above.
        """
        if self.latency_ms is None:
            return
        without = [tier.name for tier in population.tiers if "macs" not in tier.at_most]
        if without or not population.tiers:
            reason = f"the tier {without[0]!r} has no limit of macs" if without else "there are no tiers"
            raise ConfigError(
                f"round_time.speeds.latency_ms: {self.latency_ms:g} derives speeds from limits of macs, but "
                f"{reason}; set model.tiers to tiers with a limit of macs, or latency_ms to null"
            )

    def of(self, client: int, population: Population, seed: int) -> ClientSpeed:
        """Returns a client's speed.

        Args:
            client: Its number.
            population: The clients and their tiers, which :meth:`check` has validated.
            seed: The run's seed.

        Raises:
            DataError: A trace's file cannot be read.
        """
        tier = population.tier(client)
        if self.latency_ms is not None and tier is not None:
            speed = 1000 * tier.at_most["macs"] / self.latency_ms
        else:
            speed = float(self.compute.speeds(1, numpy_generator(seed, "device-speed", client))[0])
        bandwidth = float(self.bandwidth.speeds(1, numpy_generator(seed, "device-bandwidth", client))[0])
        return ClientSpeed(speed, bandwidth)


def client_seconds(parts: Iterable[tuple[ClientTask, float]]) -> list[float]:
    """Returns the simulated seconds that each client works in a round: its tasks follow one another.

    Args:
        parts: The round's tasks, each with the seconds that it takes its client.

    Returns:
        One number per client, in the order of their first tasks. Waiting for others is not in it.

    Example:
        >>> client_seconds([(ClientTask(0, 7, "small", 1), 2.0), (ClientTask(0, 7, "large", 1), 3.0)])
        [5.0]
    """
    seconds: dict[int, float] = defaultdict(float)
    for task, taken in parts:
        seconds[task.client] += taken
    return list(seconds.values())


def whole_round_seconds(parts: Sequence[tuple[ClientTask, float]]) -> float:
    """Returns the simulated seconds of a round, in which different groups of clients work in parallel.

    A group works on one candidate at a time and begins the next when all its clients have finished (FedNAS, Alg.
    4.1, lines 14-24), so the slowest client of each candidate counts. Clients without a group do not wait. (In
    lines 27-32 updates are sent after all groups have finished; here each client sends its own at once.)

    Args:
        parts: As in :func:`client_seconds`.

    Returns:
        Seconds until the last client has finished; 0 without tasks.

    Example:
        >>> first, second = ClientTask(0, 1, "a", 1, group=0), ClientTask(0, 2, "a", 1, group=0)
        >>> whole_round_seconds([(first, 2.0), (second, 3.0)])
        3.0
    """
    slowest: dict[int, dict[Any, float]] = defaultdict(dict)
    for task, taken in parts:
        if task.group is not None:
            candidates = slowest[task.group]
            candidates[task.arch] = max(taken, candidates.get(task.arch, 0.0))
    groups = [sum(candidates.values()) for candidates in slowest.values()]
    return max([*groups, *client_seconds(parts)], default=0.0)


@dataclass(frozen=True)
class CompletionTimes:
    """Statistics of how long clients work in the rounds of a run; a value that :meth:`after` continues.

    Attributes:
        parts: How many there were: a client counts with each round that it took part in.
        mean: Their mean, in seconds.
        squares: The sum of their squared deviations from it.
        total: Simulated time of all rounds: each takes until its last client is through, for whom the others wait.

    Example:
        >>> times = CompletionTimes().after([1.0, 3.0]).after([5.0])
        >>> times.parts, times.mean, round(times.deviation, 3), times.total
        (3, 3.0, 1.633, 8.0)
    """

    parts: int = 0
    mean: float = 0.0
    squares: float = 0.0
    total: float = 0.0

    @property
    def deviation(self) -> float:
        """Returns their standard deviation (of the whole population, not of a sample); 0 for none."""
        return math.sqrt(self.squares / self.parts) if self.parts else 0.0

    def after(self, seconds: Sequence[float], whole: float | None = None) -> CompletionTimes:
        """Returns the times with one more round.

        Args:
            seconds: Of each client of its cohort.
            whole: How long the round takes; as long as its slowest client if not given.
        """
        whole = max(seconds, default=0.0) if whole is None else whole
        parts, mean, squares = self.parts, self.mean, self.squares
        for time in seconds:  # Welford's way, which does not lose digits as a sum of squares does
            parts += 1
            before = time - mean
            mean += before / parts
            squares += before * (time - mean)
        return CompletionTimes(parts, mean, squares, self.total + whole)
