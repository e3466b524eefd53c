"""User-level differential privacy over a run: the noise, the accountant, the norm, and when to stop.

The guide *privacy* says what is protected against whom, what is accounted for, and how noise and epsilon are derived.
Rounds that are run again after a kill have other noise, from a secret that is new at every start and in no file, and
count once more, since each release is on disk before the server's step (:mod:`lit_fednas.callbacks.release_record`).
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

#: What the names of metrics begin with that depend on clients' data, without noise.
_WITHOUT_NOISE = ("clients/", "deployed/", "val/devices/", "privacy/clipped", "cost/", "time/")
#: Settings that a resumed run must keep.
_KEPT = ("noise_multiplier", "clip_norm", "noise_seed", "bands")
#: Maximum number of clients by which the denominators of sampled cohorts are estimated.
_PLANNED = 64


@final
@checked("privacy")
@dataclass(eq=False)
class Privacy(FederatedCallback):
    """Clips updates, adds noise to their sum once per round, and accounts for it: user-level differential privacy.

    Logs ``privacy/epsilon`` (where there is noise) and ``privacy/clipped``, the share of the updates that were clipped.
    Cohorts of :class:`~lit_fednas.federation.PoissonCohort` are accounted for as sampled; all others as known, so that
    epsilon is that of the client that was asked most often.

    Args:
        clip_norm: The greatest norm of an update's parameters.
        noise_multiplier: The noise's standard deviation, as a multiple of what a client can change the sum by; 0 clips
            without noise, which is no differential privacy. If not given, the smallest with which all of
            ``trainer.max_rounds`` stay within ``target_epsilon``, each client counted as one of greatest influence.
        target_epsilon: With a noise multiplier, the run ends before the round that could exceed it, counted likewise.
        delta: For which epsilon is stated; below 1 over the number of clients.
        bands: The number of rounds over which noise is correlated, so that part of it cancels in the weights; 1 for
            independent noise. No client may take part twice within as many rounds, so that more than 1 needs
            :class:`~lit_fednas.federation.CyclicCohort`. The server keeps so many copies of the weights in memory.
        noise_seed: For tests and experiments that can be repeated: what the noise is drawn from, and cohorts that count
            as sampled; a secret that is new at every start if not given. Whoever knows it can subtract the noise.

    Raises:
        ConfigError: A setting is out of range, the parts of the method release what has no known bound, the target
            cannot be kept, or ``dp-accounting`` is not installed (reported before any client trains).
        CheckpointError: A resumed run was begun without it or with other settings, or its record is missing.
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
            raise ConfigError("privacy: neither noise_multiplier nor target_epsilon is given; give one of them or both")
        if self.noise_multiplier == 0 and self.target_epsilon is not None:
            raise ConfigError(
                f"privacy.noise_multiplier: 0 is no noise, which keeps no target_epsilon "
                f"({self.target_epsilon:g}); raise it, leave it out, or set target_epsilon to null"
            )
        self.accountant: Accountant | None = None  # none without noise
        self._noise = NoiseSequence(0)  # of this start
        self._average: PrivateAverage  # of the round
        self._record: ReleaseRecord | None = None  # none without noise, nor with a noise_seed
        self._saved: dict[str, Any] | None = None

    def _disclosed(self, trainer: FederatedTrainer, module: FederatedLightningModule) -> Iterator[str]:
        """Yields what in the method releases something without noise, or without a known bound."""
        assignment, cohort, supernet, faults = module.assignment, module.cohort, module.supernet, module.faults
        kind = type(assignment).__name__
        if assignment.depends_on == "reports":
            yield f"model.assignment: {kind} lets what clients report decide who trains what, without noise; change it"
        if isinstance(cohort, PoissonCohort) and assignment.depends_on != "client":
            yield (
                f"model.assignment: {kind} draws a client's architecture by who else takes part, which sampled cohorts "
                f"must not; use RandomArchitectures or ByTier, or model.cohort UniformCohort"
            )
        if cohort.depends_on_sizes:
            yield (
                f"model.cohort: {type(cohort).__name__} draws clients by their numbers of examples, which are private; "
                f"use UniformCohort or PoissonCohort"
            )
        if supernet.structure():
            yield (
                f"model.supernet: {type(supernet).__name__} changes by what clients report, without noise; use one of "
                f"a fixed structure"
            )
        if faults.norm_bound is not None:
            yield (
                "model.faults.norm_bound: it compares updates with each other, for which no bound on a client's "
                "influence is known; set it to null"
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
        without_noise = _WITHOUT_NOISE + ("val/",) * bool(recalibrated)  # by statistics of clients' examples
        for callback in trainer.callbacks:
            field = f"trainer.callbacks: {type(callback).__name__}"
            if getattr(type(callback), "on_results", None) not in (None, FederatedCallback.on_results):
                yield (
                    f"{field} may reject updates after it has seen all results, so that no bound on a client's "
                    f"influence is known; leave it out"
                )
            monitored = str(getattr(callback, "monitor", ""))
            if monitored.startswith(without_noise):
                yield (
                    f"{field} ends the run or chooses a checkpoint by {monitored}, which depends on clients' data "
                    f"without noise; give it a metric of the server's validation set (and norms no statistics of "
                    f"clients: model.evaluation.recalibrate_batches: 0)"
                )
        checkpoints = trainer.strategy.checkpoint_io
        if not isinstance(checkpoints, AtomicCheckpointIO):
            yield (
                f"trainer.plugins: {type(checkpoints).__name__} writes checkpoints of a private run that others may "
                f"read; leave it out"
            )
        if any(getattr(logger, "_log_model", False) in (True, "all") for logger in trainer.loggers):  # W&B, MLflow
            yield "trainer.logger: log_model uploads checkpoints, which hold more than is released; set it to false"

    def on_fit_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Validates that clients change the global weights through the noised sum alone, and makes the accountant."""
        for message in self._disclosed(trainer, pl_module):
            raise ConfigError(f"{message}, or set privacy to null")
        clients = pl_module.population.num_clients
        if self.delta >= 1 / clients:
            raise ConfigError(f"privacy.delta: {self.delta:g} could disclose a client; set it below {1 / clients:.2g}")
        separation = pl_module.cohort.separation(clients)
        if self.bands > separation:
            raise ConfigError(
                f"privacy.bands: {self.bands} is more than the rounds from one in which a client takes part to its "
                f"next, which {type(pl_module.cohort).__name__} makes {separation} at least with {clients} clients; "
                f"lower it, or use model.cohort CyclicCohort with a ratio of at most 1 / {self.bands}"
            )
        drawn: int = trainer.strategy.broadcast(secrets.randbits(63))  # all ranks add the same noise
        if self.noise_seed is None:  # another sequence, which shares no noise with an earlier start's
            self._noise = NoiseSequence(drawn, self.bands)
        else:
            self._noise = NoiseSequence(self.noise_seed, self.bands, first=0)
        if self.noise_multiplier is None:
            self.noise_multiplier = self._noise_for_target(trainer, pl_module)
            log.info(
                "privacy.noise_multiplier: %.4g, found for epsilon %g at delta %g in %d rounds",
                *(self.noise_multiplier, self.target_epsilon, self.delta, trainer.max_rounds),
            )
        self.accountant = self._record = None
        if self.noise_multiplier:
            self.accountant = self._account_so_far(trainer, pl_module.cohort, self.noise_multiplier)
            self.accountant.epsilon(self.delta)  # fails here if dp-accounting is not installed
        cast(AtomicCheckpointIO, trainer.strategy.checkpoint_io).private = True

    def _account_so_far(self, trainer: FederatedTrainer, cohort: CohortSampler, noise: float) -> Accountant:
        """Accounts for what was released so far, also after the checkpoint, and begins the record of this start."""
        accountant: Accountant = KnownCohorts(noise)
        if isinstance(cohort, PoissonCohort):
            accountant = SampledCohorts(noise, cohort.ratio)
        if self._saved is not None:
            if self._saved["accountant"].keys() != accountant.state_dict().keys():
                raise CheckpointError(
                    "privacy: the checkpoint's cohorts were accounted for otherwise (known or sampled); keep the run's "
                    "model.cohort"
                )
            accountant.load_state_dict(self._saved["accountant"])
        if self.noise_seed is not None:
            return accountant
        self._record = ReleaseRecord()
        if self._saved is not None:
            missed: list[dict[int, float]] = []
            if trainer.is_global_zero:
                missed = self._record.resume(self._saved["record"], Path(str(trainer.ckpt_path)).parent)
            if missed:
                log.warning(
                    "privacy: rounds released after the checkpoint, %d, count, and so do those that replace them",
                    len(missed),
                )
            for losses in trainer.strategy.broadcast(missed):
                accountant.add(losses)
        if keeps_files(trainer):
            self._record.begin(filter(None, (getattr(each, "dirpath", None) for each in trainer.checkpoint_callbacks)))
        return accountant

    def on_train_start(self, trainer: FederatedTrainer, pl_module: FederatedLightningModule) -> None:
        """Validates that the first round is within the target; a resumed run may have spent all."""
        if trainer.global_step and self._saved is None:
            raise CheckpointError("privacy: the run so far has not accounted for its rounds; set privacy to null")
        self._saved = None  # another fit does not begin with it
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
            raise ConfigError("privacy: finding the noise needs an end; set trainer.max_rounds, or noise_multiplier")
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
            cast(OverlapAverage, module.aggregation),  # is refused if it merges in another way
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
        """Returns a plan for some of the available clients, and how many are expected, where cohorts are sampled."""
        if not isinstance(module.cohort, PoissonCohort):
            return None, 0.0
        num_clients = module.population.num_clients
        available = module.cohort.availability.available(round.number, num_clients, round.seed)
        draws = numpy_generator(module.seed, "privacy-planned", round.number)  # public, and apart from the cohort's
        sample = np.sort(draws.choice(available, min(_PLANNED, len(available)), replace=False)).tolist()
        return module.tasks(round, sample, draws), module.cohort.ratio * len(available)

    def _write(self, trainer: FederatedTrainer) -> None:
        """Writes what the round releases to disk, before any rank has the new weights."""
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
                "privacy.target_epsilon: another round would exceed %g; the run ends after %d rounds",
                *(self.target_epsilon, round.number + 1),
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
        """Returns a round's cohort, drawn ahead."""
        return module.cohort.draw(number, module.population.sizes, self._seed(module))

    def _seed(self, module: FederatedLightningModule) -> int:
        """Returns what cohorts and architectures are drawn from: the secret, if they count as sampled."""
        return self._noise.seed if isinstance(module.cohort, PoissonCohort) else module.seed

    def state_dict(self) -> dict[str, Any]:
        record = None if self._record is None else self._record.state_dict()
        accountant = {} if self.accountant is None else self.accountant.state_dict()
        return {**{name: getattr(self, name) for name in _KEPT}, "record": record, "accountant": accountant}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restores what the run was begun with; noise that was found is not found anew for other rounds."""
        saved = self._saved = {"bands": 1, **state_dict}  # checkpoints of independent noise may lack it
        for name in _KEPT:
            given = getattr(self, name)
            if given is not None and given != saved[name]:
                raise CheckpointError(f"privacy.{name}: {given} is not what the run was begun with; keep that")
        if not saved["noise_multiplier"] and self.target_epsilon is not None:
            raise CheckpointError(
                f"privacy.target_epsilon: {self.target_epsilon:g} cannot be kept, since the checkpoint's run was begun "
                f"without noise; set it to null, or begin a new run"
            )
        self.noise_multiplier, self.noise_seed = saved["noise_multiplier"], saved["noise_seed"]
