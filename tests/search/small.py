"""A tiny supernet that was trained, its searches, and searches that are stopped."""

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
    """Module and data of a supernet after four rounds, whose subnets are right in 52 to 100 % of the cases."""
    client = ClientSettings(sgd(0.2), batch_size=8)
    settings = EvaluationSettings(["smallest", "largest"], **evaluation)
    module, data = make_module(assignment=RandomArchitectures(), client=client, evaluation=settings), tiny_data()
    fit(module, data, 4, check_val_every_n_rounds=4)
    return module, data


def search(trained: Any, folder: Path, **settings: Any) -> SearchFiles:
    """Without a checkpoint: the module's weights are those that are searched."""
    module, data = trained
    settings = {"tiers": TIERS, "method": NSGA2(population=8, sample=4), "evaluations": 16, **settings}
    return Search(make_trainer(), module, data, folder).run(None, SearchSettings(**settings))


@contextmanager
def stopped_after(count: int) -> Iterator[None]:
    """A search that is stopped by an error when so many architectures are evaluated."""
    plain = Evaluations._keep

    def stopping(self: Any, *given: Any) -> None:
        plain(self, *given)
        if len(self) == count:
            raise Stop

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Evaluations, "_keep", stopping)
        with pytest.raises(Stop):
            yield


def outcome(files: SearchFiles) -> dict[str, Any]:
    """All that two equal searches have in common."""
    tables = {name: files.rows(name) for name in ("evaluations", "history", "front", "tiers", "federated")}
    for table in tables.values():
        for row in table:
            row.pop("seconds", None)
    networks = {tier: torch.load(files.tier_folder(tier) / "weights.pt") for tier in files.tier_names}
    return {
        **tables,
        "settings": files.settings(),
        "models": [files.tier_model(tier) for tier in files.tier_names],
        "weights": {tier: {key: value.tolist() for key, value in found.items()} for tier, found in networks.items()},
    }
