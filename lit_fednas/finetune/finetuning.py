"""Fine-tuning: federated averaging of each tier's network, or of each named model, on its clients.

Every candidate is a run in its own folder, of a supernet with one architecture. A stopped fine-tuning continues:
finished candidates are read from their last checkpoint, the interrupted one resumes.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from lightning import Trainer
from torch import nn
from typing_extensions import override

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import FixedArchitecture
from lit_fednas.callbacks import RoundCheckpoint, RoundProgress, RunRecorder, WeightAverage
from lit_fednas.errors import ConfigError
from lit_fednas.federation import (
    CohortSampler,
    FederatedCallback,
    FederatedLightningModule,
    FederatedTrainer,
    ServerRound,
)
from lit_fednas.federation.evaluation import pooled, recalibrated
from lit_fednas.federation.lightning_private import call_hook
from lit_fednas.federation.process import Interrupts
from lit_fednas.finetune.candidates import Candidate, FinetuneSettings, candidates_of, eligible_clients, group_clients
from lit_fednas.formatting import rows_text
from lit_fednas.loggers import RunLogger
from lit_fednas.objectives import Objective, TaskLoss
from lit_fednas.records import FinetuneFiles, SearchFiles, read_rounds
from lit_fednas.records.files import locked
from lit_fednas.records.run import choose_metric, error, note_after_training
from lit_fednas.rng import isolated
from lit_fednas.search.command import AfterTraining
from lit_fednas.search.tier_models import load_tier_network, save_tier_model, tier_model
from lit_fednas.supernets import PlainNetwork, Supernet
from lit_fednas.tiers import ArchitectureCosts

log = logging.getLogger(__name__)

#: The name of a candidate's architecture in metrics.
NETWORK = "network"
_NUM_COHORTS = 100  # cohorts that estimate the computation of a round
_RECORDED = ("initial", "tier_aware", "architectures", "in_groups", "search")


class Finetune(AfterTraining):
    """The command ``finetune``."""

    def run(self, ckpt_path: str | None = "last", finetune: FinetuneSettings = FinetuneSettings()) -> FinetuneFiles:
        """Trains each tier's network on the clients of that tier and above, or named models.

        A stopped fine-tuning continues when it is started again.

        Args:
            ckpt_path: The checkpoint of the search or of the models; ``None`` keeps the module's weights.
            finetune: The fine-tuning's settings.

        Returns:
            The fine-tuning's folder.

        Raises:
            CheckpointError: The checkpoint is missing, damaged, or of another supernet.
            ConfigError: The settings cannot work.
        """
        self.require_noise("finetune")
        self.trainer.load(self.model, self.datamodule, ckpt_path)
        self.files = FinetuneFiles(self.folder / finetune.name)
        client_tests: list[dict[str, Any]] = []
        lock = locked(self.files.folder, "finetune.name")
        with lock, self.trainer.computing(self.model), self.interrupts.listening():
            self._set_up(finetune)
            rows = self._train_all()
            if finetune.models is None:
                self.write_clients(self.files)
            else:
                client_tests = self._write_tests([row["tier"] for row in rows])
            self.files.finish(self.written)
        metric = self.metric
        names = ["tier", "arch", "eligible", "rounds", "macs_per_example"]
        print(rows_text(rows, [*names, f"val_{metric}_before", f"val_{metric}", f"test_{metric}"], left=2))
        if (tau := self.files.rank_correlation()) is not None:
            print(f"Kendall's tau of val before and test {metric}, of {len(self.candidates)} networks: {tau:.2f}")
        if client_tests:
            client_metrics = self.datamodule.task.metrics  # clients compute only the task's metrics
            metric = metric if metric in client_metrics else next(iter(client_metrics))
            names = ["arch", "macs_per_example", "clients", "examples", f"{metric}_before", metric]
            print(f"\nOn the clients' own test data:\n{rows_text(client_tests, names)}")
        call_hook(self.trainer, "on_finetune_end", self.files.folder)
        return self.files

    def _set_up(self, settings: FinetuneSettings) -> None:
        self.settings, model, data = settings, self.model, self.datamodule
        self.supernet, population = model.supernet, model.population
        self.seed = model.seed if settings.seed is None else settings.seed
        self.objective = settings.objective or TaskLoss()
        self.client = settings.client or model.client
        self.directions = model.val_metrics.directions
        self.metric, self.higher = choose_metric(settings.metric, self.directions, "finetune.metric")
        self.recalibration = model.recalibration_batches(data.clients)
        if settings.architectures > 1 and data.server_batches("val") is None:
            raise ConfigError(
                f"data.server_val: 0 leaves no examples to choose the best of finetune.architectures "
                f"{settings.architectures}; give the server some, or set finetune.architectures to 1"
            )
        search = SearchFiles(self.folder / settings.search)
        self.candidates = candidates_of(settings, self.supernet, population.tiers, search, self.seed)
        costs = ArchitectureCosts(self.supernet)
        # named models do not belong to the clients' tiers
        self.tier_aware = settings.tier_aware and settings.models is None and bool(population.tiers)
        self.eligible = {
            candidate.folder: eligible_clients(candidate, population, self.tier_aware, costs)
            for candidate in self.candidates
        }
        if settings.in_groups:
            self.eligible = group_clients(self.eligible, data)
        self.macs = self._macs()
        self.rounds = {candidate.folder: self._rounds(candidate) for candidate in self.candidates}
        self.written = self._description()
        self.files.begin(self.written, {"complete"})

    def _macs(self) -> dict[str, float] | None:
        """Returns the multiply-accumulates of each candidate's training; ``None`` without a limit."""
        candidates, macs = self.candidates, self.settings.macs
        if not isinstance(macs, str):
            return None if macs is None else {candidate.folder: float(macs) for candidate in candidates}
        macs_of_archs: Counter[str] = Counter()
        for client in (client for record in read_rounds(self.folder) for client in record["clients"]):
            macs_of_archs[client["arch"]] += client["macs"]
        if not macs_of_archs:
            raise ConfigError(
                f"finetune.macs: {macs!r} needs rounds.jsonl, and {self.folder} has no such file; give a number"
            )
        if macs == "equal":
            return {candidate.folder: macs_of_archs.total() / len(candidates) for candidate in candidates}
        ascending = sorted(candidates, key=lambda candidate: self.supernet.macs(candidate.arch))
        costs, budgets = ArchitectureCosts(self.supernet), {candidate.folder: 0.0 for candidate in candidates}
        for text, count in macs_of_archs.items():
            arch = self.supernet.space.parse(text)
            runners = [candidate for candidate in ascending if costs.affordable(arch, candidate.tier)]
            if runners:
                budgets[runners[0].folder] += count
        return budgets

    def _rounds(self, candidate: Candidate) -> int:
        if self.macs is None:
            return self.settings.rounds
        macs = sum(self.macs[other.folder] for other in self._trained_together(candidate))
        clients, cohort = self.datamodule.clients, self._cohort(self.eligible[candidate.folder])
        sizes, tested = clients.sizes, clients.split_sizes("val") * (self.client.validate is not None)
        cohorts = [client for number in range(_NUM_COHORTS) for client in cohort.draw(number, sizes, self.seed)]
        examples = sum(self.client.examples(int(sizes[client])) + tested[client] for client in cohorts) / _NUM_COHORTS
        if not examples:
            raise ConfigError(
                f"finetune.macs: {macs:g} has no effect, as no client is available to train {candidate.folder}; "
                f"set finetune.cohort"
            )
        return max(1, round(macs / (examples * self.supernet.macs(candidate.arch))))

    def _trained_together(self, candidate: Candidate) -> list[Candidate]:
        """Returns the candidates with the same network and clients; the first is trained, with all budgets."""
        if self.macs is None or self.settings.in_groups:
            return [candidate]
        key = candidate.arch, self.eligible[candidate.folder]
        return [other for other in self.candidates if (other.arch, self.eligible[other.folder]) == key]

    def _cohort(self, eligible: Sequence[int]) -> CohortSampler:
        return (self.settings.cohort or self.model.cohort).among(eligible)

    def _description(self) -> dict[str, Any]:
        """Returns the content of ``settings.json``."""
        settings, candidates = self.settings, self.candidates
        tiers = {candidate.tier.name: candidate.tier for candidate in candidates}.values()
        return {
            "seed": self.seed,
            "rounds": settings.rounds if self.macs is None else None,
            "macs": self.macs if self.macs is None or settings.macs == "split" else next(iter(self.macs.values())),
            **{name: getattr(settings, name) for name in _RECORDED},
            "metric": self.metric,
            "metrics": dict(self.directions),
            "tier_aware": self.tier_aware,
            "models": None if settings.models is None else [str(candidate.arch) for candidate in candidates],
            "supernet": type(self.supernet).__name__,
            "weights": self.supernet.digest() if settings.initial == "supernet" else None,
            "tiers": [tier.plain() for tier in tiers],
            "eligible": {
                candidate.folder if settings.in_groups else candidate.tier.name: len(self.eligible[candidate.folder])
                for candidate in candidates
            },
            "candidates": {candidate.folder: str(candidate.arch) for candidate in candidates},
            "complete": False,
        }

    def _write_tests(self, tiers: Iterable[str]) -> list[dict[str, Any]]:
        """Tests models before and after fine-tuning on the clients' own test splits (FedNAS, section 5.1)."""
        model, data = self.model, self.datamodule
        if not data.clients.split_sizes("test").any():
            return []
        networks = dict(load_tier_network(self.supernet, self.files, tier) for tier in tiers)
        models: list[dict[str, Any]] = []
        clients: list[dict[str, Any]] = []
        for arch in dict.fromkeys([*getattr(self.supernet.space, "rungs", ()), *networks]):
            models.append({"arch": str(arch), "macs_per_example": self.supernet.macs(arch)})
            rows: dict[int, dict[str, Any]] = {}
            untuned = recalibrated(self.supernet.subnet(arch), self.recalibration)
            for suffix, network in {"_before": untuned, **({"": networks[arch]} if arch in networks else {})}.items():
                scores = self.scores_of_clients(arch, network, range(data.clients.num_clients))
                counts = {"clients": len(scores), "examples": sum(score.num_examples for score in scores)}
                models[-1] |= {**counts, **_add_suffix(pooled(scores, model.task), suffix)}
                for score in scores:
                    identity = {"arch": str(arch), "client": score.client, "num_examples": score.num_examples}
                    rows.setdefault(score.client, identity).update(_add_suffix(score.metrics, suffix))
            clients += rows.values()
        self.files.write("models", models)
        self.files.write("models-clients", clients)
        return models

    def _train_all(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        best: dict[str, dict[str, Any]] = {}
        for leader in (candidate for candidate in self.candidates if self._trained_together(candidate)[0] is candidate):
            row, network = self._train(leader)
            for candidate in self._trained_together(leader):
                row = {**row, "tier": candidate.tier.name, "number": candidate.number}
                rows.append(row)
                self.files.write("candidates", rows)
                tier = candidate.tier.name
                # the error is evaluated only for a second candidate: a single one may have no scores
                if tier not in best or self._error(row) < self._error(best[tier]):
                    best[tier] = row
                    self._save_network(candidate, network, row)
                row = row | dict.fromkeys(("rounds", "macs", "bytes_down", "bytes_up"), 0)  # counted for the first tier
        finished = [best[tier] for tier in dict.fromkeys(candidate.tier.name for candidate in self.candidates)]
        self.files.write("tiers", finished)
        costs = {name: sum(row[name] for row in rows) for name in ("macs", "bytes_down", "bytes_up")}
        note_after_training(self.files.folder.parent, self.settings.name, costs)
        return finished

    def _error(self, row: dict[str, Any]) -> float:
        return error(row[f"val_{self.metric}"], self.higher)

    def _train(self, candidate: Candidate) -> tuple[dict[str, Any], PlainNetwork]:
        network = self._initial(candidate)
        val_before = self._score(network, "val")
        eligible, rounds = self.eligible[candidate.folder], self.rounds[candidate.folder]
        origin = "from the supernet's weights" if self.settings.initial == "supernet" else "from scratch"
        clients = f"{len(eligible)} of {self.model.population.num_clients} clients"
        log.info("%s: %s, %s, %s, %d rounds", candidate.folder, candidate.arch, origin, clients, rounds)
        folder = self.files.folder / "runs" / candidate.folder
        self._fit(network, candidate, folder)
        val_after = self._score(network, "val")
        client_records = [client for record in read_rounds(folder) for client in record["clients"]]
        cost = network.cost("whole")
        row = {
            "tier": candidate.tier.name,
            "number": candidate.number,
            "arch": str(candidate.arch),
            "eligible": len(eligible),
            "rounds": rounds,
            **{f"{name}_before": value for name, value in val_before.items()},
            **val_after,
            **{name: sum(client[name] for client in client_records) for name in ("macs", "bytes_down", "bytes_up")},
            **self._score(network, "test"),
            "macs_per_example": cost.macs,
            "parameters": cost.parameters,
            "bytes": cost.bytes,
        }
        return row, network

    def _fit(self, network: PlainNetwork, candidate: Candidate, folder: Path) -> None:
        """Trains a network in place on its clients; resumes the run in the folder."""
        cohort = self._cohort(self.eligible[candidate.folder])
        settings = {"client": self.client, "cohort": cohort, "metrics": self.model.metrics}
        module = averaging(self.model, network, self.objective, seed=self.seed, **settings)
        last = folder / "checkpoints" / "last.ckpt"
        self._trainer(candidate, folder).fit(module, self.datamodule, ckpt_path=str(last) if last.exists() else None)
        network.to(next(self.supernet.parameters()).device)  # Lightning moves it to the CPU

    def _trainer(self, candidate: Candidate, folder: Path) -> FederatedTrainer:
        self.interrupts.check()
        device = self.trainer.strategy.root_device
        averages = [WeightAverage(rule.decay) for rule in self.trainer.callbacks if isinstance(rule, WeightAverage)]
        trainer = FederatedTrainer(
            max_rounds=self.rounds[candidate.folder],
            check_val_every_n_rounds=self.settings.check_val_every_n_rounds,
            threads=self.trainer.threads,
            accelerator=device.type,
            devices=1 if device.index is None else [device.index],
            logger=RunLogger(str(folder.parent.parent), folder.parent.name, folder.name),
            callbacks=[*averages, RunRecorder(), RoundCheckpoint(), _StopOnSignal(self.interrupts), RoundProgress()],
            enable_model_summary=False,
            enable_progress_bar=self.trainer.progress_bar_callback is not None,
        )
        trainer.fit_loop.runner = self.trainer.fit_loop.runner
        return trainer

    def _initial(self, candidate: Candidate) -> PlainNetwork:
        """Returns the candidate's network as a supernet of one architecture, with its first weights."""
        if self.settings.initial == "supernet":
            network = self.supernet.subnet(candidate.arch)
        else:
            with isolated(self.seed, f"finetune-weights-{candidate.folder}"):
                network = self.supernet.build(candidate.arch)
                self.supernet.initialise(network)
        device = next(self.supernet.parameters()).device
        return alone(self.supernet, network.to(device))

    def _score(self, network: PlainNetwork, split: Literal["val", "test"]) -> dict[str, float | None]:
        """Returns ``<split>_<metric>`` for every metric; ``None`` for a split without data."""
        batches = self.datamodule.server_batches(split)
        if batches is None:
            return {f"{split}_{name}": None for name in self.directions}
        metrics = self.evaluator(batches, self.recalibration, network)("whole")
        return {f"{split}_{name}": value for name, value in metrics.items()}

    def _save_network(self, candidate: Candidate, network: PlainNetwork, row: dict[str, Any]) -> None:
        model = tier_model(
            self.supernet,
            candidate.tier.name,
            candidate.arch,
            recalibrated=bool(self.recalibration),
            costs={"macs": float(self.supernet.macs(candidate.arch))},
            metrics={f"val_{name}": row[f"val_{name}"] for name in self.directions if row[f"val_{name}"] is not None},
            finetuned=True,
        )
        save_tier_model(self.files, model, recalibrated(network.subnet("whole"), self.recalibration))


def alone(supernet: Supernet, network: nn.Module) -> PlainNetwork:
    """Returns a network as a supernet with one architecture."""
    return PlainNetwork(network, supernet.input_shape, supernet.num_classes, supernet.input_dtype)


def averaging(
    model: FederatedLightningModule, network: PlainNetwork, objective: Objective, **settings: Any
) -> FederatedLightningModule:
    """Returns federated averaging of one network with the model's transport, server optimizer and faults."""
    return FederatedLightningModule(
        network,
        FixedArchitecture(),
        OverlapAverage(),
        objective=objective,
        faults=replace(model.faults, straggler_rate=0.0),
        evaluation=replace(model.evaluation, subnets=[f"{NETWORK} = whole"], sampled=0),
        transport=model.transport,
        server_optimizer=model.server_optimizer,
        **settings,
    )


class _StopOnSignal(FederatedCallback):
    """Stops a candidate's training after a signal that arrived before its loop could listen."""

    def __init__(self, interrupts: Interrupts) -> None:
        self.interrupts = interrupts

    @override
    def on_cohort_start(self, trainer: Trainer, module: FederatedLightningModule, round: ServerRound) -> None:
        self.interrupts.check()


def _add_suffix(metrics: Mapping[str, float], suffix: str) -> dict[str, float]:
    return {f"{name}{suffix}": value for name, value in metrics.items()}
