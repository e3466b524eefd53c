"""The processes that share a run's work.

Every rank holds all weights, plans the same round, trains its share of the cohort, and adds up the updates of its own
clients. Then the ranks exchange the results, add their sums, and each takes the same server step.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch import Tensor, distributed

from lit_fednas.errors import ClientError, RankError, in_one_line
from lit_fednas.federation.process import Interrupted

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

    def gather_results(self, work: Callable[[], T]) -> list[T]:
        """Returns what each rank's work returns; raises on all ranks what it has raised on one."""
        result: Any = None
        failure: Exception | None = None
        try:
            result = work()
        except Exception as error:  # the other ranks would wait for this one otherwise
            failure = error
        told = failure
        if failure is not None and not isinstance(failure, ClientError | Interrupted):
            told = RankError(f"rank {self.rank}: {in_one_line(failure)}")
        answers = self.gather((result, told))
        for raised in (failure, *(told for _, told in answers)):
            if raised is not None:
                raise raised
        return [answer for answer, _ in answers]

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replaces each tensor by its sum over the ranks, in place."""
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for alike in by_dtype.values():  # one message for all; NCCL knows the GPU's memory only
            total = torch.cat([tensor.flatten().to(self.device) for tensor in alike])
            distributed.all_reduce(total)
            for tensor, added in zip(alike, total.split([tensor.numel() for tensor in alike]), strict=True):
                tensor.copy_(added.view(tensor.shape))


def deal(work: Sequence[float], ranks: int) -> list[list[int]]:
    """Returns for each rank the indices of its pieces of work: the longest first, each to the rank with the least."""
    # Graham's rule: the longest share is at most 4/3 of the best possible one
    shares: list[list[int]] = [[] for _ in range(ranks)]
    loads = [0.0] * ranks
    for index in sorted(range(len(work)), key=lambda index: (-work[index], index)):
        rank = loads.index(min(loads))
        shares[rank].append(index)
        loads[rank] += work[index]
    return [sorted(share) for share in shares]


@contextmanager
def naming_lost_rank() -> Iterator[None]:
    """Raises a broken connection to another rank as :class:`RankError`."""
    try:
        yield
    except (ClientError, RankError):  # which may speak of a device's connection
        raise
    except RuntimeError as error:
        if isinstance(error, distributed.DistError) or "Connection" in str(error):
            raise RankError(f"lost the connection to another rank, whose own message says why ({error})") from error
        raise
