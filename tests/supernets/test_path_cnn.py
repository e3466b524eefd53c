"""FedorAS' path supernet against the paper's figures, and against its operators worked out by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lit_fednas.costs import count_macs, count_operations
from lit_fednas.errors import ConfigError
from lit_fednas.supernets import BatchNorm, PathCNN
from lit_fednas.supernets.paths.operators import OPERATORS, REDUCTIONS, reduction
from lit_fednas.testing.networks import batch
from lit_fednas.tiers import CumulativeCostTiers
from tests.supernets.instances import kept_instance

NORM = BatchNorm()
CNN = kept_instance("path-cnn")


def test_table_8s_number_of_models_and_range():
    net = PathCNN()
    listed = [239.4e12, 1089.4e12, 477.2e12, 46.9e12]  # CIFAR-10
    assert net.space.size == 9**16 == pytest.approx(sum(listed), rel=1e-4)
    assert net.operations(net.space.largest) == pytest.approx(716.0e6, abs=0.05e6)
    assert net.operations(net.space.largest) == count_operations(net.skeleton(net.space.largest), (3, 32, 32))
    # the tiers below the highest are of equal width and start at the fixed cost
    assert net.operations(net.space.smallest) == pytest.approx(120.9e6 - (223.2e6 - 120.9e6), rel=0.01)


def test_the_wider_networks_range():
    """App. J.1: 53.77 million operations in what is fixed, 4450.72 million in the dearest path."""
    net = PathCNN(stage_layers=[4, 4, 4, 4, 8, 8], strides=[2, 2, 1, 1, 1, 2], reduction="separable")
    assert net.operations(net.space.smallest) == pytest.approx(53.77e6, rel=3e-4)
    assert net.operations(net.space.largest) == pytest.approx(4450.72e6, rel=1e-5)


def test_table_8s_boundaries_come_out():
    """About half a percent low; a draw of 20,000 moves them by a third of a percent."""
    net, rng = PathCNN(), np.random.default_rng(0)
    sampled = np.array([net.operations(net.space.sample(rng)) for _ in range(20_000)])
    ends = net.operations(net.space.smallest), net.operations(net.space.largest)
    cifar10, cifar100 = (CumulativeCostTiers(count=4, high=high).bounds(sampled, *ends) for high in (0.95, 0.9))
    assert cifar10 == pytest.approx([120.9e6, 223.2e6, 325.4e6, 716.0e6], rel=0.01)
    assert cifar100 == pytest.approx([111.5e6, 204.3e6, 297.1e6, 716.0e6], rel=0.01)


def test_table_8s_keyword_spotting():
    net = PathCNN((1, 40, 51), 12, 16, [1, 1, 2, 2], [2] * 4, [*OPERATORS], reduction="pooled", growth=2, stem_stride=2)
    assert net.space.size == 11**6 == 1_771_561
    assert net.operations(net.space.largest) == pytest.approx(20.0e6, rel=1e-4)
    totals = np.array([net.path_costs("operations").fixed])
    for layer in net.path_costs("operations").layers:
        totals = np.add.outer(totals, layer).ravel()
    models, _ = np.histogram(totals, [0, 5.0e6, 7.5e6, 10.1e6, 20.0e6])
    assert models == pytest.approx([827.5e3, 617.4e3, 260.2e3, 66.4e3], rel=0.02)
    bounds = CumulativeCostTiers(count=4, low=0.3, high=0.925).bounds(totals, totals.min(), totals.max())
    assert bounds == pytest.approx([5.0e6, 7.5e6, 10.1e6, 20.0e6], rel=0.01)
    assert PathCNN().operators == CNN.operators  # the nine for CIFAR by default
    assert len(CNN.operators) == 9


def conv(inputs: int, outputs: int, kernel: int, pixels: int, groups: int = 1) -> int:
    return pixels * outputs * (inputs // groups) * kernel**2


@pytest.mark.parametrize("channels", [8, 12])
def test_operators_by_hand(channels):
    c, px = channels, 36
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
        operator = OPERATORS[name](channels, NORM).eval()
        assert count_macs(operator, (channels, 6, 6)) == macs, name
        x = torch.randn(2, channels, 6, 6)
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
    """What a client gets: every path in it runs as it does alone, and its bytes are those of all its operators."""
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


def test_only_the_chosen_operators_run_and_learn():
    network = CNN.subnet(CNN.space.superset).train()
    path = ["sep_e1", "id", "mb1_e2"]
    network(batch(CNN), path).sum().backward()
    for name, parameter in network.named_parameters():
        searched = name.startswith("layers.")
        chosen = searched and name.split(".")[2] == path[int(name.split(".")[1])]
        assert (parameter.grad is not None) == (chosen or not searched), name


def path_cnn(**settings) -> PathCNN:
    return PathCNN(**{"input_shape": (3, 8, 8), "width": 8, "stage_layers": [1, 1], "strides": [2, 2], **settings})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: CNN.space.parse("conv1 id"), "has 2 layers; give 3"),
        (lambda: CNN.space.parse("conv1 id sep"), "layer 2 has sep; choose from conv1"),
        (lambda: CNN.space.parse("id+conv1 id id"), r"layer 0 has id\+conv1"),
        (lambda: CNN.space.parse("conv1+conv1 id id"), "each once and in this order"),
        (lambda: CNN.space.encode(CNN.space.superset), "is a subspace"),
        (lambda: path_cnn(stage_layers=[1, 0]), "stage_layers"),
        (lambda: path_cnn(strides=[2]), "as many"),
        (lambda: path_cnn(input_shape=(3, 8, 10)), r"\[2, 2\] cannot halve \[8, 10\] pixels evenly; .* multiple of 4"),
        (lambda: path_cnn(strides=[3, 1]), r"supernet.strides\[0\]: 3 is unknown; choose from 1, 2"),
        (lambda: path_cnn(operators=["conv7"]), "operators"),
        (lambda: path_cnn(growth=0.5), "growth"),
        (lambda: path_cnn(width=6), "must be even; choose a multiple of 4"),
        (lambda: path_cnn(input_shape=(8,)), "channels, height, width"),
    ],
)
def test_what_cannot_be(make, words):
    with pytest.raises(ConfigError, match=words):
        make()


def test_a_drawing_has_the_macs_of_every_operator():
    """They add up to those of the network but for what is not searched."""
    fixed = CNN.macs(CNN.space.smallest) - sum(size for _, size in CNN.space.stages(CNN.space.smallest)[0])
    arch = CNN.space.sample(np.random.default_rng(3))
    (layers,) = CNN.space.stages(arch)
    assert " ".join(name for name, _ in layers) == str(arch)
    assert fixed + sum(size for _, size in layers) == CNN.macs(arch) > fixed
