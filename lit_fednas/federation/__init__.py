"""The engine: module, trainer, round loop, client training.

:class:`FederatedLightningModule` is composed of the four parts of a method. :class:`FederatedTrainer` is Lightning's
Trainer with rounds in place of epochs; the server's step is ``training_step``. Therefore ``ModelCheckpoint``,
``EarlyStopping``, loggers, ``--ckpt_path last`` and your own callbacks work as usual.
"""

from lit_fednas.federation.cohort import (
    Availability,
    CohortSampler,
    CyclicCohort,
    OnlyClients,
    PoissonCohort,
    RandomAvailability,
    UniformCohort,
)
from lit_fednas.federation.evaluation import EvaluationSettings
from lit_fednas.federation.lightning_private import RankStrategy
from lit_fednas.federation.module import FederatedLightningModule
from lit_fednas.federation.round import FederatedCallback, ServerRound
from lit_fednas.federation.server_optimizers import FedAdagrad, FedAdam, FedYogi
from lit_fednas.federation.settings import (
    ClientSettings,
    CosineRate,
    FaultPolicy,
    MilestoneRate,
    RateSchedule,
    StepRate,
)
from lit_fednas.federation.trainer import FederatedTrainer

__all__ = [
    "Availability",
    "ClientSettings",
    "CohortSampler",
    "CosineRate",
    "CyclicCohort",
    "EvaluationSettings",
    "FaultPolicy",
    "FedAdagrad",
    "FedAdam",
    "FedYogi",
    "FederatedCallback",
    "FederatedLightningModule",
    "FederatedTrainer",
    "MilestoneRate",
    "OnlyClients",
    "PoissonCohort",
    "RandomAvailability",
    "RankStrategy",
    "RateSchedule",
    "ServerRound",
    "StepRate",
    "UniformCohort",
]
