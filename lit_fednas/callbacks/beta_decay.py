"""The schedule of MaxNet's beta (SuperFed, section 2.4 and Algorithm 2, line 2)."""

import math
from dataclasses import dataclass
from typing import Literal, final

from typing_extensions import override

from lit_fednas.aggregation import Beta
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.ranges import OpenUnitInterval, PositiveFloat, PositiveShare, checked


@final
@checked("beta_decay")
@dataclass(eq=False)
class BetaDecay(FederatedCallback):
    """A schedule of beta, the weight of the largest architecture's client.

    Beta falls from ``beta0`` in the first round to one over the cohort's size, where all clients have equal weight, and
    stays there. To be able to extend the run, set ``rounds`` instead of ``period``.

    Args:
        beta0: The first round's beta.
        decay: The curve: half a ``cosine``, ``linear``, or ``constant`` without decay.
        period: Share of the run's rounds in which beta falls.
        rounds: Number of rounds in which beta falls, in place of ``period``.
    """

    gives = (Beta,)
    metric_names = ("beta",)

    beta0: OpenUnitInterval = 0.9
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    period: PositiveShare = 0.8
    rounds: PositiveFloat | None = None

    def beta(self, round: int, max_rounds: int, cohort_size: int) -> float:
        """Returns the beta of a round, counted from 0; ``max_rounds`` is -1 in a run without an end.

        Example:
            >>> decay = BetaDecay(beta0=0.9, decay="linear", period=0.5)
            >>> [round(decay.beta(t, 8, 10), 3) for t in (0, 2, 4, 7)]
            [0.9, 0.5, 0.1, 0.1]
        """
        if self.decay == "constant":
            return self.beta0
        last = 1 / cohort_size
        share = min(1.0, round / (self.rounds or self.period * max_rounds))
        remainder = 1 - share if self.decay == "linear" else (1 + math.cos(math.pi * share)) / 2
        return last + (self.beta0 - last) * remainder

    @override
    def setup(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and self.decay != "constant" and self.rounds is None and trainer.max_rounds < 1:
            raise ConfigError("beta_decay: needs a number of rounds; set trainer.max_rounds, or beta_decay.rounds")

    @override
    def on_round_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        cohort_size = module.cohort.size(module.population.num_clients)
        round.give(Beta(self.beta(round.number, round.max_rounds, cohort_size)))

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        module.log("beta", round.values[Beta].value)
