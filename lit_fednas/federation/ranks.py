"""The processes (ranks) that share a run's work.

Every rank holds all weights, plans the same round, trains its share of the cohort, and adds up its clients' updates.
Then the ranks exchange the results, add their sums, and each takes the same server step.
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
    """This process and its connection to the run's other processes."""

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
        """Returns the results of a function on all ranks; if it raises on one rank, all ranks raise an error."""
        result: Any = None
        failure: Exception | None = None
        try:
            result = work()
        except Exception as error:  # without an answer of this rank the others would wait
            failure = error
        message = failure
        if failure is not None and not isinstance(failure, ClientError | Interrupted):
            message = RankError(f"rank {self.rank}: {in_one_line(failure)}")
        answers = self.gather((result, message))
        for error_of_rank in (failure, *(message for _, message in answers)):
            if error_of_rank is not None:
                raise error_of_rank
        return [answer for answer, _ in answers]

    def add_up(self, tensors: Iterable[Tensor]) -> None:
        """Replaces each tensor by its sum over the ranks, in place."""
        if self.size == 1:
            return
        by_dtype: dict[torch.dtype, list[Tensor]] = {}
        for tensor in tensors:
            by_dtype.setdefault(tensor.dtype, []).append(tensor)
        for group in by_dtype.values():  # one message per type, on the device because NCCL needs the GPU's memory
            total = torch.cat([tensor.flatten().to(self.device) for tensor in group])
            distributed.all_reduce(total)
            for tensor, total_part in zip(group, total.split([tensor.numel() for tensor in group]), strict=True):
                tensor.copy_(total_part.view(tensor.shape))


def deal(work: Sequence[float], ranks: int) -> list[list[int]]:
    """Returns each rank's indices of pieces of work: the longest first, each to the rank with the least work."""
    # Graham's rule: the longest share is at most 4/3 of the optimum
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
    except (ClientError, RankError):  # their messages may mention a device's connection
        raise
    except RuntimeError as error:
        if isinstance(error, distributed.DistError) or "Connection" in str(error):
            raise RankError(f"lost the connection to another rank; see that rank's message ({error})") from error
        raise
