"""Fine-tuning: each tier's network, or each named model, is trained by federated averaging on its clients.

Every candidate is a run of its own, of a supernet with one architecture, in its own folder. So a stopped fine-tuning
continues: finished candidates are read from their last checkpoint, the interrupted one resumes.
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
from lit_fednas.finetune.candidates import Candidate, FinetuneSettings, candidates_of, eligible_clients, grouped
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
_COHORTS = 100  # drawn to estimate the computation of a round
_WRITTEN = ("initial", "tier_aware", "architectures", "in_groups", "search")


class Finetune(AfterTraining):
    """The command ``finetune``."""

    def run(self, ckpt_path: str | None = "last", finetune: FinetuneSettings = FinetuneSettings()) -> FinetuneFiles:
        """Trains each tier's network federatedly on the clients of that tier and above, or models that are named.

        A fine-tuning that was stopped continues when it is started again.

        Args:
            ckpt_path: The checkpoint that was searched, or holds the models; ``None`` for the module as it is.
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
        tested: list[dict[str, Any]] = []
        lock = locked(self.files.folder, "finetune.name")
        with lock, self.trainer.computing(self.model), self.interrupts.listening():
            self._set_up(finetune)
            rows = self._train_all()
            if finetune.models is None:
                self.write_clients(self.files)
            else:
                tested = self._write_tests([row["tier"] for row in rows])
            self.files.finish(self.written)
        metric = self.metric
        names = ["tier", "arch", "eligible", "rounds", "macs_per_example"]
        print(rows_text(rows, [*names, f"val_{metric}_before", f"val_{metric}", f"test_{metric}"], left=2))
        if (tau := self.files.rank_correlation()) is not None:
            print(f"Kendall's tau of val before and test {metric}, of {len(self.candidates)} networks: {tau:.2f}")
        if tested:
            known = self.datamodule.task.metrics  # clients have no others
            metric = metric if metric in known else next(iter(known))
            names = ["arch", "macs_per_example", "clients", "examples", f"{metric}_before", metric]
            print(f"\nOn the clients' own test data:\n{rows_text(tested, names)}")
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
                f"data.server_val: 0 leaves nothing to choose the best of finetune.architectures "
                f"{settings.architectures} by; give the server some examples, or set finetune.architectures to 1"
            )
        search = SearchFiles(self.folder / settings.search)
        self.candidates = candidates_of(settings, self.supernet, population.tiers, search, self.seed)
        costs = ArchitectureCosts(self.supernet)
        # named models are not of clients' tiers, and without tiers all clients are alike
        self.tier_aware = settings.tier_aware and settings.models is None and bool(population.tiers)
        self.eligible = {
            candidate.folder: eligible_clients(candidate, population, self.tier_aware, costs)
            for candidate in self.candidates
        }
        if settings.in_groups:
            self.eligible = grouped(self.eligible, data)
        self.macs = self._macs()
        self.rounds = {candidate.folder: self._rounds(candidate) for candidate in self.candidates}
        self.written = self._description()
        self.files.begin(self.written, {"complete"})

    def _macs(self) -> dict[str, float] | None:
        """Returns the multiply-accumulates of each candidate's training; ``None`` where they are not limited."""
        candidates, macs = self.candidates, self.settings.macs
        if not isinstance(macs, str):
            return None if macs is None else {candidate.folder: float(macs) for candidate in candidates}
        spent: Counter[str] = Counter()  # by architecture
        for client in (client for record in read_rounds(self.folder) for client in record["clients"]):
            spent[client["arch"]] += client["macs"]
        if not spent:
            raise ConfigError(
                f"finetune.macs: {macs!r} needs rounds.jsonl, which is not in {self.folder}; give a number"
            )
        if macs == "equal":
            return {candidate.folder: spent.total() / len(candidates) for candidate in candidates}
        ascending = sorted(candidates, key=lambda candidate: self.supernet.macs(candidate.arch))
        costs, split = ArchitectureCosts(self.supernet), {candidate.folder: 0.0 for candidate in candidates}
        for text, count in spent.items():
            arch = self.supernet.space.parse(text)
            fitting = [each for each in ascending if costs.affordable(arch, each.tier)]
            if fitting:
                split[fitting[0].folder] += count
        return split

    def _rounds(self, candidate: Candidate) -> int:
        """Returns the number of a candidate's rounds."""
        if self.macs is None:
            return self.settings.rounds
        macs = sum(self.macs[other.folder] for other in self._alike(candidate))
        clients, cohort = self.datamodule.clients, self._cohort(self.eligible[candidate.folder])
        sizes, tested = clients.sizes, clients.split_sizes("val") * (self.client.validate is not None)
        drawn = [client for number in range(_COHORTS) for client in cohort.draw(number, sizes, self.seed)]
        examples = sum(self.client.examples(int(sizes[client])) + tested[client] for client in drawn) / _COHORTS
        if not examples:
            raise ConfigError(
                f"finetune.macs: {macs:g} cannot be spent, as no client is available to train {candidate.folder}; "
                f"set finetune.cohort"
            )
        return max(1, round(macs / (examples * self.supernet.macs(candidate.arch))))

    def _alike(self, candidate: Candidate) -> list[Candidate]:
        """Returns the candidates with one network and one budget each: the first is trained, within all of them."""
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
            **{name: getattr(settings, name) for name in _WRITTEN},
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
        tuned = dict(load_tier_network(self.supernet, self.files, tier) for tier in tiers)
        models: list[dict[str, Any]] = []
        clients: list[dict[str, Any]] = []
        for arch in dict.fromkeys([*getattr(self.supernet.space, "rungs", ()), *tuned]):
            models.append({"arch": str(arch), "macs_per_example": self.supernet.macs(arch)})
            rows: dict[int, dict[str, Any]] = {}
            before = recalibrated(self.supernet.subnet(arch), self.recalibration)
            for suffix, network in {"_before": before, **({"": tuned[arch]} if arch in tuned else {})}.items():
                scores = self.scores_of_clients(arch, network, range(data.clients.num_clients))
                counts = {"clients": len(scores), "examples": sum(score.num_examples for score in scores)}
                models[-1] |= {**counts, **_suffixed(pooled(scores, model.task), suffix)}
                for score in scores:
                    counted = {"arch": str(arch), "client": score.client, "num_examples": score.num_examples}
                    rows.setdefault(score.client, counted).update(_suffixed(score.metrics, suffix))
            clients += rows.values()
        self.files.write("models", models)
        self.files.write("models-clients", clients)
        return models

    def _train_all(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        best: dict[str, dict[str, Any]] = {}
        for first in (each for each in self.candidates if self._alike(each)[0] is each):
            row, network = self._train(first)
            for candidate in self._alike(first):
                row = {**row, "tier": candidate.tier.name, "number": candidate.number}
                rows.append(row)
                self.files.write("candidates", rows)
                tier = candidate.tier.name
                if tier not in best or self._error(row) < self._error(best[tier]):  # several have scores
                    best[tier] = row
                    self._keep(candidate, network, row)
                row = row | dict.fromkeys(("rounds", "macs", "bytes_down", "bytes_up"), 0)  # are the first one's
        finished = [best[tier] for tier in dict.fromkeys(candidate.tier.name for candidate in self.candidates)]
        self.files.write("tiers", finished)
        costs = {name: sum(row[name] for row in rows) for name in ("macs", "bytes_down", "bytes_up")}
        note_after_training(self.files.folder.parent, self.settings.name, costs)
        return finished

    def _error(self, row: dict[str, Any]) -> float:
        return error(row[f"val_{self.metric}"], self.higher)

    def _train(self, candidate: Candidate) -> tuple[dict[str, Any], PlainNetwork]:
        network = self._initial(candidate)
        before = self._score(network, "val")
        eligible, rounds = self.eligible[candidate.folder], self.rounds[candidate.folder]
        origin = "from the supernet's weights" if self.settings.initial == "supernet" else "from scratch"
        clients = f"{len(eligible)} of {self.model.population.num_clients} clients"
        log.info("%s: %s, %s, %s, %d rounds", candidate.folder, candidate.arch, origin, clients, rounds)
        folder = self.files.folder / "runs" / candidate.folder
        self._fit(network, candidate, folder)
        after = self._score(network, "val")
        parts = [part for record in read_rounds(folder) for part in record["clients"]]
        cost = network.cost("whole")
        row = {
            "tier": candidate.tier.name,
            "number": candidate.number,
            "arch": str(candidate.arch),
            "eligible": len(eligible),
            "rounds": rounds,
            **{f"{name}_before": value for name, value in before.items()},
            **after,
            **{name: sum(part[name] for part in parts) for name in ("macs", "bytes_down", "bytes_up")},
            **self._score(network, "test"),
            "macs_per_example": cost.macs,
            "parameters": cost.parameters,
            "bytes": cost.bytes,
        }
        return row, network

    def _fit(self, network: PlainNetwork, candidate: Candidate, folder: Path) -> None:
        """Trains a network in place on some of the clients; resumes the folder's run, if there is one."""
        cohort = self._cohort(self.eligible[candidate.folder])
        settings = {"client": self.client, "cohort": cohort, "metrics": self.model.metrics}
        module = averaging(self.model, network, self.objective, seed=self.seed, **settings)
        last = folder / "checkpoints" / "last.ckpt"
        self._trainer(candidate, folder).fit(module, self.datamodule, ckpt_path=str(last) if last.exists() else None)
        network.to(next(self.supernet.parameters()).device)  # Lightning leaves it on the CPU

    def _trainer(self, candidate: Candidate, folder: Path) -> FederatedTrainer:
        """Returns the trainer of one candidate, which writes into the folder."""
        self.interrupts.check()
        device = self.trainer.strategy.root_device
        averages = [WeightAverage(own.decay) for own in self.trainer.callbacks if isinstance(own, WeightAverage)]
        trainer = FederatedTrainer(
            max_rounds=self.rounds[candidate.folder],
            check_val_every_n_rounds=self.settings.check_val_every_n_rounds,
            threads=self.trainer.threads,
            accelerator=device.type,
            devices=1 if device.index is None else [device.index],
            logger=RunLogger(str(folder.parent.parent), folder.parent.name, folder.name),
            callbacks=[*averages, RunRecorder(), RoundCheckpoint(), _Stop(self.interrupts), RoundProgress()],
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
        """Returns ``<split>_<metric>`` for every metric; ``None`` where there are no such data."""
        batches = self.datamodule.server_batches(split)
        if batches is None:
            return {f"{split}_{name}": None for name in self.directions}
        metrics = self.evaluator(batches, self.recalibration, network)("whole")
        return {f"{split}_{name}": value for name, value in metrics.items()}

    def _keep(self, candidate: Candidate, network: PlainNetwork, row: dict[str, Any]) -> None:
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
    """Returns the network of one architecture as a supernet of its own."""
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


class _Stop(FederatedCallback):
    """Stops a candidate's training for a signal that came before its own loop listened."""

    def __init__(self, interrupts: Interrupts) -> None:
        self.interrupts = interrupts

    @override
    def on_cohort_start(self, trainer: Trainer, module: FederatedLightningModule, round: ServerRound) -> None:
        self.interrupts.check()


def _suffixed(metrics: Mapping[str, float], suffix: str) -> dict[str, float]:
    return {f"{name}{suffix}": value for name, value in metrics.items()}
