"""Widening, deepening and the steps of a transformation, on plain convolutions."""

import pytest
import torch

from lit_fednas.rng import generator
from lit_fednas.supernets import GroupNorm, GrowableCNN
from lit_fednas.supernets.growing.cells import ConvCell, PooledHead
from lit_fednas.supernets.growing.growth import (
    Blueprint,
    Deepen,
    Widen,
    carry_over,
    grow,
    plan,
)
from tests.support import refusals, seeded


def first(hidden=(4, 8), norm=None) -> Blueprint:
    return GrowableCNN(hidden, norm).blueprint((3, 8, 8), 5)


#: No ReLU follows its only convolution, so that no cell can be inserted after it.
LINEAR = Blueprint((ConvCell("only", activation=None), PooledHead("head")), {"only.out": 4}, 3, 5)


@pytest.mark.parametrize(
    ("order", "steps", "cells"),
    [
        ("widen", "16 32 64", "conv1 4, conv2 64, head"),
        ("deepen", "conv2_m1 conv2_m2 conv2_m3", "conv1 4, conv2 8, conv2_m3 8, conv2_m2 8, conv2_m1 8, head"),
        ("alternate", "16 conv2_m2 32", "conv1 4, conv2 32, conv2_m2 16, head"),
    ],
)
def test_a_cell_is_widened_and_deepened_in_turn_or_only(order: str, steps: str, cells: str) -> None:
    blueprint = first()
    for number, text in enumerate(steps.split(), 1):
        (step,) = plan(blueprint, ["conv2"], number, order=order)
        assert step == (Widen("conv2", {"conv2.out": int(text)}) if text.isdecimal() else Deepen("conv2", (text,)))
        blueprint = grow(blueprint, step)
    assert str(blueprint) == cells


def test_degrees_of_a_transformation() -> None:
    blueprint = first((6, 10))
    assert plan(blueprint, ["conv2", "conv1"], 1, factor=1.5) == (
        Widen("conv1", {"conv1.out": 9}),
        Widen("conv2", {"conv2.out": 15}),
    )
    assert plan(blueprint, ["conv1"], 1, factor=1.01) == (Widen("conv1", {"conv1.out": 7}),)
    (step,) = plan(blueprint, ["conv1"], 7, insert=3, order="deepen")
    assert step == Deepen("conv1", ("conv1_m7a", "conv1_m7b", "conv1_m7c"))
    assert str(grow(blueprint, step)).startswith("conv1 6, conv1_m7a 6, conv1_m7b 6, conv1_m7c 6, conv2")
    assert plan(first((8, 8), GroupNorm(4)), ["conv1"], 1, factor=1.2) == (Widen("conv1", {"conv1.out": 12}),)


def test_heads_stay_and_layers_without_followers_are_widened() -> None:
    assert plan(first(), ["head"], 1) == ()
    assert plan(LINEAR, ["only"], 1, order="deepen") == (Widen("only", {"only.out": 8}),)


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_widening_copies_units_and_divides_their_outgoing_weights(noise: float) -> None:
    """Every new row equals an old one, and the columns of its copies in the next layer sum to the old column."""
    blueprint = first()
    network = seeded(blueprint.build).double()
    wider = carry_over(network, blueprint, Widen("conv1", {"conv1.out": 9}), generator(3, "take"), noise, "copies")
    old, new = network.state_dict(), wider.state_dict()
    rows, new_rows = old["cells.conv1.conv.weight"], new["cells.conv1.conv.weight"]
    assert new_rows.shape[0] == 9
    assert torch.equal(new_rows[:4], rows)
    source = [int((rows == row).flatten(1).all(1).nonzero()) for row in new_rows]
    assert len(set(source[4:])) > 1  # drawn for each copy
    assert torch.equal(new["cells.conv1.conv.bias"], old["cells.conv1.conv.bias"][source])
    columns, wide = old["cells.conv2.conv.weight"], new["cells.conv2.conv.weight"]
    for unit in range(4):
        copies = [position for position, origin in enumerate(source) if origin == unit]
        torch.testing.assert_close(wide[:, copies].sum(1), columns[:, unit])
        parts = [float((wide[:, position] / columns[:, unit]).mean()) for position in copies]
        if len(copies) > 1:
            assert (max(parts) - min(parts) > 1e-3) == (noise > 0)
        assert min(parts) > 0
    assert torch.equal(new["cells.head.classifier.weight"], old["cells.head.classifier.weight"])


test_invalid_settings_are_refused = refusals(
    (lambda: grow(first(), Widen("conv9", {"conv9.out": 8})), r"'conv9'.*conv1, conv2, head"),
    (lambda: grow(LINEAR, Deepen("only", ("new",))), r"'only'.*widen"),
    (
        lambda: Blueprint((ConvCell("a"), PooledHead("head")), {"a.out": 6}, 3, 5, multiple=4),
        "a.out has 6 units.*multiple of 4",
    ),
)
