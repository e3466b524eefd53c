"""The round: plan, train the cohort, step the server, evaluate."""

from __future__ import annotations

import logging
from typing import Any

import lightning.pytorch as pl

from lit_fednas.federation.client import ClientFits
from lit_fednas.federation.interrupts import Interrupts
from lit_fednas.federation.lightning_private import RoundFitLoop, call_hook
from lit_fednas.federation.module import FederatedLightningModule, RoundResult

log = logging.getLogger(__name__)


class RoundLoop(RoundFitLoop):
    """Lightning's fit loop, with a round for an epoch.

    A round is four steps: the module plans it, the cohort trains and its updates stream into the aggregation,
    ``training_step`` steps the server, Lightning validates and calls the hooks of an epoch's end. An interrupted
    round leaves no trace.

    Args:
        trainer: The outer trainer.
        max_rounds: When to stop; -1 for never.
    """

    def __init__(self, trainer: pl.Trainer, max_rounds: int) -> None:
        super().__init__(trainer, max_rounds)
        self.interrupts = Interrupts()
        self._fits: ClientFits | None = None

    @property
    def module(self) -> FederatedLightningModule:
        """The server's module."""
        module = self.trainer.lightning_module
        assert isinstance(module, FederatedLightningModule)
        return module

    def run(self) -> None:
        """Runs all rounds, listening for Ctrl-C and SIGTERM."""
        self._prepare_clients()
        try:
            with self.interrupts.listening():
                super().run()
        finally:
            self._fits = None

    def on_advance_end(self) -> None:
        """Ends the round as Lightning does, then looks for a signal."""
        super().on_advance_end()
        self.interrupts.check()

    def train_cohort(self, round: int) -> RoundResult:
        """Plans the round, trains its clients one after the other, and adds up their updates."""
        assert self._fits is not None
        module = self.module
        clients = self.trainer.datamodule.clients  # type: ignore[attr-defined]
        self._assignment_before = module.assignment.state_dict()
        tasks = module.plan(round, clients.sizes, self.max_epochs or -1)
        call_hook(self.trainer, "on_cohort_start", tasks)
        if tasks:
            module.aggregation.start(module.supernet, tasks)
        results = []
        for task in tasks:
            self.interrupts.check()
            result, update = self._fits.fit(task)
            if update is not None:
                module.aggregation.add(update)
            else:
                log.warning("round %d, client %d: %s (%s)", round, task.client, result.status, result.reason)
            del update
            results.append(result)
            call_hook(self.trainer, "on_client_end", result)
        module.assignment.observe(results)
        return RoundResult(round, results)

    def take_back(self) -> None:
        """Gives the assignment its state of the round's start."""
        before: dict[str, Any] | None = getattr(self, "_assignment_before", None)
        if before is not None:
            self.module.assignment.load_state_dict(before)

    def _prepare_clients(self) -> None:
        module = self.module
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        clients = data.clients
        (data if hasattr(data, "move_to") else clients).move_to(self.trainer.strategy.root_device)
        self._fits = ClientFits(
            module.supernet,
            module.objective,
            clients,
            module.client,
            module.faults,
            module.seed,
            self.interrupts.check,
        )
