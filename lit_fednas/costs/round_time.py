"""How long rounds would take on the clients' devices (FedTrans, App. C, Table 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from lit_fednas.costs.devices import round_seconds
from lit_fednas.costs.ledger import RoundCost


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

    def seconds(self, cost: RoundCost) -> float:
        """Simulated time of the client's part in a round: download, training, upload, one after another."""
        return round_seconds(cost.macs, cost.bytes, self.macs_per_second, self.bandwidth_mbps)


@dataclass(frozen=True)
class CompletionTimes:
    """The times that clients' parts in rounds took, over a run; a value that :meth:`after` carries on.

    Attributes:
        parts: How many there were: a client counts with each round that it took part in.
        mean: Their mean, in seconds.
        squares: The sum of their squared deviations from it.
        total: Simulated time of all rounds: each takes as long as the slowest of its cohort, for whom the others
            wait.

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

    def after(self, seconds: Sequence[float]) -> CompletionTimes:
        """With one more round.

        Args:
            seconds: Of each client of its cohort.
        """
        parts, mean, squares = self.parts, self.mean, self.squares
        for time in seconds:  # Welford's way, which does not lose digits as a sum of squares does
            parts += 1
            before = time - mean
            mean += before / parts
            squares += before * (time - mean)
        return CompletionTimes(parts, mean, squares, self.total + max(seconds, default=0.0))
