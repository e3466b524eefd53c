"""How similar models are, worked by hand from their cells' parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
from torch import nn

from lit_fednas.supernets.growing.blueprint import Blueprint
from lit_fednas.supernets.growing.cells import Cell
from lit_fednas.supernets.growing.cnn import GrowableCNN
from lit_fednas.supernets.growing.growth import Deepen, Widen, grown, plan
from lit_fednas.supernets.growing.suite import similarity
from tests.supernets.suites import grown_suite

# 1 channel, 3x3 kernels with a bias, 4 classes: conv1 has 36 + 4 parameters, conv2 216 + 6, the head 24 + 4
FIRST = GrowableCNN([4, 6], norm=None).blueprint((1, 8, 8), 4)
WIDE = grown(FIRST, Widen("conv1", {"conv1.out": 8}))  # conv1 72 + 8, conv2 432 + 6
WIDE_CONV2 = grown(FIRST, Widen("conv2", {"conv2.out": 12}))  # conv2 432 + 12, head 48 + 4
DEEP = grown(FIRST, Deepen("conv1", ("new",)))
DEEP_BOTH = grown(DEEP, Deepen("conv2", ("newer",)))
OTHER = grown(grown(FIRST, Deepen("conv1", ("other",))), Deepen("conv2", ("another",)))


@pytest.mark.parametrize(
    ("one", "other", "expected"),
    [
        (FIRST, WIDE, (40 / 80 + 222 / 438 + 1) / 3),
        (FIRST, WIDE_CONV2, (1 + 222 / 444 + 28 / 52) / 3),
        (FIRST, DEEP, (1 + 0 + 1 + 1) / 4),
        (FIRST, DEEP_BOTH, 3 / 5),
        (DEEP, DEEP_BOTH, 4 / 5),
        (WIDE, grown(WIDE, Deepen("conv2", ("a", "b"))), 3 / 5),
        (FIRST, grown(WIDE, Deepen("conv1", ("a",))), (40 / 80 + 0 + 222 / 438 + 1) / 4),
    ],
)
def test_by_hand(one, other, expected):
    assert similarity(one, other) == pytest.approx(expected, abs=1e-12)
    assert similarity(other, one) == similarity(one, other)
    assert similarity(one, one) == similarity(other, other) == 1


def test_what_only_one_of_two_branches_has_counts_against_them():
    alike = (40 / 80 + 222 / 438 + 1) / 4
    assert similarity(WIDE, DEEP) == pytest.approx(alike, abs=1e-12)
    assert similarity(WIDE, DEEP, related=False) == pytest.approx(alike - 1 / 4, abs=1e-12)
    assert similarity(DEEP, WIDE, related=False) == similarity(WIDE, DEEP, related=False)
    # the same cells in two branches: neither has lost anything
    assert similarity(WIDE, WIDE_CONV2, related=False) == similarity(WIDE, WIDE_CONV2) > 0


def test_never_below_zero():
    """Three cells are the same, and each model has two that the other has not."""
    assert similarity(DEEP_BOTH, OTHER, related=False) == 0
    assert similarity(DEEP_BOTH, OTHER) == pytest.approx(3 / 7)


@dataclass(frozen=True)
class _Rest(Cell):
    """A cell without parameters."""

    opens: ClassVar[bool] = False

    def build(self, inputs, outputs, hidden):
        return nn.Identity()


def test_a_cell_without_parameters_is_the_same():
    resting = replace(FIRST, cells=(*FIRST.cells[:2], _Rest("rest"), FIRST.cells[2]))
    assert similarity(resting, resting) == 1
    assert similarity(resting, FIRST) == 3 / 4


def test_the_suite_knows_who_is_related():
    """Models 2 and 3 have one cell more each; 3 comes from 0 as 1 and, over 1, 2 do."""
    suite = grown_suite()
    wide = 40 / 80 + 222 / 438 + 1
    both = 40 / 80 + 222 / (12 * 72 + 12) + 28 / 52
    expected = {(0, 1): wide / 3, (0, 3): 3 / 4, (1, 3): (wide - 1) / 4, (0, 2): both / 4}
    expected[1, 2] = (1 + 438 / 876 + 28 / 52) / 4
    expected[2, 3] = max(0.0, (both - 2) / 5)
    for (one, other), value in expected.items():
        assert suite.similarity(one, other) == pytest.approx(value, abs=1e-12), (one, other)
        assert suite.similarity(other, one) == suite.similarity(one, other)


@pytest.mark.parametrize("seed", range(4))
def test_of_models_grown_at_random(seed):
    """In [0, 1], the same both ways, 1 with itself, and less the further a model has grown."""
    rng = np.random.default_rng(seed)
    line: list[Blueprint] = [FIRST]
    for number in range(1, 5):
        cells = [cell.name for cell in line[-1].cells if rng.random() < 0.6]
        line.append(_after(line[-1], plan(line[-1], cells, number, insert=int(rng.integers(1, 3)))))
    for one, other in product(line, repeat=2):
        for related in (True, False):
            value = similarity(one, other, related)
            assert 0 <= value <= 1
            assert value == similarity(other, one, related)
            assert one != other or value == 1
    to_first = [similarity(FIRST, one) for one in line]
    assert to_first == sorted(to_first, reverse=True)


def _after(blueprint: Blueprint, steps) -> Blueprint:
    for step in steps:
        blueprint = grown(blueprint, step)
    return blueprint
