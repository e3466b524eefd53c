"""The callback hooks of a round, beside Lightning's own."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, ClassVar

from lightning import Callback, LightningModule, Trainer

from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, ClientUpdate
from lit_fednas.parts import Part

if TYPE_CHECKING:
    from lit_fednas.federation.module import FederatedLightningModule
    from lit_fednas.federation.round import ServerRound
    from lit_fednas.federation.trainer import FederatedTrainer


class FederatedCallback(Part, Callback):
    """A Lightning callback that may also follow a round, and change it through :class:`ServerRound`.

    Lightning's hooks keep their meaning with a round for an epoch: ``on_train_epoch_start`` comes before the cohort is
    drawn, ``on_validation_end`` after the global weights were evaluated, ``on_train_epoch_end`` at the round's end.

    All that a method remembers from round to round is the callback's ``state_dict``. It changes after the server's
    step alone, so that an interrupted round leaves no trace.
    """

    #: The types of the values that it gives to rounds (:meth:`ServerRound.give`).
    gives: ClassVar[tuple[type, ...]] = ()

    def __init_subclass__(cls, **settings: Any) -> None:
        """Names the callback as configurations do: ``BetaDecay`` is ``beta_decay``."""
        super().__init_subclass__(**settings)
        cls.field = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Validates that the callback works with the supernet, and that some part reads the values that it gives."""
        super().setup(trainer, pl_module, stage)
        self.check_supernet(pl_module.supernet)
        parts: tuple[Any, ...] = (pl_module.assignment, pl_module.aggregation)
        for kind in self.gives if stage == "fit" else ():
            if not any(kind in part.reads for part in parts):
                names = [type(part).__name__ for part in parts]
                raise ConfigError(
                    f"{self.field}: gives a {kind.__name__}, which neither model.assignment {names[0]} nor "
                    f"model.aggregation {names[1]} reads; change one of them, or set {self.field} to null"
                )

    def on_round_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Called before the round is planned; may give values."""

    def on_cohort_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Called when the clients have their tasks."""

    def on_client_end(
        self,
        trainer: FederatedTrainer,
        module: FederatedLightningModule,
        result: ClientResult,
        update: ClientUpdate | None,
    ) -> None:
        """Called after each task.

        Args:
            trainer: The trainer.
            module: The server's module.
            result: How it went.
            update: On the rank that trained the client, its update if it can be used. Its tensors hold until the
                next client is trained; what is done with them must not touch training.
        """

    def on_results(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Called when all clients have answered, before their updates are merged.

        May reject updates, and watch or mix the averages of those that are accepted. If a callback defines it,
        sums are kept per architecture, which takes more memory where architectures share weights.
        """

    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Called after the server's step, before the global weights are evaluated; may change the supernet."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Calls :meth:`on_server_step`; Lightning's batch is the round."""
        self.on_server_step(trainer, pl_module, batch)  # type: ignore[arg-type]
