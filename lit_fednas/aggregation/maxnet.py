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
    """The largest architecture's weight in one round, between 0 and 1, as set by a schedule."""

    value: float


@checked("aggregation")
class MaxNet(OverlapAverage):
    """Overlap averaging in which beta weights the client of the largest architecture (SuperFed, Algorithm 2).

    Client j, which trains the largest architecture, has the weight beta_t n_j; each other client has
    (1 - beta_t) / (|S_t| - 1) n_k. A high initial beta lets the largest network train first (section 2.4.1); the
    callback ``BetaDecay`` lowers it over the rounds. A constant beta of 0.9 is the worst setting of Figure 5b, so a run
    without a schedule logs a warning.

    Choices where the paper is silent: The largest architecture is that of the space, or of the pool that the assignment
    draws from (DeepFedNAS). If several clients train it, j is the first in the cohort. If no client trains it, or only
    j takes part, beta is not used. |S_t| includes clients that failed.

    Args:
        beta: The largest architecture's weight in rounds without a scheduled one.
        weighted: Whether weights are also multiplied by the client's number of examples n_k.
        trim: The share of values that a mean leaves out at either end (:class:`OverlapAverage`); beta weights the rest.
    """

    reads = (Beta,)

    def __init__(self, beta: OpenUnitInterval = 0.9, weighted: bool = True, trim: Trim = 0.0) -> None:
        super().__init__(weighted, trim)
        self.beta = beta
        self._round_beta = beta
        self._warned = False

    @override
    def prepare(self, tasks: Sequence[ClientTask], values: RoundValues) -> None:
        scheduled = values.get(Beta)
        if scheduled is None and not self._warned:
            self._warned = True
            log.warning(
                "aggregation.beta: %g in every round, without a schedule; set beta_decay (decay: constant keeps it)",
                self.beta,
            )
        self._round_beta = self.beta if scheduled is None else scheduled.value
        largest = values.get(Largest) or Largest(self._supernet.space.largest)
        self._largest_client = next((task.client for task in tasks if task.arch == largest.arch), None)
        self._num_others = len(tasks) - 1

    @override
    def coefficient(self, task: ClientTask) -> float:
        examples = super().coefficient(task)
        if self._largest_client is None or self._num_others == 0:
            return examples
        if task.client == self._largest_client:
            return self._round_beta * examples
        return (1 - self._round_beta) / self._num_others * examples
