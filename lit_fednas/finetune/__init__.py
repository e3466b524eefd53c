"""After the search: tiers' networks (FedorAS, stage 3), or named models (FedNAS' FL-tune), trained on the clients.

``lit-fednas finetune --config configs/fedoras/digits.yaml --config configs/fedoras/finetune/digits.yaml`` trains each
tier's network on the clients of that tier and above; a stopped one continues. The networks are exported by
``lit-fednas export --name finetune``.
"""

from lit_fednas.finetune.candidates import FinetuneSettings
from lit_fednas.finetune.finetuning import Finetune

__all__ = ["Finetune", "FinetuneSettings"]
