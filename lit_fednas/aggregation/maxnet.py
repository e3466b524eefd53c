"""MaxNet: overlap averaging that favours the largest architecture (SuperFed, Algorithm 2)."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from lit_fednas.aggregation.overlap import OverlapAverage, Trim
from lit_fednas.messages import ClientTask, Largest, RoundValues
from lit_fednas.ranges import OpenUnitInterval, checked

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Beta:
    """The largest architecture's weight in one round, between 0 and 1, where a schedule gives it."""

    value: float


@checked("aggregation")
class MaxNet(OverlapAverage):
    """Overlap averaging in which the largest architecture's client counts by beta (SuperFed, Algorithm 2).

    Its client j has the weight beta_t n_j, each other client (1 - beta_t) / (|S_t| - 1) n_k. A beta that starts high
    lets the largest network train first (section 2.4.1); the callback ``BetaDecay`` lowers it from round to round. A
    beta of 0.9 throughout is the worst of Figure 5b, so a run without a schedule logs a warning.

    Where the paper is silent: the largest architecture is the space's, or that of the pool that the assignment draws
    from (DeepFedNAS); of several clients with it the first in the cohort is j; if nobody
    has it, or j is alone, all count alike; |S_t| counts the clients that were asked, also if some of them failed.

    Args:
        beta: The largest architecture's weight, in rounds for which no schedule gives one.
        weighted: Whether a client counts by its examples n_k as well.
        trim: As for :class:`OverlapAverage`; beta weighs the remaining values.
    """

    reads = (Beta,)

    def __init__(self, beta: OpenUnitInterval = 0.9, weighted: bool = True, trim: Trim = 0.0) -> None:
        super().__init__(weighted, trim)
        self.beta = beta
        self._present = beta
        self._warned = False

    @override
    def prepare(self, tasks: Sequence[ClientTask], values: RoundValues) -> None:
        scheduled = values.get(Beta)
        if scheduled is None and not self._warned:
            self._warned = True
            log.warning(
                "aggregation.beta: %g in every round, as no schedule gives another; set beta_decay, with decay: "
                "constant to keep it",
                self.beta,
            )
        self._present = self.beta if scheduled is None else scheduled.value
        largest = values.get(Largest) or Largest(self._supernet.space.largest)
        self._largest = next((task.client for task in tasks if task.arch == largest.arch), None)
        self._others = len(tasks) - 1

    @override
    def coefficient(self, task: ClientTask) -> float:
        examples = super().coefficient(task)
        if self._largest is None or self._others == 0:
            return examples
        if task.client == self._largest:
            return self._present * examples
        return (1 - self._present) / self._others * examples
