"""Layers of several clients at once: convolutions of images as matrix products, and dropout with each client's masks.

Mapped over clients, a convolution becomes a grouped one. oneDNN's are made for 16 channels per group; of images, with
their few channels, a product with the image's patches as columns takes less time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

#: Up to so many input channels; inputs that have gradients are left alone, since mapped patches' are slow.
_FEW_CHANNELS = 3


class ImagesAsColumns(TorchFunctionMode):
    """Computes ordinary 2d convolutions of images on a CPU, of few channels and no gradients, as matrix products."""

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


class OwnDropout(TorchFunctionMode):
    """Draws each client's dropout mask from the client's own generator where dropout is mapped over clients.

    On a CPU these are the masks of ``torch.nn.Dropout`` under ``isolated``, number by number. On a GPU, where
    dropout is one fused operation, they are other masks of the same distribution; they depend on the client alone
    there as well.

    Args:
        draws: One generator per client.

    Attributes:
        used: Whether any dropout ran.
        failed: The name of the function of torch that raised an error.
    """

    def __init__(self, draws: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.draws = draws
        self.used = False
        self.failed = ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return (self._dropout if func is functional.dropout else func)(*args, **kwargs)
        except Exception:
            self.failed = self.failed or getattr(func, "__name__", str(func))
            raise

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or not 0 < p < 1:
            return functional.dropout(input, p, training, inplace)  # draws nothing
        self.used = True
        mask = _Masks.apply(input, 1 - p, self.draws)
        return input.mul_(mask) if inplace else input * mask


class _Masks(torch.autograd.Function):
    """Dropout masks that are drawn outside of ``vmap``, inside which no random operation is allowed."""

    @staticmethod
    def forward(like: Tensor, keep: float, draws: Sequence[torch.Generator]) -> Tensor:
        raise RuntimeError("dropout of a tensor that all clients share: its random mask cannot be stacked")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], like: Tensor, keep: float, draws: Sequence[torch.Generator]
    ) -> tuple[Tensor, int]:
        """Masks ``[clients, ...]`` for inputs of that shape, whose clients are in dimension ``in_dims[0]``."""
        inputs = like.movedim(in_dims[0], 0)
        # each in the layout that it has for a client alone, on which the order of the numbers depends
        masks = [torch.empty_like(one).bernoulli_(keep, generator=own) for one, own in zip(inputs, draws, strict=True)]
        return torch.stack(masks).div_(keep), 0
