"""Every kind of cell in a small network: growth preserves the function, and inserted cells can learn."""

from __future__ import annotations

import copy
from collections.abc import Callable
from math import prod
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import BatchNorm, GroupNorm, Norm
from lit_fednas.supernets.growing.cells import (
    Cell,
    ConvCell,
    LinearCell,
    LinearHead,
    PooledHead,
    PreactivatedCell,
    ResidualCell,
    ResidualConvCell,
    TokenHead,
)
from lit_fednas.supernets.growing.families import InvertedResidualCell, PatchCell, PerceptronHead, TransformerCell
from lit_fednas.supernets.growing.growth import (
    Blueprint,
    CellNetwork,
    Deepen,
    NewUnits,
    Order,
    Step,
    Widen,
    carry_over,
    grow,
    plan,
)
from tests.support import refusals

INPUT = (3, 6, 6)
CLASSES = 5
NORMS = {"batch": BatchNorm(), "batch-static": BatchNorm(running_statistics=False), "group": GroupNorm(2)}


def network(*cells: Cell, entry: int = 4, out: int = 6) -> Blueprint:
    """A network of cells of a few units; the streams of the cells ``entry`` and ``it`` have this number."""
    units = {"hidden": 6, "squeeze": 4, "heads": 2, "units": 8, "out": out}
    sizes = {f"{cell.name}.{group}": units[group] for cell in cells for group in cell.groups}
    sizes |= {name: entry for name in sizes if name == "entry.out"}
    multiple = max(getattr(getattr(cell, "norm", None), "multiple", 1) for cell in cells)
    return Blueprint(cells, sizes, INPUT[0], CLASSES, multiple)


def residual(norm: Norm, cell: Cell, **sizes: int) -> Blueprint:
    return network(ConvCell("entry", norm=norm), cell, PooledHead("head"), **sizes)


def entry(name: str, norm: Norm, stride: int = 1) -> Cell:
    return ConvCell(name, stride=stride, norm=norm, activation=None, inserted=PreactivatedCell("", norm))


def preactivated(norm: Norm, cell: Cell, **sizes: int) -> Blueprint:
    return network(entry("entry", norm), cell, PooledHead("head", norm), **sizes)


def inverted(norm: Norm, **settings: Any) -> Blueprint:
    cell = InvertedResidualCell("it", norm, expansion=4.0, **settings)
    inserted = InvertedResidualCell("", norm)
    first = ConvCell("entry", norm=norm, activation=nn.Hardswish, inserted=inserted)
    return network(first, cell, PerceptronHead("head"))


#: For every kind of cell, a network of a norm that contains it with the name ``it``.
KINDS: dict[str, Callable[[Norm], Blueprint]] = {
    "conv": lambda norm: residual(norm, ConvCell("it", norm=norm, pool=2)),
    "residual-conv": lambda norm: residual(norm, ResidualConvCell("it", norm)),
    "entry": lambda norm: network(entry("it", norm, stride=2), PooledHead("head", norm), out=4),
    "residual": lambda norm: residual(norm, ResidualCell("it", norm)),
    # equal to its inputs, so that the widths do not show the projection
    "residual-opens": lambda norm: residual(norm, ResidualCell("it", norm, opens=True), out=4),
    "preactivated": lambda norm: preactivated(norm, PreactivatedCell("it", norm)),
    "preactivated-opens": lambda norm: preactivated(norm, PreactivatedCell("it", norm, opens=True, stride=2), out=4),
    "preactivated-last": lambda norm: preactivated(norm, PreactivatedCell("it", norm, last_kernel=1)),
    "inverted": lambda norm: inverted(norm, squeezes=True, activation=nn.Hardswish, kernel=5),
    "inverted-relu": lambda norm: inverted(norm),
    "inverted-opens": lambda norm: inverted(norm, opens=True, stride=2, squeezes=True),
    "inverted-no-expansion": lambda norm: inverted(norm, opens=True, expands=False, squeezes=True),
    "linear": lambda norm: network(
        LinearCell("entry", entries=prod(INPUT)), LinearCell("it"), LinearHead("head"), entry=8
    ),
    "transformer": lambda norm: network(
        PatchCell("entry", 3, 4), TransformerCell("it", 3, 1.5), TokenHead("head"), entry=6
    ),
}
WITHOUT_NORM = {"linear", "transformer"}
CASES = [
    *((kind, "batch") for kind in KINDS),
    *((kind, "batch-static") for kind in ("conv", "residual-opens", "inverted")),
    *((kind, "group") for kind in KINDS if kind not in WITHOUT_NORM),
]


