"""After the search: tiers' networks, or models that are named, trained federatedly on the clients.

```bash
lit-fednas finetune --config configs/fedoras/digits.yaml --config configs/fedoras/finetune/digits.yaml
```

* **Tiers' networks** (FedorAS, stage 3): federated averaging trains each tier's network on the clients of that tier and
  above, all tiers in one command; what was stopped goes on. ``--finetune.initial random`` trains the same architectures
  from scratch, ``--finetune.tier_aware false`` on all clients, ``--finetune.architectures 10`` ten random ones, and
  ``--finetune.macs 1e12`` stops all of them after equal computation. Kendall's tau says how well the supernet ranks all
  candidates as they end.
* **Any models** (FedNAS' FL-tune): ``--finetune.models '["model: 7", "0.5 of macs"]'``, or ``'[all]'``, each on a group
  of clients of its own with ``--finetune.in_groups true``. With ``data.client_test`` all clients test every model
  before and after (``finetune/models.csv``).

``lit-fednas export --name finetune`` writes the networks that came out. What is in the folder, ``lit_fednas.records``
says.
"""

from lit_fednas.finetune.command import Finetune
from lit_fednas.finetune.settings import FinetuneSettings

__all__ = ["Finetune", "FinetuneSettings"]
