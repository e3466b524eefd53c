"""MaxNet's shared-parameter averaging: SuperFed's Algorithm 2.

The client j that trained the largest architecture has weight beta_t n_j, each other client
(1 - beta_t) / (|S_t| - 1) n_k; every element is then divided by the weights of those that hold it. A beta that
starts high lets the largest network train first, which keeps the smaller ones from interfering with it
(section 2.4.1); the callback ``BetaDecay`` gives a lower value from round to round. A beta of 0.9 throughout is the
worst of Figure 5b for the smaller networks, so a run without a schedule says so.

Settled here, where the paper is silent: if several clients drew the largest architecture, the first in the
cohort is j; if nobody has it (which section 2.3 excludes), or if j is alone, all count alike, as in Algorithm 1;
|S_t| counts the clients that were asked, also if some of them failed.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from lit_fednas.aggregation.overlap import OverlapAverage, Trim
from lit_fednas.aggregation.private import GaussianMechanism
from lit_fednas.messages import ClientResult, ClientTask, RoundValues
from lit_fednas.ranges import OpenUnitInterval, checked

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Beta:
    """The largest architecture's weight in one round, where a schedule gives it.

    Attributes:
        value: Between 0 and 1.
    """

    value: float


@checked("aggregation")
class MaxNet(OverlapAverage):
    """Overlap averaging in which the largest architecture's client counts by beta.

    Args:
        beta: The largest architecture's weight, in rounds for which no schedule gives one.
        weighted: Whether a client counts by its examples n_k as well.
        trim: The share of an element's values that its mean leaves out at either end, as for
            :class:`OverlapAverage`; beta weighs what is left.

    Raises:
        ConfigError: ``beta`` or ``trim`` is out of range.
    """

    reads = (Beta, GaussianMechanism)

    def __init__(self, beta: OpenUnitInterval = 0.9, weighted: bool = True, trim: Trim = 0.0) -> None:
        super().__init__(weighted, trim)
        self.beta = beta
        self._present = beta
        self._warned = False

    @override
    def start(
        self, tasks: Sequence[ClientTask], values: RoundValues | None = None, by_architecture: bool = False
    ) -> None:
        given = None if values is None else values.get(Beta)
        if given is None and not self._warned:
            self._warned = True
            log.warning(
                "aggregation.beta: %g in every round, as no schedule gives another; set beta_decay, with decay: "
                "constant to keep it",
                self.beta,
            )
        self._present = self.beta if given is None else given.value
        largest = self._supernet.space.largest
        self._largest = next((task.client for task in tasks if task.arch == largest), None)
        self._others = len(tasks) - 1
        super().start(tasks, values, by_architecture)

    @override
    def coefficient(self, task: ClientTask) -> float:
        """Returns line 5 for client j, line 4 for all others."""
        examples = super().coefficient(task)
        if self._largest is None or self._others == 0:
            return examples
        if task.client == self._largest:
            return self._present * examples
        return (1 - self._present) / self._others * examples

    @override
    def metrics(self, results: Sequence[ClientResult]) -> dict[str, float]:
        """Returns the round's beta."""
        return {"beta": self._present}
