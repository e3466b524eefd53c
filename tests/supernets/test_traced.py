"""Networks of torchvision and custom ones as families, with groups that are traced through the graph."""

import copy
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torchvision import models
from torchvision.models.convnext import LayerNorm2d
from torchvision.models.regnet import BlockParams

from lit_fednas.errors import ConfigError
from lit_fednas.supernets import (
    BaseNetworks,
    PrunedSequence,
    SlicedMobileNet,
    TracedNetwork,
    UngroupedFamily,
    UnitMask,
    Width,
    WidthSupernet,
    find_cuts,
)
from lit_fednas.supernets.families import tensors_of

SHAPE = (3, 32, 32)
NETWORKS = {
    "resnet": lambda: models.ResNet(models.resnet.Bottleneck, [1, 1, 1, 1], 10, groups=4, width_per_group=4),
    "regnet": lambda: models.RegNet(BlockParams([1, 2], [8, 16], [4, 4], [2, 2], [1, 1], se_ratio=0.25), 10),
    "mobilenet": lambda: models.mobilenet_v3_small(num_classes=10, width_mult=0.5),
    "densenet": lambda: models.DenseNet(8, (1, 1), 8, num_classes=10),
    "vit": lambda: models.VisionTransformer(32, 16, 1, 2, 8, 16, num_classes=10),
}


