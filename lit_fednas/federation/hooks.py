"""The callback hooks of a round, beside Lightning's own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightning import Callback, Trainer
from torch import Tensor

from lit_fednas.messages import ClientResult, ClientTask, ClientUpdate

if TYPE_CHECKING:
    from lit_fednas.federation.module import FederatedLightningModule


class FederatedCallback(Callback):
    """A Lightning callback that may also follow the cohort.

    Lightning's hooks keep their meaning with a round for an epoch: ``on_train_epoch_start`` comes before the
    cohort is drawn, ``on_train_batch_end`` after the server's step (its ``batch`` is the
    :class:`~lit_fednas.federation.module.RoundResult`), ``on_validation_end`` after the global weights were
    evaluated, ``on_train_epoch_end`` when the round is over.
    """

    def on_cohort_start(
        self, trainer: Trainer, module: FederatedLightningModule, tasks: Sequence[ClientTask]
    ) -> None:
        """Called when the cohort has its tasks."""

    def on_client_update(self, trainer: Trainer, module: FederatedLightningModule, update: ClientUpdate) -> None:
        """Called with each update that is used, on the rank that trained the client, before the next is trained.

        Its tensors hold until then. What is done with them must not touch training.
        """

    def on_client_end(self, trainer: Trainer, module: FederatedLightningModule, result: ClientResult) -> None:
        """Called after each client's part."""

    def on_aggregate(
        self, trainer: Trainer, module: FederatedLightningModule, averages: Mapping[str, Tensor]
    ) -> None:
        """Called with the averages of the round's updates, before the server's step; the weights are the old ones.

        The averages are by the supernet's names, the same on all ranks, and not to be changed. A round without
        enough survivors has none.
        """

    def on_model_added(self, trainer: Trainer, module: FederatedLightningModule, arch: Any) -> None:
        """Called when the supernet has got a new model (``lit_fednas.supernets.ModelSuite``)."""

    def on_search_end(self, trainer: Trainer, module: FederatedLightningModule, folder: Path) -> None:
        """Called when a search after training has written its folder (``lit_fednas.records.tiers``)."""
