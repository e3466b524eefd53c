"""The command ``search``: the best architecture of every device tier, after training."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

from torch import Tensor
from tqdm.auto import tqdm

from lit_fednas.data import ClientData, FederatedDataModule
from lit_fednas.data.readers import EvalBatches
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.interrupts import Interrupts
from lit_fednas.federation.lightning_private import call_hook
from lit_fednas.federation.trainer import run_folder
from lit_fednas.formatting import cost_text, draws_bars, text_table
from lit_fednas.records import SearchFiles, note_after_training
from lit_fednas.search.evaluations import Processes, Scorer
from lit_fednas.search.evaluator import Evaluator, share_of
from lit_fednas.search.federated import ClientDraw, FederatedEvaluator
from lit_fednas.search.tier_models import write_clients
from lit_fednas.search.tier_search import Progress, SearchSettings, TierSearch, race_of
from lit_fednas.tiers import ArchitectureCosts

log = logging.getLogger(__name__)

_REFRESH_SECONDS = 10.0  # at least, between lines without a terminal


class AfterTraining:
    """A command that uses a trained supernet.

    Args:
        trainer: Its device, threads, loggers and callbacks are used.
        model: The server's module.
        datamodule: The data.
        folder: The run's folder; by default the first logger's.
    """

    def __init__(
        self,
        trainer: FederatedTrainer,
        model: FederatedLightningModule,
        datamodule: FederatedDataModule,
        folder: Path | str | None = None,
    ) -> None:
        self.trainer = trainer
        self.model = model
        self.datamodule = datamodule
        self.folder = Path(folder or run_folder(trainer))
        self.interrupts = Interrupts()


class Search(AfterTraining):
    """The command ``search``.

    It searches on the server's validation data, the clients' if ``search.federated`` is set, or one client's if
    ``search.client`` is.
    """

    def run(self, ckpt_path: str | None = "last", search: SearchSettings = SearchSettings()) -> SearchFiles:
        """Finds the best architecture of every tier, tests it, and writes its network.

        A search that was stopped goes on where it was when it is started again. The trainer's processes
        (``trainer.devices``) share the evaluations, and find what one finds.

        Args:
            ckpt_path: A checkpoint of the weights; ``None`` for the module as it is.
            search: The search's settings.

        Returns:
            The search's folder.

        Raises:
            CheckpointError: The checkpoint is missing, damaged, or of another supernet.
            ConfigError: The settings cannot work.
        """
        if search.federated is not None and self.trainer.world_size > 1:
            raise ConfigError(
                f"trainer.devices: clients score in one process (search.federated), not in {self.trainer.world_size}; "
                f"set it to 1"
            )
        return self.trainer.in_ranks(lambda: self._run(ckpt_path, search))

    def _run(self, ckpt_path: str | None, search: SearchSettings) -> SearchFiles:
        self.trainer.load(self.model, self.datamodule, ckpt_path)
        files = SearchFiles(self.folder / search.name)
        if self.trainer.global_rank:
            self._serve(search)
            return files
        progress = SearchProgress(search.evaluations)

        def watch(done: Progress) -> None:
            if self.trainer.progress_bar_callback is not None:
                progress(done)
            self.interrupts.check()

        with self.trainer.computing(self.model), self.interrupts.listening():
            evaluator = self._evaluator(search)
            population = self.model.population
            own = None if search.client is None else population.tier(search.client)
            tiers = population.tiers if own is None else (own,)
            subnets = self.model.subnets.values()
            processes = Processes(self.trainer.ranks)
            try:
                parts = evaluator, files, self.model.seed, str(ckpt_path or ""), tiers, watch, subnets, processes
                run = TierSearch(search, *parts)
                run.run()
            finally:
                progress.close()
                processes.close()
            rows = run.write_tiers(self._tester(evaluator))
            if search.client is None:
                write_clients(self.model, self.datamodule, files)
        files.write_settings({**run.written, "complete": True})
        if "communication" in run.written:
            note_after_training(self.folder, search.name, run.written["communication"])
        print(format_tiers(rows, run.written["tiers"], run.metric))
        call_hook(self.trainer, "on_search_end", files.folder)
        return files

    def _serve(self, search: SearchSettings) -> None:
        """Scores what the first process sends."""
        with self.trainer.computing(self.model), self.interrupts.listening():  # signals are for the first to heed
            evaluator, costs = self._evaluator(search), ArchitectureCosts(self.model.supernet)
            race = race_of(search, evaluator, self.model.seed)
            Scorer(evaluator, costs, race, Processes(self.trainer.ranks)).serve()

    def _evaluator(self, search: SearchSettings) -> Evaluator:
        model, clients = self.model, self.datamodule.clients
        if search.client is not None:
            if search.client >= clients.num_clients:
                raise ConfigError(
                    f"search.client: {search.client} is not one of the {clients.num_clients} clients; count from 0"
                )
            clients = clients.only(search.client)
        seed = model.seed if search.seed is None else search.seed
        recalibration = model.recalibration_batches(clients)
        if search.federated is not None:
            cohort = model.cohort.size(clients.num_clients)
            draw = ClientDraw(clients, model.population, cohort, search.federated, seed)
            return self.federated(draw, recalibration)
        batches = self._batches() if search.client is None else self._batches_of(search.client, clients)
        share = share_of(batches, search.validation_share, seed)
        return Evaluator(model.supernet, share, model.evaluation, recalibration, clients.task, model.metrics)

    def federated(self, draw: ClientDraw, recalibration: Sequence[Tensor]) -> FederatedEvaluator:
        """Returns what scores architectures by the clients' own data.

        Args:
            draw: Which clients are asked.
            recalibration: Batches of training data to gather batch-norm statistics on.
        """
        model = self.model
        size = self.datamodule.eval_batch_size
        return FederatedEvaluator(model.supernet, draw, model.evaluation, recalibration, size)

    def _batches(self) -> EvalBatches:
        """Returns the server's validation data."""
        batches = self.datamodule.val_dataloader()
        if not isinstance(batches, EvalBatches):
            raise ConfigError(
                "data.server_val: 0 leaves nothing to search on; give some examples to the server, or set "
                "search.federated"
            )
        return batches

    def _batches_of(self, client: int, own: ClientData) -> EvalBatches:
        """Returns the validation data of a client, of which ``own`` is all that it has."""
        rows = own.rows(0, "val")
        if not len(rows):
            raise ConfigError(
                f"data.client_val: {self.datamodule.client_val} leaves client {client} nothing to search on; set it "
                f"to 0.1, for instance, or leave search.client out"
            )
        return EvalBatches(own.reader, rows, self.datamodule.eval_batch_size)

    def _tester(self, like: Evaluator) -> Evaluator | None:
        """Returns what evaluates on the test data as on the validation data; ``None`` if the source has none."""
        try:
            batches = self.datamodule.test_dataloader()
        except DataError as error:
            log.warning("no test: %s", error)
            return None
        model, task = self.model, self.datamodule.task
        # clients that score know the task's metrics alone
        added = {name: metric for name, metric in model.metrics.items() if name in like.directions}
        return Evaluator(model.supernet, batches, model.evaluation, like.recalibration, task, added)


