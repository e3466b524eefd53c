"""Trains the smallest network first, then the pool: weights are shrunk and perturbed when it opens.

Ash and Adams (2020, "On Warm-Starting Neural Network Training", NeurIPS, section 4): weights that were trained on less
generalise worse than fresh ones, and do not once they are shrunk and noise is added.
"""

import logging
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass
from math import nan
from typing import Any, ClassVar, cast

import torch
from typing_extensions import override

from lit_fednas.assignment import CostWeighted, PoolLimit, PoolOfTiers
from lit_fednas.callbacks.cost_ledger import CostLedger
from lit_fednas.callbacks.privacy import Privacy
from lit_fednas.callbacks.transform_on_convergence import degree_of_convergence
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedCallback, FederatedLightningModule, FederatedTrainer, ServerRound
from lit_fednas.messages import mean_loss
from lit_fednas.ranges import NonNegativeFloat, OpenUnitInterval, PositiveInt, UnitInterval, checked
from lit_fednas.rng import generator

log = logging.getLogger(__name__)


@checked("pool_growth")
@dataclass(eq=False)
class PoolGrowth(FederatedCallback):
    """Clients train the smallest architecture of the pool until its loss is flat, then all that pay.

    The loss is flat when its degree of convergence (FedTrans, Eq. 1) plus its standard error is at most ``threshold``.
    When the pool opens, all weights become ``shrink`` times themselves plus ``1 - shrink`` times fresh ones. An
    architecture pays if the rest of the run is expected to train it with at least ``least`` times the examples that the
    smallest was trained with; cheaper ones are open, too. ``trainer.max_rounds`` and the budgets of ``cost_ledger`` end
    the run.

    Logs ``pool/doc``, the degree of convergence (NaN before there are gamma + delta losses), and ``pool/limit``, the
    cost up to which architectures are drawn.

    Args:
        latest: The share of the run after which the pool opens whatever the loss is.
        shrink: The factor of the weights when the pool opens; 1 leaves them as they are.
        least: Examples that an architecture must be expected to train on, relative to those of the smallest.
        threshold: The degree of convergence, per round, at which the loss is flat; ``None`` opens the pool at
            ``latest``.
        gamma: Slopes in the degree of convergence.
        delta: Rounds of a slope.
        keep_function: Whether larger architectures begin with the smallest one's outputs, for comparison; with a
            ``shrink`` of 1 these are the trained ones.

    Raises:
        ConfigError: A setting is out of range; before training: the assignment draws from no pool, the run has no end,
            the loss would decide in a run with differential privacy, or outputs cannot be kept.
    """

    gives: ClassVar[tuple[type, ...]] = (PoolLimit,)
    state_names = ("losses", "limit")
    metric_names = ("pool/doc", "pool/limit")

    latest: OpenUnitInterval = 0.2
    shrink: UnitInterval = 0.5
    least: NonNegativeFloat = 0.4
    threshold: NonNegativeFloat | None = 0.003
    gamma: PositiveInt = 10
    delta: PositiveInt = 20
    keep_function: bool = False

    def __post_init__(self) -> None:
        self.losses: list[float] = []  # of the cohorts that trained the smallest architecture
        self.limit: float | None = None  # once the pool is open

    @override
    def setup(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, stage: str) -> None:
        """Validates that there is a pool to open, and an end to which it can pay."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        ledgers = [callback for callback in trainer.callbacks if isinstance(callback, CostLedger)]
        if trainer.max_rounds < 1 and not any(ledger.max_macs or ledger.max_bytes for ledger in ledgers):
            raise ConfigError("pool_growth: needs an end; set cost_ledger.max_macs, or trainer.max_rounds")
        earlier = trainer.callbacks[: trainer.callbacks.index(self)]
        if any(isinstance(callback, Privacy) for callback in earlier):
            raise ConfigError("pool_growth: comes after Privacy in trainer.callbacks; give it before")
        if self.threshold is not None and any(isinstance(callback, Privacy) for callback in trainer.callbacks):
            raise ConfigError(
                f"pool_growth.threshold: {self.threshold:g} opens the pool by the clients' losses, which are private; "
                f"set it to null"
            )

    @override
    @torch.no_grad()
    def on_fit_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Validates on a copy that the largest architecture can have the smallest one's outputs."""
        if self.keep_function:
            pools, supernet = _pools(pl_module), deepcopy(pl_module.supernet).cpu().eval()
            supernet.keep_function(pools.smallest)
            # below 1, so that tokens are 0
            x = torch.rand(8, *supernet.input_shape, generator=generator(0, "keep-function")).to(supernet.input_dtype)
            small, large = (supernet(x, arch) for arch in (pools.smallest, pools.largest))
            if (large - small).norm() > 1e-3 * small.norm():
                raise ConfigError(
                    f"pool_growth.keep_function: true cannot give architecture {pools.largest} the outputs of "
                    f"{pools.smallest} (layer norms over a width that grows prevent it); set it to false"
                )

    @override
    def on_round_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        pools = _pools(module)
        round.give(PoolLimit(pools.cost_of(pools.smallest) if self.limit is None else self.limit))

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        degree = nan
        if self.limit is None and round.survivors:
            self.losses = [*self.losses, mean_loss(round.survivors)][-self.gamma - self.delta :]
            degree, error = degree_of_convergence(self.losses, self.gamma, self.delta)
            progress = round.progress or 0.0
            is_flat = self.threshold is not None and degree + error <= self.threshold  # false for NaN
            if (is_flat or progress >= self.latest) and 0 < progress < 1:
                self._open(trainer, module, round)
        module.log("pool/doc", degree)
        module.log("pool/limit", round.values[PoolLimit].cost)

    def _open(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Opens the pool up to the largest architecture that pays."""
        pools = _pools(module)
        for arch in sorted(pools.archs, key=pools.cost_of, reverse=True):
            self.limit = pools.cost_of(arch)
            if arch == pools.smallest or self._examples_left(trainer, module, round, arch) >= self.least:
                break
        if arch != pools.smallest:
            module.supernet.shrink_and_perturb(self.shrink, module.seed)
            if self.keep_function:
                module.supernet.keep_function(pools.smallest)
        log.info("round %d: clients draw from the pool up to %s, %g %s", round.number + 1, arch, self.limit, pools.cost)

    def _examples_left(
        self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound, arch: Any
    ) -> float:
        """Returns the examples that the run would still train the largest open architecture on, relative to before.

        After a share p of a budget, in which an example of the smallest architecture cost c, the rest trains
        (1 - p) / p * c / m times the examples, which cost m each on average, and of which the architecture has its
        chance. In a budget of rounds all cost the same. The budget counts of which the greatest share is spent.
        """
        pools, supernet = _pools(module), module.supernet
        budgets: list[tuple[float, Callable[[Any], float]]] = []
        if trainer.max_rounds > 0:
            budgets.append((round.number / trainer.max_rounds, lambda arch: 1.0))
        for ledger in (callback for callback in trainer.callbacks if isinstance(callback, CostLedger)):
            if ledger.max_macs is not None:
                budgets.append((ledger.total.macs / ledger.max_macs, supernet.macs))
            if ledger.max_bytes is not None:
                budgets.append((ledger.total.bytes / ledger.max_bytes, lambda arch: float(sum(module.traffic(arch)))))
        spent, cost = max(budgets, key=lambda budget: budget[0])
        chances = pools.chances(pools.cost_of(arch))
        mean = sum(chance * cost(other) for other, chance in chances.items())
        return chances.get(arch, 0.0) * cost(pools.smallest) / mean * (1 - spent) / spent


def _pools(module: FederatedLightningModule) -> PoolOfTiers:
    return cast(CostWeighted, module.assignment).pools  # ``setup`` has checked that it reads a PoolLimit