class Scaled(nn.Conv2d):
    """A custom layer with an unknown tensor."""

    def __init__(self, *channels: int) -> None:
        super().__init__(*channels, 1)
        self.gain = nn.Parameter(torch.ones(channels[1], 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.gain


class Mixed(nn.Module):
    """Layers and operations that share units, join them, or keep them whole."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.twice, self.first_norm = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 16, 1), LayerNorm2d(16)
        self.grouped, self.norm = nn.Conv2d(16, 32, 1, groups=8), nn.GroupNorm(4, 32)
        self.scale = nn.Parameter(torch.rand(32, 1, 1))
        self.split, self.scaled, self.wide = nn.Conv2d(32, 12, 1), Scaled(12, 12), nn.Conv2d(12, 12, 1)
        self.turned, self.last_norm, self.mixing = nn.Linear(12, 20), nn.LayerNorm(20), nn.Linear(20, 7)
        self.tied, self.same = nn.Linear(7, 7), nn.Linear(7, 7)
        self.same.weight = self.tied.weight
        self.hidden, self.classifier = nn.Linear(7, 9), nn.Linear(9, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.first_norm(self.twice(self.twice(self.stem(x))))
        x = self.scale * self.norm(self.grouped(x)).relu()
        first_half, second_half = self.split(x).chunk(2, 1)
        x = self.wide(self.scaled(torch.cat([first_half, second_half], 1))).mean((2,))
        x = self.last_norm(self.turned(x.permute(0, 2, 1)))
        x = self.same(self.tied(self.mixing(x).softmax(-1)))
        return self.classifier(self.hidden(x).mean(1))


def test_groups_by_hand() -> None:
    """The stem has the units of a layer that runs twice, in eight groups (a norm has four); units that are split, or
    that enter a softmax or a layer with shared weights, stay whole."""
    assert TracedNetwork(Mixed()).units(SHAPE) == {"stem": 4, "wide": 12, "turned": 20, "hidden": 9}
    resnet = TracedNetwork(models.resnet18(num_classes=10)).units(SHAPE)
    assert len(resnet) == 12  # four streams and the inside of eight blocks
    streams = ["conv1", *(f"layer{number}.0.conv2" for number in (2, 3, 4))]
    assert [resnet[name] for name in streams] == [64, 128, 256, 512]


class Short(nn.Module):
    """A convolution, the given operation, another convolution and a classifier."""

    def __init__(self, middle: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        self.middle, self.a, self.b, self.f = middle, nn.Conv2d(3, 8, 1), nn.Conv2d(8, 6, 1), nn.Linear(6, 10)
        self.mask: Tensor
        self.register_buffer("mask", torch.ones(8, 1, 1))
        for name, layer in layers.items():
            setattr(self, name, layer)

    def forward(self, x: Tensor) -> Tensor:
        return self.f(self.b(self.middle(self, self.a(x))).mean((2, 3)))


class Residual(nn.Conv2d):
    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def pooled(x: Tensor) -> Tensor:
    return functional.avg_pool2d(x.permute(0, 2, 3, 1), 3, 1, 1).permute(0, 3, 1, 2)


@pytest.mark.parametrize(
    ("network", "joined"),
    [
        (Short(lambda s, x: x * s.mask * s.mask.mean()), {}),
        (Short(lambda s, x: x / s.a.weight.mean()), {}),
        (Short(lambda s, x: s.c(x), c=Residual(8, 8, 1)), {}),
        (Short(lambda s, x: s.c(s.c(x.softmax(1))), c=nn.Conv2d(8, 8, 1)), {}),
        (Short(lambda s, x: pooled(x)), {}),
        (Short(lambda s, x: s.c(x), c=nn.Linear(32, 5)), {}),
        (Short(lambda s, x: x * x.mean(1, keepdim=True)), {}),
        (Short(lambda s, x: s.n(s.c(s.n(x))), c=nn.Conv2d(8, 8, 1), n=nn.GroupNorm(4, 8, affine=False)), {"a": 4}),
        (Short(lambda s, x: x * functional.adaptive_avg_pool2d(x, 1).flatten(1)[:, :, None, None]), {"a": 8}),
    ],
)
def test_units_that_an_operation_mixes_stay_whole(network: nn.Module, joined: dict[str, int]) -> None:
    """A layer or tensor that is used twice joins its units."""
    assert TracedNetwork(network).units(SHAPE) == {**joined, "b": 6}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_cut_network_is_the_whole_one_with_zeros(name: str) -> None:
    """Removed units are zero in all layers, because no norm is over units that can leave."""
    network = NETWORKS[name]()
    for tensor in tensors_of(network).values():
        if tensor.is_floating_point():
            nn.init.uniform_(tensor, 0.1, 0.5)
    net = WidthSupernet(SHAPE, 10, TracedNetwork(network), widths=[1, 0.5]).eval()
    draws = random.Random(0)
    mask = UnitMask(tuple(tuple(sorted(draws.sample(range(n), draws.randint(1, n)))) for n in net.units.values()))
    for arch in (Width(0.5, shift=1), mask):
        subnet, whole = net.subnet(arch).eval(), copy.deepcopy(network).eval()
        tensors = tensors_of(whole)
        for path, tensor in tensors_of(subnet).items():
            region = net.index(arch)[path]
            shared = tensors[region.name.removeprefix("network.")]
            with torch.no_grad():
                region.add_to(shared.zero_(), tensor, 1)
        x = torch.rand(2, *SHAPE)
        torch.testing.assert_close(subnet(x), whole(x))
        assert net.cost(arch).macs < net.cost(Width(1)).macs


def test_the_whole_network_is_the_one_that_was_given_and_filters_leave_it() -> None:
    network = NETWORKS["resnet"]()
    sequence = PrunedSequence(SHAPE, 10, TracedNetwork(network))
    first, x = sequence.networks[0].eval(), torch.rand(2, *SHAPE)
    assert torch.equal(first(x), network.eval()(x))
    sizes = sequence.models[0].sizes
    cuts = find_cuts(sizes, 1, lambda units: sum(units.values()), 0.99 * sum(sizes.values()))
    (stream,) = (cut for cut in cuts if cut.unit == "layer4.0.conv3")
    sequence.propose(cuts)
    cut = sequence.candidates[cuts.index(stream)]
    assert cut.fc.in_features == cut.layer4[0].bn3.num_features == sizes["layer4.0.conv3"] - stream.removed


def test_ordinary_convolutions_for_grouped_ones() -> None:
    family = UngroupedFamily(SlicedMobileNet(channels=(8, 16), strides=(1, 1)))
    net = WidthSupernet(SHAPE, 10, family, widths=[1, 0.5])
    grouped = WidthSupernet(SHAPE, 10, family.family, widths=[1, 0.5])
    more = 4 * 4 * 9 - 4 * 9  # a 3x3 convolution of 4 channels
    assert net.cost(Width(0.5)).parameters - grouped.cost(Width(0.5)).parameters == more
    assert net.cost(Width(0.5)).macs - grouped.cost(Width(0.5)).macs == more * 32 * 32


def test_networks_that_share_no_weights_draw_their_own() -> None:
    """They have the given standard deviation, for fewer inputs; a replaced classifier is traced anew."""
    network = models.resnet18(num_classes=7)
    network.layer1.requires_grad_(False)
    family = TracedNetwork(network)
    assert family.units(SHAPE)["conv1"] == 64
    family.network.fc = nn.Linear(512, 10)
    bases = BaseNetworks(SHAPE, 10, family, count=4)
    first, second = (base.layer4[1].conv2 for base in bases.networks[:2])
    assert float(first.weight.std()) == pytest.approx(2 * float(network.layer4[1].conv2.weight.std()), rel=0.01)
    assert abs(torch.corrcoef(torch.stack([first.weight.flatten(), second.weight.flatten()]))[0, 1]) < 0.01
    assert not bases.networks[0].layer1[0].conv1.weight.requires_grad


def test_missing_scalers_are_refused() -> None:
    with pytest.raises(ConfigError, match="networks of TracedNetwork have no scalers"):
        WidthSupernet(SHAPE, 10, TracedNetwork(NETWORKS["resnet"]()), widths=[1, 0.5], scaler=True)


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (Short(lambda s, x: x if x.sum() > 0 else -x), "Short cannot be traced"),
        (nn.Linear(3, 10), r"Linear does not run for inputs of .*reduction dim.*; give"),
        (nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 10)), "Sequential has no units that can be cut"),
        (Short(lambda s, x: x.view(-1, 8, 32, 32)), "Short does not run when it is cut"),
        (models.resnet18(num_classes=7), "ResNet has 7 outputs in one tensor, and the data have 10 classes"),
    ],
)
def test_refusals_name_the_network_and_a_remedy(network: nn.Module, message: Any) -> None:
    with pytest.raises(ConfigError, match=f"supernet.family.network: {message}"):
        WidthSupernet(SHAPE, 10, TracedNetwork(network), widths=[1, 0.5])
