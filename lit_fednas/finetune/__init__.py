"""After the search: tiers' networks, or models that are named, trained federatedly on the clients."""

from lit_fednas.finetune.command import Finetune
from lit_fednas.finetune.settings import FinetuneSettings

__all__ = ["Finetune", "FinetuneSettings"]
