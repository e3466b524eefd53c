"""Federated neural architecture search on PyTorch Lightning.

One network, whose weights many architectures share, is trained on data that stays with its clients; afterwards every
architecture can be taken out of it without training again. A method is a composition of four parts, each a class that
you can replace by your own:

* ``lit_fednas.supernets``: the shared weights, and which networks can be trained in them.
* ``lit_fednas.assignment``: which subnet each client trains.
* ``lit_fednas.objectives``: what a client optimises.
* ``lit_fednas.aggregation``: how the clients' updates become the next global weights.

What changes over the rounds is a callback (``lit_fednas.callbacks``). Clients with different devices are divided into
tiers (``lit_fednas.tiers``). ``lit_fednas.data`` has data sources and partitions, ``lit_fednas.federation`` the engine;
``lit_fednas.search``, ``lit_fednas.finetune`` and ``lit_fednas.export`` are used after training,
``lit_fednas.analysis`` reads what a run wrote (``lit_fednas.records``). Published methods are files under ``configs/``,
their comparisons and ablations arms of studies (``configs/reproduction/``, ``lit_fednas.studies``).

The guide *A round* shows how a run is put together in Python.
"""

import os
from importlib.metadata import version

# OpenMP's threads spin while they wait, which costs a factor of five and more as soon as another process uses the
# same cores. The policy is read once, when torch is imported; a setting of the user's own is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = version("lit-fednas")
