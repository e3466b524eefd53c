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
``lit_fednas.search``, ``lit_fednas.finetune`` and ``lit_fednas.export`` are what comes after training,
``lit_fednas.analysis`` reads what a run wrote (``lit_fednas.records``).

Published methods are files under ``configs/``: SuperFed (``superfed``), FedorAS (``fedoras``), FedHeN (``fedhen``),
HeteroFL, FjORD, FedRolex, SplitMix and FLuID (``width``), FedTrans (``fedtrans``), FedNAS (``fednas``) and federated
DARTS (``darts``). FedAvg, FedProx and the adaptive server optimizers are special cases. Their comparisons, ablations
and variants are arms of studies (``configs/studies/``, ``lit_fednas.studies``), such as the settings of SuperFed's
published code in ``studies/superfed_cifar10.yaml``; ``configs/loggers/`` adds TensorBoard or Weights & Biases to any
of them.

**A round**

```text
            server                                            clients of the cohort
  ┌──────────────────────────┐
  │ supernet: global weights │      1. cohort.draw      who takes part
  └──────────────────────────┘      2. assignment       which architecture each of them gets
     │  subnet(arch): bytes down
     ├───────────────────────────────►  client 3: d: [0,0,0,0], e: 0.1  ┐
     ├───────────────────────────────►  client 7: d: [2,2,2,2], e: 0.25 │ 3. objective, local optimizer:
     ├───────────────────────────────►  client 9: d: [1,0,2,1], e: ...  ┘    a sub-Trainer's fit
     │  updates: bytes up, streamed            │
     ◄─────────────────────────────────────────┘
  4. aggregation: one running sum, whatever the size of the cohort
  5. server optimizer: present weights - aggregate = pseudo-gradient (training_step)
  6. evaluation of chosen subnets, in place; checkpoint; records
```

**In Python**

```python
from lit_fednas.aggregation import MaxNet
from lit_fednas.assignment import TrackingSandwich
from lit_fednas.callbacks import BetaDecay, CostLedger, default_callbacks
from lit_fednas.data import Digits, Dirichlet, FederatedDataModule
from lit_fednas.federation import ClientSettings, FederatedLightningModule, FederatedTrainer
from lit_fednas.supernets import ElasticResNet

data = FederatedDataModule(Digits(), Dirichlet(alpha=10.0), num_clients=10)
module = FederatedLightningModule(
    ElasticResNet((1, 8, 8), 10, stem_width=16, stage_widths=[32, 64, 96, 128]),
    TrackingSandwich(),
    MaxNet(),
    ClientSettings(batch_size=32),
)
trainer = FederatedTrainer(max_rounds=20, callbacks=[BetaDecay(), CostLedger(), *default_callbacks()])
trainer.fit(module, datamodule=data)
subnet = module.supernet.subnet(module.supernet.space.smallest)  # an ordinary nn.Module with its own weights
```

**On the command line**

```bash
lit-fednas fit --config X.yaml --model.client.batch_size 16    # any key is an option too
lit-fednas fit --config X.yaml --config overlay.yaml           # a later file changes an earlier one
lit-fednas fit --config X.yaml --ckpt_path last                # go on where the newest run stopped, exactly
lit-fednas test --config X.yaml                                # the subnets of the newest run on the test set
lit-fednas search --config X.yaml --config configs/search/digits.yaml   # the best network of every device tier
lit-fednas export --config X.yaml --tier small --format onnx   # a network that runs without lit_fednas
lit-fednas partition --config X.yaml --output shown            # which client has which data: table and picture
lit-fednas report runs/digits/version_0                        # one HTML page, to open or to send
lit-fednas fit --help                                          # all options, each with its meaning
```

**Adding a part.** A method is a YAML file that names four parts. If one of them is new, subclass the base class of its
folder and name it as ``class_path: my_package.MyPart``; each package says what to implement. A part states what it
needs of others (``supernet_kind``, ``needs``), and what does not fit is refused before any client trains. To become
part of this package, it is one file of its folder, exported in the folder's ``__init__.py``, with a small instance in
``instances.py`` of the folder's tests: the contract suite then covers it, and a test fails until you do.

**Glossary**, as the words are used in names, docstrings, errors and configurations:

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
