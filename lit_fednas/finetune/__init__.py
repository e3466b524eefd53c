"""After the search: tiers' networks (FedorAS, stage 3), or named models (FedNAS' FL-tune), trained on the clients.

``lit-fednas finetune --config configs/fedoras/digits.yaml --config configs/fedoras/finetune/digits.yaml`` trains each
tier's network on the clients of that tier and above; a stopped one continues. The networks are exported by
``lit-fednas export --name finetune``.
"""

from lit_fednas.finetune.command import Finetune
from lit_fednas.finetune.settings import FinetuneSettings

__all__ = ["Finetune", "FinetuneSettings"]
