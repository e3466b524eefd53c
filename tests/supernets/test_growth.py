"""Widening, deepening and what a transformation consists of, on plain convolutions."""

import json

import pytest
import torch

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.rng import generator
from lit_fednas.supernets import GroupNorm, GrowableCNN
from lit_fednas.supernets.growing.blueprint import Blueprint
from lit_fednas.supernets.growing.cells import ConvCell, PooledHead
from lit_fednas.supernets.growing.growth import Deepen, Widen, carried_over, from_plain, grown, plan, to_plain


def first(hidden=(4, 8), norm=None) -> Blueprint:
    return GrowableCNN(hidden, norm).blueprint((3, 8, 8), 5)


def network(blueprint: Blueprint, seed: int = 0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return blueprint.build().double()


def test_a_cell_is_widened_then_deepened_then_widened_again() -> None:
    blueprint, done = first(), []
    for number in range(1, 5):
        (step,) = plan(blueprint, ["conv2"], number)
        done.append(step)
        blueprint = grown(blueprint, step)
    assert done == [
        Widen("conv2", {"conv2.out": 16}),
        Deepen("conv2", ("conv2_m2",)),
        Widen("conv2", {"conv2.out": 32}),
        Deepen("conv2", ("conv2_m4",)),
    ]
    assert str(blueprint) == "conv1 4, conv2 32, conv2_m4 32, conv2_m2 16, head"


def test_an_inserted_cell_begins_with_widening() -> None:
    blueprint = grown(grown(first(), Widen("conv1", {"conv1.out": 8})), Deepen("conv1", ("new",)))
    assert plan(blueprint, ["new"], 3) == (Widen("new", {"new.out": 16}),)


@pytest.mark.parametrize(
    ("order", "expected"),
    [("widen", [Widen] * 3), ("deepen", [Deepen] * 3), ("alternate", [Widen, Deepen, Widen])],
)
def test_cells_may_be_widened_or_deepened_only(order, expected) -> None:
    blueprint, kinds = first(), []
    for number in range(1, 4):
        (step,) = plan(blueprint, ["conv1"], number, order=order)
        kinds.append(type(step))
        blueprint = grown(blueprint, step)
    assert kinds == expected


def test_degrees_of_a_transformation() -> None:
    blueprint = first((6, 10))
    assert plan(blueprint, ["conv2", "conv1"], 1, factor=1.5) == (
        Widen("conv1", {"conv1.out": 9}),
        Widen("conv2", {"conv2.out": 15}),
    )
    assert plan(blueprint, ["conv1"], 1, factor=1.01) == (Widen("conv1", {"conv1.out": 7}),)
    (step,) = plan(blueprint, ["conv1"], 7, insert=3, order="deepen")
    assert step == Deepen("conv1", ("conv1_m7a", "conv1_m7b", "conv1_m7c"))
    assert str(grown(blueprint, step)).startswith("conv1 6, conv1_m7a 6, conv1_m7b 6, conv1_m7c 6, conv2")
    for wrong in ({"factor": 1.0}, {"insert": 0}):
        with pytest.raises(ConfigError, match=r"factor .* insert"):
            plan(blueprint, ["conv1"], 1, **wrong)


def test_units_stay_multiples_of_a_group() -> None:
    (step,) = plan(first((8, 8), GroupNorm(4)), ["conv1"], 1, factor=1.2)
    assert step == Widen("conv1", {"conv1.out": 12})


def test_heads_and_unknown_cells() -> None:
    assert plan(first(), ["head"], 1) == ()
    with pytest.raises(ConfigError, match=r"'conv9'.*conv1, conv2, head"):
        grown(first(), Widen("conv9", {"conv9.out": 8}))
    linear = Blueprint((ConvCell("only", relu=False), PooledHead("head")), {"only.out": 4}, 3, 5)
    with pytest.raises(ConfigError, match=r"'only'.*widen"):
        grown(linear, Deepen("only", ("new",)))
    assert plan(linear, ["only"], 1, order="deepen") == (Widen("only", {"only.out": 8}),)


@pytest.mark.parametrize("noise", [0.0, 0.4])
def test_widening_copies_units_and_divides_what_is_taken_from_them(noise: float) -> None:
    """Element by element: every new row is an old one, and its columns in the next layer add up to the old."""
    blueprint = first()
    before = network(blueprint)
    after = carried_over(before, blueprint, Widen("conv1", {"conv1.out": 9}), generator(3, "take"), noise, "copies")
    old, new = before.state_dict(), after.state_dict()
    rows, taken = old["cells.conv1.conv.weight"], new["cells.conv1.conv.weight"]
    assert taken.shape[0] == 9
    assert torch.equal(taken[:4], rows)
    source = [int((rows == row).flatten(1).all(1).nonzero()) for row in taken]
    assert len(set(source[4:])) > 1  # drawn, not one for all
    assert torch.equal(new["cells.conv1.conv.bias"], old["cells.conv1.conv.bias"][source])
    columns, wide = old["cells.conv2.conv.weight"], new["cells.conv2.conv.weight"]
    for unit in range(4):
        copies = [place for place, of in enumerate(source) if of == unit]
        torch.testing.assert_close(wide[:, copies].sum(1), columns[:, unit])
        parts = [float((wide[:, place] / columns[:, unit]).mean()) for place in copies]
        if len(copies) > 1:
            assert (max(parts) - min(parts) > 1e-3) == (noise > 0)
        assert min(parts) > 0
    assert torch.equal(new["cells.head.classifier.weight"], old["cells.head.classifier.weight"])


def test_which_units_are_copied_belongs_to_the_generator() -> None:
    blueprint, step = first(), Widen("conv2", {"conv2.out": 16})
    made = [
        dict(carried_over(network(blueprint), blueprint, step, generator(seed, "take"), 0, "copies").named_parameters())
        for seed in (0, 0, 1)
    ]
    weight = "cells.conv2.conv.weight"
    assert torch.equal(made[0][weight], made[1][weight])
    assert not torch.equal(made[0][weight], made[2][weight])


def test_equal_copies_stay_equal_and_noise_breaks_the_tie() -> None:
    """Why there is noise: without it a copy's gradient is its original's."""
    blueprint, step = first(norm=None), Widen("conv1", {"conv1.out": 8})
    spread = {}
    for noise in (0.0, 0.2):
        net = carried_over(network(blueprint), blueprint, step, generator(0, "take"), noise, "copies")
        x = torch.randn(16, 3, 8, 8, dtype=torch.double, generator=generator(0, "x"))
        net(x).square().sum().backward()
        weight = net.cells["conv1"].conv.weight
        rows, grads = weight.detach(), weight.grad
        twin = next((one, two) for two in range(4, 8) for one in range(4) if torch.equal(rows[one], rows[two]))
        copies = [place for place in range(8) if torch.equal(rows[place], rows[twin[0]])]
        spread[noise] = max(float((grads[one] - grads[copies[0]]).abs().max()) for one in copies)
    assert spread[0.0] < 1e-12 < 1e-3 < spread[0.2]


def test_steps_as_plain_values() -> None:
    steps = (Widen("conv1", {"conv1.out": 9}), Deepen("conv2", ("a", "b")))
    assert from_plain(json.loads(json.dumps(to_plain(steps)))) == steps
    with pytest.raises(CheckpointError, match="not a step"):
        from_plain([{"shrink": "conv1"}])


@pytest.mark.parametrize(
    ("cells", "sizes", "complaint"),
    [
        ((ConvCell("a"), ConvCell("a"), PooledHead("head")), {"a.out": 4}, "'a' must be the name of one cell"),
        ((ConvCell("a.b"), PooledHead("head")), {"a.b.out": 4}, "without dots"),
        ((ConvCell("a"), PooledHead("head")), {}, "groups a.out"),
        ((ConvCell("a"), PooledHead("head")), {"a.out": 6}, "a.out has 6 units.*multiple of 4"),
    ],
)
def test_broken_blueprints(cells, sizes, complaint) -> None:
    with pytest.raises(ConfigError, match=complaint):
        Blueprint(cells, sizes, 3, 5, multiple=4)
