"""A tiny run with three tiers of clients, its search, and its fine-tunings."""

import csv
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from lit_fednas.assignment import RandomArchitectures
from lit_fednas.data import FederatedDataModule, Partitioner
from lit_fednas.federation import (
    ClientSettings,
    EvaluationSettings,
    FederatedLightningModule,
    UniformCohort,
)
from lit_fednas.finetune import Finetune, FinetuneSettings
from lit_fednas.records import FinetuneFiles, read_rounds
from lit_fednas.search import RandomSearch, Search, SearchSettings
from lit_fednas.supernets import PathCNN, Supernet
from lit_fednas.tiers import ClientTiers, ListedTiers, Tier, TierSource
from tests.support import fit, make_module, make_trainer, seeded, sgd, tiny_data

#: Members of each tier, and the clients that may train its network.
MEMBERS = {"small": [1, 4], "middle": [0, 2, 5], "large": [3]}
ELIGIBLE = {"small": [0, 1, 2, 3, 4, 5], "middle": [0, 2, 3, 5], "large": [3]}
#: Lower and upper bounds of MACs: 18, 33 and 30 of the 81 paths.
RANGES = {"small": (0, 30_000), "middle": (30_000, 50_000), "large": (50_000, 1_000_000)}
#: Examples of every client. A fifth of them is for tests; the third client has too few.
SIZES = [19, 25, 2, 23, 19, 32]
CLIENT = ClientSettings(sgd(0.1), batch_size=8, epochs=2)
ROUNDS = 2
COUNT = 3  # clients per round


class Ranges(TierSource):
    """Tiers with some of the ranges."""

    def __init__(self, *names: str) -> None:
        self.names = names or tuple(RANGES)

    def tiers(self, space: Any, costs: Any, rng: Any) -> list[Tier]:
        ranges = {name: RANGES[name] for name in self.names}
        return [Tier(name, {"macs": high}, {"macs": low} if low else {}) for name, (low, high) in ranges.items()]


class BySizes(Partitioner):
    """Deals consecutive examples to clients by ``SIZES``."""

    def split(self, targets: Any, num_clients: int, rng: Any, columns: Any) -> np.ndarray:
        return np.repeat(np.arange(num_clients), SIZES)


TIERS = ClientTiers(Ranges(), ListedTiers(MEMBERS), enforced=False)  # all clients train the whole supernet


class Trained(NamedTuple):
    """A trained run: module, data and folder."""

    module: FederatedLightningModule
    data: FederatedDataModule
    folder: Path

    def finetune(self, **settings: Any) -> FinetuneFiles:
        """Fine-tunes the module's weights, without a checkpoint."""
        command = Finetune(make_trainer(), self.module, self.data, self.folder)
        return command.run(None, FinetuneSettings(**{"rounds": ROUNDS, **settings}))

    @property
    def files(self) -> FinetuneFiles:
        return FinetuneFiles(self.folder / "finetune")

    def path(self, tier: str, number: int = 0, name: str = "finetune") -> Path:
        """Returns a candidate's folder."""
        return self.folder / name / "runs" / f"{tier}-{number}"


def path_cnn(seed: int = 0, **settings: Any) -> PathCNN:
    return seeded(PathCNN, (1, 8, 8), 4, seed=seed, width=8, stage_layers=[1, 1], strides=[2, 2], **settings)


def module_of(supernet: Supernet | None = None, **settings: Any) -> FederatedLightningModule:
    settings = {
        "assignment": RandomArchitectures(),
        "client": CLIENT,
        "cohort": UniformCohort(count=COUNT),
        "evaluation": EvaluationSettings(["largest"], sampled=2),
        "tiers": TIERS,
        **settings,
    }
    return make_module(supernet or path_cnn(), **settings)


def small_data(**settings: Any) -> FederatedDataModule:
    return tiny_data(**{"partitioner": BySizes(), "client_test": 0.2, **settings})


def searched(folder: Path, **settings: Any) -> Trained:
    """Trains and searches a supernet."""
    run = Trained(module_of(**settings), small_data(), folder)
    fit(run.module, run.data, 4, check_val_every_n_rounds=4)
    settings_of_search = SearchSettings(method=RandomSearch(), evaluations=6)
    Search(make_trainer(), run.module, run.data, folder).run(None, settings_of_search)
    return run


def rows(path: Path) -> list[dict[str, str]]:
    """Returns a table's cells as text."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def by_tier(files: FinetuneFiles, table: str = "tiers") -> dict[str, dict[str, str]]:
    return {row["tier"]: row for row in rows(files.folder / f"{table}.csv")}


def cohorts(folder: Path) -> list[list[int]]:
    return [[client["client"] for client in record["clients"]] for record in read_rounds(folder)]


def last_weights(folder: Path) -> dict[str, Tensor]:
    """Returns the weights of a candidate's last checkpoint by their names in the network."""
    state = torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)["state_dict"]
    prefix = "supernet.network."
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def tier_weights(files: FinetuneFiles) -> dict[str, dict[str, Tensor]]:
    return {tier: torch.load(files.tier_folder(tier) / "weights.pt", weights_only=True) for tier in files.tier_names}


def only_batch(batches: Any) -> tuple[Tensor, Tensor]:
    ((inputs, targets),) = list(batches)
    return inputs, targets
