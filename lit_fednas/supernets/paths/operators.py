"""The operators that FedorAS' convolutional search spaces offer for a layer (App. E.3, Fig. 7).

All keep the shape of their input. Every convolution is followed by a norm and ReLU, the last 1x1 of a block too.
The text does not specify the inside of the depthwise-separable block. Here its depthwise convolution makes e times
as many channels and the pointwise one restores their number: this gives tier boundaries about half a percent below
Table 8, and a pointwise expansion before or after it two percent above.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from torch import nn
from torchvision.ops import Conv2dNormActivation, SqueezeExcitation

from lit_fednas.supernets.layers import Residual, sequential
from lit_fednas.supernets.norms import Norm


def convolution(
    inputs: int, outputs: int, kernel: int, norm: Norm, stride: int = 1, groups: int = 1
) -> Conv2dNormActivation:
    """Builds a convolution without bias, padded to keep the size (over the stride), a norm, ReLU."""
    return Conv2dNormActivation(inputs, outputs, kernel, stride, groups=groups, norm_layer=norm)


def separable(channels: int, expansion: float, norm: Norm, kernel: int = 3) -> nn.Module:
    """Builds a depthwise convolution to e times the channels and a pointwise one back, with a residual."""
    middle = int(channels * expansion)
    depthwise = convolution(channels, middle, kernel, norm, groups=min(channels, middle))
    return Residual(nn.Sequential(depthwise, convolution(middle, channels, 1, norm)))


def mobile(channels: int, kernel: int, expansion: float, norm: Norm) -> nn.Module:
    """Builds a dense convolution to e times the channels, squeeze-and-excitation and a 1x1 convolution back."""
    middle = int(channels * expansion)
    wide = convolution(channels, middle, kernel, norm)
    return Residual(nn.Sequential(wide, SqueezeExcitation(middle, middle), convolution(middle, channels, 1, norm)))


#: All candidates; ``e05`` is an expansion of 0.5, ``mb3`` a MobileNet-like block of kernel 3.
OPERATORS: dict[str, Callable[[int, Norm], nn.Module]] = {
    "conv1": lambda channels, norm: convolution(channels, channels, 1, norm),
    "sep_e05": lambda channels, norm: separable(channels, 0.5, norm),
    "sep_e1": lambda channels, norm: separable(channels, 1, norm),
    "sep_e2": lambda channels, norm: separable(channels, 2, norm),
    "mb1_e2": lambda channels, norm: mobile(channels, 1, 2, norm),
    "mb3_e05": lambda channels, norm: mobile(channels, 3, 0.5, norm),
    "mb3_e1": lambda channels, norm: mobile(channels, 3, 1, norm),
    "mb3_e2": lambda channels, norm: mobile(channels, 3, 2, norm),
    "id": lambda channels, norm: nn.Identity(),
    "conv3": lambda channels, norm: convolution(channels, channels, 3, norm),
    "sep1_e2": lambda channels, norm: separable(channels, 2, norm, kernel=1),
}

#: The nine candidates for CIFAR; keyword spotting has ``conv3`` and ``sep1_e2`` as well.
CIFAR_OPERATORS = tuple(name for name in OPERATORS if name not in ("conv3", "sep1_e2"))


def reduction(inputs: int, outputs: int, stride: int, norm: Norm, separable_link: bool = False) -> Residual:
    """Returns the fixed block after a stage for CIFAR: more channels at half the size (App. E.3).

    Args:
        inputs: Channels.
        outputs: Channels.
        stride: 2 halves the size; with 1 it stays, and a convolution on the residual link is 1x1.
        norm: Normalisation layer.
        separable_link: Whether the residual link is a depthwise separable convolution, as the block is.
    """

    def block() -> nn.Sequential:
        return sequential(
            depthwise=convolution(inputs, inputs, 3, norm, stride, groups=inputs),
            pointwise=convolution(inputs, outputs, 1, norm),
        )

    return Residual(block(), block() if separable_link else convolution(inputs, outputs, stride, norm, stride))


def pooled_reduction(inputs: int, outputs: int, stride: int, norm: Norm) -> nn.Module:
    """Returns the fixed block after a stage for keyword spotting: a 3x3 average pooling and a 1x1 convolution.

    The text names the convolution first, which on the larger maps costs too much for Table 8: see ``PathCNN``.
    """
    return sequential(pool=nn.AvgPool2d(3, stride, padding=1), pointwise=convolution(inputs, outputs, 1, norm))


#: The fixed blocks after a stage, of inputs, outputs, stride and norm.
REDUCTIONS: dict[str, Callable[[int, int, int, Norm], nn.Module]] = {
    "residual": reduction,
    "separable": partial(reduction, separable_link=True),
    "pooled": pooled_reduction,
}
