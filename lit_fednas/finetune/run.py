"""Fine-tuning: each tier's network, or each named model, is trained by federated averaging on its clients.

Every candidate is a federated run of its own, of a supernet with one architecture, in a folder of its own. So what
was stopped goes on where it was: finished candidates are read back from their last checkpoint, the one that was
under way resumes, the others follow.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import FixedArchitecture
from lit_fednas.data import FederatedDataModule
from lit_fednas.errors import ConfigError
from lit_fednas.federation import EvaluationSettings, FederatedLightningModule, FederatedTrainer
from lit_fednas.finetune.groups import dealt
from lit_fednas.finetune.models import named_architectures, own_tiers
from lit_fednas.finetune.settings import FinetuneSettings
from lit_fednas.objectives import CrossEntropy, HeadOnly, Objective
from lit_fednas.records import FinetuneFiles, SearchFiles, TierModel, note_after_training, read_rounds
from lit_fednas.rng import isolated, numpy_generator
from lit_fednas.search import Evaluator, Feasible
from lit_fednas.search.tier_models import save_tier_model
from lit_fednas.supernets import OWN, PlainNetwork, Supernet, labelled_space, labels_of, with_labels
from lit_fednas.tiers import ArchitectureCosts, Tier

log = logging.getLogger(__name__)

#: What the one architecture of a candidate is called in metrics.
NETWORK = "network"


@dataclass(frozen=True)
class Candidate:
    """A network to train.

    Attributes:
        tier: Its tier; a named model has one of its own.
        number: Among the tier's candidates, from 0.
        arch: Its architecture in the supernet.
    """

    tier: Tier
    number: int
    arch: Any

    @property
    def folder(self) -> str:
        """Its run's folder."""
        return f"{self.tier.name}-{self.number}"


class TierNetwork(PlainNetwork):
    """A tier's network as a supernet of one architecture, which may tell other labels apart than the data's own.

    Args:
        supernet: What it was taken out of.
        arch: Its architecture there.
        network: It.
    """

    def __init__(self, supernet: Supernet, arch: Any, network: nn.Module) -> None:
        super().__init__(network, supernet.input_shape, supernet.num_classes)
        self._targets = partial(supernet.targets, arch)

    def targets(self, arch: Any, classes: Tensor) -> Tensor:
        """As in the supernet."""
        return self._targets(classes)


