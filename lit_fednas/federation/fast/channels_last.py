"""Channels innermost in memory (``client.channels_last``), with the results of the ordinary layout.

Three layers of torch need help there. Max pooling computes its gradient in the layout of the one that comes in: before
a flattening that is the ordinary layout, and the pooling's whole input is copied there and back, which takes longer
than the layout gains. Dropout draws its mask in the order of memory, so that another layout would have other masks. A
strided 1x1 convolution of fewer than 8 channels writes beyond its weights' gradient on CPUs with AVX2 alone (torch
2.14.1), so the pixels that one skips are left out before it.

Batch norms sum in plain float32 there: their outputs are exact to 3e-6 instead of 1e-7 (CPU, torch 2.15).
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.dropout import _DropoutNd


def with_channels_last(network: nn.Module) -> nn.Module:
    """Returns the network with its convolutions' weights, and so their outputs, in that layout."""
    for module in network.modules():
        if isinstance(module, nn.MaxPool2d):
            module.register_forward_hook(_gradient_in_the_layout)
        elif isinstance(module, _DropoutNd):
            module.register_forward_pre_hook(_in_ordinary_layout)
        elif isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.padding == (0, 0):
            module.register_forward_pre_hook(partial(_without_skipped, strides=module.stride))
            module.stride = (1, 1)
    return network.to(memory_format=torch.channels_last)


def _gradient_in_the_layout(module: nn.Module, inputs: Any, output: Tensor) -> None:
    if output.requires_grad and output.dim() == 4:
        output.register_hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))


def _in_ordinary_layout(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(one.contiguous() if one.dim() == 4 else one for one in inputs)


def _without_skipped(module: nn.Module, inputs: tuple[Tensor, ...], strides: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(one[..., :: strides[0], :: strides[1]] for one in inputs)
