"""The engine: module, trainer, round loop, client training."""

from lit_fednas.federation.cohort import (
    AlwaysAvailable,
    Availability,
    CohortSampler,
    OnlyClients,
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
    "RandomAvailability",
    "RankStrategy",
    "RateSchedule",
    "ServerRound",
    "SizeWeightedCohort",
    "StepRate",
    "UniformCohort",
]