class Finetuning:
    """Trains the candidates of all tiers and keeps the best of each.

    Args:
        settings: What to do.
        model: The trained supernet and its clients' tiers, as a search finds them.
        datamodule: The data.
        files: Where to write.
        search: The search whose tiers are trained.
        make_trainer: Makes the trainer of one candidate, given its run's folder and its rounds.
        evaluator: Makes what evaluates a network of one architecture, on ``val`` or ``test``; ``None`` where there
            are no such data.
        as_evaluated: A copy of such a network as it is evaluated: with its norms' new statistics, if any.

    Raises:
        ConfigError: The folder holds another fine-tuning, the search is missing or of other weights, a model is
            named that there is not, or there are no clients for a tier.
    """

    def __init__(
        self,
        settings: FinetuneSettings,
        model: FederatedLightningModule,
        datamodule: FederatedDataModule,
        files: FinetuneFiles,
        search: SearchFiles,
        make_trainer: Callable[[Path, int], FederatedTrainer],
        evaluator: Callable[[PlainNetwork, str], Evaluator | None],
        as_evaluated: Callable[[PlainNetwork], nn.Module],
    ) -> None:
        self.settings = settings
        self.model = model
        self.datamodule = datamodule
        self.files = files
        self.make_trainer = make_trainer
        self.evaluator = evaluator
        self.as_evaluated = as_evaluated
        self.supernet = model.supernet
        self.seed = model.seed if settings.seed is None else settings.seed
        self.costs = ArchitectureCosts(self.supernet)
        self.candidates = self._candidates(search)
        self.eligible = {one.folder: self._eligible(one) for one in self.candidates}
        if settings.in_groups:
            self.eligible = dealt(self.eligible, datamodule)
        self.written = self._description()
        files.begin(self.written, {"complete"})

    # ---- before the first round -----------------------------------------------------------------------

    def _candidates(self, search: SearchFiles) -> list[Candidate]:
        if self.settings.models is not None:
            archs = named_architectures(self.supernet, self.settings.models, self.settings.labels)
            return [Candidate(tier, 0, arch) for tier, arch in zip(own_tiers(archs), archs, strict=True)]
        if self.settings.architectures:
            return [one for tier in self._tiers() for one in self._drawn(tier)]
        searched = search.settings()
        if not searched.get("complete") or not search.rows("tiers"):
            raise ConfigError(
                f"finetune.search: {search.folder} holds no finished search; run 'lit-fednas search' first, or "
                f"set finetune.architectures to train random ones, or finetune.models"
            )
        if self.settings.initial == "supernet" and searched["weights"] != self.supernet.digest():
            raise ConfigError(
                f"finetune.search: {search.folder} was of other weights than the checkpoint's; run the search "
                f"again, or give the checkpoint that was searched ({searched['checkpoint'] or 'unknown'})"
            )
        tiers = {one["name"]: Tier(one["name"], one["at_most"], one["above"]) for one in searched["tiers"]}
        rows = search.rows("tiers")
        return [Candidate(tiers[row["tier"]], 0, self._labelled(row["arch"])) for row in rows]

    def _labelled(self, text: str) -> Any:
        """An architecture, with the classifier that is asked for."""
        space = self.supernet.space
        arch = space.parse(text)
        return arch if self.settings.labels is None else with_labels(space, arch, self.settings.labels)

    def _tiers(self) -> Sequence[Tier]:
        if not self.model.population.tiers:
            raise ConfigError("finetune.architectures: are drawn for the clients' tiers; set model.tiers")
        return self.model.population.tiers

    def _drawn(self, tier: Tier) -> list[Candidate]:
        rng = numpy_generator(self.seed, f"finetune-architectures-{tier.name}")
        tier = replace(tier, labels=self.settings.labels or tier.labels)
        space = labelled_space(self.supernet.space, tier.labels)
        found = Feasible(space, self.costs, tier, rng).distinct(set(), self.settings.architectures, rng)
        return [Candidate(tier, number, arch) for number, arch in enumerate(found)]

    def _eligible(self, candidate: Candidate) -> list[int]:
        """The clients of the tier and above whose labels are those of the network, or finer."""
        population, tier = self.model.population, candidate.tier.name
        labels = labels_of(candidate.arch)
        found = population.eligible(tier) if self.tier_aware else range(population.num_clients)
        having = [client for client in found if self._labels_of(client) in (OWN, labels)]
        if not having and not self.tier_aware:
            raise ConfigError(f"finetune: no client has the labels of {candidate.arch}; change model.tiers")
        if not having:
            raise ConfigError(
                f"finetune: no client of tier {tier} or above has the labels of {candidate.arch}; change "
                f"model.tiers, or set finetune.tier_aware to false"
            )
        return having

    @property
    def tier_aware(self) -> bool:
        """Whether clients' tiers matter; the tier of a named model is none of theirs."""
        return self.settings.tier_aware and self.settings.models is None

    def _labels_of(self, client: int) -> str:
        tier = self.model.population.tier(client)
        return OWN if tier is None else tier.labels

    def _description(self) -> dict[str, Any]:
        """``settings.json``."""
        tiers = {one.tier.name: one.tier for one in self.candidates}.values()
        return {
            "seed": self.seed,
            "rounds": self.settings.rounds,
            "initial": self.settings.initial,
            "tier_aware": self.tier_aware,
            "labels": self.settings.labels,
            "head_rounds": self.settings.head_rounds,
            "architectures": self.settings.architectures,
            "models": None if self.settings.models is None else [str(one.arch) for one in self.candidates],
            "in_groups": self.settings.in_groups,
            "search": self.settings.search,
            "supernet": type(self.supernet).__name__,
            "weights": self.supernet.digest() if self.settings.initial == "supernet" else None,
            "tiers": [{"name": tier.name, "at_most": dict(tier.at_most)} for tier in tiers],
            "eligible": self._eligible_numbers(),
            "candidates": {one.folder: str(one.arch) for one in self.candidates},
            "complete": False,
        }

    def _eligible_numbers(self) -> dict[str, int]:
        """How many clients may train a tier's candidates; where each has a group of its own, by candidate."""
        return {
            one.folder if self.settings.in_groups else one.tier.name: len(self.eligible[one.folder])
            for one in self.candidates
        }

    # ---- training -------------------------------------------------------------------------------------

    def run(self) -> list[dict[str, Any]]:
        """Trains all candidates; writes each tier's best network, and the tables.

        Returns:
            The rows of ``tiers.csv``.
        """
        rows: list[dict[str, Any]] = []
        best: dict[str, tuple[dict[str, Any], PlainNetwork]] = {}
        for candidate in self.candidates:
            row, network = self._train(candidate)
            rows.append(row)
            self.files.write("candidates", rows)
            tier = candidate.tier.name
            if tier not in best or row["val_accuracy"] > best[tier][0]["val_accuracy"]:  # one, or with scores
                best[tier] = (row, network)
                self._keep(candidate, network, row)
        finished = [self._tested(row, network) for row, network in best.values()]
        self.files.write("tiers", finished)
        costs = {name: sum(row[name] for row in rows) for name in ("macs", "bytes_down", "bytes_up")}
        note_after_training(self.files.folder.parent, self.settings.name, costs)
        self.files.write_settings({**self.written, "complete": True})
        return finished

    def _train(self, candidate: Candidate) -> tuple[dict[str, Any], PlainNetwork]:
        network = self._initial(candidate)
        before = self._score(network, "val")
        eligible = self.eligible[candidate.folder]
        log.info(
            "%s: %s, %s, %d of %d clients",
            candidate.folder,
            candidate.arch,
            "from the supernet's weights" if self.settings.initial == "supernet" else "from scratch",
            len(eligible),
            self.model.population.num_clients,
        )
        folder = self.files.folder / "runs" / candidate.folder
        head = folder.with_name(f"{folder.name}-head")
        objective = self.settings.objective or CrossEntropy()
        if self.settings.head_rounds and _last(folder) is None:
            self._fit(network, eligible, HeadOnly(objective), head, self.settings.head_rounds)
        self._fit(network, eligible, objective, folder, self.settings.rounds)
        after = self._score(network, "val")
        records = [*read_rounds(head), *read_rounds(folder)]
        asked = [client for record in records for client in record["clients"]]
        row = {
            "tier": candidate.tier.name,
            "number": candidate.number,
            "arch": str(candidate.arch),
            "eligible": len(eligible),
            "rounds": self.settings.rounds,
            "val_accuracy_before": before["val_accuracy"],
            "val_loss_before": before["val_loss"],
            **after,
            **{cost: sum(client[cost] for client in asked) for cost in ("macs", "bytes_down", "bytes_up")},
        }
        return row, network

    def _fit(
        self, network: PlainNetwork, eligible: Sequence[int], objective: Objective, folder: Path, rounds: int
    ) -> None:
        """Trains a network in place; goes on where it was if it was begun in the folder."""
        module = self._module(network, eligible, objective)
        self.make_trainer(folder, rounds).fit(module, self.datamodule, ckpt_path=_last(folder))
        network.to(next(self.supernet.parameters()).device)  # Lightning leaves it on the CPU

    def _initial(self, candidate: Candidate) -> PlainNetwork:
        """The candidate's network as a supernet of one architecture, with its first weights."""
        if self.settings.initial == "supernet":
            network = self.supernet.subnet(candidate.arch)
        else:
            with isolated(self.seed, f"finetune-weights-{candidate.folder}"):
                network = self.supernet.build(candidate.arch)
                self.supernet.initialise(network)
        device = next(self.supernet.parameters()).device
        return TierNetwork(self.supernet, candidate.arch, network.to(device))

    def _module(
        self, network: PlainNetwork, eligible: Sequence[int], objective: Objective
    ) -> FederatedLightningModule:
        """Federated averaging of one network on some of the clients."""
        return FederatedLightningModule(
            network,
            FixedArchitecture(),
            OverlapAverage(),
            self.settings.client or self.model.client,
            objective=objective,
            cohort=(self.settings.cohort or self.model.cohort).among(eligible),
            faults=self.model.faults,
            evaluation=self.evaluation,
            seed=self.seed,
        )

    @property
    def evaluation(self) -> EvaluationSettings:
        """As the supernet was evaluated."""
        return replace(self.model.evaluation, subnets=[f"{NETWORK} = whole"], sampled=0)

    def _score(self, network: PlainNetwork, split: str) -> dict[str, float | None]:
        """``<split>_accuracy`` and ``<split>_loss``; empty where there are no such data."""
        evaluate = self.evaluator(network, split)
        found = evaluate("whole") if evaluate is not None else None
        return {
            f"{split}_accuracy": found.accuracy if found is not None else None,
            f"{split}_loss": found.loss if found is not None else None,
        }

    # ---- what it came to ------------------------------------------------------------------------------

    def _tested(self, row: dict[str, Any], network: PlainNetwork) -> dict[str, Any]:
        cost = network.cost("whole")
        sizes = {"macs_per_example": cost.macs, "parameters": cost.parameters, "bytes": cost.bytes}
        return {**row, **self._score(network, "test"), **sizes}

    def _keep(self, candidate: Candidate, network: PlainNetwork, row: dict[str, Any]) -> None:
        model = TierModel(
            tier=candidate.tier.name,
            arch=str(candidate.arch),
            encoding=[int(gene) for gene in self.supernet.space.encode(candidate.arch)],
            supernet=type(self.supernet).__name__,
            input_shape=list(self.supernet.input_shape),
            num_classes=self.supernet.num_classes,
            recalibrated=self.evaluation.recalibrate_batches > 0,
            costs={"macs": float(self.supernet.macs(candidate.arch))},
            metrics={name: row[name] for name in ("val_accuracy", "val_loss") if row[name] is not None},
            finetuned=True,
        )
        save_tier_model(self.files, model, self.as_evaluated(network))


def _last(folder: Path) -> str | None:
    """A run's last checkpoint, if it was begun."""
    path = folder / "checkpoints" / "last.ckpt"
    return str(path) if path.exists() else None
