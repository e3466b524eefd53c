"""After the search: tiers' networks, or models that are named, trained federatedly on the clients."""

from lit_fednas.finetune.settings import FinetuneSettings
from lit_fednas.finetune.trainer import FinetuneTrainer

__all__ = ["FinetuneSettings", "FinetuneTrainer"]
