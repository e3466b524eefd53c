"""FedorAS' path supernet, compared with the paper's figures and with operators by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lit_fednas.costs import count_macs, count_operations
from lit_fednas.supernets import BatchNorm, PathCNN
from lit_fednas.supernets.paths.cnn import OPERATORS, REDUCTIONS, reduction
from lit_fednas.testing.networks import batch
from lit_fednas.tiers import CumulativeCostTiers
from tests.supernets.instances import kept_instance
from tests.support import refusals

NORM = BatchNorm()
CNN = kept_instance("path-cnn")


def test_table_8s_models_range_and_boundaries():
    """Boundaries are about half a percent low; drawing 20,000 paths moves them by a third of a percent."""
    net, rng = PathCNN(), np.random.default_rng(0)
    listed = [239.4e12, 1089.4e12, 477.2e12, 46.9e12]  # CIFAR-10
    assert net.space.size == 9**16 == pytest.approx(sum(listed), rel=1e-4)
    low, top = (net.operations(arch) for arch in (net.space.smallest, net.space.largest))
    assert top == count_operations(net.skeleton(net.space.largest), (3, 32, 32)) == pytest.approx(716.0e6, abs=0.05e6)
    # the tiers below the highest have equal width and start at the fixed cost
    assert low == pytest.approx(120.9e6 - (223.2e6 - 120.9e6), rel=0.01)
    costs = net.path_costs("operations")
    sampled = costs.fixed + sum(rng.choice(layer, 20_000) for layer in costs.layers)
    cifar10, cifar100 = (CumulativeCostTiers(count=4, high=high).bounds(sampled, low, top) for high in (0.95, 0.9))
    assert cifar10 == pytest.approx([120.9e6, 223.2e6, 325.4e6, 716.0e6], rel=0.01)
    assert cifar100 == pytest.approx([111.5e6, 204.3e6, 297.1e6, 716.0e6], rel=0.01)


def test_table_8s_keyword_spotting():
    net = PathCNN((1, 40, 51), 12, 16, [1, 1, 2, 2], [2] * 4, [*OPERATORS], reduction="pooled", growth=2, stem_stride=2)
    assert net.space.size == 11**6 == 1_771_561
    assert net.operations(net.space.largest) == pytest.approx(20.0e6, rel=1e-4)


def conv(inputs: int, outputs: int, kernel: int, pixels: int, groups: int = 1) -> int:
    return pixels * outputs * (inputs // groups) * kernel**2


def test_operators_by_hand():
    c, px = 8, 36
    half, double = c // 2, 2 * c
    expected = {
        "conv1": conv(c, c, 1, px),
        "sep_e05": conv(c, half, 3, px, half) + conv(half, c, 1, px),
        "sep_e1": conv(c, c, 3, px, c) + conv(c, c, 1, px),
        "sep_e2": conv(c, double, 3, px, c) + conv(double, c, 1, px),
        "mb1_e2": conv(c, double, 1, px) + 2 * double**2 + conv(double, c, 1, px),
        "mb3_e05": conv(c, half, 3, px) + 2 * half**2 + conv(half, c, 1, px),
        "mb3_e1": conv(c, c, 3, px) + 2 * c**2 + conv(c, c, 1, px),
        "mb3_e2": conv(c, double, 3, px) + 2 * double**2 + conv(double, c, 1, px),
        "id": 0,
        "conv3": conv(c, c, 3, px),
        "sep1_e2": conv(c, double, 1, px, c) + conv(double, c, 1, px),
    }
    assert expected.keys() == OPERATORS.keys()
    for name, macs in expected.items():
        operator = OPERATORS[name](c, NORM).eval()
        assert count_macs(operator, (c, 6, 6)) == macs, name
        x = torch.randn(2, c, 6, 6)
        assert operator(x).shape == x.shape
        residual = name.startswith(("sep", "mb"))
        block = operator.block if residual else operator
        torch.testing.assert_close(operator(x), x + block(x) if residual else block(x))
        if name != "id":
            convolutions = [module for module in operator.modules() if isinstance(module, nn.Conv2d)]
            norms = [module for module in operator.modules() if isinstance(module, nn.BatchNorm2d)]
            assert len(norms) == len(convolutions) - 2 * name.startswith("mb")  # squeeze and excitation have a bias
            assert (block(x) >= 0).all()  # ReLU comes last


def test_squeeze_and_excitation_by_its_formula():
    module = OPERATORS["mb3_e1"](4, NORM).block[1]
    x = torch.randn(3, 4, 5, 5)
    means = x.mean((2, 3))
    inner = torch.relu(functional.linear(means, module.fc1.weight[:, :, 0, 0], module.fc1.bias))
    gates = torch.sigmoid(functional.linear(inner, module.fc2.weight[:, :, 0, 0], module.fc2.bias))
    torch.testing.assert_close(module(x), x * gates[:, :, None, None])


@pytest.mark.parametrize(
    ("stride", "separable_link", "sides"), [(2, False, (6, 6)), (1, False, (6, 6)), (2, True, (7, 5))]
)
def test_a_reduction_adds_two_ways(stride, separable_link, sides):
    module = reduction(4, 6, stride, NORM, separable_link=separable_link).eval()
    x = torch.randn(2, 4, *sides)
    block, link = module.block, module.shortcut
    shortcut = link.pointwise(link.depthwise(x)) if separable_link else link(x)
    torch.testing.assert_close(module(x), block.pointwise(block.depthwise(x)) + shortcut)
    assert module(x).shape == (2, 6, *(-(-side // stride) for side in sides))
    assert block.depthwise[0].groups == 4


@pytest.mark.parametrize("stride", [1, 2])
def test_a_pooled_reduction_by_hand(stride):
    module = REDUCTIONS["pooled"](4, 6, stride, NORM).eval()
    x = torch.randn(2, 4, 7, 5)
    weight = torch.full((4, 1, 3, 3), 1 / 9)
    means = functional.conv2d(x, weight, stride=stride, padding=1, groups=4)
    expected = torch.relu(module.pointwise[1](functional.conv2d(means, module.pointwise[0].weight)))
    torch.testing.assert_close(module(x), expected)


def test_a_subspace_holds_its_paths():
    """Every path in a client's subspace computes its own network, and the bytes include all operators."""
    subspace = CNN.space.parse("conv1+sep_e1+id mb3_e05+id sep_e2")
    network = CNN.subnet(subspace).eval()
    for text in ("conv1 mb3_e05 sep_e2", "id id sep_e2", "sep_e1 mb3_e05 sep_e2"):
        path = CNN.space.parse(text)
        expected = CNN.subnet(path).eval()(batch(CNN))
        torch.testing.assert_close(network(batch(CNN), text.split()), expected)
        torch.testing.assert_close(CNN.eval()(batch(CNN), path), expected)
    assert CNN.cost(subspace).parameters == sum(parameter.numel() for parameter in network.parameters())
    assert CNN.cost(subspace).bytes < CNN.cost(CNN.space.superset).bytes
    assert CNN.macs(subspace) == max(
        CNN.macs(CNN.space.parse(f"{first} mb3_e05 sep_e2")) for first in ("conv1", "sep_e1")
    )
    with pytest.raises(ValueError, match="several paths"):
        network(batch(CNN))


test_invalid_settings_are_refused = refusals(
    (lambda: CNN.space.parse("conv1 id"), "has 2 layers; give 3"),
    (lambda: CNN.space.parse("conv1 id sep"), "layer 2 has sep; choose from distinct operators in this order: conv1"),
    (lambda: CNN.space.parse("id+conv1 id id"), r"layer 0 has id\+conv1"),
    (lambda: CNN.space.encode(CNN.space.superset), "is a subspace"),
    (lambda: PathCNN((3, 8, 8), 5, 8, [1, 1], [2]), "as many"),
    (lambda: PathCNN((3, 8, 8), 5, 8, [10**6, 1], [1, 1]), "a sum from 1 to 1000"),
    (lambda: PathCNN((3, 8, 10), 5, 8, [1, 1], [2, 2]), r"\[2, 2\] cannot halve \[8, 10\] pixels evenly"),
    (lambda: PathCNN((3, 8, 8), 5, 8, [1], [1], ["conv7"]), "operators"),
    (lambda: PathCNN((3, 8, 8), 5, 6, [1, 1], [2, 2]), "must be even; choose a multiple of 4"),
)
