"""Federated neural architecture search on PyTorch Lightning.

Glossary, as the words are used in names, docstrings, errors and configurations:

* **client**: a holder of data that trains locally; numbered from 0. Its data never leave it.
* **population**: all clients, with their device tiers and numbers of training examples.
* **cohort**: the clients that take part in one round.
* **round**: plan, local training of the cohort, acceptance, aggregation, a step of the server. Lightning's epoch.
* **supernet**: the network whose weights many architectures share; the server's global weights.
* **architecture** (``arch``): a value that names one network in a supernet: depths and widths, a path of
  operators, an exit, or one of several networks side by side.
* **subnet**: the network of an architecture with its part of the shared weights: what a client receives.
* **space**: the architectures of a supernet: sampling, smallest, largest, mutation, encoding for a search.
* **task, result, update**: what a client is asked in a round, how it went, and the result with trained weights.
* **report**: what a method's clients tell the server beside weights and figures; one frozen dataclass per kind.
* **plan**: the tasks of a round, a function of an assignment's state and of the round.
* **value of a round**: what a schedule gives to a part of the method for one round, as MaxNet's beta.
* **group**: clients that train a candidate together.
* **units**: channels, neurons or heads: what a network is cut, grown or pruned by.
* **candidate**: an architecture that is being tried; the best of an iteration is kept.
* **tier**: a class of devices with the same limits.
* **budget, limit**: the highest cost that is allowed: of a tier, of an iteration of pruning, of communication.
* **cost**: multiply-accumulates (MACs) per example, parameters, bytes, activation memory, latency.
* **part**: an exchangeable class of a method: supernet, assignment, objective, aggregation, or a callback.
"""

import os
from importlib.metadata import version

# OpenMP's threads spin while they wait, which costs a factor of five and more as soon as another process uses the
# same cores. The policy is read once, when torch is imported; a setting of the user's own is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = version("lit-fednas")
