"""Small supernets and data for contracts; reproducible construction of any supernet."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.data import Examples
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import BatchNorm, ElasticResNet, Ladder, Norm, PlainNetwork, Region, Supernet

HIDDEN = 6


def build_net(name: str, make: Callable[[], Supernet]) -> Supernet:
    """Returns a supernet with weights that depend only on its name, and with random buffers."""
    with isolated(0, name):
        net = make()
        draws = generator(1, name)
        for buffer in net.buffers():
            if buffer.is_floating_point():
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=draws))
            else:
                buffer.copy_(torch.randint(1, 9, buffer.shape, generator=draws))
    return net


#: Returns a supernet that is built once, for tests that do not change it.
cached_net = functools.cache(build_net)


def batch(net: Supernet, size: int = 4, seed: int = 0) -> Tensor:
    """Returns a batch of random inputs; tokens stay valid if 1 or 2 is added."""
    shape, draws = (size, *net.input_shape), generator(seed, "inputs")
    if net.input_dtype == torch.int64:
        return torch.randint(net.num_classes - 2, shape, generator=draws)
    return torch.randn(shape, generator=draws)


def elastic(norm: Norm | None = BatchNorm(affine=False, running_statistics=False), **settings: Any) -> ElasticResNet:
    """Returns an elastic network of two stages; with the divisor 4, all ratios have different widths."""
    small: dict[str, Any] = {"stem_width": 4, "stage_widths": [16, 32], "depths": [0, 1], "ratios": [0.25, 0.5, 1.0]}
    small |= {"input_shape": (3, 8, 8), "num_classes": 5, "divisor": 4, **settings}
    return ElasticResNet(**small, norm=norm)


def plain() -> PlainNetwork:
    """Returns a network with one architecture, and with parameters, buffers and a frozen tensor."""
    network = nn.Sequential(nn.Conv2d(2, 6, 3, groups=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten())
    network.add_module("classifier", nn.Linear(96, 3))
    network.get_parameter("classifier.bias").requires_grad_(False)
    return PlainNetwork(network, (2, 6, 6), 3)


class RollingNet(Supernet):
    """Two hidden layers with the same cyclic window: its regions are not slices, in one dimension and in two.

    An architecture is a pair (first unit, number of units) of the window.
    """

    def __init__(self) -> None:
        super().__init__((3,), 4)
        windows = [(first, units) for units in range(2, HIDDEN) for first in range(HIDDEN)]
        self.space = Ladder([*windows, (0, HIDDEN)])
        self.network = self.build((0, HIDDEN))
        self.register_buffer("age", torch.arange(HIDDEN))

    @override
    def build(self, arch: tuple[int, int]) -> nn.Module:
        units = arch[1]
        network = nn.Sequential(nn.Linear(3, units), nn.Tanh(), nn.Linear(units, units), nn.Tanh())
        network.add_module("classifier", nn.Linear(units, 4))
        network.register_buffer("age", torch.zeros(units, dtype=torch.int64))
        return network

    @override
    def index(self, arch: tuple[int, int]) -> dict[str, Region]:
        window = (torch.arange(arch[1]) + arch[0]) % HIDDEN
        return {
            "0.weight": Region("network.0.weight", (window, slice(None))),
            "0.bias": Region("network.0.bias", (window,)),
            "2.weight": Region("network.2.weight", (window[:, None], window[None, :])),
            "2.bias": Region("network.2.bias", (window,)),
            "classifier.weight": Region("network.classifier.weight", (slice(None), window)),
            "classifier.bias": Region("network.classifier.bias"),
            "age": Region("network.age", (window,)),
        }


#: Supernets with slices, with one architecture, and with regions that are not slices.
SMALL: dict[str, Callable[[], Supernet]] = {
    "elastic-batchnorm": lambda: elastic(BatchNorm()),
    "plain": plain,
    "rolling": RollingNet,
}


def tiny_examples(count: int = 120, seed: int = 0) -> Examples:
    """Returns images of 1x8x8; the bright quarter of an image is its class."""
    draws = torch.Generator().manual_seed(seed)
    targets = torch.randint(4, (count,), generator=draws)
    images = 40 * torch.rand(count, 1, 8, 8, generator=draws)
    images.view(count, 2, 4, 2, 4)[torch.arange(count), targets // 2, :, targets % 2] += 160
    return Examples(images.to(torch.uint8), targets)
