"""A tiny trained supernet, its searches, and stopped searches."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from lit_fednas.assignment import RandomArchitectures
from lit_fednas.federation import ClientSettings, EvaluationSettings
from lit_fednas.records import SearchFiles
from lit_fednas.search import NSGA2, Search, SearchSettings
from lit_fednas.search.evaluations import Evaluations
from lit_fednas.tiers import Budgets
from tests.support import fit, make_module, make_trainer, sgd, tiny_data

TIERS = Budgets({"small": {"macs": 70_000.0}, "large": {"macs": 120_000.0, "parameters": 4_000.0}})


class Stop(Exception):
    """Stops a search."""


def trained_run(**evaluation: Any) -> Any:
    """Returns module and data of a supernet after four rounds; its subnets have accuracies of 52 to 100 %."""
    client = ClientSettings(sgd(0.2), batch_size=8)
    settings = EvaluationSettings(["smallest", "largest"], **evaluation)
    module, data = make_module(assignment=RandomArchitectures(), client=client, evaluation=settings), tiny_data()
    fit(module, data, 4, check_val_every_n_rounds=4)
    return module, data


def search(trained: Any, folder: Path, **settings: Any) -> SearchFiles:
    """Searches the module's weights, without a checkpoint."""
    module, data = trained
    settings = {"tiers": TIERS, "method": NSGA2(population=8, sample=4), "evaluations": 16, **settings}
    return Search(make_trainer(), module, data, folder).run(None, SearchSettings(**settings))


@contextmanager
def stopped_after(count: int) -> Iterator[None]:
    """Stops a search by an error after ``count`` evaluations."""
    plain = Evaluations._append

    def stopping(self: Any, *arguments: Any) -> None:
        plain(self, *arguments)
        if len(self) == count:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluations, "_append", stopping)
        with pytest.raises(Stop):
            yield


def outcome(files: SearchFiles) -> dict[str, Any]:
    """Returns the results that are the same in equal searches."""
    tables = {name: files.rows(name) for name in ("evaluations", "history", "front", "tiers", "federated")}
    for table in tables.values():
        for row in table:
            row.pop("seconds", None)
    networks = {tier: torch.load(files.tier_folder(tier) / "weights.pt") for tier in files.tier_names}
    return {
        **tables,
        "settings": files.settings(),
        "models": [files.tier_model(tier) for tier in files.tier_names],
        "weights": {tier: {key: value.tolist() for key, value in state.items()} for tier, state in networks.items()},
    }
