"""The convolutions and linear layers of a network, as far as its costs and proxies need them: their shapes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lit_fednas.costs.counting import inference_structure

_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


class Layer(NamedTuple):
    """A convolution, or a linear layer, which is one with a kernel of 1.

    Attributes:
        kernel: Positions under the kernel, as 9 of a 3x3 convolution.
        fan_in: Weights per output channel: input channels of a group times ``kernel``.
        channels: Output channels.
        positions: Of the output: height times width, or tokens; 1 for a vector.
    """

    kernel: int
    fan_in: int
    channels: int
    positions: int

    @property
    def macs(self) -> int:
        """The multiply-accumulates of one example."""
        return self.fan_in * self.channels * self.positions


def read_layers(network: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Layer]:
    """Returns the layers of one example's forward pass, in its order.

    Args:
        network: Any module, on any device; it is not changed.
        input_shape: Shape of one example, without the batch dimension.
        dtype: Type of the inputs.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 16, 5))
        >>> read_layers(network, (3, 4, 4))
        [Layer(kernel=9, fan_in=27, channels=8, positions=16), Layer(kernel=1, fan_in=128, channels=5, positions=1)]
    """
    layers: list[Layer] = []

    def read(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kernel = 1 if isinstance(module, nn.Linear) else module.weight[0, 0].numel()
        channels = len(module.weight)
        layers.append(Layer(kernel, module.weight[0].numel(), channels, output.numel() // channels))

    structure = inference_structure(network)
    for module in structure.modules():
        if isinstance(module, (*_CONVOLUTIONS, nn.Linear)):
            module.register_forward_hook(read)
    with torch.no_grad():
        structure(torch.zeros(1, *input_shape, dtype=dtype, device="meta"))
    return layers
