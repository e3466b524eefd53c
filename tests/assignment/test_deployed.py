"""Which architecture a client uses once training is over."""

from __future__ import annotations

import pytest

from lit_fednas.assignment import (
    Assignment,
    ByTier,
    FixedArchitecture,
    InvariantUnits,
    RandomBases,
    RollingWidths,
    Sandwich,
)
from lit_fednas.errors import ConfigError
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import BaseNetworks, Model, Supernet
from lit_fednas.supernets.base_networks import Bases
from lit_fednas.supernets.width.cnn import SlicedCNN
from lit_fednas.supernets.width.space import Width
from lit_fednas.supernets.width.supernet import WidthSupernet
from lit_fednas.tiers import Population, Tier
from tests.assignment.instances import planned
from tests.supernets.suites import GROWTH, grown_suite

TIERS = (Tier("weak", {}), Tier("strong", {}))
POPULATION = Population(3, TIERS, (0, 1, 0))
WIDTHS = WidthSupernet((1, 4, 4), 3, SlicedCNN((4, 6)), widths=[1, 0.5, 0.25])
BASES = BaseNetworks((1, 4, 4), 3, SlicedCNN((4, 6)), count=4)


def ready(assignment: Assignment, net: Supernet, population: Population = POPULATION) -> Assignment:
    assignment.setup(net, population)
    for round in range(5):  # what was assigned does not change it
        planned(assignment, round, [0, 1, 2], net.space, numpy_generator(0, "assignment", round))
    return assignment


@pytest.mark.parametrize(
    ("assignment", "net", "weak", "strong"),
    [
        (FixedArchitecture("width: 0.5"), WIDTHS, Width(0.5), Width(0.5)),
        (FixedArchitecture(), WIDTHS, Width(1.0), Width(1.0)),
        (ByTier({"weak": "smallest", "strong": "largest"}), WIDTHS, Width(0.25), Width(1.0)),
        (RollingWidths({"weak": "width: 0.5", "strong": "largest"}), WIDTHS, Width(0.5), Width(1.0)),
        (InvariantUnits({"weak": 0.25, "strong": 1}), WIDTHS, Width(0.25), Width(1.0)),
        (RandomBases({"weak": 1, "strong": 3}), BASES, Bases((0,)), Bases((0, 1, 2))),
    ],
)
def test_by_tier(assignment, net, weak, strong):
    ready(assignment, net)
    assert [assignment.deployed(client) for client in range(3)] == [weak, strong, weak]
    assert net.space.encode(assignment.deployed(0))  # one that is evaluated, not what a client trains in a round


def test_without_tiers_all_bases():
    assert ready(RandomBases(), BASES, Population(3)).deployed(2) == Bases((0, 1, 2, 3))


def test_the_largest_is_that_of_the_end():
    """A suite grows while it trains."""
    suite = grown_suite(models=1)
    fixed = ready(FixedArchitecture(), suite, Population(3))
    suite.add(*GROWTH[0][:2], seed=0, round=4)
    assert fixed.deployed(0) == Model(1)


def test_not_all_say_it():
    with pytest.raises(ConfigError, match=r"assignment: Sandwich does not define which architecture client 2 uses"):
        Sandwich().deployed(2)
