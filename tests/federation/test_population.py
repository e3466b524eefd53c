"""A round of a large population reads only the data of its cohort."""

from __future__ import annotations

import pytest
import torch

from lit_fednas.data import IID, ArraySource, Dirichlet, Examples, FederatedDataModule, Partition, Partitioner
from lit_fednas.federation import RandomAvailability, UniformCohort
from lit_fednas.tiers import ArchitectureTiers, ClientTiers
from tests.support import Noted, fit, linear_net, make_module

CLIENTS = 20_000


@pytest.mark.parametrize(("partitioner", "client_val"), [(IID(), 0.5), (Dirichlet(1e4, min_size=1), 0.0)])
def test_only_the_cohort_is_read(partitioner: Partitioner, client_val: float, monkeypatch: pytest.MonkeyPatch) -> None:
    read: set[int] = set()
    rows_of = Partition.__getitem__
    monkeypatch.setattr(Partition, "__getitem__", lambda self, client: read.add(client) or rows_of(self, client))
    draws = torch.Generator().manual_seed(0)
    inputs = torch.randint(256, (4 * CLIENTS, 1, 8, 8), generator=draws, dtype=torch.uint8)
    examples = Examples(inputs, torch.randint(4, (len(inputs),), generator=draws))
    data = FederatedDataModule(ArraySource(examples), partitioner, CLIENTS, server_val=0, client_val=client_val)
    cohorts = Noted("on_cohort_start", lambda trainer, module, round: {task.client for task in round.tasks})
    module = make_module(
        linear_net(),
        cohort=UniformCohort(count=4, availability=RandomAvailability(0.5)),
        tiers=ClientTiers(ArchitectureTiers({"weak": "smallest", "strong": "largest"})),
    )
    fit(module, data, 3, callbacks=[cohorts])
    assert len(read) == 12
    assert read == set.union(*cohorts.all)
