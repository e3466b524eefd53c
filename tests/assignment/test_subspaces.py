"""Tests FedorAS' subspaces (Eq. 1): budgets, operators that are always sent, uniform coverage, and limits of tiers."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lit_fednas.assignment import Subspaces
from lit_fednas.supernets import Operators, PathCNN, path_sampler
from lit_fednas.tiers import Population, Tier
from tests.assignment.instances import planned
from tests.support import refusals

NET = PathCNN((1, 8, 8), 4, width=8, stage_layers=[2, 2], strides=[2, 2])
WITHOUT_ID = PathCNN(
    (1, 8, 8), 4, width=8, stage_layers=[2, 1], strides=[2, 2], operators=["conv1", "sep_e1", "mb3_e2"]
)
EQUAL_LAYERS = PathCNN((1, 8, 8), 4, width=8, stage_layers=[4], strides=[2], operators=["sep_e1", "mb3_e1", "id"])


def population(*tiers: Tier) -> Population:
    """Returns one client per tier, or three clients without tiers."""
    return Population(len(tiers) or 3, tiers, tuple(range(len(tiers))))


def draws(net: PathCNN, subspaces: Subspaces, count: int, *tiers: Tier, client: int = 0) -> list[Operators]:
    subspaces.setup(net, population(*tiers))
    return planned(subspaces, 0, [client] * count, net.space, np.random.default_rng(0))


def up_to(net: PathCNN, parameters: float) -> Subspaces:
    """Returns an assignment of subspaces with at most ``parameters`` parameters."""
    return Subspaces(min(1.0, (parameters + 0.5) / net.cost(net.space.superset).parameters))


@pytest.mark.parametrize(
    ("net", "share", "size"),
    [(NET, 0.75, "bytes"), (NET, 0.3, "parameters"), (WITHOUT_ID, 0.9, "bytes"), (EQUAL_LAYERS, 0.6, "parameters")],
    ids=["nine-0.75", "nine-0.3", "without-id-0.9", "equal-layers-0.6"],
)
def test_the_message_fits_the_budget(net, share, size):
    budget = share * getattr(net.cost(net.space.superset), size)
    sizes = [getattr(net.cost(arch), size) for arch in draws(net, Subspaces(share=share, size=size), 10)]
    assert max(sizes) <= budget
    largest_operator = max(max(layer.values()) for layer in net.path_costs(size).operator_costs(net.space.superset))
    assert min(sizes) > budget - largest_operator  # nothing is removed within the budget


def test_a_message_may_equal_the_budget():
    """Eq. 1 has "at most"; with a budget of one parameter less, one operator is removed."""
    everything = NET.cost(NET.space.superset).parameters
    assert draws(NET, up_to(NET, everything), 5) == [NET.space.superset] * 5
    for arch in draws(NET, up_to(NET, everything - 1), 50):
        assert sum(len(names) for names in arch.layers) == 4 * 9 - 1


def test_layers_without_free_operators_keep_one():
    everything = WITHOUT_ID.cost(WITHOUT_ID.space.superset).parameters
    fixed, budget = (WITHOUT_ID.path_costs("parameters").fixed, WITHOUT_ID.cost(WITHOUT_ID.space.largest).parameters)
    layers_seen = Counter()
    for arch in draws(WITHOUT_ID, up_to(WITHOUT_ID, budget), 400):
        assert all(len(names) >= 1 for names in arch.layers)
        assert fixed < WITHOUT_ID.cost(arch).parameters <= budget < everything
        layers_seen.update(enumerate(arch.layers))
    operators_seen = {(layer, name) for layer, names in layers_seen for name in names}
    assert operators_seen == {(layer, name) for layer in range(3) for name in WITHOUT_ID.operators}


def test_operators_are_removed_with_equal_chances():
    """Of two operators in different layers exactly one is within the budget."""
    net = PathCNN((1, 8, 8), 4, width=8, stage_layers=[2], strides=[2], operators=["mb3_e2", "id"])
    smallest, largest = net.cost(net.space.smallest).parameters, net.cost(net.space.superset).parameters
    archs = draws(net, up_to(net, (smallest + largest) / 2), 4000)
    counts = Counter(str(arch) for arch in archs)
    assert set(counts) == {"mb3_e2+id id", "id mb3_e2+id"}
    assert counts["mb3_e2+id id"] == pytest.approx(2000, abs=5 * (4000 * 0.25) ** 0.5)


def test_unsupported_operators_are_never_sent():
    weak = Tier("weak", {"macs": 1e9}, unsupported=("mb3_e2", "id", "sep_e1"))
    strong = Tier("strong", {"macs": 1e9})
    for arch in draws(NET, Subspaces(share=0.6), 200, weak, strong):
        assert all(names and not {"mb3_e2", "id", "sep_e1"} & set(names) for names in arch.layers)
    sent = draws(NET, Subspaces(share=0.6), 200, weak, strong, client=1)
    assert all("id" in names for arch in sent for names in arch.layers)
    assert any("mb3_e2" in names for arch in sent for names in arch.layers)


def test_subspaces_have_an_affordable_path():
    """Without id each layer keeps an operator, which a tier with low limits must be able to run."""
    space = WITHOUT_ID.space
    cheapest = WITHOUT_ID.operations(space.smallest)
    second_cheapest = min(
        WITHOUT_ID.operations(space.parse(text)) for text in ("mb3_e2 conv1 conv1", "conv1 conv1 mb3_e2")
    )
    for limit in (cheapest, cheapest + 3000, second_cheapest):
        tight = Tier("tight", {"operations": float(limit)})
        loose = Tier("loose", {"operations": 1e9})
        largest = WITHOUT_ID.cost(space.largest).parameters
        sent = draws(WITHOUT_ID, up_to(WITHOUT_ID, largest), 300, tight, loose)
        for arch in sent:
            assert path_sampler(WITHOUT_ID, arch, tight.at_most).least <= limit


#: Without id the budget must allow the largest operator of each layer.
DEAREST = WITHOUT_ID.cost(WITHOUT_ID.space.largest).parameters


POOR, MEMORY_LIMITED = Tier("poor", {"operations": 100.0}), Tier("small", {"memory_bytes": 1e9})


test_wrong_settings_are_refused_at_setup = refusals(
    (NET, {"share": 0.5}, [POOR], r"model.tiers: poor cannot run any path of .*100 is below the cheapest"),
    (NET, {"share": 0.5}, [MEMORY_LIMITED], "small has limits of memory_bytes"),
    (NET, {"share": 0.001, "size": "bytes"}, [], r"assignment.share: .* bytes may .* add id to supernet.oper"),
    (WITHOUT_ID, {"share": up_to(WITHOUT_ID, DEAREST - 1).share}, [], f"assignment.share: .*, {DEAREST}; raise it"),
    call=lambda net, settings, tiers: Subspaces(**settings).setup(net, population(Tier("strong", {}), *tiers)),
)


def test_the_smallest_possible_budget():
    up_to(NET, NET.path_costs("parameters").fixed).setup(NET, population())
    up_to(WITHOUT_ID, DEAREST).setup(WITHOUT_ID, population())
