"""FedNAS' two networks: MobileNet v1 compared with its paper's tables, ConvNet by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch
from torch import nn

from lit_fednas.costs import count_macs
from lit_fednas.rng import isolated
from lit_fednas.supernets import (
    GroupNorm,
    NetworkFamily,
    SlicedConvNet,
    SlicedMobileNet,
    WidthSupernet,
)
from tests.support import refusals

#: Howard et al., Table 1, after the first convolution: channels in, channels out, pixels out.
BLOCKS = [
    *[(32, 64, 112), (64, 128, 56), (128, 128, 56), (128, 256, 28), (256, 256, 28), (256, 512, 14)],
    *[(512, 512, 14)] * 5,
    *[(512, 1024, 7), (1024, 1024, 7)],
]


def build(family: NetworkFamily, shape: Sequence[int], classes: int = 10, meta: bool = False) -> nn.Module:
    with torch.device("meta" if meta else "cpu"), isolated(0, "weights"):
        return family.build(family.units(shape), shape, classes)


def numbers(net: nn.Module) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def test_mobilenet_is_that_of_table_1() -> None:
    net = build(SlicedMobileNet(), (3, 224, 224), 1000, meta=True)
    macs, parameters = 27 * 32 * 112**2 + 1024 * 1000, 27 * 32 + 2 * 32 + 1025 * 1000
    for into, out, pixels in BLOCKS:
        macs += (9 * into + into * out) * pixels**2
        parameters += 9 * into + 2 * into + into * out + 2 * out
    assert count_macs(net, (3, 224, 224)) == macs == 568_740_352
    assert numbers(net) == parameters == 4_231_976


@pytest.mark.parametrize(
    ("width", "pixels", "millions", "parameters"),
    [  # Howard et al., Tables 6 and 7
        (0.75, 224, 325, 2.6),
        (0.25, 224, 41, 0.5),
        (1, 160, 290, 4.2),
    ],
)
def test_multipliers_cost_what_the_authors_say(width: float, pixels: int, millions: int, parameters: float) -> None:
    net = build(SlicedMobileNet(width), (3, pixels, pixels), 1000, meta=True)
    assert abs(count_macs(net, (3, pixels, pixels)) / 1e6 - millions) < 1  # the authors truncate or round
    assert round(numbers(net) / 1e6, 1) == parameters


def test_the_multiplier_scales_all_channels_to_what_the_norm_needs() -> None:
    channels, strides = (32, 10, 2), (1, 1, 1)
    assert list(SlicedMobileNet(0.3, channels, strides).units((3, 8, 8)).values()) == [10, 3, 1]
    assert list(SlicedMobileNet(0.01, channels, strides).units((3, 8, 8)).values()) == [1, 1, 1]
    grouped = SlicedMobileNet(0.3, channels, strides, GroupNorm(4))
    assert list(grouped.units((3, 8, 8)).values()) == [8, 4, 4]


def test_norms_and_activations_stand_behind_every_convolution() -> None:
    net = build(SlicedMobileNet(channels=(4, 6), strides=(1, 1)), (3, 8, 8))
    kinds = [type(part).__name__ for part in net.modules() if not list(part.children())]
    layer = ["Conv2d", "Scaler", "BatchNorm2d", "ReLU"]
    depthwise = ["Conv2d", "BatchNorm2d", "ReLU"]
    assert kinds == [*layer, *depthwise, *layer, "AdaptiveAvgPool2d", "Flatten", "Linear"]


def test_convnet_counted_by_hand() -> None:
    net = build(SlicedConvNet(), (3, 128, 128), 8, meta=True)
    sizes = [(3, 32, 128), (32, 32, 64), (32, 64, 32), (64, 64, 32), (64, 128, 16), (128, 128, 16)]
    macs = sum(9 * into * out * pixels**2 for into, out, pixels in sizes)
    parameters = sum((9 * into + 1) * out for into, out, _ in sizes)
    assert count_macs(net, (3, 128, 128)) == macs + 8 * 8 * 128 * 8
    assert numbers(net) == parameters + (8 * 8 * 128 + 1) * 8
    assert 0.35e6 <= numbers(net) < 0.36e6, "the docstring has this size"


def test_signals_get_through_a_convnet_without_norm() -> None:
    """The last convolution's outputs are as large as the inputs, to within a factor of three."""
    net = build(SlicedConvNet(pools=()), (3, 16, 16))
    x = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))
    out = x
    for number in range(1, 7):
        out = net.get_submodule(f"conv{number}")(out)
    assert 1 / 3 < out.square().mean().sqrt() < 3


test_settings_that_cannot_work = refusals(
    (lambda: SlicedMobileNet(0), "supernet.family.width: 0 must be above 0"),
    (lambda: SlicedMobileNet(strides=(1, 2)), r"strides: \[1, 2\] must be as long as channels"),
    (
        lambda: SlicedConvNet((4, 4), (1,), GroupNorm(4), linear=10),
        "linear: 10 must be a multiple of group_size, ",
    ),
    (lambda: SlicedConvNet((4, 4), pools=(0,)), r"pools: \[0\] must be unique, from 1 to 2"),
    (lambda: WidthSupernet((3, 8, 8), 5, SlicedConvNet(), [1]), "8x8 is too small for SlicedConvNet"),
)
