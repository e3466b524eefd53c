"""DARTS' operators (Liu et al., 2019, section 3.1.1), in the order ReLU, convolution, norm.

Separable convolutions are applied twice; the stride is the first one's. Dilated ones, whose kernels have gaps of one,
are separable and applied once. A skip of stride 2 is two 1x1 convolutions at pixels that are shifted by one, each to
half of the channels.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor, nn

from lit_fednas.supernets.layers import convolution
from lit_fednas.supernets.norms import Norm

#: Given the kernel, the stride and the padding, which average pooling does not count.
_POOLINGS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "max_pool": nn.MaxPool2d,
    "avg_pool": partial(nn.AvgPool2d, count_include_pad=False),
}


def relu_conv_norm(inputs: int, outputs: int, norm: Norm) -> nn.Module:
    """Returns ReLU, a 1x1 convolution, and a norm."""
    return nn.Sequential(nn.ReLU(), convolution(inputs, outputs, 1), norm(outputs))


class FactorizedReduce(nn.Module):
    """Halves height and width.

    Args:
        inputs: Channels.
        outputs: Channels, an even number.
        norm: Normalisation layer.
    """

    def __init__(self, inputs: int, outputs: int, norm: Norm) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.even = convolution(inputs, outputs // 2, 1, stride=2)
        self.odd = convolution(inputs, outputs // 2, 1, stride=2)
        self.norm = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, inputs, h, w]``, with h and w even, to ``[batch, outputs, h / 2, w / 2]``."""
        x = self.relu(x)
        return self.norm(torch.cat([self.even(x), self.odd(x[:, :, 1:, 1:])], dim=1))


def operator(name: str, channels: int, stride: int, norm: Norm, pool_norm: bool) -> nn.Module:
    """Returns an operator that keeps the number of channels.

    Args:
        name: One of ``lit_fednas.supernets.cells.space.OPERATORS``.
        channels: Channels.
        stride: 1 or 2.
        norm: Normalisation layer.
        pool_norm: Whether a norm follows poolings, which makes them comparable to the others in a mixture.
    """
    if name == "skip_connect":
        return nn.Identity() if stride == 1 else FactorizedReduce(channels, channels, norm)
    kind, _, size = name.rpartition("_")
    kernel = int(size[0])
    if kind in _POOLINGS:
        pool = _POOLINGS[kind](kernel, stride, kernel // 2)
        return nn.Sequential(pool, norm(channels)) if pool_norm else pool
    if kind == "dil_conv":
        return nn.Sequential(*_separable(channels, kernel, stride, norm, dilation=2))
    return nn.Sequential(*_separable(channels, kernel, stride, norm), *_separable(channels, kernel, 1, norm))


def _separable(channels: int, kernel: int, stride: int, norm: Norm, dilation: int = 1) -> list[nn.Module]:
    padding = dilation * (kernel // 2)
    depthwise = nn.Conv2d(channels, channels, kernel, stride, padding, dilation, groups=channels, bias=False)
    return [nn.ReLU(), depthwise, convolution(channels, channels, 1), norm(channels)]
