"""MaxNet's shared-parameter averaging: SuperFed's Algorithm 2.

The client j that trained the largest architecture has weight beta_t n_j, each other client
(1 - beta_t) / (|S_t| - 1) n_k; every element is then divided by the weights of those that hold it. A beta that
starts high lets the largest network train first, which keeps the smaller ones from interfering with it
(section 2.4.1); the callback ``BetaDecay`` lowers it over the rounds.

Settled here, where the paper is silent: if several clients drew the largest architecture, the first in the
cohort is j; if nobody has it (which section 2.3 excludes), or if j is alone, all count alike, as in Algorithm 1;
|S_t| counts the clients that were asked, also if some of them failed.
"""

from __future__ import annotations

from collections.abc import Sequence

from lit_fednas.aggregation.overlap import OverlapAverage
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask
from lit_fednas.supernets import Supernet


class MaxNet(OverlapAverage):
    """Overlap averaging in which the largest architecture's client counts by beta.

    Args:
        beta: The largest architecture's weight, between 0 and 1; ``BetaDecay`` sets it anew each round.
        weighted: Whether a client counts by its examples n_k as well.

    Raises:
        ConfigError: ``beta`` is not between 0 and 1.
    """

    def __init__(self, beta: float = 0.9, weighted: bool = True) -> None:
        super().__init__(weighted)
        if not 0 < beta < 1:
            raise ConfigError(f"aggregation.beta: {beta} must lie between 0 and 1, both excluded")
        self.beta = beta

    def start(self, supernet: Supernet, tasks: Sequence[ClientTask]) -> None:
        """Finds client j, then starts as overlap averaging does."""
        largest = supernet.space.largest
        self._largest = next((task.client for task in tasks if task.arch == largest), None)
        self._others = len(tasks) - 1
        super().start(supernet, tasks)

    def coefficient(self, task: ClientTask) -> float:
        """Line 4 for all but client j, line 5 for j."""
        examples = super().coefficient(task)
        if self._largest is None or self._others == 0:
            return examples
        if task.client == self._largest:
            return self.beta * examples
        return (1 - self.beta) / self._others * examples

    def metrics(self) -> dict[str, float]:
        """The beta of the round."""
        return {"beta": self.beta}
