"""User-level differential privacy over a run: clipping, noise, the accountant and the end of the run.

The guide *privacy* describes the threat model and derives noise and epsilon. If a run is killed, repeated rounds have
fresh noise from a secret that is new at every start and never in a file. They count again, because each release is on
disk before the server's step (:mod:`lit_fednas.callbacks.release_record`).
"""

import logging
import math
import secrets
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, final

import numpy as np
from typing_extensions import override

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.aggregation.private import Accountant, KnownCohorts, NoiseSequence, PrivateAverage, SampledCohorts
from lit_fednas.callbacks.release_record import ReleaseRecord
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.federation import (
    CohortSampler,
    FederatedCallback,
    FederatedLightningModule,
    FederatedTrainer,
    PoissonCohort,
    ServerRound,
)
from lit_fednas.federation.lightning_private import AtomicCheckpointIO
from lit_fednas.messages import ClientTask
from lit_fednas.ranges import NonNegativeFloat, NonNegativeInt, OpenUnitInterval, PositiveFloat, PositiveInt, checked
from lit_fednas.records.folder import keeps_files
from lit_fednas.rng import numpy_generator

log = logging.getLogger(__name__)

#: Prefixes of metrics that depend on clients' data without noise.
_NOISELESS_METRICS = ("clients/", "deployed/", "val/devices/", "privacy/clipped", "cost/", "time/")
#: Settings that a resumed run must keep.
_FIXED_SETTINGS = ("noise_multiplier", "clip_norm", "noise_seed", "bands")
#: Maximum number of clients in a sample that estimates the denominators of sampled cohorts.
_MAX_PLANNED = 64