class SearchProgress:
    """Shows a bar per tier, or plain lines without a terminal: evaluations, best metric and hypervolume.

    Args:
        evaluations: Per tier.
    """

    def __init__(self, evaluations: int) -> None:
        self.evaluations = evaluations
        self._tier: str | None = None
        self._bar: Any = None
        self._last: Progress | None = None
        self._printed = perf_counter()

    def __call__(self, progress: Progress) -> None:
        """Shows that one more architecture is scored."""
        if progress.tier != self._tier:
            self.close()
            self._tier = progress.tier
            if draws_bars():
                self._bar = tqdm(total=self.evaluations, desc=progress.tier, unit="evaluation")
        self._last = progress
        if self._bar is not None:
            self._bar.set_postfix(_figures(progress), refresh=False)
            self._bar.update(progress.evaluations - self._bar.n)
        elif perf_counter() - self._printed >= _REFRESH_SECONDS:
            self._print(progress)

    def close(self) -> None:
        """Ends the tier's bar, or prints its last line."""
        if self._bar is not None:
            self._bar.close()
        elif self._last is not None:
            self._print(self._last)
        self._bar = self._last = None

    def _print(self, progress: Progress) -> None:
        figures = "  ".join(f"{name} {value}" for name, value in _figures(progress).items())
        line = f"{progress.tier}: {progress.evaluations}/{self.evaluations} evaluations  {figures}"
        print(line, file=sys.stderr, flush=True)
        self._printed = perf_counter()
        self._last = None


def _figures(progress: Progress) -> dict[str, str]:
    volume = {} if progress.hypervolume is None else {"hypervolume": f"{progress.hypervolume:.4f}"}
    return {"best": f"{progress.best:.4f}", **volume}


def format_tiers(rows: Sequence[dict[str, Any]], limits: Sequence[dict[str, Any]], metric: str = "accuracy") -> str:
    """Returns the tiers as aligned text."""
    allowed = {tier["name"]: tier["at_most"] for tier in limits}
    head = ["tier", "architecture", "limit", "MACs", "parameters", "bytes", f"val {metric}", f"test {metric}"]
    body = [
        [
            row["tier"],
            row["arch"],
            ", ".join(f"{name} {cost_text(name, limit)}" for name, limit in allowed[row["tier"]].items()),
            *(cost_text(name, row[name]) for name in ("macs", "parameters", "bytes")),
            f"{row[f'val_{metric}']:.4f}",
            "" if row.get(f"test_{metric}") is None else f"{row[f'test_{metric}']:.4f}",
        ]
        for row in rows
    ]
    return text_table(head, body, left=3)
