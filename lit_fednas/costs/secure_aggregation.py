"""The bytes that secure aggregation would take (a count; nothing is encrypted): see ``lit_fednas.costs``."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_fednas.costs.ledger import RoundCost
from lit_fednas.messages import ClientResult
from lit_fednas.ranges import PositiveInt, checked

_WORD = 4  # a masked number: its sum over a cohort must not overflow, so it is no smaller with fewer bits per update
_SECRET = 32  # a public key, and a share of a secret: 256 bits each


@checked("cost_ledger.secure_aggregation")
@dataclass(frozen=True)
class SecureAggregation:
    """What clients would send if the server were to see the sums of their updates alone.

    Per round, a client of a cohort of n sends and receives, a key and a share of a secret having 32 bytes each
    (Bonawitz et al., 2017, "Practical secure aggregation for privacy-preserving machine learning", section 7):

    * 2 public keys up, and 2 from each of the n - 1 others down;
    * 2 encrypted shares for each of the others up, and as many of theirs down;
    * its masked numbers up, 4 bytes each; and n shares to remove the masks, if it has not gone away before.

    That is 32 (7n - 4) bytes beside the numbers, and what goes down as without. SecAgg+ (Bell et al., 2020, "Secure
    single-server aggregation with (poly)logarithmic overhead") has each client share with k others, k in O(log n): n is
    then k + 1.

    Updates of different architectures can only be summed in the supernet's shape, and how many examples stand behind
    each element depends on who trained it. So every client that answers sends two numbers for every element of the
    supernet: its weighted value, and its weight, both 0 where it trained nothing. If all clients of the round train one
    architecture, they send one number for each of its elements, and a single weight. A client with several tasks adds
    its updates up before they are masked.

    Args:
        neighbours: With how many others a client shares; with its whole cohort if not given (SecAgg).

    Raises:
        ConfigError: The number is not positive.
    """

    neighbours: PositiveInt | None = None

    def cost(self, results: Sequence[ClientResult], elements: int, whole: int, bytes_down: int) -> RoundCost:
        """Returns the bytes of a round.

        Args:
            results: Of all its clients.
            elements: Elements of the first result's architecture.
            whole: Elements of the supernet.
            bytes_down: Bytes of all weights that go down.

        Example:
            >>> from lit_fednas.messages import ClientTask
            >>> pair = [ClientResult(ClientTask(0, client, "all", 1)) for client in (0, 1)]
            >>> SecureAggregation().cost(pair, 99, 99, 800)  # 2 (4 * 100 + 32 (7 * 2 - 4)) beside the 800
            RoundCost(macs=0, bytes_down=1056, bytes_up=1184)
        """
        asked = {result.task.client for result in results}
        answered = {result.task.client for result in results if result.sent}
        others = max(len(asked) - 1, 0) if self.neighbours is None else min(self.neighbours, len(asked) - 1)
        numbers = 2 * whole if len({result.task.arch for result in results}) > 1 else elements + 1
        down = len(asked) * (2 + 2) * others * _SECRET
        up = len(asked) * (2 + 2 * others) * _SECRET + len(answered) * ((others + 1) * _SECRET + numbers * _WORD)
        return RoundCost(0, bytes_down + down, up)
