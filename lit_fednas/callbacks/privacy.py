r"""User-level differential privacy over a run: the noise, the accountant, the norm, and when to stop.

How updates are clipped and how much noise sub-networks of different size need is derived in
:mod:`lit_fednas.aggregation.private`; how epsilon adds up over rounds, in :mod:`lit_fednas.aggregation.accountant`.

**What is protected**: each client's influence on the global weights of all rounds, against everybody who sees the
weights and does not know the run's seed. Noise and cohorts are drawn from the seed: whoever knows it can subtract the
noise, so keep ``seed_everything`` and the run's folder as secret as the data. The generator is not cryptographic, and
floating-point numbers are rounded (Mironov, 2012, "On Significance of the Least Significant Bits for Differential
Privacy"): use it for research. **What is not protected**: the server is trusted and sees every update (central
privacy). What is reported by clients or measured on their data has no noise: losses, accuracies and numbers of examples
in the records, the share of clipped updates, ``evaluation.recalibrate_batches``, fine-tuning, a search on clients'
data.

**The norm that adapts** follows a quantile of the updates' norms (Andrew et al., 2021, "Differentially Private Learning
with Adaptive Clipping", Algorithm 1): after each round :math:`S \leftarrow S \exp(-\eta (\tilde b - \gamma))`, where
:math:`\tilde b` is the share of updates within the norm, with noise of its own, which the noise multiplier includes
(their Theorem 1).
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from typing_extensions import override

from lit_fednas.aggregation import Accountant, GaussianMechanism, KnownCohorts, Released, SampledCohorts
from lit_fednas.assignment import Round
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation import (
    FederatedCallback,
    FederatedLightningModule,
    FederatedTrainer,
    PoissonCohort,
    ServerRound,
)
from lit_fednas.ranges import NonNegativeFloat, OpenUnitInterval, PositiveFloat, checked
from lit_fednas.rng import numpy_generator

log = logging.getLogger(__name__)


@checked("privacy.adaptive")
@dataclass(frozen=True)
class AdaptiveNorm:
    """A norm that follows a quantile of the updates' norms.

    Args:
        quantile: The share of updates that shall be within the norm (gamma).
        rate: The learning rate of its logarithm (eta).
        count_noise: The standard deviation of the noise in the count of updates within the norm (sigma_b); a twentieth
            of the cohort if not given, as in the paper.
    """

    quantile: OpenUnitInterval = 0.5
    rate: PositiveFloat = 0.2
    count_noise: PositiveFloat | None = None


@final
@checked("privacy")
class Privacy(FederatedCallback):
    """Clips updates, adds noise to their sum once per round, and accounts for it: user-level differential privacy.

    Logs ``privacy/epsilon`` (where there is noise), ``privacy/clip_norm``, and ``privacy/clipped``, the share of the
    updates that were clipped. Cohorts of :class:`~lit_fednas.federation.PoissonCohort` are accounted for as sampled;
    all others as known, so that epsilon is that of the client that was asked most often.

    Args:
        clip_norm: The greatest norm of an update's parameters; with ``adaptive`` that of the first round.
        noise_multiplier: The noise's standard deviation, as a multiple of what a client can change the sum by. 0 clips
            without noise, which is no differential privacy. If not given, the smallest with which all of
            ``trainer.max_rounds`` stay within ``target_epsilon``.
        target_epsilon: With a noise multiplier, the run ends before the round that could exceed it.
        delta: For which epsilon is stated; below 1 over the number of clients.
        adaptive: Lets the norm follow a quantile of the updates'.
        buffer_norm: The greatest norm of the change of an update's running statistics, where the supernet has such.

    Raises:
        ConfigError: A setting is out of range, or, reported before training: neither noise nor target is given; the
            target cannot be kept; no bound on a client's influence is known for the parts of the method; or
            ``dp-accounting`` is not installed.
        CheckpointError: A run is resumed that was begun without it, or with another kind of cohorts.
    """

    gives = (GaussianMechanism,)

    def __init__(
        self,
        clip_norm: PositiveFloat,
        noise_multiplier: NonNegativeFloat | None = None,
        target_epsilon: PositiveFloat | None = None,
        delta: OpenUnitInterval = 1e-5,
        adaptive: AdaptiveNorm | None = None,
        buffer_norm: PositiveFloat | None = None,
    ) -> None:
        if noise_multiplier is None and target_epsilon is None:
            raise ConfigError("privacy: neither noise_multiplier nor target_epsilon is given; give one of them or both")
        if noise_multiplier == 0 and target_epsilon is not None:
            raise ConfigError(
                f"privacy.noise_multiplier: 0 is no noise, and without noise no target_epsilon ({target_epsilon:g}) "
                f"can be kept; raise it, leave it out, or set target_epsilon to null"
            )
        self.clip_norm = clip_norm
        self.noise_multiplier = noise_multiplier
        self.target_epsilon = target_epsilon
        self.delta = delta
        self.adaptive = adaptive
        self.buffer_norm = buffer_norm
        self.accountant: Accountant | None = None  # none without noise
        self._saved: dict[str, Any] | None = None

    # ---- before the first round -----------------------------------------------------------------------

    @override
    def setup(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule, stage: str) -> None:
        """Validates that what clients report changes the global weights through the noised sum alone."""
        super().setup(trainer, pl_module, stage)
        if stage != "fit":
            return
        assignment, faults = pl_module.assignment, pl_module.faults
        kind = type(assignment).__name__
        sampled = isinstance(pl_module.cohort, PoissonCohort)
        buffers = [n for n, one in pl_module.supernet.named_buffers() if one.is_floating_point()]
        for refused, message in (
            (
                assignment.depends_on == "reports",
                f"model.assignment: {kind} lets what clients report decide who trains what, without noise; use another",
            ),
            (
                sampled and assignment.depends_on != "client",
                f"model.assignment: {kind} draws a client's architecture by who else takes part, which sampled cohorts "
                f"must not; use RandomArchitectures or ByTier, or model.cohort UniformCohort",
            ),
            (
                bool(pl_module.supernet.structure()),
                f"model.supernet: {type(pl_module.supernet).__name__} changes by what clients report, without noise; "
                f"use one of a fixed structure",
            ),
            (
                faults.norm_bound is not None,
                "model.faults.norm_bound: it compares updates with each other, for which no bound on a client's "
                "influence is known; set it to null",
            ),
            (
                faults.min_survivors > 0 or faults.max_failed_rounds is not None or faults.on_client_error == "raise",
                "model.faults: whether clients fail may depend on their data, and must not decide whether the server "
                "steps or the run ends; set min_survivors to 0, max_failed_rounds to null, on_client_error to skip",
            ),
            (
                bool(buffers) and self.buffer_norm is None,
                f"privacy.buffer_norm: null, and the supernet has {len(buffers)} running statistics; set it, or choose "
                f"a norm without them, such as GroupNorm",
            ),
        ):
            if refused:
                raise ConfigError(f"{message}, or set privacy to null")

    def on_fit_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Finds the noise if only the target is given, and the accountant."""
        clients = pl_module.population.num_clients
        if self.delta >= 1 / clients:
            raise ConfigError(
                f"privacy.delta: {self.delta:g} allows one of the {clients} clients to be given away entirely; set it "
                f"below {1 / clients:.2g}"
            )
        if self._saved is not None:
            self.noise_multiplier = self._saved["noise_multiplier"]  # one that was found was for fewer rounds
        elif self.noise_multiplier is None:
            self.noise_multiplier = self._noise_for_target(trainer, pl_module)
            log.info(
                "privacy.noise_multiplier: %.4g, found for epsilon %g at delta %g in %d rounds",
                *(self.noise_multiplier, self.target_epsilon, self.delta, trainer.max_rounds),
            )
        noise, count_noise = self.noise_multiplier, self._count_noise(pl_module)
        if noise and count_noise is not None and 2 * count_noise <= noise:
            raise ConfigError(
                f"privacy.adaptive.count_noise: {count_noise:g} leaves nothing of a noise multiplier of {noise:.4g} "
                f"for the sum; set it above {noise / 2:.4g}"
            )
        self.accountant = self._new_accountant(pl_module, noise) if noise else None
        if self._saved is not None and self.accountant is not None:
            if self._saved["accountant"].keys() != self.accountant.state_dict().keys():
                raise CheckpointError(
                    "privacy: the checkpoint's cohorts were accounted for otherwise (known or sampled); keep the run's "
                    "model.cohort"
                )
            self.accountant.load_state_dict(self._saved["accountant"])
        if self.accountant is not None:
            self.accountant.epsilon(self.delta)

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Validates that the first round is within the target; a resumed run may have spent all."""
        if trainer.global_step and self._saved is None:
            raise CheckpointError("privacy: the run so far has not accounted for its rounds; set privacy to null")
        if self._exceeds(pl_module, trainer.current_epoch):
            if trainer.global_step == 0:
                raise ConfigError(
                    f"privacy.target_epsilon: {self.target_epsilon:g} is exceeded by the first round; raise it, or "
                    f"noise_multiplier"
                )
            trainer.should_stop = True

    def _new_accountant(self, module: FederatedLightningModule, noise: float) -> Accountant:
        if isinstance(module.cohort, PoissonCohort):
            return SampledCohorts(noise, module.cohort.ratio)
        return KnownCohorts(noise)

    def _noise_for_target(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> float:
        assert self.target_epsilon is not None
        if trainer.max_rounds < 1:
            raise ConfigError("privacy: finding the noise needs an end; set trainer.max_rounds, or noise_multiplier")
        if isinstance(module.cohort, PoissonCohort):
            return SampledCohorts.noise_for(self.target_epsilon, self.delta, trainer.max_rounds, module.cohort.ratio)
        asked = Counter(client for number in range(trainer.max_rounds) for client in self._cohort(module, number))
        return KnownCohorts.noise_for(self.target_epsilon, self.delta, max(asked.values(), default=1))

    def _count_noise(self, module: FederatedLightningModule) -> float | None:
        if self.adaptive is None:
            return None
        return self.adaptive.count_noise or module.cohort.size(module.population.num_clients) / 20

    # ---- a round --------------------------------------------------------------------------------------

    @override
    def on_round_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        assert self.noise_multiplier is not None
        sizes = module.population.sizes
        if self._cohort(module, round.number) != module.cohort.draw(round.number, sizes, module.seed):
            raise ConfigError(
                f"model.cohort: {type(module.cohort).__name__} draws clients by their numbers of examples, which are "
                f"private; use UniformCohort or PoissonCohort, or set privacy to null"
            )
        everyone, probability = None, 1.0
        if isinstance(module.cohort, PoissonCohort):
            probability = module.cohort.ratio
            available = module.cohort.availability.available(round.number, len(sizes), module.seed)
            draws = numpy_generator(module.seed, "privacy-everyone", round.number)
            everyone = module.assignment.plan(
                Round(round.number, available, module.supernet.space, module.population, draws, values=round.values)
            )
        round.give(
            GaussianMechanism(
                self.clip_norm,
                self.noise_multiplier,
                module.seed,
                round.number,
                self.buffer_norm,
                self._count_noise(module),
                everyone,
                probability,
            )
        )

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Accounts for the round, and lets the norm follow."""
        released = round.values.get(Released)
        assert released is not None
        module.log("privacy/clip_norm", self.clip_norm)
        if not math.isnan(released.clipped):
            module.log("privacy/clipped", released.clipped)
        if self.accountant is not None:
            self.accountant.add(self._losses(released, module))
            module.log("privacy/epsilon", self.accountant.epsilon(self.delta))
        if self.adaptive is not None and released.within is not None:
            self.clip_norm *= math.exp(-self.adaptive.rate * (released.within - self.adaptive.quantile))

    def _losses(self, released: Released, module: FederatedLightningModule) -> dict[int, float]:
        """Returns the square of each client's influence; the count of updates within the norm is moved by all alike."""
        count_noise = self._count_noise(module)
        of_count = 0.0 if count_noise is None else (self.accountant.noise_multiplier / (2 * count_noise)) ** 2  # type: ignore[union-attr]
        return {client: (1 - of_count) * influence**2 + of_count for client, influence in released.influences.items()}

    def on_train_epoch_end(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Ends the run if another round would exceed the target."""
        if self._exceeds(pl_module, trainer.current_epoch + 1):
            log.info(
                "privacy.target_epsilon: another round would exceed %g; the run ends after %d rounds",
                *(self.target_epsilon, trainer.current_epoch + 1),
            )
            trainer.should_stop = True

    def _exceeds(self, module: FederatedLightningModule, number: int) -> bool:
        """Returns whether a round may exceed the target; its cohort is drawn ahead, which changes nothing."""
        if self.target_epsilon is None or self.accountant is None:
            return False
        after = deepcopy(self.accountant)
        after.add(dict.fromkeys(self._cohort(module, number), 1.0))
        return after.epsilon(self.delta) > self.target_epsilon * (1 + 1e-9)

    def _cohort(self, module: FederatedLightningModule, number: int) -> list[int]:
        """Returns a round's cohort as it is drawn without the clients' numbers of examples."""
        return module.cohort.draw(number, np.broadcast_to(1, module.population.num_clients), module.seed)

    def state_dict(self) -> dict[str, Any]:
        """Returns the noise, the norm and the accountant's counts, as plain values."""
        return {
            "noise_multiplier": self.noise_multiplier,
            "clip_norm": self.clip_norm,
            "accountant": {} if self.accountant is None else self.accountant.state_dict(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what the run has spent, once the accountant is made."""
        self._saved = state_dict
        self.clip_norm = state_dict["clip_norm"]
