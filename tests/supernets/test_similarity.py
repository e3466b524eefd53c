"""How similar models are, worked by hand from their cells' parameters."""

from __future__ import annotations

import pytest

from lit_fednas.supernets.growing.families import GrowableCNN
from lit_fednas.supernets.growing.growth import Deepen, Widen, grown
from lit_fednas.supernets.growing.suite import similarity

# 1 channel, 3x3 kernels with a bias, 4 classes: conv1 has 36 + 4 parameters, conv2 216 + 6, the head 24 + 4
FIRST = GrowableCNN([4, 6], norm=None).blueprint((1, 8, 8), 4)
WIDE = grown(FIRST, Widen("conv1", {"conv1.out": 8}))  # conv1 72 + 8, conv2 432 + 6
WIDE_CONV2 = grown(FIRST, Widen("conv2", {"conv2.out": 12}))  # conv2 432 + 12, head 48 + 4
DEEP = grown(FIRST, Deepen("conv1", ("new",)))
DEEP_BOTH = grown(DEEP, Deepen("conv2", ("newer",)))
OTHER = grown(grown(FIRST, Deepen("conv1", ("other",))), Deepen("conv2", ("another",)))


ALIKE = (40 / 80 + 222 / 438 + 1) / 4  # of four cells


@pytest.mark.parametrize(
    ("one", "other", "related", "expected"),
    [
        (FIRST, WIDE, True, (40 / 80 + 222 / 438 + 1) / 3),
        (FIRST, WIDE_CONV2, True, (1 + 222 / 444 + 28 / 52) / 3),
        (FIRST, DEEP, True, (1 + 0 + 1 + 1) / 4),
        (FIRST, DEEP_BOTH, True, 3 / 5),
        (WIDE, grown(WIDE, Deepen("conv2", ("a", "b"))), True, 3 / 5),
        (FIRST, grown(WIDE, Deepen("conv1", ("a",))), True, ALIKE),
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
