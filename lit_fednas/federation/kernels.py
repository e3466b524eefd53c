"""Other kernels with the same results: channels innermost, ``torch.compile``, and layers of several clients at once.

Channels-last batch norms sum in plain float32: their outputs are exact to 3e-6 instead of 1e-7 (CPU, torch 2.15). A
compilation takes tens of seconds and belongs to one shape of inputs: each architecture is compiled once, for full
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

MOST_ARCHITECTURES = 16

_REMEDY = "set client.compile to false"
#: Most input channels of an image; inputs that have gradients are left alone, since those of mapped patches are slow.
_FEW_CHANNELS = 3

# ---- compilation ---------------------------------------------------------------------------------------


def check_compilable(supernet: Supernet, objective: Objective, clients_per_fit: int = 1) -> None:
    """Validates that compilation reaches the network and pays, and raises torch's limit of compilations."""
    if clients_per_fit == 1 and not objective.compilable:
        name = type(objective).__name__
        raise ConfigError(f"client.compile: true compiles calls of a network, and {name} runs parts of it; {_REMEDY}")
    size = supernet.space.size
    if size > MOST_ARCHITECTURES:
        raise ConfigError(
            f"client.compile: true would compile each of the supernet's {size} architectures, for tens of seconds "
            f"each, and up to {MOST_ARCHITECTURES} are allowed; {_REMEDY}"
        )
    # torch counts the compilations of all networks together, because they share the code of one function
    config = torch._dynamo.config
    config.recompile_limit = max(config.recompile_limit, 4 * MOST_ARCHITECTURES)


def compile_network(network: nn.Module, inputs: Tensor) -> None:
    """Compiles a network in place, by a forward and a backward pass; its tensors keep their names."""
    network.train()
    forward = network.forward

    # not Module.compile: up to 2.12 torch silently skips what its own files define, such as Sequential's forward
    def call(*args: Any) -> Any:
        return forward(*args)

    network.forward = compiled(call, inputs.device)
    with torch.enable_grad():
        compile_now(lambda: network(inputs).sum().backward(), inputs.device)
    network.zero_grad(set_to_none=True)


def compiled(function: Callable[..., Any], device: torch.device) -> Callable[..., Any]:
    """Returns the function compiled for one shape of each input; on a CPU it calls its operations from C++."""
    return torch.compile(function, dynamic=False, options={"cpp_wrapper": True} if device.type == "cpu" else None)


def compile_now(call: Callable[[], Any], device: torch.device) -> None:
    """Makes the first call of a compiled function, which compiles it, without advancing a random generator."""
    try:
        with isolated(0, "compilation", device=device):
            call()
    except Exception as error:
        reason = " ".join(str(error).split("\n")[:2])  # torch names its backend, then what that has raised
        raise ConfigError(
            f"client.compile: true, but torch.compile failed ({type(error).__name__}: {reason}); {_REMEDY}"
        ) from error


# ---- layers --------------------------------------------------------------------------------------------


def with_channels_last(network: nn.Module) -> nn.Module:
    """Returns the network with its convolutions' weights, and so their outputs, in that layout."""
    for module in network.modules():
        if isinstance(module, nn.MaxPool2d):
            # else its gradient has the layout of the one that comes in, and its whole input is copied there and back
            module.register_forward_hook(_gradient_in_the_layout)
        elif isinstance(module, _DropoutNd):  # draws its mask in the order of memory
            module.register_forward_pre_hook(_in_ordinary_layout)
        elif isinstance(module, nn.Conv2d) and module.kernel_size == (1, 1) and module.padding == (0, 0):
            # strided and of fewer than 8 channels it writes beyond its gradient on CPUs with AVX2 alone (torch 2.14.1)
            module.register_forward_pre_hook(partial(_without_skipped, strides=module.stride))
            module.stride = (1, 1)
    return network.to(memory_format=torch.channels_last)


def _gradient_in_the_layout(module: nn.Module, inputs: Any, output: Tensor) -> None:
    if output.requires_grad and output.dim() == 4:
        output.register_hook(lambda gradient: gradient.contiguous(memory_format=torch.channels_last))


def _in_ordinary_layout(module: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor.contiguous() if tensor.dim() == 4 else tensor for tensor in inputs)


def _without_skipped(module: nn.Module, inputs: tuple[Tensor, ...], strides: tuple[int, ...]) -> tuple[Tensor, ...]:
    return tuple(tensor[..., :: strides[0], :: strides[1]] for tensor in inputs)


class ImagesAsColumns(TorchFunctionMode):
    """Computes ordinary 2d convolutions of images on a CPU, of few channels and no gradients, as matrix products."""

    # mapped over clients they become grouped ones, which oneDNN has made for 16 channels per group

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        if func is torch.conv2d and len(args) == 7 and not kwargs:
            inputs, weights, bias, stride, padding, dilation, groups = args
            ordinary = groups == 1 and tuple(dilation) == (1, 1) and not isinstance(padding, str)
            images = inputs.dim() == 4 and weights.shape[1] <= _FEW_CHANNELS and not inputs.requires_grad
            if ordinary and images and inputs.device.type == "cpu":
                return _product(inputs, weights, bias, stride, padding)
        return func(*args, **(kwargs or {}))


def _product(inputs: Tensor, weights: Tensor, bias: Tensor | None, stride: Any, padding: Any) -> Tensor:
    channels, channels_in, rows, columns = weights.shape
    padded = functional.pad(inputs, (padding[1], padding[1], padding[0], padding[0]))
    patches = padded.unfold(2, rows, stride[0]).unfold(3, columns, stride[1])  # [batch, in, height, width, k, k]
    batch, _, height, width = patches.shape[:4]
    matrix = patches.permute(1, 4, 5, 0, 2, 3).reshape(channels_in * rows * columns, batch * height * width)
    outputs = weights.flatten(1) @ matrix
    if bias is not None:
        outputs = outputs + bias[:, None].to(outputs.dtype)  # autocast has rounded the product alone
    return outputs.view(channels, batch, height, width).transpose(0, 1)
