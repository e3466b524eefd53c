"""The rolling window: FedRolex' index set, element by element; that all units have their turn."""

from __future__ import annotations

from collections import Counter
from math import lcm

import numpy as np
import pytest
import torch

from lit_fednas.assignment import RollingWidths
from lit_fednas.errors import ConfigError
from lit_fednas.supernets.width.cnn import SlicedCNN
from lit_fednas.supernets.width.space import Width
from lit_fednas.supernets.width.supernet import WidthSupernet
from lit_fednas.tiers import Population, Tier
from tests.assignment.instances import planned
from tests.support import linear_net

NET = WidthSupernet((1, 4, 4), 3, SlicedCNN((4, 6)), widths=[1, 0.5, 0.25])
TIERS = (Tier("weak", {}), Tier("strong", {}))
HALF = {"weak": "width: 0.5", "strong": "largest"}


def rolling(archs=HALF, net: WidthSupernet = NET, tiers=TIERS, **settings) -> RollingWidths:
    assignment = RollingWidths(archs, **settings)
    assignment.setup(net, Population(2, tiers, (0, 1)))
    return assignment


def given(assignment: RollingWidths, round: int, net: WidthSupernet = NET) -> list[Width]:
    return planned(assignment, round, [0, 1], net.space, np.random.default_rng(round))


def window(j: int, beta: float, size: int) -> list[int]:
    """The publication's set of the sub-model's units in round j, of a layer of ``size`` units, in its order."""
    i_hat = j % size
    width = int(beta * size)
    if i_hat + width <= size:
        return list(range(i_hat, i_hat + width))
    return [*range(i_hat, size), *range(i_hat + width - size)]


def test_the_window_is_the_publication_s():
    """For all rounds of more than a turn of both layers, down to the weights that a client receives."""
    assignment = rolling()
    whole = NET.network
    for j in range(30):
        arch = given(assignment, j)[0]
        first, second = window(j, 0.5, 4), window(j, 0.5, 6)
        assert [places.tolist() for places in NET.kept(arch).values()] == [first, second]
        subnet = NET.subnet(arch)
        for row, to in enumerate(second):
            assert torch.equal(subnet.classifier.weight[:, row], whole.classifier.weight[:, to])
            for column, source in enumerate(first):
                assert torch.equal(subnet.layer1.conv.weight[row, column], whole.layer1.conv.weight[to, source])


@pytest.mark.parametrize("ratio", ["width: 0.5", "width: 0.25"])
def test_every_unit_has_its_turn_equally_often(ratio):
    assignment = rolling({"weak": ratio, "strong": "largest"})
    turns = {group: Counter() for group in NET.units}
    turn = lcm(*NET.units.values())
    for j in range(5, 5 + turn):  # wherever it begins
        for group, places in NET.kept(given(assignment, j)[0]).items():
            turns[group].update(places.tolist())
    for group, full in NET.units.items():
        size = NET.sizes(float(ratio.split()[1]))[group]
        assert turns[group] == dict.fromkeys(range(full), turn * size // full)


def test_steps_and_rounds_between_them():
    assignment = rolling(step=3, every=2)
    assert [given(assignment, j)[0].shift for j in range(7)] == [0, 0, 3, 3, 6, 6, 9]
    assert {given(assignment, j)[0].ratio for j in range(7)} == {0.5}


def test_no_step_is_a_fixed_width():
    assignment = rolling(step=0)
    for j in (0, 1, 17):
        assert given(assignment, j) == [Width(0.5), Width(1.0)]


def test_what_is_whole_does_not_roll():
    """The largest, and a width that rounding up makes whole: it would be another name for the same network."""
    assert all(given(rolling(), j)[1] == NET.space.largest for j in range(9))
    assert all(given(rolling(), j)[0] != Width(0.5) for j in range(1, 9))
    assignment = rolling()
    assignment.of_tier["weak"] = Width(0.95)  # 4 of 4 and 6 of 6 units
    assert given(assignment, 3)[0] == Width(0.95)


def test_the_dearest_within_the_limits():
    tiers = (Tier("weak", {"macs": float(NET.macs(Width(0.5)))}), Tier("strong", {"macs": 1e9}))
    assert given(rolling(None, tiers=tiers), 2) == [Width(0.5, 2), Width(1.0)]


@pytest.mark.parametrize(
    ("archs", "words"),
    [
        ({"weak": "width: 0.5"}, "assignment.archs: names weak"),
        (
            {"weak": "width: 0.5, shift: 1", "strong": "largest"},
            "assignment.archs: 'width: 0.5, shift: 1' selects its units",
        ),
        (
            {"weak": "kept: 0,1/0-3", "strong": "largest"},
            "assignment.archs: 'kept: 0,1/0-3' selects its units",
        ),
        ({"weak": "width: 0.3", "strong": "largest"}, "not one of the widths"),
    ],
)
def test_wrong_architectures(archs, words):
    with pytest.raises(ConfigError, match=words):
        rolling(archs)


def test_wrong_settings():
    with pytest.raises(ConfigError, match=r"assignment.step: -1 must be at least 0"):
        RollingWidths(step=-1)
    with pytest.raises(ConfigError, match=r"assignment.every: 0 must be at least 1"):
        RollingWidths(every=0)
    with pytest.raises(ConfigError, match=r"RollingWidths does not work with .* PlainNetwork; use WidthSupernet"):
        RollingWidths().setup(linear_net(), Population(2, TIERS, (0, 1)))
    with pytest.raises(ConfigError, match=r"model.tiers: is null"):
        RollingWidths().setup(NET, Population(2))
