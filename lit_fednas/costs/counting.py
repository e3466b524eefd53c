"""Multiply-accumulates, parameters and bytes of a network.

One multiply-accumulate (MAC) is one multiplication and one addition of a convolution or linear layer. The
papers' "GFLOPs" are these, in units of 10^9 (SuperFed, Table 5, is reproduced to its digits). Biases, norms,
activations and pooling are not counted.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor, nn

from lit_fednas.messages import nbytes


@dataclass(frozen=True)
class Cost:
    """What an architecture costs.

    Attributes:
        macs: Multiply-accumulates of one example's forward pass.
        parameters: Trainable numbers.
        bytes: What is sent one way: parameters and buffers.
    """

    macs: int
    parameters: int
    bytes: int


def count_macs(network: nn.Module, input_shape: tuple[int, ...]) -> int:
    """Counts the multiply-accumulates of one example's forward pass.

    The network may lie on the meta device: nothing is computed there, so counting is cheap.

    Args:
        network: Any module whose work is in convolutions and linear layers.
        input_shape: Shape of one example, without the batch dimension.

    Example:
        >>> count_macs(nn.Conv2d(3, 8, 3, padding=1), (3, 32, 32)) == 32 * 32 * 8 * 3 * 9
        True
    """
    total = 0

    def convolution(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        per_output = module.in_channels // module.groups * prod(module.kernel_size)
        total += output[0].numel() * per_output

    def linear(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        nonlocal total
        total += output[0].numel() * module.in_features

    hooks = []
    for module in network.modules():
        if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
            hooks.append(module.register_forward_hook(convolution))
        elif isinstance(module, nn.Linear):
            hooks.append(module.register_forward_hook(linear))
    first = next(network.parameters(), None)
    device = first.device if first is not None else torch.device("cpu")
    modes = [(module, module.training) for module in network.modules()]
    try:
        network.eval()
        with torch.no_grad():
            network(torch.zeros(2, *input_shape, device=device))  # batch norm refuses a batch of one
    finally:
        for module, mode in modes:
            module.training = mode
        for hook in hooks:
            hook.remove()
    return total


def count_cost(network: nn.Module, input_shape: tuple[int, ...], macs: int | None = None) -> Cost:
    """Counts MACs, parameters and bytes of a network.

    Args:
        network: The network; it may lie on the meta device.
        input_shape: Shape of one example, without the batch dimension.
        macs: Its multiply-accumulates, if they are known already.

    Example:
        >>> count_cost(nn.Linear(4, 2), (4,))
        Cost(macs=8, parameters=10, bytes=40)
    """
    return Cost(
        macs=count_macs(network, input_shape) if macs is None else macs,
        parameters=sum(parameter.numel() for parameter in network.parameters()),
        bytes=sent_bytes(network),
    )


def sent_bytes(network: nn.Module) -> int:
    """Bytes of a network as it is sent: its parameters and buffers.

    Example:
        >>> sent_bytes(nn.Linear(4, 2))
        40
    """
    return nbytes([*network.parameters(), *network.buffers()])
