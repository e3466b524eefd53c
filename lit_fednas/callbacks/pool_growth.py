"""Training of the smallest network before the rest of a pool, with weights that are shrunk and perturbed in between.

Ash and Adams (2020, "On Warm-Starting Neural Network Training", NeurIPS, section 4): pretrained weights generalise
worse than fresh ones, unless they are shrunk and perturbed.
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
    """Clients train the smallest architecture of the pool until its loss is flat, then all worthwhile architectures.

    The loss is flat when its degree of convergence (FedTrans, Eq. 1) plus its standard error is at most ``threshold``.
    When the pool opens, each weight becomes ``shrink`` times itself plus ``1 - shrink`` times a fresh weight. The pool
    opens up to the largest architecture that can expect ``least`` times the smallest one's examples in the rest of the
    run, which ``trainer.max_rounds`` or the budgets of ``cost_ledger`` limit.

    Logs ``pool/doc``, the degree of convergence (NaN for fewer than gamma + delta losses), and ``pool/limit``, the
    greatest cost of an architecture that is drawn.

    Args:
        latest: Share of the run after which the pool opens even if the loss is not flat.
        shrink: Factor of the weights when the pool opens; 1 does not change them.
        least: Minimum number of expected examples of an architecture, relative to the smallest one's.
        threshold: Degree of convergence per round at which the loss is flat; ``None`` opens the pool at ``latest``.
        gamma: Number of slopes in the degree of convergence.
        delta: Number of rounds per slope.
        keep_function: Whether larger architectures start with the outputs of the smallest one, for comparison.

    Raises:
        ConfigError: A setting is out of range; before training: the assignment draws from no pool, the run has no end,
            private losses would open the pool, or the supernet cannot keep outputs.
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
        self.losses: list[float] = []  # mean losses of the smallest architecture, per round
        self.limit: float | None = None  # None until the pool opens

    @override
    def setup(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        ledgers = [callback for callback in trainer.callbacks if isinstance(callback, CostLedger)]
        if trainer.max_rounds < 1 and not any(ledger.max_macs or ledger.max_bytes for ledger in ledgers):
            raise ConfigError("pool_growth: needs a limit on the run; set cost_ledger.max_macs, or trainer.max_rounds")
        earlier = trainer.callbacks[: trainer.callbacks.index(self)]
        if any(isinstance(callback, Privacy) for callback in earlier):
            raise ConfigError("pool_growth: comes after Privacy in trainer.callbacks; move it before Privacy")
        if self.threshold is not None and any(isinstance(callback, Privacy) for callback in trainer.callbacks):
            raise ConfigError(
                f"pool_growth.threshold: {self.threshold:g} opens the pool by the clients' losses, which are private; "
                f"set it to null"
            )

    @override
    @torch.no_grad()
    def on_fit_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Validates that the largest architecture can keep the smallest one's outputs."""
        if self.keep_function:
            pools, supernet = _pools(pl_module), deepcopy(pl_module.supernet).cpu().eval()
            if getattr(supernet, "relu_before_sum", False):
                reason = "true stops gradients of new blocks where supernet.relu_before_sum is true"
                raise ConfigError(f"pool_growth.keep_function: {reason}; set one of them to false")
            supernet.keep_function(pools.smallest)
            # Inputs are below 1, so that tokens are 0.
            x = torch.rand(8, *supernet.input_shape, generator=generator(0, "keep-function")).to(supernet.input_dtype)
            small, large = (supernet(x, arch) for arch in (pools.smallest, pools.largest))
            if not (large - small).norm() <= 1e-3 * small.norm():  # true for NaN
                raise ConfigError(
                    f"pool_growth.keep_function: true cannot give architecture {pools.largest} the outputs of "
                    f"{pools.smallest} (layer norms over a width that grows prevent it, for instance); set it to false"
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
        """Opens the pool up to the largest architecture with enough expected examples."""
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
        """Returns the expected examples of ``arch`` in the rest of the run, relative to the smallest one's so far.

        With a spent share p of the budget, costs per example of c for the smallest architecture and m on average over
        the open pool, and the chance q of ``arch``, this is q (1 - p) / p * c / m. Costs in a budget of rounds are 1.
        The budget with the greatest spent share is used.
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
        mean_cost = sum(chance * cost(other) for other, chance in chances.items())
        return chances.get(arch, 0.0) * cost(pools.smallest) / mean_cost * (1 - spent) / spent


def _pools(module: FederatedLightningModule) -> PoolOfTiers:
    return cast(CostWeighted, module.assignment).pools  # ``setup`` has validated that the assignment reads a PoolLimit
