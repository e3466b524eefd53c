"""What a round costs its clients (SuperFed, App. G), and what secure aggregation would take.

Computation is multiply-accumulates of forward passes: those of the architecture times the examples of the client's
training, and of its test. (Backward passes take about twice that again, for every method alike, and are not counted.)
Communication is the subnet's bytes as they travel: down to each client that was asked, up from each that answered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from lit_fednas.costs.counting import Cost
from lit_fednas.messages import ClientResult, MacsReport
from lit_fednas.ranges import PositiveInt, checked

_WORD = 4  # a masked number: its sum over a cohort must not overflow, so it is no smaller with fewer bits per update
_SECRET = 32  # a public key, and a share of a secret: 256 bits each


@dataclass(frozen=True)
class RoundCost:
    """What one client, one round, or a run costs; two of them add up."""

    macs: int = 0  # multiply-accumulates of the forward passes
    bytes_down: int = 0  # bytes from the server
    bytes_up: int = 0  # bytes to the server

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


@checked("cost_ledger.secure_aggregation")
@dataclass(frozen=True)
class SecureAggregation:
    """The bytes that clients would send if the server were to see sums of updates alone (nothing is encrypted).

    A client of a cohort of n sends 2 public keys, 2 encrypted shares for each of the n - 1 others, its masked numbers,
    and n shares to remove the masks; it receives the others' keys and shares. That is 32 (7n - 4) bytes beside the
    numbers (Bonawitz et al., 2017, "Practical secure aggregation for privacy-preserving machine learning", section 7).
    With k ``neighbours`` n is k + 1 (SecAgg+: Bell et al., 2020, "Secure single-server aggregation with
    (poly)logarithmic overhead", with k in O(log n)).

    Updates of different architectures can only be summed in the supernet's shape, with the weight of each element: a
    client sends two numbers per element of the supernet. If all train one architecture, they send one number for each
    of its elements, and a single weight. A client with several tasks adds its updates up before they are masked.

    Args:
        neighbours: With how many others a client shares; with its whole cohort if not given (SecAgg).
    """

    neighbours: PositiveInt | None = None

    def cost(self, results: Sequence[ClientResult], elements: int, whole: int, bytes_down: int) -> RoundCost:
        """Returns the bytes of a round.

        Args:
            results: Of all its clients.
            elements: Elements of the first result's architecture.
            whole: Elements of the supernet.
            bytes_down: Bytes of all weights that go down.
        """
        asked = {result.task.client for result in results}
        answered = {result.task.client for result in results if result.sent}
        others = max(len(asked) - 1, 0) if self.neighbours is None else min(self.neighbours, len(asked) - 1)
        numbers = 2 * whole if len({result.task.arch for result in results}) > 1 else elements + 1
        down = len(asked) * (2 + 2) * others * _SECRET
        up = len(asked) * (2 + 2 * others) * _SECRET + len(answered) * ((others + 1) * _SECRET + numbers * _WORD)
        return RoundCost(0, bytes_down + down, up)
