"""Federated neural architecture search on PyTorch Lightning.

Many architectures share the weights of one network, which is trained on data that stay with their clients. Afterwards
every architecture can be extracted without more training. A method is a composition of four parts. Each is a class that
you can replace:

* ``lit_fednas.supernets``: the shared weights, and the networks that can be trained in them.
* ``lit_fednas.assignment``: the subnet that each client trains.
* ``lit_fednas.objectives``: the local loss.
* ``lit_fednas.aggregation``: the next global weights.

Rules over rounds are callbacks (``lit_fednas.callbacks``). Clients with different devices are divided into tiers
(``lit_fednas.tiers``). ``lit_fednas.data`` has data sources and partitions, and ``lit_fednas.federation`` the engine.
``lit_fednas.search``, ``lit_fednas.finetune`` and ``lit_fednas.export`` follow training; ``lit_fednas.analysis`` reads
a run's records (``lit_fednas.records``). Published methods are files under ``configs/``. Their comparisons and
ablations are arms of studies (``configs/reproduction/``, ``lit_fednas.studies``).

The names of a first script are here as well, such as ``lit_fednas.FederatedTrainer``; the guide *A round* shows a run
in Python.
"""

import os
from importlib import import_module
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

# OpenMP's threads spin while they wait, which costs a factor of five and more as soon as another process uses the
# same cores. The policy is read once, when torch is imported; a setting of the user's own is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

if TYPE_CHECKING:
    from lit_fednas.aggregation import MaxNet, OverlapAverage
    from lit_fednas.assignment import CostWeighted, RisingPath, TrackingSandwich
    from lit_fednas.callbacks import CostLedger, PoolGrowth, WeightAverage, default_callbacks
    from lit_fednas.data import DigitPairs, Dirichlet, FederatedDataModule
    from lit_fednas.export import Export
    from lit_fednas.federation import ClientSettings, FederatedLightningModule, FederatedTrainer
    from lit_fednas.finetune import Finetune, FinetuneSettings
    from lit_fednas.loggers import RunLogger
    from lit_fednas.search import Search, SearchSettings
    from lit_fednas.supernets import BatchNorm, ElasticResNet
    from lit_fednas.tiers import Budgets

__version__ = version("lit-fednas")

__all__ = [
    "BatchNorm",
    "Budgets",
    "ClientSettings",
    "CostLedger",
    "CostWeighted",
    "DigitPairs",
    "Dirichlet",
    "ElasticResNet",
    "Export",
    "FederatedDataModule",
    "FederatedLightningModule",
    "FederatedTrainer",
    "Finetune",
    "FinetuneSettings",
    "MaxNet",
    "OverlapAverage",
    "PoolGrowth",
    "RisingPath",
    "RunLogger",
    "Search",
    "SearchSettings",
    "TrackingSandwich",
    "WeightAverage",
    "default_callbacks",
]

_PACKAGES = ["federation", "aggregation", "assignment", "callbacks", "data", "export", "finetune", "loggers", "search"]
_PACKAGES += ["supernets", "tiers"]


def __getattr__(name: str) -> Any:
    """Imports a name of ``__all__`` at its first use, so that light commands do not wait for torch."""
    if name in __all__:
        modules = (import_module(f"{__name__}.{package}") for package in _PACKAGES)
        return next(getattr(module, name) for module in modules if hasattr(module, name))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
