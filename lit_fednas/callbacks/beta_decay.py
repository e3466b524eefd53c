"""MaxNet's beta over the rounds: SuperFed, section 2.4 and Algorithm 2, line 2."""

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
    """A schedule of the weight of the largest architecture's client over the rounds.

    Beta falls from ``beta0`` in the first round to one over the cohort's size, at which all clients count alike, after
    a share of all rounds, or a number of them, and stays there. To extend a run, give ``rounds``.

    Args:
        beta0: The first round's beta.
        decay: Along half a cosine, along a line, or not at all (``constant``: ``beta0`` throughout).
        period: Share of all rounds over which it falls.
        rounds: Number of rounds over which it falls, in place of ``period``.
    """

    gives = (Beta,)
    metric_names = ("beta",)

    beta0: OpenUnitInterval = 0.9
    decay: Literal["cosine", "linear", "constant"] = "cosine"
    period: PositiveShare = 0.8
    rounds: PositiveFloat | None = None

    def beta(self, round: int, max_rounds: int, cohort_size: int) -> float:
        """Returns the beta of a round, from 0; ``max_rounds`` is -1 in a run without an end.

        Example:
            >>> decay = BetaDecay(beta0=0.9, decay="linear", period=0.5)
            >>> [round(decay.beta(t, 8, 10), 3) for t in (0, 2, 4, 7)]
            [0.9, 0.5, 0.1, 0.1]
        """
        if self.decay == "constant":
            return self.beta0
        last = 1 / cohort_size
        share = min(1.0, round / (self.rounds or self.period * max_rounds))
        left = 1 - share if self.decay == "linear" else (1 + math.cos(math.pi * share)) / 2
        return last + (self.beta0 - last) * left

    @override
    def setup(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, stage: str) -> None:
        """Validates that the run has an end to decay towards."""
        super().setup(trainer, pl_module, stage)
        if stage == "fit" and self.decay != "constant" and self.rounds is None and trainer.max_rounds < 1:
            raise ConfigError("beta_decay: needs an end; set trainer.max_rounds, or beta_decay.rounds")

    @override
    def on_round_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        cohort_size = module.cohort.size(module.population.num_clients)
        round.give(Beta(self.beta(round.number, round.max_rounds, cohort_size)))

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        module.log("beta", round.values[Beta].value)
