"""The count of operations that FedorAS calls FLOPs.

A convolution or linear layer costs its multiply-accumulates and one for each bias that is added; a batch norm two
per element; an activation or a pooling one per element of its input. Additions of residuals are not counted. With
this count the largest path of its network for CIFAR costs 716.0 million (Table 8), with multiply-accumulates alone
710.9.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lit_fednas.costs.counting import count_macs

_PER_INPUT = (
    *(nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Hardsigmoid, nn.LeakyReLU),
    *(nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.MaxPool1d, nn.MaxPool2d),
)
_BATCH = 2  # batch norm refuses a batch of one


def count_operations(network: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Counts the operations of one example's forward pass.

    Args:
        network: Any module; it may lie on the meta device.
        input_shape: Shape of one example, without the batch dimension.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU())
        >>> count_operations(network, (1, 3, 3))  # (9 * 2 MACs + 9 * 2 biases) + 2 * 18 + 18
        90
    """
    extra = 0

    def count(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        nonlocal extra
        if isinstance(module, _BatchNorm):
            extra += 2 * _elements(output)
        elif isinstance(module, _PER_INPUT):
            extra += _elements(inputs[0])
        elif getattr(module, "bias", None) is not None:
            extra += _elements(output)

    counted = (_BatchNorm, *_PER_INPUT, nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Linear)
    hooks = [module.register_forward_hook(count) for module in network.modules() if isinstance(module, counted)]
    try:
        macs = count_macs(network, input_shape)
    finally:
        for hook in hooks:
            hook.remove()
    return macs + extra // _BATCH


def _elements(tensor: Tensor) -> int:
    return int(torch.Size(tensor.shape).numel())
