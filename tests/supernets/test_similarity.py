"""How similar models are, worked by hand from their cells' parameters."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import reduce
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
from torch import nn

from lit_fednas.supernets.growing.cells import Cell
from lit_fednas.supernets.growing.cnn import GrowableCNN
from lit_fednas.supernets.growing.growth import Deepen, Widen, grown, plan
from lit_fednas.supernets.growing.suite import similarity

# 1 channel, 3x3 kernels with a bias, 4 classes: conv1 has 36 + 4 parameters, conv2 216 + 6, the head 24 + 4
FIRST = GrowableCNN([4, 6], norm=None).blueprint((1, 8, 8), 4)
WIDE = grown(FIRST, Widen("conv1", {"conv1.out": 8}))  # conv1 72 + 8, conv2 432 + 6
WIDE_CONV2 = grown(FIRST, Widen("conv2", {"conv2.out": 12}))  # conv2 432 + 12, head 48 + 4
DEEP = grown(FIRST, Deepen("conv1", ("new",)))
DEEP_BOTH = grown(DEEP, Deepen("conv2", ("newer",)))
OTHER = grown(grown(FIRST, Deepen("conv1", ("other",))), Deepen("conv2", ("another",)))


@dataclass(frozen=True)
class _Rest(Cell):
    """A cell without parameters."""

    opens: ClassVar[bool] = False

    def build(self, inputs, outputs, hidden):
        return nn.Identity()


RESTING = replace(FIRST, cells=(*FIRST.cells[:2], _Rest("rest"), FIRST.cells[2]))
ALIKE = (40 / 80 + 222 / 438 + 1) / 4  # of four cells


@pytest.mark.parametrize(
    ("one", "other", "related", "expected"),
    [
        (FIRST, WIDE, True, (40 / 80 + 222 / 438 + 1) / 3),
        (FIRST, WIDE_CONV2, True, (1 + 222 / 444 + 28 / 52) / 3),
        (FIRST, DEEP, True, (1 + 0 + 1 + 1) / 4),
        (FIRST, DEEP_BOTH, True, 3 / 5),
        (DEEP, DEEP_BOTH, True, 4 / 5),
        (WIDE, grown(WIDE, Deepen("conv2", ("a", "b"))), True, 3 / 5),
        (FIRST, grown(WIDE, Deepen("conv1", ("a",))), True, ALIKE),
        (FIRST, RESTING, True, 3 / 4),
        (WIDE, DEEP, True, ALIKE),
        (WIDE, DEEP, False, ALIKE - 1 / 4),  # what only one of two branches has counts against them
        (WIDE, WIDE_CONV2, False, similarity(WIDE, WIDE_CONV2)),  # the same cells: neither has lost anything
        (DEEP_BOTH, OTHER, True, 3 / 7),
        (DEEP_BOTH, OTHER, False, 0),  # not below zero: three are the same, and each has two that the other has not
    ],
)
def test_by_hand(one, other, related, expected):
    assert similarity(one, other, related) == pytest.approx(expected, abs=1e-12)
    assert similarity(other, one, related) == similarity(one, other, related)
    assert similarity(one, one) == similarity(other, other) == 1


@pytest.mark.parametrize("seed", range(4))
def test_of_models_grown_at_random(seed):
    """In [0, 1], the same both ways, 1 with itself, and less the further a model has grown."""
    rng = np.random.default_rng(seed)
    line = [FIRST]
    for number in range(1, 5):
        cells = [cell.name for cell in line[-1].cells if rng.random() < 0.6]
        line.append(reduce(grown, plan(line[-1], cells, number, insert=int(rng.integers(1, 3))), line[-1]))
    for one, other in product(line, repeat=2):
        for related in (True, False):
            value = similarity(one, other, related)
            assert 0 <= value <= 1
            assert value == similarity(other, one, related)
            assert one != other or value == 1
    to_first = [similarity(FIRST, one) for one in line]
    assert to_first == sorted(to_first, reverse=True)