def drawn(blueprint: Blueprint) -> CellNetwork:
    """A network in float64 with random tensors, so that no scale is 1 and no shift 0."""
    net = blueprint.build().double()
    draws = generator(0, "weights")
    for tensor in [*net.parameters(), *net.buffers()]:
        if tensor.is_floating_point():
            spread = torch.rand(tensor.shape, generator=draws, dtype=tensor.dtype)
            with torch.no_grad():
                tensor.copy_(spread + 0.5 if tensor.dim() == 1 else (2 * spread - 1) / max(1, tensor[0].numel()) ** 0.5)
    return net


def images(count: int = 7) -> Tensor:
    return torch.randn(count, *INPUT, generator=generator(0, "images"), dtype=torch.float64)


def grown_by(
    net: CellNetwork, blueprint: Blueprint, steps: tuple[Step, ...], new_units: NewUnits = "drawn"
) -> tuple[CellNetwork, Blueprint]:
    draws = generator(0, "transformation")
    with isolated(0, "inserted"):
        for step in steps:
            net = carry_over(net, blueprint, step, draws, 0.3, new_units)
            blueprint = grow(blueprint, step)
    return net, blueprint


def assert_same_function(expected: nn.Module, actual: nn.Module) -> None:
    for training in (True, False):
        expected.train(training), actual.train(training)
        x = images()
        with torch.no_grad():
            torch.testing.assert_close(copy.deepcopy(actual)(x), copy.deepcopy(expected)(x), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(("kind", "norm"), CASES)
@pytest.mark.parametrize(
    ("order", "settings", "new_units"),
    [("widen", {"factor": 2.0}, "drawn"), ("widen", {"factor": 1.5}, "copies"), ("deepen", {"insert": 2}, "drawn")],
    ids=["widening", "copying", "deepening"],
)
def test_growing_keeps_the_function(
    kind: str, norm: str, order: Order, settings: dict[str, Any], new_units: NewUnits
) -> None:
    blueprint = KINDS[kind](NORMS[norm])
    net = drawn(blueprint)
    steps = plan(blueprint, ["it"], 1, order=order, **settings)
    larger, structure = grown_by(net, blueprint, steps, new_units)
    assert [type(step) for step in steps] == [Widen if order == "widen" else Deepen]
    assert len(structure.cells) == len(blueprint.cells) + settings.get("insert", 0)
    assert sum(structure.parameters.values()) > sum(blueprint.parameters.values())
    assert_same_function(net, larger)


def gradients(net: nn.Module, steps: int) -> dict[str, Tensor]:
    """The summed absolute gradients of a few training steps."""
    moving = torch.optim.SGD(net.train().parameters(), lr=0.1)
    sums = {name: torch.zeros_like(parameter) for name, parameter in net.named_parameters()}
    for _ in range(steps):
        moving.zero_grad()
        functional.cross_entropy(net(images()), torch.arange(7) % CLASSES).backward()
        for name, parameter in net.named_parameters():
            assert parameter.grad is not None, name
            sums[name] += parameter.grad.abs()
        moving.step()
    return sums


@pytest.mark.parametrize("kind", KINDS)
def test_inserted_cells_can_learn(kind: str) -> None:
    """Excludes shifts before a batch norm, and the keys' bias, which no attention weight depends on."""
    blueprint = KINDS[kind](BatchNorm())
    deeper, _ = grown_by(drawn(blueprint), blueprint, plan(blueprint, ["it"], 1, order="deepen"))
    for name, seen in gradients(deeper, 4).items():
        if name.startswith("cells.it_m1.") and name.endswith("weight"):
            assert seen.max() > 1e-12, name


@pytest.mark.parametrize("kind", KINDS)
def test_new_units_are_used(kind: str) -> None:
    """After a few steps, incoming and outgoing weights of all units have gradients."""
    blueprint = KINDS[kind](BatchNorm())
    wider, _ = grown_by(drawn(blueprint), blueprint, plan(blueprint, ["it"], 1, order="widen"))
    for name, seen in gradients(wider, 3).items():
        if seen.dim() == 1 or "squeeze" in name:
            continue  # After a mean over all pixels a ReLU may be dead for every image.
        for dimension in (0, 1):
            others = tuple(dim for dim in range(seen.dim()) if dim != dimension)
            alive = 0.7 if kind == "linear" else 0.9  # a unit with a ReLU of 0 for all seven images gets no gradient
            assert (seen.amax(others) > 1e-12).double().mean() > alive, (name, dimension)


@pytest.mark.parametrize(
    ("kind", "groups"),
    [
        ("residual-opens", "it.hidden it.out"),
        ("inverted-opens", "it.hidden it.squeeze it.out head.units"),  # the head's units widen with its input
        ("inverted-no-expansion", "it.squeeze it.out head.units"),
        ("transformer", "it.heads it.units"),
    ],
)
def test_groups_that_widen_with_a_cell(kind: str, groups: str) -> None:
    assert " ".join(KINDS[kind](BatchNorm()).growing_groups("it")) == groups


def test_hidden_units_with_which_a_cell_is_inserted() -> None:
    assert ResidualCell("a", BatchNorm()).fresh_sizes(12) == {"hidden": 12}
    assert PreactivatedCell("a", BatchNorm()).fresh_sizes(12) == {"hidden": 12}
    assert TransformerCell("a", head_dim=3, mlp_ratio=1.5).fresh_sizes(12) == {"heads": 4, "units": 18}
    inverted_cell = InvertedResidualCell("a", BatchNorm(), expansion=2.5, squeezes=True)
    assert inverted_cell.fresh_sizes(8) == {"hidden": 20, "squeeze": 5}
    in_groups = InvertedResidualCell("a", GroupNorm(8), expansion=2.5, squeezes=True)
    assert in_groups.fresh_sizes(8) == {"hidden": 24, "squeeze": 8}


def test_a_residual_block_is_that_of_the_paper() -> None:
    """He et al. (2016), Fig. 2 and equation 2."""
    block = ResidualCell("a", BatchNorm(), opens=True, stride=2).build(4, 6, {"hidden": 8}, scale=1).double().eval()
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    layers, (conv, norm) = block.block, block.shortcut
    inner = functional.relu(layers.norm1(functional.conv2d(x, layers.conv1.weight, stride=2, padding=1)))
    y = layers.norm2(functional.conv2d(inner, layers.conv2.weight, padding=1))
    expected = functional.relu(y + norm(functional.conv2d(x, conv.weight, stride=2)))
    torch.testing.assert_close(block(x), expected)


def test_a_preactivated_block_is_that_of_the_benchmark() -> None:
    """Dong & Yang (2020), section 2.1: the shortcut is a 2x2 average pooling of stride 2 and a 1x1 convolution."""
    block = PreactivatedCell("a", BatchNorm(), opens=True, stride=2).build(4, 6, {"hidden": 8}, scale=1).double().eval()
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    first, second = block.block.first, block.block.second
    inner = first.norm(functional.conv2d(functional.relu(x), first.conv.weight, stride=2, padding=1))
    y = second.norm(functional.conv2d(functional.relu(inner), second.conv.weight, padding=1))
    pooled = x.view(2, 4, 3, 2, 3, 2).mean((3, 5))
    torch.testing.assert_close(block(x), y + functional.conv2d(pooled, block.shortcut.conv.weight))


test_invalid_settings_are_refused = refusals(
    (lambda: ResidualCell("a", None), "supernet.family.norm: .* affine: true"),
    (lambda: ResidualCell("a", BatchNorm(affine=False)), "supernet.family.norm: .* affine: true"),
)
