"""The methods that scale width, as whole runs: where one becomes another, it equals it."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_fednas.aggregation import ClassAverage
from lit_fednas.assignment import ByTier, InvariantUnits, RandomBases, RollingWidths
from lit_fednas.data import Dirichlet
from lit_fednas.federation import ClientSettings, UniformCohort
from lit_fednas.objectives import (
    CrossEntropy,
    IndependentBases,
    MaskedCrossEntropy,
    OrderedDropout,
    Proximal,
    UnitChanges,
)
from lit_fednas.supernets import BaseNetworks, BatchNorm, PlainNetwork, SlicedCNN, WidthSupernet
from lit_fednas.tiers import ArchitectureTiers, ClientTiers
from tests.support import assert_same, fit, make_module, sgd, tiny_data, weights

ROUNDS, SHAPE, CLASSES = 2, (1, 8, 8), 4
FAMILY = SlicedCNN((8, 16), BatchNorm())


def net(widths=(1, 0.5, 0.25)) -> WidthSupernet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return WidthSupernet(SHAPE, CLASSES, FAMILY, widths)


def tiers(**archs: str) -> ClientTiers:
    return ClientTiers(ArchitectureTiers(archs or {"small": "smallest", "large": "largest"}))


def method(supernet: Any, **settings: Any) -> Any:
    client = ClientSettings(sgd(0.1, momentum=0.9), batch_size=8, epochs=2, clip_norm=1.0)
    return make_module(supernet, **{"cohort": UniformCohort(count=4), "client": client, **settings})


def trained(module: Any) -> dict[str, Tensor]:
    data = tiny_data(7, partitioner=Dirichlet(alpha=1.0, min_size=4))
    before = weights(module)
    fit(module, data, ROUNDS)
    after = weights(module)
    assert any(not torch.equal(after[name], before[name]) for name in before)
    return after


def tiered(supernet: Any = None, assignment: Any = None, **settings: Any) -> Any:
    return method(supernet or net(), tiers=tiers(), assignment=assignment or ByTier(), **settings)


def bases() -> BaseNetworks:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BaseNetworks(SHAPE, CLASSES, FAMILY, count=1)


#: Methods of one width, for all alike.
OF_ONE_WIDTH = {
    "heterofl": lambda: (net([1]), ByTier(), CrossEntropy()),
    "fjord-distilled": lambda: (net([1]), ByTier(), OrderedDropout(distill=True)),
    "splitmix": lambda: (bases(), RandomBases(), IndependentBases()),
    "invariant-dropout": lambda: (net([1]), InvariantUnits(), UnitChanges()),
}


@pytest.mark.parametrize("name", OF_ONE_WIDTH)
def test_with_one_width_it_is_federated_averaging_of_an_ordinary_network(name):
    supernet, assignment, objective = OF_ONE_WIDTH[name]()
    network = copy.deepcopy(supernet.networks[0] if name == "splitmix" else supernet.network)
    one = method(supernet, tiers=tiers(all="largest"), assignment=assignment, objective=objective)
    after = {key.replace("networks.0.", "network."): tensor for key, tensor in trained(one).items()}
    assert_same(after, trained(method(PlainNetwork(network, SHAPE, CLASSES))))


def test_fedrolex_with_a_still_window_is_heterofl():
    heterofl = trained(tiered())
    assert_same(trained(tiered(assignment=RollingWidths(step=0))), heterofl)
    rolling = trained(tiered(assignment=RollingWidths(step=1)))
    assert any(not torch.equal(rolling[name], heterofl[name]) for name in heterofl)


def test_a_proximal_term_of_nothing_is_the_method_itself():
    plain = trained(tiered(objective=OrderedDropout()))
    assert_same(trained(tiered(objective=Proximal(OrderedDropout(), mu=0.0))), plain)


def test_who_has_all_classes_needs_no_mask():
    masked = tiered(objective=MaskedCrossEntropy(), aggregation=ClassAverage(), cohort=UniformCohort(ratio=1.0))
    plain, data = tiered(cohort=UniformCohort(ratio=1.0)), tiny_data(3)  # 40 examples each, of 4 classes
    fit(masked, data, ROUNDS)
    fit(plain, tiny_data(3), ROUNDS)
    assert all(data.clients.classes(client) == (0, 1, 2, 3) for client in range(3))
    assert_same(weights(masked), weights(plain), rtol=1e-5, atol=1e-6)
