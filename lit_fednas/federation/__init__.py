"""The engine: module, trainer, round loop, client training.

:class:`FederatedLightningModule` is composed of the four parts of a method, and :class:`FederatedTrainer` is
Lightning's Trainer with rounds for epochs. A round is an epoch of Lightning's, and the server's step is
``training_step``. So ``ModelCheckpoint``, ``EarlyStopping``, loggers, ``--ckpt_path last`` and your own callbacks
work as they do anywhere.

``FederatedLightningModule.load_from_checkpoint("runs/digits/version_0/checkpoints/last.ckpt")`` makes the module of a
run, and ``FederatedTrainer().predict(module, datamodule=data)`` returns the logits of its subnet
``evaluation.predicted`` for the test set, in order. ``clients/lr`` is the clients' learning rate;
``LearningRateMonitor`` shows the server's.

Cohorts: :class:`UniformCohort`, :class:`SizeWeightedCohort`, :class:`PoissonCohort`, :class:`OnlyClients`. Local
training: :class:`ClientSettings`. Learning rates of clients: :class:`ConstantRate`, :class:`CosineRate`,
:class:`MilestoneRate`, :class:`StepRate`. Server optimizers: any of torch's, :class:`FedAdam`, :class:`FedYogi`,
:class:`FedAdagrad`. What is evaluated: :class:`EvaluationSettings`. What happens if clients fail: :class:`FaultPolicy`.
Your own rules over the rounds: :class:`FederatedCallback` and :class:`ServerRound`.
"""

from lit_fednas.federation.cohort import (
    AlwaysAvailable,
    Availability,
    CohortSampler,
    OnlyClients,
    PoissonCohort,
    RandomAvailability,
    SizeWeightedCohort,
    UniformCohort,
)
from lit_fednas.federation.evaluation import EvaluationSettings
from lit_fednas.federation.hooks import FederatedCallback
from lit_fednas.federation.lightning_private import RankStrategy
from lit_fednas.federation.module import FederatedLightningModule
from lit_fednas.federation.round import ServerRound
from lit_fednas.federation.schedules import ConstantRate, CosineRate, MilestoneRate, RateSchedule, StepRate
from lit_fednas.federation.server_optimizers import FedAdagrad, FedAdam, FedYogi
from lit_fednas.federation.settings import ClientSettings, FaultPolicy
from lit_fednas.federation.trainer import FederatedTrainer

__all__ = [
    "AlwaysAvailable",
    "Availability",
    "ClientSettings",
    "CohortSampler",
    "ConstantRate",
    "CosineRate",
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
    "SizeWeightedCohort",
    "StepRate",
    "UniformCohort",
]
