"""The command ``search``: the best architecture of every device tier, after training."""

import logging
from collections.abc import Iterable, Sequence
from contextlib import closing, nullcontext
from pathlib import Path
from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.assignment.pools import Pool, spread
from lit_fednas.data import FederatedDataModule
from lit_fednas.data.examples import EvalBatches
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.federation import FederatedLightningModule, FederatedTrainer
from lit_fednas.federation.evaluation import ClientScore
from lit_fednas.federation.lightning_private import call_hook, launched
from lit_fednas.federation.process import Interrupts
from lit_fednas.formatting import Progress, cost_text, metric_text, rows_text
from lit_fednas.records import SearchFiles, TierFiles
from lit_fednas.records.files import locked
from lit_fednas.records.folder import run_folder
from lit_fednas.records.run import note_after_training, write_client_scores
from lit_fednas.records.tiers import flat_front
from lit_fednas.search.evaluations import Scorer
from lit_fednas.search.evaluator import ClientDraw, Evaluator, FederatedEvaluator
from lit_fednas.search.tier_models import load_tier_network, scores_of_clients
from lit_fednas.search.tier_search import SearchSettings, TierSearch
from lit_fednas.supernets import Supernet
from lit_fednas.tiers import ArchitectureCosts

log = logging.getLogger(__name__)

_POOL_SIZE = 8  # architectures of the clients' pool at the start of a search


class AfterTraining:
    """A command that uses a trained supernet; ``folder`` is the run's, by default that of the first logger."""

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

    def check(self, **options: Any) -> None:
        """Validates the command before training, with the present weights."""
        self.trainer.load(self.model, self.datamodule, None)

    def evaluator(
        self, batches: EvalBatches | None, recalibration: Sequence[Tensor], supernet: Supernet | None = None
    ) -> Evaluator:
        """Returns an evaluator for architectures of ``supernet`` (the model's if not given) on the batches."""
        model = self.model
        parts = model.evaluation, recalibration, self.datamodule.task, model.metrics
        return Evaluator(supernet or model.supernet, batches or [], *parts)

    def require_noise(self, field: str) -> None:
        """Refuses to use clients' data without noise after a training that adds noise."""
        if any(getattr(callback, "field", None) == "privacy" for callback in self.trainer.callbacks):
            raise ConfigError(f"{field}: uses clients' data without noise; leave it out, or set --privacy null")

    def write_clients(self, files: TierFiles) -> None:
        """Writes ``clients.csv``: each client's metrics of its tier's network (FedorAS, section 4.4)."""
        population, rows = self.model.population, []
        for tier in population.tiers:
            if tier.name not in files.tier_names:
                continue
            arch, network = load_tier_network(self.model.supernet, files, tier.name)
            scores = self.scores_of_clients(arch, network, population.members(tier.name))
            rows += [{**score.row(), "tier": tier.name} for score in scores]
        if rows:
            write_client_scores(files.folder, sorted(rows, key=lambda row: row["client"]))

    def scores_of_clients(self, arch: Any, network: nn.Module, clients: Iterable[int]) -> list[ClientScore]:
        """Returns the metrics of a network for single clients, on their own test examples."""
        return scores_of_clients(self.model, self.datamodule, network, clients)


