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
their comparisons and ablations arms of studies (``configs/studies/``, ``lit_fednas.studies``).

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
"""

import os
from importlib.metadata import version

# OpenMP's threads spin while they wait, which costs a factor of five and more as soon as another process uses the
# same cores. The policy is read once, when torch is imported; a setting of the user's own is kept.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

__version__ = version("lit-fednas")
