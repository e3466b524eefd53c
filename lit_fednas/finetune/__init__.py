"""Fine-tuning of tiers' networks (FedorAS, stage 3), or of named models (FedNAS' FL-tune), on the clients.

``lit-fednas finetune --config configs/fedoras/digits.yaml --config configs/fedoras/finetune/digits.yaml`` trains each
tier's network on the clients of that tier and above; a stopped fine-tuning continues. ``lit-fednas export --name
finetune`` exports the networks.
"""

from lit_fednas.finetune.candidates import FinetuneSettings
from lit_fednas.finetune.finetuning import Finetune

__all__ = ["Finetune", "FinetuneSettings"]
