"""Callbacks: what changes, is counted, written or shown over the rounds."""

import re

from lightning import Callback

from lit_fednas.callbacks.beta_decay import BetaDecay
from lit_fednas.callbacks.checkpoint import RoundCheckpoint
from lit_fednas.callbacks.cost_ledger import CostLedger
from lit_fednas.callbacks.deployed_accuracy import DeployedAccuracy
from lit_fednas.callbacks.device_average import DeviceAverage
from lit_fednas.callbacks.partition_files import PartitionFiles
from lit_fednas.callbacks.progress import RoundProgress
from lit_fednas.callbacks.prune_by_budgets import PruneByBudgets
from lit_fednas.callbacks.recorder import RunRecorder
from lit_fednas.callbacks.round_time import RoundTime
from lit_fednas.callbacks.rounds_to_target import RoundsToTarget
from lit_fednas.callbacks.soft_average import SoftAverage
from lit_fednas.callbacks.subnet_table import SubnetTable
from lit_fednas.callbacks.transform_on_convergence import TransformOnConvergence
from lit_fednas.callbacks.wandb_logging import WandbLogging

__all__ = [
    "OPTIONAL_CALLBACKS",
    "BetaDecay",
    "CostLedger",
    "DeployedAccuracy",
    "DeviceAverage",
    "PartitionFiles",
    "PruneByBudgets",
    "RoundCheckpoint",
    "RoundProgress",
    "RoundTime",
    "RoundsToTarget",
    "RunRecorder",
    "SoftAverage",
    "SubnetTable",
    "TransformOnConvergence",
    "WandbLogging",
    "default_callbacks",
]

#: What a run may have besides, by its key in YAML, in the order in which they are called: before the callbacks
#: that every run has, and those that log before those that read what is logged.
OPTIONAL_CALLBACKS: dict[str, type[Callback]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", callback.__name__).lower(): callback
    for callback in (
        PruneByBudgets,
        TransformOnConvergence,
        SoftAverage,
        BetaDecay,
        DeviceAverage,
        DeployedAccuracy,
        RoundTime,
        RoundsToTarget,
    )
}


def default_callbacks() -> list[Callback]:
    """Returns what the command line adds to every run; give them to a ``FederatedTrainer`` of your own likewise.

    (The command line adds a :class:`CostLedger` and a :class:`RoundCheckpoint` too, each with settings.)
    """
    return [RunRecorder(), PartitionFiles(), SubnetTable(), WandbLogging(), RoundProgress()]
