"""Peaks of activation memory, computed by hand."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.costs import peak_activation_bytes


def conv(inputs: int, outputs: int, **settings: Any) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, 3, padding=1, **settings)


class Residual(nn.Module):
    """Adds its input to the output of two convolutions."""

    def __init__(self, width: int, middle: int) -> None:
        super().__init__()
        self.first, self.second, self.relu = conv(width, middle), conv(middle, width), nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.second(self.relu(self.first(x))) + x)


class StandardisedConv(nn.Module):
    """A convolution that standardises its weights in every pass, independently of the input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(50, 3, 3, 3))

    def forward(self, x: Tensor) -> Tensor:
        weight = self.weight - self.weight.mean((1, 2, 3), keepdim=True)
        return functional.conv2d(x, weight, padding=1)


class Split(nn.Module):
    """Swaps the halves of the input: the halves are views, their concatenation is a new tensor."""

    def forward(self, x: Tensor) -> Tensor:
        first_half, second_half = x.chunk(2, dim=1)
        return torch.cat([second_half, first_half], dim=1)


# The input has 3 channels of 10x10 pixels and stays alive; peaks are in channels of 400 bytes.
CHANNELS = [
    (nn.Sequential(conv(3, 8), conv(8, 16), conv(16, 4)), 3 + 8 + 16),
    (nn.Sequential(conv(3, 8), nn.ReLU()), 3 + 8 + 8),
    (nn.Sequential(conv(3, 8), nn.ReLU(inplace=True), conv(8, 4)), 3 + 8 + 4),
    (nn.Sequential(conv(3, 8), nn.Identity(), nn.Dropout(0.5), nn.Flatten()), 3 + 8),
    (nn.Sequential(conv(3, 8), nn.BatchNorm2d(8)), 3 + 8 + 8),
    (nn.Sequential(conv(3, 8), nn.BatchNorm2d(8, track_running_stats=False)), 3 + 8 + 8),
    (nn.Sequential(conv(3, 8), Residual(8, 20)), 3 + 8 + 20 + 8),  # the block's input is alive until the sum
    (nn.Sequential(conv(3, 8), Residual(8, 2)), 3 + 8 + 8 + 8),  # the sum and its summands
    (nn.Sequential(conv(3, 8), Split()), 3 + 8 + 8),
    (nn.Sequential(conv(3, 8), nn.MaxPool2d(2)), 3 + 8 + 2),  # the indices are never read
    (StandardisedConv(), 3 + 50),
    (nn.Sequential(nn.Sequential(nn.Sequential(conv(3, 8), conv(8, 1), conv(1, 8)), conv(8, 8))), 3 + 8 + 8),
]


@pytest.mark.parametrize(("network", "channels"), CHANNELS)
def test_peaks_by_hand(network: nn.Module, channels: int) -> None:
    assert peak_activation_bytes(network, (3, 10, 10)) == 400 * channels
    assert peak_activation_bytes(network.to_empty(device="meta"), (3, 10, 10)) == 400 * channels
