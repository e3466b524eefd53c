"""DARTS' cells: a mixture by hand, the published network's size, derivation and genotypes."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

from lit_fednas.errors import ConfigError
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import BatchNorm, CellSupernet, GenotypeNetwork, GroupNorm
from lit_fednas.supernets.cells.space import CANDIDATES, OPERATORS, GenotypeSpace, edges_of, operators_of
from lit_fednas.supernets.cells.supernet import CellLayout, MixedCell, operator
from tests.support import refusals

#: DARTS (second order) on CIFAR-10, from Liu et al.'s Figures 4 and 5.
DARTS_V2 = (
    "normal sep_conv_3x3~0+sep_conv_3x3~1 sep_conv_3x3~0+sep_conv_3x3~1 skip_connect~0+sep_conv_3x3~1 "
    "skip_connect~0+dil_conv_3x3~2 reduce max_pool_3x3~0+max_pool_3x3~1 max_pool_3x3~1+skip_connect~2 "
    "max_pool_3x3~0+skip_connect~2 max_pool_3x3~1+skip_connect~2"
)
NORM = BatchNorm(affine=False, running_statistics=False)


def small(nodes: int = 2, width: int = 4) -> CellSupernet:
    with isolated(0, "small"):
        return CellSupernet((3, 8, 8), 5, width=width, cells=3, nodes=nodes, norm=NORM)


def normalised(x: Tensor) -> Tensor:
    mean, var = x.mean((0, 2, 3), keepdim=True), x.var((0, 2, 3), unbiased=False, keepdim=True)
    return (x - mean) / (var + 1e-5).sqrt()


def by_hand(name: str, x: Tensor, weights: list[Tensor], stride: int) -> Tensor:
    """An operator as section 3.1.1 describes it."""
    size = {"stride": stride}
    if name == "max_pool_3x3":
        return normalised(functional.max_pool2d(x, 3, padding=1, **size))
    if name == "avg_pool_3x3":
        inside = functional.conv2d(torch.ones_like(x[:, :1]), torch.ones(1, 1, 3, 3), padding=1, **size)
        kernel = torch.ones(x.shape[1], 1, 3, 3)
        return normalised(functional.conv2d(x, kernel, padding=1, groups=x.shape[1], **size) / inside)
    if name == "skip_connect" and stride == 1:
        return x
    if name == "skip_connect":
        activated = functional.relu(x)
        halves = [functional.conv2d(activated[:, :, i::2, i::2], weight) for i, weight in enumerate(weights)]
        return normalised(torch.cat(halves, 1))
    dilation = 2 if name.startswith("dil") else 1
    for depthwise, pointwise in zip(weights[::2], weights[1::2], strict=True):
        padding = dilation * (depthwise.shape[-1] // 2)
        x = functional.conv2d(
            functional.relu(x), depthwise, padding=padding, dilation=dilation, groups=x.shape[1], stride=stride
        )
        x, stride = normalised(functional.conv2d(x, pointwise)), 1
    return x


def test_weighed_outputs_of_a_mixture_are_added_one_by_one() -> None:
    """A list of all products would need seven times the memory."""
    cell = small().network.cells[0]
    assert isinstance(cell, MixedCell)
    products: list[weakref.ref[Tensor]] = []

    class Share:
        def __mul__(self, output: Tensor) -> Tensor:
            products.append(weakref.ref(product := 0.1 * output))
            alive.append(sum(reference() is not None for reference in products))
            return product

    alive: list[int] = []
    shares: Any = [Share() for _ in CANDIDATES]
    cell._edge((0, 2), torch.randn(2, 4, 8, 8), shares)
    assert len(products) == len(CANDIDATES) - 1
    assert max(alive) <= 3


@pytest.mark.parametrize("stride", [1, 2])
@pytest.mark.parametrize("name", OPERATORS)
def test_an_operator_is_what_the_text_says(name: str, stride: int) -> None:
    with isolated(1, name):
        module, x = operator(name, 4, stride, NORM, pool_norm=True), torch.randn(3, 4, 6, 6)
    weights = list(module.parameters())
    kernels = {"sep_conv_3x3": [3, 1, 3, 1], "sep_conv_5x5": [5, 1, 5, 1], "dil_conv_3x3": [3, 1]}
    kernels["dil_conv_5x5"] = [5, 1]
    expected = kernels.get(name, [1, 1] if (name, stride) == ("skip_connect", 2) else [])
    assert [weight.shape[-1] for weight in weights] == expected
    torch.testing.assert_close(module(x), by_hand(name, x, weights, stride), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("halves", [False, True])
def test_a_mixed_cell_adds_up_all_operators_of_all_edges(halves: bool) -> None:
    layout, width, nodes = CellLayout(2, 3, 2, NORM, pool_norm=True), 2, 2
    operators = operators_of("mixture", nodes)["normal"]
    with isolated(0, "cell"):
        inputs = [torch.nn.Identity(), torch.nn.Identity()]
        cell = MixedCell(inputs, operators, width, halves, layout)
        states = [torch.randn(3, width, 8, 8) for _ in range(2)]
        shares = torch.rand(5, 8)
    out = cell(*states, shares)
    row = 0
    for target in (2, 3):
        total = torch.zeros(())
        for source in range(target):
            stride = 2 if halves and source < 2 else 1
            for column, name in enumerate(CANDIDATES):
                if name != "none":
                    weights = list(cell.edges[f"{source}_{target}"][name].parameters())  # type: ignore[index]
                    total = total + shares[row, column] * by_hand(name, states[source], weights, stride)
            row += 1
        states.append(total)
    torch.testing.assert_close(out, torch.cat(states[2:], 1), rtol=1e-4, atol=1e-4)


def test_shares_are_the_softmax_of_the_kind_of_the_cell() -> None:
    """With all weight on one operator, the mixture equals the network of that operator on all edges."""
    net = small(nodes=1)
    genotype = net.space.parse("normal dil_conv_3x3~0+sep_conv_3x3~1 reduce avg_pool_3x3~0+skip_connect~1")
    with torch.no_grad():
        for kind in ("normal", "reduce"):
            alphas = getattr(net.network, f"alphas_{kind}").fill_(-50.0)
            for name, source in getattr(genotype, kind)[0]:
                alphas[source, CANDIDATES.index(name)] = 50.0
    x = torch.randn(4, 3, 8, 8, generator=generator(0, "x"))
    torch.testing.assert_close(net(x, "mixture"), net(x, genotype), rtol=1e-4, atol=1e-5)
    with torch.no_grad():  # one edge only, because norms undo a common factor
        net.network.alphas_normal[0, CANDIDATES.index("none")] = 50.0
    assert not torch.allclose(net(x, "mixture"), net(x, genotype), rtol=1e-2)


def test_the_published_network_has_its_published_size() -> None:
    """3.3M parameters (Table 1); its code prints 3.349342MB, without the auxiliary classifier."""
    cost = GenotypeNetwork((3, 32, 32), 10, DARTS_V2).cost("whole")
    assert cost.parameters == 3_349_342
    assert cost.macs == pytest.approx(528e6, rel=0.002)


def test_derived_by_hand() -> None:
    """The two of three edges with the largest share of an operator stay; the share of ``none`` does not matter."""
    net = small()
    shares = net.network.alphas_reduce.softmax(-1)
    assert shares.flatten().tolist() == pytest.approx([1 / 8] * 40, rel=0.01), "mixtures start nearly even"
    assert shares.std() > 0
    alphas = net.network.alphas_normal.detach()
    alphas.zero_()
    rows = {edge: row for row, edge in enumerate(edges_of(2))}
    alphas[rows[0, 2], CANDIDATES.index("dil_conv_5x5")] = 1.0
    alphas[rows[1, 2], [0, 1]] = torch.tensor([9.0, 0.5])  # none is never derived
    alphas[rows[0, 3]] = torch.tensor([0.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0, 2.0])  # equal shares of 1/7
    alphas[rows[1, 3], CANDIDATES.index("sep_conv_3x3")] = 0.5
    alphas[rows[2, 3], CANDIDATES.index("skip_connect")] = 0.9
    expected = "normal dil_conv_5x5~0+max_pool_3x3~1 sep_conv_3x3~1+skip_connect~2"
    assert str(net.derive_genotype()).startswith(expected)
    alphas[rows[1, 3], 0] = 3.0  # none dominates this edge
    assert str(net.derive_genotype()).split()[2] == "max_pool_3x3~0+skip_connect~2"


def test_there_are_as_many_genotypes_as_the_paper_counts() -> None:
    """Section 3.1.1's count for one kind of cell, 180 * 7^8, squared."""
    assert GenotypeSpace(4).size == (180 * 7**8) ** 2


