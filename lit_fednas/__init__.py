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

The guide *A round* shows how to compose a run in Python.
"""

import os
from importlib.metadata import version

# OpenMP's threads spin while they wait, which costs a factor of five and more as soon as another process uses the
# same cores. The policy is read once, when torch is imported; a setting of the user's own is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = version("lit-fednas")
