"""Convolutions of images for several clients at once, as matrix products.

Mapped over clients, a convolution becomes a grouped one. oneDNN's are made for 16 channels per group; of images, with
their few channels, a product with the image's patches as columns takes less time.
"""

from __future__ import annotations

from collections.abc import Mapping
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