def parsed(text: str) -> Callable[[], object]:
    return lambda: GenotypeSpace(2).parse(text.format("skip_connect~0+skip_connect~1"))


test_invalid_settings_are_refused = refusals(
    (parsed("largest of all"), "architecture: 'largest of all' cannot be read"),
    (parsed("normal {0} reduce {0} {0}"), "has 1 normal nodes; give 2"),
    (parsed("normal a~0+b~1 a~0+b~1 reduce a~0+b~1 a~0+b~1"), "'a' is not an operator"),
    (parsed("normal {0} skip_connect~0+skip_connect~3 reduce {0} {0}"), "normal node 3 reads [0, 3]; give two nodes"),
    (lambda: GenotypeSpace(2).encode("mixture"), "architecture mixture: contains all operators; name a genotype"),
    (lambda: CellSupernet((3, 10, 8)), "supernet.input_shape: 10x8 pixels cannot be halved twice"),
)


def test_a_genotype_is_read_from_a_search(tmp_path) -> None:
    path = tmp_path / "architecture.json"
    path.write_text(json.dumps({"tier": "all", "arch": DARTS_V2}))
    settings = {"width": 4, "cells": 3, "norm": GroupNorm(2)}
    read = GenotypeNetwork((3, 8, 8), 5, str(path), **settings)
    assert read.fingerprint == GenotypeNetwork((3, 8, 8), 5, DARTS_V2, **settings).fingerprint
    with pytest.raises(ConfigError, match=r"supernet.genotype: none.json has no architecture; run lit-fednas search"):
        GenotypeNetwork((3, 8, 8), 5, "none.json", **settings)
