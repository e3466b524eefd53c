"""Callbacks over rounds: schedules, accounting, records and progress.

Every run has the :func:`default_callbacks`, a :class:`CostLedger` and a :class:`RoundCheckpoint`. YAML keys switch on
the :data:`OPTIONAL_CALLBACKS`. Lightning's callbacks (``ModelCheckpoint``, ``EarlyStopping``, ``LearningRateMonitor``)
work as usual, because a round is an epoch.

To write a callback over rounds, subclass ``lit_fednas.federation.FederatedCallback`` (guide *A round*).
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

#: Optional callbacks by their YAML key, in calling order: before the default callbacks, and callbacks that log metrics
#: before callbacks that read them.
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
    """Returns the callbacks that the command line adds to every run; pass them to a ``FederatedTrainer`` in Python."""
    return [RunRecorder(), PartitionFiles(), SubnetTable(), WandbLogging(), RoundProgress()]
