"""Faster kernels with the same results: channels-last layout, ``torch.compile``, and convolutions of stacked clients.

Channels-last batch norms sum in plain float32: their outputs are exact to 3e-6 instead of 1e-7 (CPU, torch 2.15). A
compilation takes tens of seconds and holds for one shape of inputs. Each architecture is compiled once, for full
batches, before its first fit; smaller last batches run uncompiled.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.dropout import _DropoutNd
from torch.overrides import TorchFunctionMode

from lit_fednas.errors import ConfigError
from lit_fednas.objectives import Objective
from lit_fednas.rng import isolated
from lit_fednas.supernets import Supernet

MAX_ARCHITECTURES = 16

_REMEDY = "set client.compile to false"
#: Maximum number of input channels of a convolution that is computed as a matrix product.
_MAX_CHANNELS = 3

# ---- compilation ---------------------------------------------------------------------------------------


def check_compilable(supernet: Supernet, objective: Objective, clients_per_fit: int = 1) -> None:
    """Validates that the networks can be compiled and are few enough; raises torch's limit of compilations."""
    if clients_per_fit == 1 and not objective.compilable:
        name = type(objective).__name__
        raise ConfigError(f"client.compile: true compiles calls of a network, and {name} runs parts of it; {_REMEDY}")
    size = supernet.space.size
    if size > MAX_ARCHITECTURES:
        raise ConfigError(
            f"client.compile: true would compile each of the supernet's {size} architectures, for tens of seconds "
            f"each, and up to {MAX_ARCHITECTURES} are allowed; {_REMEDY}"
        )
    # torch counts the compilations of all networks together, because they share the code of one function
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 4 * MAX_ARCHITECTURES)


def compile_network(network: nn.Module, inputs: Tensor) -> None:
    """Compiles a network in place by a forward and a backward pass; its tensors keep their names."""
    network.train()
    forward = network.forward

    # Module.compile would not do: up to 2.12 torch skips functions of its own files, such as Sequential's forward
    def call(*args: Any) -> Any:
        return forward(*args)

    network.forward = compiled(call, inputs.device)
    with torch.enable_grad():
        compile_now(lambda: network(inputs).sum().backward(), inputs.device)
    network.zero_grad(set_to_none=True)


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Returns the function compiled for fixed shapes; on a CPU it calls its operations from C++."""
    return torch.compile(function, dynamic=False, options={"cpp_wrapper": True} if device.type == "cpu" else None)


def compile_now(call: Callable[[], Any], device: torch.device) -> None:
    """Compiles a function by its first call, without advancing random generators."""
    try:
        with isolated(0, "compilation", device=device):
            call()
    except Exception as error:
        reason = " ".join(str(error).split("\n")[:2])  # the first line names the backend, the second its error
        raise ConfigError(
            f"client.compile: true, but torch.compile failed ({type(error).__name__}: {reason}); {_REMEDY}"
        ) from error


# ---- layers --------------------------------------------------------------------------------------------


def with_channels_last(network: nn.Module) -> nn.Module:
    """Returns the network with its convolutions' weights, and therefore their outputs, in channels-last layout."""
    for module in network.modules():
        if isinstance(module, nn.MaxPool2d):
            # its gradient takes the layout of the incoming one; another layout would copy its whole input twice
            module.register_forward_hook(_set_gradient_layout)
        elif isinstance(module, _DropoutNd):  # it draws its mask in memory order, which must not change
            module.register_forward_pre_hook(_to_contiguous)
        elif isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.padding == (0, 0):
            # strided, of fewer than 8 channels, it writes beyond its gradient on CPUs without AVX-512 (torch 2.14.1)
            module.register_forward_pre_hook(partial(_subsample, strides=module.stride))
            module.stride = (1, 1)
    return network.to(memory_format=torch.channels_last)


def _set_gradient_layout(module: nn.Module, inputs: Any, output: Tensor) -> None:
    if output.requires_grad and output.dim() == 4:
        output.register_hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))


def _to_contiguous(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.contiguous() if tensor.dim() == 4 else tensor for tensor in inputs)


def _subsample(module: nn.Module, inputs: tuple[Tensor, ...], strides: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor[..., :: strides[0], :: strides[1]] for tensor in inputs)


class ImagesAsColumns(TorchFunctionMode):
    """Computes convolutions of images on a CPU as matrix products, if the inputs need no gradients."""

    # vmap turns convolutions into grouped ones, which oneDNN optimises only for 16 channels per group

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.conv2d and len(args) == 7 and not kwargs:
            inputs, weights, bias, stride, padding, dilation, groups = args
            is_plain = groups == 1 and tuple(dilation) == (1, 1) and not isinstance(padding, str)
            are_images = inputs.dim() == 4 and weights.shape[1] <= _MAX_CHANNELS and not inputs.requires_grad
            if is_plain and are_images and inputs.device.type == "cpu":
                return _matrix_product(inputs, weights, bias, stride, padding)
        return func(*args, **(kwargs or {}))


def _matrix_product(inputs: Tensor, weights: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
    channels, channels_in, rows, columns = weights.shape
    padded = functional.pad(inputs, (padding[1], padding[1], padding[0], padding[0]))
    patches = padded.unfold(2, rows, stride[0]).unfold(3, columns, stride[1])  # [batch, in, height, width, k, k]
    batch, _, height, width = patches.shape[:4]
    matrix = patches.permute(1, 4, 5, 0, 2, 3).reshape(channels_in * rows * columns, batch * height * width)
    outputs = weights.flatten(1) @ matrix
    if bias is not None:
        outputs = outputs + bias[:, None].to(outputs.dtype)  # autocast rounds only the product
    return outputs.view(channels, batch, height, width).transpose(0, 1)
