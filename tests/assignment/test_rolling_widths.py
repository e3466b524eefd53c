"""Tests rolling windows against FedRolex' index set, element by element."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lit_fednas.assignment import RollingWidths
from lit_fednas.supernets import SlicedCNN, Width, WidthSupernet
from lit_fednas.tiers import Population, Tier
from tests.assignment.instances import planned
from tests.support import refusals

NET = WidthSupernet((1, 4, 4), 3, SlicedCNN((4, 6)), widths=[1, 0.5, 0.25])
TIERS = (Tier("weak", {}), Tier("strong", {}))
HALF = {"weak": "width: 0.5", "strong": "largest"}


def rolling(archs=HALF, **settings) -> RollingWidths:
    assignment = RollingWidths(archs, **settings)
    assignment.setup(NET, Population(2, TIERS, (0, 1)))
    return assignment


def planned_widths(assignment: RollingWidths, round: int) -> list[Width]:
    return planned(assignment, round, [0, 1], NET.space, np.random.default_rng(round))


def window(j: int, beta: float, size: int) -> list[int]:
    """Returns the publication's ordered set of units in round j, for a layer of ``size`` units."""
    i_hat = j % size
    width = int(beta * size)
    if i_hat + width <= size:
        return list(range(i_hat, i_hat + width))
    return [*range(i_hat, size), *range(i_hat + width - size)]


def test_the_window_equals_the_publication_s():
    """Covers more than one turn of both layers, and the weights that a client receives."""
    assignment = rolling()
    whole = NET.network
    for j in range(30):
        arch = planned_widths(assignment, j)[0]
        first, second = window(j, 0.5, 4), window(j, 0.5, 6)
        assert list(NET.kept_units(arch).values()) == [first, second]
        subnet = NET.subnet(arch)
        for row, to in enumerate(second):
            assert torch.equal(subnet.classifier.weight[:, row], whole.classifier.weight[:, to])
            for column, source in enumerate(first):
                assert torch.equal(subnet.layer1.conv.weight[row, column], whole.layer1.conv.weight[to, source])


@pytest.mark.parametrize(
    ("settings", "shifts"),
    [({"step": 3, "every": 2}, [0, 0, 3, 3, 6, 6, 9]), ({"step": 0}, [0] * 7)],
    ids=["every-second-round", "never"],
)
def test_steps_and_rounds_between_them(settings, shifts):
    assignment = rolling(**settings)
    assert [planned_widths(assignment, j)[0] for j in range(7)] == [Width(0.5, shift) for shift in shifts]
    assert [assignment.deployed(client) for client in (0, 1)] == [Width(0.5), Width(1.0)]  # without a round's window


def test_whole_networks_do_not_roll():
    """The largest width, and a width that is rounded up to it."""
    assert all(planned_widths(rolling(), j)[1] == NET.space.largest for j in range(9))
    assert all(planned_widths(rolling(), j)[0] != Width(0.5) for j in range(1, 9))
    assignment = rolling()
    assignment.of_tier["weak"] = Width(0.95)  # 4 of 4 and 6 of 6 units
    assert planned_widths(assignment, 3)[0] == Width(0.95)


test_wrong_settings = refusals(
    ({"archs": {"weak": "width: 0.5, shift: 1", "strong": "largest"}}, "'width: 0.5, shift: 1' has a shift or mask"),
    ({"step": -1}, r"assignment.step: -1 must be at least 0"),
    call=lambda settings: rolling(**settings),
)