class Search(AfterTraining):
    """The command ``search``: on validation data of the server, the clients (``search.federated``) or one client."""

    def run(self, ckpt_path: str | None = "last", search: SearchSettings = SearchSettings()) -> SearchFiles:
        """Finds the best architecture of every tier, tests it, and writes its network.

        A stopped search continues when it is started again. The trainer's processes (``trainer.devices``) share the
        evaluations; their number does not change the result.

        Args:
            ckpt_path: A checkpoint of the weights; ``None`` keeps the module's weights.
            search: The search's settings.

        Returns:
            The search's folder.

        Raises:
            CheckpointError: The checkpoint is missing, damaged, or of another supernet.
            ConfigError: The settings cannot work.
        """
        for name in ("federated", "client"):
            if getattr(search, name) is not None:
                self.require_noise(f"search.{name}")
        if search.federated is not None and self.trainer.world_size > 1:
            raise ConfigError(f"trainer.devices: {self.trainer.world_size} is too many for search.federated; use 1")
        return launched(self.trainer, lambda: self._run(ckpt_path, search))

    def _run(self, ckpt_path: str | None, search: SearchSettings) -> SearchFiles:
        self.trainer.load(self.model, self.datamodule, ckpt_path)
        files = SearchFiles(self.folder / search.name)
        progress = SearchProgress(search, search.metric or self.datamodule.task.metric)

        def watch(*figures: Any) -> None:
            if self.trainer.progress_bar_callback is not None:
                progress(*figures)
            self.interrupts.check()

        lock = nullcontext() if self.trainer.global_rank else locked(files.folder, files.name_field)
        # only the first rank handles signals
        with lock, self.trainer.computing(self.model), self.interrupts.listening():
            evaluator = self._evaluator(search)
            latency = None if self.trainer.global_rank else search.latency  # only the first process measures
            costs = ArchitectureCosts(evaluator.supernet, latency)
            scorer = Scorer(evaluator, costs, self.trainer.ranks)
            if self.trainer.global_rank:
                scorer.serve()
                return files
            population = self.model.population
            tiers = population.tiers
            if tiers and search.client is not None:
                tiers = (population.tier(search.client),)
            subnets = [*self.model.subnets.values(), *(self._pool(costs) if search.evaluations else ())]
            with closing(progress), closing(scorer):
                parts = evaluator, files, self.model.seed, str(ckpt_path or ""), tiers, watch, subnets, scorer
                run = TierSearch(search, *parts)
                if search.evaluations:
                    run.run()
            rows = run.write_tiers(self._tester(evaluator)) if search.evaluations else run.write_plan()
            if search.client is None and search.evaluations:
                self.write_clients(files)
            files.finish(run.written)
        if "communication" in run.written:
            note_after_training(self.folder, search.name, run.written["communication"])
        print(format_tiers(rows, run.written["tiers"], run.metric))
        if remark := flat_front(run.written, rows):
            print(f"\n{remark}")
        call_hook(self.trainer, "on_search_end", files.folder)
        return files

    def _pool(self, costs: ArchitectureCosts) -> list[Any]:
        """Returns a few architectures of the clients' pool, spread over its costs."""
        pool, cost = self.model.assignment.pool, getattr(self.model.assignment, "cost", "macs")
        try:
            return spread(pool.architectures(costs, cost), costs, cost, _POOL_SIZE) if isinstance(pool, Pool) else []
        except DataError as error:  # the file of a pool is not in the run's folder
            log.warning("search: starts without the pool (%s)", error)
            return []

    @override
    def check(self, search: SearchSettings = SearchSettings(), **options: Any) -> None:
        super().check()
        files, tiers = SearchFiles(self.folder / search.name), self.model.population.tiers
        evaluator = self._evaluator(search)
        if not self.model.supernet.structure():  # else the space changes in training
            TierSearch(search, evaluator, files, self.model.seed, "", tiers)

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
        if not search.evaluations:  # the server's data, if any, are for proxies
            return self.evaluator(self.datamodule.server_batches("val"), recalibration)
        if search.federated is not None:
            cohort = model.cohort.size(clients.num_clients)
            draw = ClientDraw(clients, model.population, cohort, search.federated, seed)
            return self.federated(draw, recalibration)
        if search.client is None:
            batches = self.datamodule.server_batches("val")
            if batches is None:
                raise ConfigError(
                    "data.server_val: 0 leaves no examples to search on; raise it, or set search.federated"
                )
        else:
            rows = clients.rows(0, "val")
            if not len(rows):
                raise ConfigError(
                    f"data.client_val: {self.datamodule.client_val} leaves client {search.client} no examples to "
                    f"search on; set it to 0.1, for instance, or leave search.client out"
                )
            batches = EvalBatches(clients.reader, rows, self.datamodule.eval_batch_size)
        return self.evaluator(batches.part(search.val_share), recalibration)

    def federated(self, draw: ClientDraw, recalibration: Sequence[Tensor]) -> FederatedEvaluator:
        """Returns an evaluator on the clients' own data."""
        model, size = self.model, self.datamodule.eval_batch_size
        return FederatedEvaluator(model.supernet, draw, model.evaluation, recalibration, size)

    def _tester(self, val_evaluator: Evaluator) -> Evaluator | None:
        """Returns an evaluator on the test data with equal settings; ``None`` for a source without test data."""
        if (batches := self.datamodule.server_batches("test")) is None:
            log.warning("no test: %s has no test split", type(self.datamodule.source).__name__)
            return None
        return self.evaluator(batches, val_evaluator.recalibration)


class SearchProgress:
    """A progress bar of evaluations with the best metric and the hypervolume of each tier."""

    def __init__(self, settings: SearchSettings, metric: str) -> None:
        self.evaluations, self.metric = settings.evaluations_of, metric
        self._tier = ""
        self._bar: Progress | None = None

    def __call__(self, tier: str, evaluations: int, best: float, hypervolume: float | None) -> None:
        """Shows one more evaluation."""
        if self._bar is None or tier != self._tier:
            self.close()
            self._tier = tier
            self._bar = Progress("evaluation", self.evaluations(tier), evaluations - 1, tier)
        figures = {"best": metric_text(self.metric, best, "%")}
        figures |= {} if hypervolume is None else {"hypervolume": f"{hypervolume:.4f}"}
        self._bar.show(evaluations, figures)

    def close(self) -> None:
        """Ends the tier's bar."""
        if self._bar is not None:
            self._bar.close()


def format_tiers(rows: Sequence[dict[str, Any]], limits: Sequence[dict[str, Any]], metric: str = "accuracy") -> str:
    """Returns the rows of tiers as aligned text."""
    limit_texts = {
        tier["name"]: ", ".join(f"{name} {cost_text(name, limit)}" for name, limit in tier["at_most"].items())
        for tier in limits
    }
    names = ["tier", "arch", "limit", "macs", "parameters", "bytes", f"val_{metric}", f"test_{metric}"]
    return rows_text([{**row, "limit": limit_texts.get(row["tier"], "")} for row in rows], names, left=3)
