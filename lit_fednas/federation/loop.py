"""The loop over rounds: plan, train the cohort and add up its updates, step the server, evaluate."""

import logging
import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.callbacks import Timer

from lit_fednas.data import ClientData
from lit_fednas.errors import ClientError, ConfigError
from lit_fednas.federation.acceptance import Acceptance, NormBound
from lit_fednas.federation.checkpoints import ClientStore
from lit_fednas.federation.client import LocalRunner, check_clients
from lit_fednas.federation.fastest import fastest, with_client_settings
from lit_fednas.federation.fit import TaskRunner
from lit_fednas.federation.lightning_private import RoundFitLoop, call_hook
from lit_fednas.federation.module import FederatedLightningModule
from lit_fednas.federation.process import Interrupts, keep_freed_memory
from lit_fednas.federation.ranks import Ranks, deal, naming_lost_rank
from lit_fednas.federation.round import ServerRound
from lit_fednas.messages import AWAY, DROPPED, ClientResult, ClientTask, ClientUpdate
from lit_fednas.objectives.base import keeps_state

#: Kind of the files that hold each client's state of the objective.
_STATE = "objective"

log = logging.getLogger(__name__)


class RoundLoop(RoundFitLoop):
    """Lightning's fit loop with rounds in place of epochs; an interrupted round leaves no trace."""

    #: Creates the runner of a round's tasks; the function argument raises ``Interrupted`` if the run must stop.
    runner: Callable[[FederatedLightningModule, ClientData, Callable[[], None]], TaskRunner]

    def __init__(self, trainer: pl.Trainer, max_rounds: int) -> None:
        super().__init__(trainer, max_rounds)
        self.interrupts = Interrupts()
        self.ranks = Ranks()
        self.runner = LocalRunner
        self.clients = ClientStore()
        self.fastest: dict[str, Any] | None = None  # the choice of client.fast, with its ``round``
        self._runner: TaskRunner | None = None
        self._threads: Sequence[int] = ()  # numbers of threads from which client.fast may choose
        self._acceptance: Acceptance
        self._first_round = self._failed_rounds = self._attempts = 0
        self._reasons: Counter[str] = Counter()  # reasons of failed updates

    @property
    def module(self) -> FederatedLightningModule:
        """The server's module."""
        module = self.trainer.lightning_module
        assert isinstance(module, FederatedLightningModule)
        return module

    def run(self) -> None:
        """Runs all rounds, until Ctrl-C or SIGTERM stops them."""
        trainer: Any = self.trainer
        self.ranks = trainer.ranks
        self._prepare_clients()
        keep_freed_memory()
        self._first_round = self.rounds_done
        if self.max_epochs is not None and 0 < self.max_epochs <= self.rounds_done:
            rounds = self.max_epochs, self.rounds_done
            log.warning("trainer.max_rounds: %d, and the checkpoint has %d rounds; nothing is left to train", *rounds)
        seconds_left = [callback.time_remaining() for callback in trainer.callbacks if isinstance(callback, Timer)]
        if any(seconds is not None and seconds <= 0 for seconds in seconds_left):
            log.warning("trainer.max_time: is spent after %d rounds, so nothing is trained; raise it", self.rounds_done)
        threads = self.fastest["threads"] if self.fastest is not None else None
        try:
            with naming_lost_rank(), self.interrupts.listening(), trainer.computing(threads=threads) as self._threads:
                super().run()
        finally:
            self._runner = None
        is_over = trainer.should_stop or 0 <= trainer.max_rounds <= self.rounds_done
        if not is_over or trainer.global_step < self.rounds_done:  # a round is a step
            raise RuntimeError("a part raised StopIteration, which ends Lightning's loops; let it raise another error")
        if self._reasons and self.ranks.rank == 0:
            ((reason, count),) = self._reasons.most_common(1)
            log.warning("%d of %d updates failed, %d of them: %s", self._reasons.total(), self._attempts, count, reason)

    def on_save_checkpoint(self) -> dict[str, Any]:
        """Returns Lightning's state of the loop, the choice of ``client.fast``, and the names of clients' files."""
        return super().on_save_checkpoint() | {"fastest": self.fastest, "clients": self.clients.state_dict()}

    def on_load_checkpoint(self, state_dict: dict[str, Any]) -> None:
        """Restores the state of :meth:`on_save_checkpoint`."""
        super().on_load_checkpoint(state_dict)
        self.fastest = state_dict.get("fastest")
        self.clients.load_state_dict(state_dict.get("clients", {}), Path(str(self.trainer.ckpt_path)))

    def open_clients(self, kind: str) -> ClientStore:
        """Prepares a kind of client files and returns their store; all ranks call it before the first round."""
        # the first folder is that of ``trainer.checkpoint_callback``
        folders = (getattr(checkpoint, "dirpath", None) for checkpoint in self.trainer.checkpoint_callbacks)
        self.clients.open(kind, self.ranks, list(dict.fromkeys(filter(None, folders))))
        return self.clients

    def train_cohort(self, number: int) -> ServerRound:
        """Plans a round, trains its clients (each rank its share), and adds up the accepted updates."""
        module = self.module
        round = ServerRound(number, module.restructure, module.aggregation, module.seed, self.max_epochs or -1)
        round.results = self._accept(round, self.ranks.gather_results(partial(self._train_share, round)))
        order = {task.key: position for position, task in enumerate(round.tasks)}
        round.results.sort(key=lambda result: order[result.task.key])
        if round.survivors:
            self.ranks.add_up(round.aggregation.sums())
        self._count_failures(round)
        call_hook(self.trainer, "on_results", round)
        for part in (module.assignment, module.cohort):
            part.observe(round.results)
        return round

    def _train_share(self, round: ServerRound) -> tuple[list[ClientResult], Any]:
        """Plans a round and trains this rank's share; updates are added up at once, or held by the acceptance."""
        module = self.module
        self.interrupts.check()
        call_hook(self.trainer, "on_round_start", round)
        round.tasks = module.plan(round)
        self._check_states(round.tasks)
        call_hook(self.trainer, "on_cohort_start", round)
        round.aggregation.start(round.tasks, round.values)
        share = self._share(round.tasks)
        if module.client.fast is not None and self.fastest is None:
            self._choose(share, round.number)
        assert self._runner is not None
        results = []
        for result, update in self._runner.run(share):
            if update is None or not self._acceptance.hold(update):
                self._merge(round, result, update)
            del update
            results.append(result)
        return results, self._acceptance.evidence

    def _check_states(self, tasks: Sequence[ClientTask]) -> None:
        """Validates that no client has several tasks if the objective keeps one state per client."""
        if keeps_state(self.module.objective) and len({task.client for task in tasks}) < len(tasks):
            raise ConfigError(
                f"model.objective: {type(self.module.objective).__name__} keeps one state of each client, and "
                f"{type(self.module.assignment).__name__} gives a client several tasks in a round; replace one of them"
            )

    def _count_failures(self, round: ServerRound) -> None:
        """Counts failed updates; stops the run if no client can train, because the weights would never change."""
        attempts = [result for result in round.results if result.status not in (AWAY, DROPPED)]
        reasons = Counter(f"{result.status} ({result.reason})" for result in attempts if not result.answered)
        self._attempts, self._reasons = self._attempts + len(attempts), self._reasons + reasons
        if round.survivors or not reasons:
            self._failed_rounds = 0
            return
        self._failed_rounds += 1
        number, max_rounds = round.number + 1, self.module.faults.max_failed_rounds
        ((reason, count),) = reasons.most_common(1)
        if self._failed_rounds == max_rounds:
            raise ClientError(
                f"faults.max_failed_rounds: every client failed in {max_rounds} rounds in a row; in round {number}, "
                f"{count} of {len(attempts)}: {reason}"
            )
        clients = len({result.task.client for result in attempts})
        # reasons are equal if they differ only in numbers, such as a tensor's values
        has_one_reason = len({re.sub(r"\d+", "", text) for text in reasons}) == 1 < clients
        if max_rounds is not None and has_one_reason and round.number == self._first_round:
            raise ClientError(f"round {number}: all {clients} clients failed alike in the first round: {reason}")

    def _share(self, tasks: Sequence[ClientTask]) -> Sequence[ClientTask]:
        """Returns this rank's tasks, dealt by the work of one epoch."""
        if self.ranks.size == 1:
            return tasks
        supernet = self.module.supernet
        work = [task.num_examples * supernet.cost(task.arch).macs for task in tasks]
        return [tasks[index] for index in deal(work, self.ranks.size)[self.ranks.rank]]

    def _choose(self, tasks: Sequence[ClientTask], number: int) -> None:
        """Measures on every rank which settings train these clients fastest, and takes the first rank's choice."""
        module, data = self.module, self.trainer.datamodule.clients  # type: ignore[attr-defined]
        rounds = self.max_epochs - number if self.max_epochs is not None and self.max_epochs > 0 else inf
        measure = partial(fastest, module, data, tasks, self.interrupts.check, self._threads, rounds)
        choices = [choice for choice in self.ranks.gather_results(measure) if choice is not None]
        if not choices:
            return  # no rank could train a client
        self.fastest = {"round": number, **choices[0]}
        if self.ranks.rank == 0:
            ratios = ", ".join(f"{name} {ratio:.2f}" for name, ratio in self.fastest["ratios"].items())
            ratios = ratios or "no other settings are possible, or worth measuring"
            log.info("client.fast: %s; time relative to the written settings: %s", self.fastest["chosen"], ratios)
        torch.set_num_threads(self.fastest["threads"] or torch.get_num_threads())
        self._make_runner()

    def _make_runner(self) -> None:
        """Creates the runner, with the choice of ``client.fast`` if there is one."""
        module, data = self.module, self.trainer.datamodule.clients  # type: ignore[attr-defined]
        if self.fastest is not None:
            module = with_client_settings(module, module.client.with_changes(fast=None, **self.fastest["settings"]))
        check_clients(module, data)
        self._runner = self.runner(module, data, self.interrupts.check)
        self._runner.state_of = partial(self.clients.read, _STATE)

    def _accept(self, round: ServerRound, shares: Sequence[tuple[list[ClientResult], Any]]) -> list[ClientResult]:
        """Returns the results of all ranks, after accepting or rejecting the held updates."""
        judge = self._acceptance.judge([evidence for _, evidence in shares])
        results = []
        for rank, (share, _) in enumerate(shares):
            for result in share:
                outcome = judge(result)
                # this rank merged its own updates that nothing held; now it merges held updates and passes on other
                # ranks' results, in the same order on every rank
                if outcome is not None or rank != self.ranks.rank:
                    result, update = outcome or (result, None)
                    self._merge(round, result, update)
                results.append(result)
        return results

    def _merge(self, round: ServerRound, result: ClientResult, update: ClientUpdate | None) -> None:
        """Merges an update, if there is one; logs a failure, and passes the result to the callbacks."""
        if update is not None:
            round.aggregation.add(update)
            if update.state is not None:
                self.clients.write(_STATE, result.task.round, result.task.client, update.state)
        if result.reason and self.ranks.rank == 0:
            task = result.task
            log.warning("round %d, client %d: %s (%s)", task.round + 1, task.client, result.status, result.reason)
        call_hook(self.trainer, "on_client_end", result, update)

    def _prepare_clients(self) -> None:
        module = self.module
        data: Any = self.trainer.datamodule  # type: ignore[attr-defined]
        clients = data.clients
        (data if hasattr(data, "move_to") else clients).move_to(self.trainer.strategy.root_device)
        bound = module.faults.norm_bound
        self._acceptance = Acceptance() if bound is None else NormBound(module.supernet, bound)
        if keeps_state(module.objective):
            self.open_clients(_STATE)
        saved_choice, self.fastest = self.fastest, None
        self._make_runner()  # also before a saved choice is applied, because a runner may refuse client.fast
        if saved_choice is not None and module.client.fast is not None:
            log.info("client.fast: %s, chosen in round %d", saved_choice["chosen"], saved_choice["round"] + 1)
            self.fastest = saved_choice
            self._make_runner()
