"""Peaks worked out by hand, and by running real tensors node by node."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.nn import functional

from lit_fednas.costs import peak_activation_bytes
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import BatchNorm, ElasticResNet, SmallCNN


def conv(inputs: int, outputs: int, **settings: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **settings)


class Residual(nn.Module):
    """Adds its input to what two convolutions make of it."""

    def __init__(self, width: int, middle: int) -> None:
        super().__init__()
        self.first, self.second, self.relu = conv(width, middle), conv(middle, width), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.second(self.relu(self.first(x))) + x)


class StandardisedConv(nn.Module):
    """Its weights are standardised in every pass, which depends on no input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(50, 3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return functional.conv2d(x, weight, padding=1)


class Split(nn.Module):
    """Both halves are views of the input; putting them together makes a new tensor."""

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        return torch.cat([right, left], dim=1)


# The input has 3 channels of 10x10 pixels and stays; peaks in channels of 400 bytes.
CHANNELS = [
    (nn.Sequential(conv(3, 8), conv(8, 16), conv(16, 4)), 3 + 8 + 16),
    (nn.Sequential(conv(3, 8), nn.ReLU()), 3 + 8 + 8),
    (nn.Sequential(conv(3, 8), nn.ReLU(inplace=True), conv(8, 4)), 3 + 8 + 4),
    (nn.Sequential(conv(3, 8), nn.Identity(), nn.Dropout(0.5), nn.Flatten()), 3 + 8),
    (nn.Sequential(conv(3, 8), nn.BatchNorm2d(8)), 3 + 8 + 8),
    (nn.Sequential(conv(3, 8), nn.BatchNorm2d(8, track_running_stats=False)), 3 + 8 + 8),
    (nn.Sequential(conv(3, 8), Residual(8, 20)), 3 + 8 + 20 + 8),  # the block's input waits for the sum
    (nn.Sequential(conv(3, 8), Residual(8, 2)), 3 + 8 + 8 + 8),  # the sum beside its summands
    (nn.Sequential(conv(3, 8), Split()), 3 + 8 + 8),
    (nn.Sequential(conv(3, 8), nn.MaxPool2d(2)), 3 + 8 + 2),  # the indices are read by nobody
    (StandardisedConv(), 3 + 50),
    (nn.Sequential(nn.Sequential(nn.Sequential(conv(3, 8), conv(8, 1), conv(1, 8)), conv(8, 8))), 3 + 8 + 8),
]


@pytest.mark.parametrize(("network", "channels"), CHANNELS)
def test_peaks_by_hand(network: nn.Module, channels: int) -> None:
    assert peak_activation_bytes(network, (3, 10, 10)) == 400 * channels
    assert peak_activation_bytes(network.to_empty(device="meta"), (3, 10, 10)) == 400 * channels


class LiveBytes(fx.Interpreter):
    """Runs a traced network on real tensors, forgets each after its last use, and adds up what is there."""

    peak = 0

    def run_node(self, n: fx.Node) -> Any:
        if n.op == "placeholder":
            self.input = super().run_node(n)
            return self.input
        result = super().run_node(n)
        there = [self.input, result, *self.env.values()]
        sizes = {tensor.data_ptr(): tensor.untyped_storage().nbytes() for tensor in there}
        self.peak = max(self.peak, sum(sizes.values()))
        return result


def elastic(seed: int) -> nn.Module:
    supernet = ElasticResNet((3, 16, 16), stem_width=8, stage_widths=[16, 24, 32], norm=BatchNorm())
    return supernet.subnet(supernet.space.sample(numpy_generator(seed, "test")))


@pytest.mark.parametrize(
    ("make", "shape"), [(lambda: elastic(0), (3, 16, 16)), (lambda: SmallCNN((1, 12, 12)).subnet("whole"), (1, 12, 12))]
)
def test_peaks_by_running_node_by_node(make: Callable[[], nn.Module], shape: tuple[int, ...]) -> None:
    network = make()
    run = LiveBytes(fx.symbolic_trace(network.eval()))
    with torch.no_grad():
        run.run(torch.zeros(1, *shape))
    assert peak_activation_bytes(network, shape) == run.peak


def test_batch_statistics_of_one_pixel() -> None:
    network = nn.Sequential(nn.Conv2d(3, 8, 10), nn.BatchNorm2d(8, track_running_stats=False))
    assert peak_activation_bytes(network, (3, 10, 10)) == 4 * (300 + 8 + 8)


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_it_leaves_no_trace(device: str) -> None:
    network = nn.Sequential(conv(3, 8), nn.BatchNorm2d(8)).to(device).train()
    network[1].eval()
    seen = []
    network[0].register_forward_hook(lambda module, inputs, output: seen.append(output.requires_grad))
    before = {name: (tensor, tensor.clone()) for name, tensor in network.state_dict(keep_vars=True).items()}
    peak_activation_bytes(network, (3, 4, 4))
    with pytest.raises(RuntimeError, match="channel"):
        peak_activation_bytes(network, (2, 4, 4))
    assert seen == [False]
    assert [module.training for module in network.modules()] == [True, True, False]
    assert "forward" not in vars(network[1])
    for name, tensor in network.state_dict(keep_vars=True).items():
        assert tensor is before[name][0]
        assert device == "meta" or torch.equal(tensor, before[name][1])
