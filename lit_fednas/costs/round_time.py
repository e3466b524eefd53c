"""How long rounds would take on the clients' devices (FedTrans, App. C, Table 6; FedNAS, Algorithm 4.1)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from lit_fednas.costs.devices import round_seconds
from lit_fednas.costs.ledger import RoundCost
from lit_fednas.messages import ClientTask


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
        """Simulated time of the client's part in a round: download, training, test, upload, one after another.

        Args:
            cost: Of all of it.
            tested: Those of its multiply-accumulates that were the test, which has no backward passes.
        """
        return round_seconds(cost.macs, cost.bytes, self.macs_per_second, self.bandwidth_mbps, tested)


def client_seconds(parts: Iterable[tuple[ClientTask, float]]) -> list[float]:
    """Simulated time that each client works in a round: its tasks follow one another.

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
    """Simulated time of a round, in which different groups of clients work side by side.

    A group works on one candidate at a time and is free for the next when all its clients are through (FedNAS,
    Alg. 4.1, lines 14-24), so that the slowest client of each candidate counts. Clients that are in no group wait
    for nobody until the end. (Lines 27-32 have the updates sent after all groups are through; here a client sends
    its own at once, which spares the round the waiting in between.)

    Args:
        parts: As in :func:`client_seconds`.

    Returns:
        Seconds until the last client is through; 0 where nobody takes part.

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
    """The times that clients' parts in rounds took, over a run; a value that :meth:`after` carries on.

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
        """Their standard deviation (divided by their number: they are all there are); 0 for none."""
        return math.sqrt(self.squares / self.parts) if self.parts else 0.0

    def after(self, seconds: Sequence[float], whole: float | None = None) -> CompletionTimes:
        """With one more round.

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
