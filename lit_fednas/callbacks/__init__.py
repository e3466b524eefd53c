"""Callbacks: what changes, is counted, written or shown over the rounds.

Every run has those of :func:`default_callbacks`, a :class:`CostLedger` and a :class:`RoundCheckpoint`; those of
:data:`OPTIONAL_CALLBACKS` are switched on by their key in YAML. Lightning's own callbacks (``ModelCheckpoint``,
``EarlyStopping``, ``LearningRateMonitor``) work as anywhere, as a round is an epoch.

A rule of your own over the rounds is a subclass of ``lit_fednas.federation.FederatedCallback`` (guide *A round*).
"""

import re

from lightning import Callback

from lit_fednas.callbacks.beta_decay import BetaDecay
from lit_fednas.callbacks.checkpoint import RoundCheckpoint
from lit_fednas.callbacks.cost_ledger import CostLedger
from lit_fednas.callbacks.deployed_accuracy import DeployedAccuracy
from lit_fednas.callbacks.device_average import DeviceAverage
from lit_fednas.callbacks.partition_files import PartitionFiles
from lit_fednas.callbacks.pool_growth import PoolGrowth
from lit_fednas.callbacks.privacy import Privacy
from lit_fednas.callbacks.progress import RoundProgress
from lit_fednas.callbacks.pruning import PruneByBudgets
from lit_fednas.callbacks.round_time import RoundTime
from lit_fednas.callbacks.run_recorder import RunRecorder
from lit_fednas.callbacks.soft_average import SoftAverage
from lit_fednas.callbacks.subnet_table import SubnetTable
from lit_fednas.callbacks.transform_on_convergence import TransformOnConvergence
from lit_fednas.callbacks.wandb_logging import WandbLogging
from lit_fednas.callbacks.weight_average import WeightAverage

__all__ = [
    "OPTIONAL_CALLBACKS",
    "BetaDecay",
    "CostLedger",
    "DeployedAccuracy",
    "DeviceAverage",
    "PartitionFiles",
    "PoolGrowth",
    "Privacy",
    "PruneByBudgets",
    "RoundCheckpoint",
    "RoundProgress",
    "RoundTime",
    "RunRecorder",
    "SoftAverage",
    "SubnetTable",
    "TransformOnConvergence",
    "WandbLogging",
    "WeightAverage",
    "default_callbacks",
]

#: What a run may have besides, by its key in YAML, in the order in which they are called: before the callbacks
#: that every run has, and those that log before those that read what is logged.
OPTIONAL_CALLBACKS: dict[str, type[Callback]] = {
    re.sub(r"(?<!^)(?=[A-Z])", "_", callback.__name__).lower(): callback
    for callback in (
        PruneByBudgets,
        TransformOnConvergence,
        PoolGrowth,
        SoftAverage,
        WeightAverage,
        BetaDecay,
        Privacy,
        DeviceAverage,
        DeployedAccuracy,
        RoundTime,
    )
}


def default_callbacks() -> list[Callback]:
    """Returns what the command line adds to every run; give them to a ``FederatedTrainer`` of your own likewise."""
    return [RunRecorder(), PartitionFiles(), SubnetTable(), WandbLogging(), RoundProgress()]
