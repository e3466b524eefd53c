"""What a round costs its clients (SuperFed, App. G).

Computation is multiply-accumulates of forward passes: the architecture's MACs per example times the examples of
the client's training, and of its test if it was asked for one. (Backward passes take about twice that again, for
every method alike, and are not counted.) Communication is the subnet's bytes as they travel
(:class:`~lit_fednas.transport.Transport`): down to every client that was asked, up from every client that answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lit_fednas.costs.counting import Cost
from lit_fednas.messages import ClientResult, MacsReport


@dataclass(frozen=True)
class RoundCost:
    """What one client, one round, or a run costs; two of them add up.

    Attributes:
        macs: Multiply-accumulates of the forward passes.
        bytes_down: Bytes from the server.
        bytes_up: Bytes to the server.

    Example:
        >>> RoundCost(10, 4, 4) + RoundCost(1, 2, 0)
        RoundCost(macs=11, bytes_down=6, bytes_up=4)
    """

    macs: int = 0
    bytes_down: int = 0
    bytes_up: int = 0

    def __add__(self, other: RoundCost) -> RoundCost:
        down, up = self.bytes_down + other.bytes_down, self.bytes_up + other.bytes_up
        return RoundCost(self.macs + other.macs, down, up)

    @property
    def bytes(self) -> int:
        """Both ways."""
        return self.bytes_down + self.bytes_up


def client_cost(result: ClientResult, cost: Cost, traffic: tuple[int, int] | None = None) -> RoundCost:
    """Returns the cost of one client's part in a round; work that came to nothing is not in ``num_seen``.

    Args:
        result: The client's result; if it has a :class:`MacsReport`, that counts (batches took different paths).
        cost: Of what the client received; a failed client sends nothing up.
        traffic: Its bytes down and up as they travel; as they are if not given.
    """
    down, up = (cost.bytes, cost.bytes) if traffic is None else traffic
    report = result.report(MacsReport)
    macs = cost.macs * result.num_seen if report is None else report.macs
    return RoundCost(int(macs) + cost.macs * result.num_tested, down, up if result.sent else 0)


def independent_cost(results: Sequence[ClientResult], cost: Cost, traffic: tuple[int, int] | None = None) -> RoundCost:
    """Returns what the same cohort would cost if all of it trained one given architecture: a round of iFedAvg."""
    return sum((client_cost(replace(result, reports=()), cost, traffic) for result in results), RoundCost())
