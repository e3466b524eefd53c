"""MaxNet's beta over the rounds: SuperFed, section 2.4 and Algorithm 2, line 2."""

from __future__ import annotations

import math
from typing import Literal, final

from lightning import Callback, LightningModule, Trainer

from lit_fednas.aggregation import MaxNet
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedLightningModule


@final
class BetaDecay(Callback):
    """Sets the weight of the largest architecture's client anew each round.

    Beta falls from ``beta0`` in the first round to ``final`` after a share of all rounds, and stays there. It
    is a function of the round alone, so a resumed run continues where it was.

    Args:
        beta0: The first round's beta.
        decay: Along half a cosine, along a line, or not at all (``constant``: ``beta0`` throughout).
        period: Share of all rounds over which it falls (0.8: 80 %).
        final: The last value; one over the cohort's size if not given (uniform weights).

    Raises:
        ConfigError: A number is out of range, or the aggregation has no beta.
    """

    def __init__(
        self,
        beta0: float = 0.9,
        decay: Literal["cosine", "linear", "constant"] = "cosine",
        period: float = 0.8,
        final: float | None = None,
    ) -> None:
        if not 0 < beta0 < 1 or (final is not None and not 0 < final < 1):
            raise ConfigError(f"beta_decay: beta0 {beta0} and final {final} must lie between 0 and 1")
        if not 0 < period <= 1:
            raise ConfigError(f"beta_decay.period: {period} must be above 0 and at most 1 (a share of all rounds)")
        self.beta0 = beta0
        self.decay = decay
        self.period = period
        self.final = final

    def beta(self, round: int, max_rounds: int, cohort_size: int) -> float:
        """The beta of a round.

        Args:
            round: The round, from 0.
            max_rounds: Rounds of the whole run.
            cohort_size: Clients per round.

        Example:
            >>> decay = BetaDecay(beta0=0.9, decay="linear", period=0.5)
            >>> [round(decay.beta(t, 8, 10), 3) for t in (0, 2, 4, 7)]
            [0.9, 0.5, 0.1, 0.1]
        """
        if self.decay == "constant":
            return self.beta0
        final = self.final if self.final is not None else 1 / cohort_size
        share = min(1.0, round / (self.period * max_rounds))
        left = 1 - share if self.decay == "linear" else (1 + math.cos(math.pi * share)) / 2
        return final + (self.beta0 - final) * left

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Sees that there is a beta to set, and an end to decay towards."""
        if stage != "fit":
            return
        assert isinstance(pl_module, FederatedLightningModule)
        if not isinstance(pl_module.aggregation, MaxNet):
            raise ConfigError(
                f"beta_decay: model.aggregation is {type(pl_module.aggregation).__name__}, which has no beta; "
                f"use MaxNet, or set beta_decay to null"
            )
        if self.decay != "constant" and (trainer.max_epochs is None or trainer.max_epochs < 1):
            raise ConfigError("beta_decay: needs an end; set trainer.max_rounds")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Sets the round's beta."""
        assert isinstance(pl_module, FederatedLightningModule)
        assert isinstance(pl_module.aggregation, MaxNet)
        cohort_size = pl_module.cohort.size(trainer.datamodule.clients.num_clients)  # type: ignore[attr-defined]
        pl_module.aggregation.beta = self.beta(trainer.current_epoch, trainer.max_epochs or -1, cohort_size)