@final
@checked("privacy")
@dataclass(eq=False)
class Privacy(FederatedCallback):
    """User-level differential privacy: clips updates, adds noise to each round's sum, and accounts for epsilon.

    Logs ``privacy/epsilon`` (with noise) and ``privacy/clipped``, the share of clipped updates. A
    :class:`~lit_fednas.federation.PoissonCohort` has the epsilon of secretly sampled cohorts; for other cohorts epsilon
    is that of the client that took part most often.

    Args:
        clip_norm: Maximum norm of an update's parameters.
        noise_multiplier: Standard deviation of the noise, relative to a client's greatest influence on the sum; 0 clips
            without noise, which is no differential privacy. The default is the smallest multiplier with which
            ``trainer.max_rounds`` stay within ``target_epsilon`` if all clients have the greatest influence.
        target_epsilon: The run ends before a round that could exceed this epsilon if all clients have the greatest
            influence.
        delta: The delta of epsilon; below 1 over the number of clients.
        bands: Number of rounds over which noise is correlated, so that part of it cancels in the weights; 1 for
            independent noise. No client may take part twice within ``bands`` rounds, so values above 1 need
            :class:`~lit_fednas.federation.CyclicCohort`. The server's memory grows by ``bands`` copies of the weights.
        noise_seed: Seed of the noise and of sampled cohorts, for reproducible experiments; anyone who knows it can
            subtract the noise. By default each start draws a secret.

    Raises:
        ConfigError: A setting is out of range, the method releases data without a known bound, the target cannot be
            kept, or ``dp-accounting`` is not installed (reported before any client trains).
        CheckpointError: The checkpoint's run had no privacy or other settings, or its record is missing.
    """

    metric_names = ("privacy/clipped", "privacy/epsilon")

    clip_norm: PositiveFloat
    noise_multiplier: NonNegativeFloat | None = None
    target_epsilon: PositiveFloat | None = None
    delta: OpenUnitInterval = 1e-5
    noise_seed: NonNegativeInt | None = None
    bands: PositiveInt = 1

    def __post_init__(self) -> None:
        if self.noise_multiplier is None and self.target_epsilon is None:
            raise ConfigError("privacy: noise_multiplier and target_epsilon are null; set at least one of them")
        if self.noise_multiplier == 0 and self.target_epsilon is not None:
            raise ConfigError(
                f"privacy.noise_multiplier: 0 cannot reach target_epsilon {self.target_epsilon:g}; raise it, set it to "
                f"null, or set target_epsilon to null"
            )
        self.accountant: Accountant | None = None  # None without noise
        self._noise = NoiseSequence(0)  # the noise of this start
        self._average: PrivateAverage  # the current round's aggregation
        self._record: ReleaseRecord | None = None  # None without noise or with a noise_seed
        self._saved: dict[str, Any] | None = None

    def _disclosed(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> Iterator[str]:
        """Yields error messages about parts that release data without noise or without a known bound."""
        assignment, cohort, supernet, faults = module.assignment, module.cohort, module.supernet, module.faults
        kind = type(assignment).__name__
        if assignment.depends_on not in ("client", "cohort"):
            yield f"model.assignment: {kind} assigns architectures by clients' statistics without noise; choose another"
        if isinstance(cohort, PoissonCohort) and assignment.depends_on != "client":
            yield (
                f"model.assignment: {kind} draws architectures that depend on the cohort, which sampled cohorts keep "
                f"secret; use RandomArchitectures or ByTier, or model.cohort UniformCohort"
            )
        if cohort.depends_on_sizes:
            yield (
                f"model.cohort: {type(cohort).__name__} draws clients by their numbers of examples, which are private; "
                f"use UniformCohort or PoissonCohort"
            )
        if supernet.structure():
            yield (
                f"model.supernet: {type(supernet).__name__} changes its structure by clients' statistics "
                f"without noise; use one with a fixed structure"
            )
        if faults.norm_bound is not None:
            yield (
                "model.faults.norm_bound: comparing updates has no known bound on a client's influence; set it to null"
            )
        if faults.min_survivors > 0 or faults.max_failed_rounds is not None or faults.on_client_error == "raise":
            yield (
                "model.faults: whether clients fail may depend on their data, and must not decide whether the server "
                "steps or the run ends; set min_survivors to 0, max_failed_rounds to null, on_client_error to skip"
            )
        if buffers := sum(buffer.is_floating_point() for buffer in supernet.buffers()):
            yield (
                f"model.supernet: {type(supernet).__name__} has {buffers} running statistics, which clients change "
                f"without noise; choose a norm without them, such as GroupNorm"
            )
        data = trainer.datamodule.clients
        recalibrated = data.at_server is data and module.recalibration_batches(data)
        noiseless_metrics = _NOISELESS_METRICS + ("val/",) * bool(recalibrated)  # clients' batch statistics
        for callback in trainer.callbacks:
            field = f"trainer.callbacks: {type(callback).__name__}"
            if getattr(type(callback), "on_results", None) not in (None, FederatedCallback.on_results):
                yield (
                    f"{field} may reject updates depending on all results, without a known bound on a client's "
                    f"influence; remove it"
                )
            monitored = str(getattr(callback, "monitor", ""))
            if monitored.startswith(noiseless_metrics):
                yield (
                    f"{field} ends the run or chooses a checkpoint by {monitored}, which depends on clients' data "
                    f"without noise; use a metric of the server's validation set, and set "
                    f"model.evaluation.recalibrate_batches to 0"
                )
        checkpoints = trainer.strategy.checkpoint_io
        if not isinstance(checkpoints, AtomicCheckpointIO):
            yield (
                f"trainer.plugins: {type(checkpoints).__name__} writes checkpoints of a private run that others may "
                f"read; remove it"
            )
        if any(getattr(logger, "_log_model", False) in (True, "all") for logger in trainer.loggers):  # W&B, MLflow
            yield "trainer.logger: log_model uploads checkpoints, which hold more than is released; set it to false"

    def on_fit_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Validates that only the noisy sum depends on clients' data, and sets up noise and accountant."""
        for message in self._disclosed(trainer, pl_module):
            raise ConfigError(f"{message}, or set privacy to null")
        clients = pl_module.population.num_clients
        if self.delta >= 1 / clients:
            raise ConfigError(f"privacy.delta: {self.delta:g} could disclose a client; set it below {1 / clients:.2g}")
        separation = pl_module.cohort.separation(clients)
        if self.bands > separation:
            raise ConfigError(
                f"privacy.bands: {self.bands} is above {separation}, the fewest rounds after which a client takes part "
                f"again with {type(pl_module.cohort).__name__} and {clients} clients; lower it, or use model.cohort "
                f"CyclicCohort with a ratio of at most 1 / {self.bands}"
            )
        secret: int = trainer.strategy.broadcast(secrets.randbits(63))  # all ranks add the same noise
        if self.noise_seed is None:  # shares no noise with an earlier start
            self._noise = NoiseSequence(secret, self.bands)
        else:
            self._noise = NoiseSequence(self.noise_seed, self.bands, first=0)
        if self.noise_multiplier is None:
            self.noise_multiplier = self._noise_for_target(trainer, pl_module)
            log.info(
                "privacy.noise_multiplier: %.4g, for epsilon %g at delta %g in %d rounds",
                *(self.noise_multiplier, self.target_epsilon, self.delta, trainer.max_rounds),
            )
        self.accountant = self._record = None
        if self.noise_multiplier:
            self.accountant = self._account_so_far(trainer, pl_module.cohort, self.noise_multiplier)
            self.accountant.epsilon(self.delta)  # raises an error if dp-accounting is not installed
        cast(AtomicCheckpointIO, trainer.strategy.checkpoint_io).private = True

    def _account_so_far(self, trainer: FederatedTrainer, cohort: CohortSampler, noise_multiplier: float) -> Accountant:
        """Returns an accountant of all releases so far, also after the checkpoint; begins this start's record."""
        accountant: Accountant = KnownCohorts(noise_multiplier)
        if isinstance(cohort, PoissonCohort):
            accountant = SampledCohorts(noise_multiplier, cohort.ratio)
        if self._saved is not None:
            if self._saved["accountant"].keys() != accountant.state_dict().keys():
                raise CheckpointError("model.cohort: the checkpoint has another accountant; keep the run's cohort")
            accountant.load_state_dict(self._saved["accountant"])
        if self.noise_seed is not None:
            return accountant
        self._record = ReleaseRecord()
        if self._saved is not None:
            new_losses: list[dict[int, float]] = []
            if trainer.is_global_zero:
                new_losses = self._record.resume(self._saved["record"], Path(str(trainer.ckpt_path)).parent)
            if new_losses:
                log.warning(
                    "privacy: %d rounds released after the checkpoint count in addition to their repetitions",
                    len(new_losses),
                )
            for losses in trainer.strategy.broadcast(new_losses):
                accountant.add(losses)
        if keeps_files(trainer):
            folders = [getattr(callback, "dirpath", None) for callback in trainer.checkpoint_callbacks]
            self._record.begin(filter(None, folders))
        return accountant

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Validates that the next round stays within the target."""
        if trainer.global_step and self._saved is None:
            raise CheckpointError("privacy: the checkpoint's run had no privacy; set privacy to null")
        self._saved = None  # another fit starts without it
        if self._exceeds(pl_module, trainer.current_epoch):
            if trainer.global_step == 0:
                raise ConfigError(
                    f"privacy.target_epsilon: {self.target_epsilon:g} is exceeded by the first round; raise it, or "
                    f"noise_multiplier"
                )
            trainer.should_stop = True

    def _noise_for_target(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> float:
        assert self.target_epsilon is not None
        if trainer.max_rounds < 1:
            raise ConfigError("privacy.noise_multiplier: null needs a number of rounds; set it, or trainer.max_rounds")
        if isinstance(module.cohort, PoissonCohort):
            return SampledCohorts.noise_for(self.target_epsilon, self.delta, trainer.max_rounds, module.cohort.ratio)
        rounds = Counter(client for number in range(trainer.max_rounds) for client in self._cohort(module, number))
        return KnownCohorts.noise_for(self.target_epsilon, self.delta, max(rounds.values(), default=1))

    @override
    def on_round_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        assert self.noise_multiplier is not None
        round.seed = self._seed(module)
        round.watch(lambda averages: self._write(trainer))
        planned, expected = self._planned(module, round)
        round.aggregation = self._average = PrivateAverage(
            cast(OverlapAverage, module.aggregation),  # PrivateAverage rejects other types
            clip_norm=self.clip_norm,
            noise_multiplier=self.noise_multiplier,
            sequence=self._noise,
            round=round.number,
            planned=planned,
            expected=expected,
        )

    def _planned(
        self, module: FederatedLightningModule, round: ServerRound
    ) -> tuple[Sequence[ClientTask] | None, float]:
        """Returns tasks for a sample of the available clients, and the expected size of a sampled cohort."""
        if not isinstance(module.cohort, PoissonCohort):
            return None, 0.0
        num_clients = module.population.num_clients
        available = module.cohort.availability.available(round.number, num_clients, round.seed)
        draws = numpy_generator(module.seed, "privacy-planned", round.number)  # public, unlike the cohort's generator
        sample = np.sort(draws.choice(available, min(_MAX_PLANNED, len(available)), replace=False)).tolist()
        return module.tasks(round, sample, draws), module.cohort.ratio * len(available)

    def _write(self, trainer: FederatedTrainer) -> None:
        """Writes the round's release to disk, before any rank has the new weights."""
        if self._record is not None:
            self._record.write(self._losses())
            trainer.strategy.barrier()

    def _losses(self) -> dict[int, float]:
        """Returns the square of each client's influence."""
        return {client: share**2 for client, share in self._average.influences.items()}

    @override
    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        if not math.isnan(self._average.clipped):
            module.log("privacy/clipped", self._average.clipped)
        if self.accountant is not None:
            self.accountant.add(self._losses())
            if self._record is not None:
                self._record.count()
            module.log("privacy/epsilon", self.accountant.epsilon(self.delta))
        if self._exceeds(module, round.number + 1):
            log.info(
                "privacy.target_epsilon: another round could exceed %g; the run ends after %d rounds",
                *(self.target_epsilon, round.number + 1),
            )
            trainer.should_stop = True

    def _exceeds(self, module: FederatedLightningModule, number: int) -> bool:
        """Returns whether a round could exceed the target."""
        if self.target_epsilon is None or self.accountant is None:
            return False
        next_accountant = deepcopy(self.accountant)
        next_accountant.add(dict.fromkeys(self._cohort(module, number), 1.0))
        return next_accountant.epsilon(self.delta) > self.target_epsilon * (1 + 1e-9)

    def _cohort(self, module: FederatedLightningModule, number: int) -> list[int]:
        """Returns the cohort of a round, which may be in the future."""
        return module.cohort.draw(number, module.population.sizes, self._seed(module))

    def _seed(self, module: FederatedLightningModule) -> int:
        """Returns the seed of cohorts and architectures: the secret if cohorts are sampled, else the run's seed."""
        return self._noise.seed if isinstance(module.cohort, PoissonCohort) else module.seed

    def state_dict(self) -> dict[str, Any]:
        record = None if self._record is None else self._record.state_dict()
        accountant = {} if self.accountant is None else self.accountant.state_dict()
        return {**{name: getattr(self, name) for name in _FIXED_SETTINGS}, "record": record, "accountant": accountant}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores the run's settings and its noise multiplier, also for another number of rounds."""
        saved = self._saved = {"bands": 1, **state_dict}  # old checkpoints have no bands
        for name in _FIXED_SETTINGS:
            value = getattr(self, name)
            if value is not None and value != saved[name]:
                raise CheckpointError(f"privacy.{name}: {value} is not the checkpoint's value; keep the checkpoint's")
        if not saved["noise_multiplier"] and self.target_epsilon is not None:
            raise CheckpointError(
                f"privacy.target_epsilon: {self.target_epsilon:g} cannot be kept, as the checkpoint has no noise; set "
                f"it to null, or start a new run"
            )
        self.noise_multiplier, self.noise_seed = saved["noise_multiplier"], saved["noise_seed"]
