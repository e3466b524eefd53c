"""The processes that share a run's work.

Every rank holds all weights, and reads training and validation examples from one copy on each machine; it plans the
same round, trains its share of the cohort, and adds up the updates of its own clients. Then the ranks exchange the
results, add their sums, and each takes the same server step. So a round costs one exchange of results and one sum over
the ranks, whatever the cohort.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from lit_fednas.errors import ClientError, RankError
from lit_fednas.federation.interrupts import Interrupted

T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among those of the run."""

    rank: int = 0
    size: int = 1
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))

    def gather(self, value: T) -> list[T]:
        """Returns every rank's value, in the order of the ranks; values must be picklable."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        distributed.all_gather_object(values, value)
        return values

    def gather_unless(self, value: T, failure: Exception | None) -> list[T]:
        """Returns every rank's value unless one of them has failed."""
        answers = self.gather((value, None if failure is None else Failure.of(failure)))
        if failure is not None:
            raise failure
        for rank, (_, other) in enumerate(answers):
            if other is not None:
                raise other.as_error(rank)
        return [value for value, _ in answers]

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replaces each tensor by its sum over the ranks, in place."""
        if self.size == 1:
            return
        for tensor in tensors:
            if tensor.device == self.device:
                distributed.all_reduce(tensor)
            else:  # NCCL knows the GPU's memory only
                there = tensor.to(self.device)
                distributed.all_reduce(there)
                tensor.copy_(there)


def deal(work: Sequence[float], ranks: int) -> list[list[int]]:
    """Assigns pieces of work to ranks, the longest first, each to the rank that has the least.

    Graham's rule: the longest share is at most 4/3 of the best possible one.

    Args:
        work: The duration of each piece, in any unit.
        ranks: The number of ranks.

    Returns:
        For each rank the indices of its pieces, ascending.

    Example:
        >>> deal([5, 1, 4, 3, 3], 2)
        [[0, 4], [1, 2, 3]]
    """
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for index in sorted(range(len(work)), key=lambda index: (-work[index], index)):
        rank = loads.index(min(loads))
        shares[rank].append(index)
        loads[rank] += work[index]
    return [sorted(share) for share in shares]


@dataclass(frozen=True)
class Failure:
    """The reason why a rank could not finish its share, in a form that can be sent to the others."""

    kind: str
    text: str
    signum: int = 0

    @classmethod
    def of(cls, error: Exception) -> Failure:
        """Describes an exception."""
        return cls(type(error).__name__, str(error), error.signum if isinstance(error, Interrupted) else 0)

    def as_error(self, rank: int) -> Exception:
        """Returns what the other ranks raise."""
        if self.signum:
            return Interrupted(self.signum)
        if self.kind == ClientError.__name__:
            return ClientError(self.text)
        return RankError(f"rank {rank}: {self.kind}: {self.text}")
