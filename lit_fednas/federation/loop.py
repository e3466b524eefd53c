"""The round: plan, train the cohort, step the server, evaluate."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import lightning.pytorch as pl
from torch import distributed

from lit_fednas.errors import ClientError, RankError
from lit_fednas.federation.client import ClientFits
from lit_fednas.federation.interrupts import Interrupts
from lit_fednas.federation.lightning_private import RankStrategy, RoundFitLoop, call_hook
from lit_fednas.federation.machine import keep_freed_memory, threads_set
from lit_fednas.federation.module import FederatedLightningModule, RoundResult
from lit_fednas.federation.ranks import Failure, Ranks, deal
from lit_fednas.messages import WITHHELD, ClientResult, ClientTask

log = logging.getLogger(__name__)


class RoundLoop(RoundFitLoop):
    """Lightning's fit loop, with a round for an epoch.

    A round is four steps: the module plans it, the cohort trains and its updates stream into the aggregation,
    ``training_step`` steps the server, Lightning validates and calls the hooks of an epoch's end. An interrupted
    round leaves no trace.

    Args:
        trainer: The outer trainer.
        max_rounds: When to stop; -1 for never.
        threads: Of each rank; see :func:`~lit_fednas.federation.machine.threads_set`.
    """

    def __init__(self, trainer: pl.Trainer, max_rounds: int, threads: int | None = None) -> None:
        super().__init__(trainer, max_rounds)
        self.threads = threads
        self.interrupts = Interrupts()
        self.ranks = Ranks()
        self._fits: ClientFits | None = None

    @property
    def module(self) -> FederatedLightningModule:
        """The server's module."""
        module = self.trainer.lightning_module
        assert isinstance(module, FederatedLightningModule)
        return module

    def run(self) -> None:
        """Runs all rounds, listening for Ctrl-C and SIGTERM.

        Raises:
            RankError: Another rank has failed or is gone.
        """
        strategy: Any = self.trainer.strategy
        self.ranks = Ranks(self.trainer.global_rank, self.trainer.world_size, strategy.root_device)
        self._prepare_clients()
        launcher = strategy.launcher
        self.interrupts.pass_on = launcher.kill if launcher is not None else None
        keep_freed_memory()
        module = self.module
        ranks_here = self.ranks.size // self.trainer.num_nodes
        threads = threads_set(self.threads, module.supernet, module.client.batch_size, ranks_here)
        try:
            with self.interrupts.listening(), threads:
                super().run()
        except RuntimeError as error:
            if self.ranks.size > 1 and not isinstance(error, ClientError | RankError):
                self._explain(error)
            raise
        finally:
            self._fits = None

    def on_advance_end(self) -> None:
        """Ends the round as Lightning does, then looks for a signal."""
        super().on_advance_end()
        if self.ranks.size == 1:  # several ranks agree on it in the next round
            self.interrupts.check()

    def train_cohort(self, round: int) -> RoundResult:
        """Plans the round, trains its clients, and adds up their updates.

        With several ranks, each trains its share; whatever ends one of them in mid-round ends all.
        """
        module = self.module
        clients = self.trainer.datamodule.clients  # type: ignore[attr-defined]
        self._assignment_before = module.assignment.state_dict()
        tasks = module.plan(round, clients.sizes, self.max_epochs or -1)
        own: list[ClientResult] = []
        failure: Exception | None = None
        try:
            call_hook(self.trainer, "on_cohort_start", tasks)
            if tasks:
                module.aggregation.start(module.supernet, tasks)
            for result in self._train(self._share(tasks)):
                own.append(result)
        except Exception as error:
            if self.ranks.size == 1:
                raise
            failure = error
        results = self._exchange(own, failure)
        places = {(task.client, task.arch): place for place, task in enumerate(tasks)}
        results.sort(key=lambda result: places[result.task.client, result.task.arch])
        if any(result.ok for result in results):
            self.ranks.add_up(module.aggregation.sums())
        results = self._without_withheld(results)
        module.assignment.observe(results)
        return RoundResult(round, results)

    def _without_withheld(self, results: list[ClientResult]) -> list[ClientResult]:
        """Takes back the updates that the server does not ask for, now that it knows how the clients' tests went.

        That no such update is sent is so in the costs; here they have been added up already.
        """
        module = self.module
        withheld = module.assignment.withheld(results)
        for arch in withheld:
            module.aggregation.withhold(arch)
        return [
            replace(result, status=WITHHELD) if result.ok and result.task.arch in withheld else result
            for result in results
        ]

    def _share(self, tasks: list[ClientTask]) -> list[ClientTask]:
        """Those of the round's tasks that this rank is dealt, by the work of a client's epoch."""
        if self.ranks.size == 1:
            return tasks
        supernet = self.module.supernet
        work = [task.num_examples * supernet.cost(task.arch).macs for task in tasks]
        return [tasks[place] for place in deal(work, self.ranks.size)[self.ranks.rank]]

    def _train(self, tasks: list[ClientTask]) -> Iterator[ClientResult]:
        """Trains clients, and lets their updates stream into the aggregation."""
        assert self._fits is not None
        for result, update in self._fits.run(tasks):
            if update is not None:
                self.module.aggregation.add(update)
                call_hook(self.trainer, "on_client_update", update)
            del update
            self._tell(result)
            yield result

    def _exchange(self, own: list[ClientResult], failure: Exception | None) -> list[ClientResult]:
        """The results of all ranks.

        Raises:
            Exception: This rank's failure, or else another's.
        """
        described = None if failure is None else Failure.of(failure)
        shares = self.ranks.gather((own, described))
        if failure is not None:
            raise failure
        results = []
        for rank, (share, failed) in enumerate(shares):
            if failed is not None:
                raise failed.as_error(rank)
            results += share
            if rank != self.ranks.rank:
                for result in share:
                    self._tell(result)
        return results

    def _tell(self, result: ClientResult) -> None:
        """Tells the log and the callbacks how it went for a client."""
        if not result.ok and self.ranks.rank == 0:
            task = result.task
            log.warning("round %d, client %d: %s (%s)", task.round, task.client, result.status, result.reason)
        call_hook(self.trainer, "on_client_end", result)

    def _explain(self, error: RuntimeError) -> None:
        """Raises what is behind an error of the connection to another rank, if that is what it is.

        Raises:
            RankError: Another rank is gone.
        """
        watch = RankStrategy.watch
        reason = watch.wait_for_reason(2.0) if watch is not None else None
        if reason is not None:
            raise RankError(reason) from error
        if isinstance(error, distributed.DistError) or "Connection" in str(error):
            raise RankError(f"lost another rank, whose own message says why ({error})") from error

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
