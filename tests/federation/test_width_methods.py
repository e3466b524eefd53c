"""Methods that scale width or depth: with one network, each equals federated averaging."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor

from lit_fednas.assignment import ByTier, InvariantUnits, RandomBases
from lit_fednas.data import Dirichlet
from lit_fednas.federation import ClientSettings, UniformCohort
from lit_fednas.objectives import CrossEntropy, IndependentBases, OrderedDropout, SideObjective, UnitChanges
from lit_fednas.supernets import (
    BaseNetworks,
    BatchNorm,
    EarlyExitResNet,
    GroupNorm,
    PlainNetwork,
    SlicedCNN,
    WidthSupernet,
)
from lit_fednas.tiers import ArchitectureTiers, ClientTiers
from tests.support import assert_same, fit, make_module, seeded, sgd, tiny_data, weights

ROUNDS, SHAPE, CLASSES = 2, (1, 8, 8), 4
FAMILY = SlicedCNN((8, 16), BatchNorm())


def net() -> WidthSupernet:
    return seeded(WidthSupernet, SHAPE, CLASSES, FAMILY, [1])


def method(supernet: Any, **settings: Any) -> Any:
    client = ClientSettings(sgd(0.1, momentum=0.9), batch_size=8, epochs=2, clip_norm=1.0)
    return make_module(supernet, **{"cohort": UniformCohort(count=4), "client": client, **settings})


def trained(module: Any) -> dict[str, Tensor]:
    data = tiny_data(7, partitioner=Dirichlet(alpha=1.0, min_size=4))
    start = weights(module)
    fit(module, data, ROUNDS)
    final_weights = weights(module)
    assert any(not torch.equal(final_weights[name], start[name]) for name in start)
    return final_weights


def bases() -> BaseNetworks:
    return seeded(BaseNetworks, SHAPE, CLASSES, FAMILY, count=1)


def exits() -> EarlyExitResNet:
    return seeded(EarlyExitResNet, SHAPE, CLASSES, width=4, norm=GroupNorm(2), blocks=[1, 1], exits=[1, 2])


#: Methods in which every client trains the same network, the smallest.
OF_ONE_NETWORK = {
    "heterofl": lambda: (net(), ByTier(), CrossEntropy()),
    "fjord-distilled": lambda: (net(), ByTier(), OrderedDropout(distill=True)),
    "splitmix": lambda: (bases(), RandomBases(), IndependentBases()),
    "invariant-dropout": lambda: (net(), InvariantUnits(), UnitChanges()),
    "fedhen": lambda: (exits(), ByTier(), SideObjective()),
}


@pytest.mark.parametrize("name", OF_ONE_NETWORK)
def test_with_one_network_each_method_is_federated_averaging(name):
    supernet, assignment, objective = OF_ONE_NETWORK[name]()
    network = copy.deepcopy(supernet.networks[0]) if name == "splitmix" else supernet.subnet(supernet.space.smallest)
    tiers = ClientTiers(ArchitectureTiers({"all": "smallest"}))
    server = method(supernet, tiers=tiers, assignment=assignment, objective=objective)
    final_weights = {key.replace("networks.0.", "network."): tensor for key, tensor in trained(server).items()}
    plain = trained(method(PlainNetwork(network, SHAPE, CLASSES)))
    assert_same({key: final_weights[key] for key in plain}, plain)
