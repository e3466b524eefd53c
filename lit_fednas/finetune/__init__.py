"""After the search: every tier's network trained federatedly on the clients that can run it."""

from lit_fednas.finetune.settings import FinetuneSettings
from lit_fednas.finetune.trainer import FinetuneTrainer

__all__ = ["FinetuneSettings", "FinetuneTrainer"]
