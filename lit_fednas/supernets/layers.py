"""Layers that several networks are made of.

torchvision offers others: ``Conv2dNormActivation`` and ``SqueezeExcitation``.
"""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.norms import Norm


class Scaler(nn.Module):
    """Divides by a positive width in training, as a cut layer adds up fewer terms (HeteroFL: Diao et al., 2021)."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        if not scale > 0:
            raise ConfigError(f"scale: {scale} must be above 0")
        self.scale = float(scale)

    def forward(self, x: Tensor) -> Tensor:
        """Maps any shape to the same."""
        return x / self.scale if self.training and self.scale != 1 else x

    @override
    def extra_repr(self) -> str:
        return f"{self.scale:g}"


class Residual(nn.Module):
    """A block and a shortcut (by default the identity), whose sum is activated (He et al., 2016)."""

    def __init__(
        self, block: nn.Module, shortcut: nn.Module | None = None, activation: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.block = block
        self.shortcut = nn.Identity() if shortcut is None else shortcut
        self.activation = nn.Identity() if activation is None else activation

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, channels, h, w]`` to the shape of the block's output."""
        return self.activation(self.block(x) + self.shortcut(x))


def sequential(**modules: nn.Module | None) -> nn.Sequential:
    """Returns named modules in a row, without those that are ``None``."""
    return nn.Sequential(OrderedDict((name, module) for name, module in modules.items() if module is not None))


def norm_layer(norm: Norm | None, channels: int) -> nn.Module:
    """Returns a normalisation layer, or the identity without a norm."""
    return nn.Identity() if norm is None else norm(channels)


def dropout_layer(rate: float) -> nn.Module | None:
    """Returns a dropout layer, or ``None`` for a rate of 0."""
    return nn.Dropout(rate) if rate else None


def convolution(
    inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1, bias: bool = False
) -> nn.Conv2d:
    """Returns a convolution that keeps height and width, except for its stride."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=bias)


def conv_layer(
    conv: nn.Conv2d,
    norm: Norm | None,
    activation: type[nn.Module] | None = nn.ReLU,
    scale: float | None = None,
    pool: int = 0,
) -> nn.Sequential:
    """Returns a layer of ``conv``, ``scaler``, ``norm``, ``activation`` and ``pool``, without those not given."""
    return sequential(
        conv=conv,
        scaler=None if scale is None else Scaler(scale),
        norm=norm_layer(norm, conv.out_channels),
        activation=None if activation is None else activation(inplace=True),
        pool=nn.MaxPool2d(pool) if pool else None,
    )


def basic_block(
    inputs: int, middle: int, outputs: int, stride: int, norm: Norm, shortcut: nn.Module | None
) -> Residual:
    """Returns a residual block of two 3x3 convolutions, each followed by a norm (He et al., 2016)."""
    block = sequential(
        conv1=convolution(inputs, middle, stride=stride),
        norm1=norm(middle),
        relu=nn.ReLU(inplace=True),
        conv2=convolution(middle, outputs),
        norm2=norm(outputs),
    )
    return Residual(block, shortcut, nn.ReLU(inplace=True))


def preactivated_block(
    inputs: int, middle: int, outputs: int, stride: int, norm: Norm | None, scale: float = 1.0
) -> nn.Module:
    """Returns a residual block in which norm and ReLU precede each of two 3x3 convolutions (He et al., 2016)."""
    fresh = norm is not None  # else the ReLU would overwrite the block's input
    first = {"scaler1": Scaler(scale), "norm1": norm_layer(norm, inputs), "relu1": nn.ReLU(inplace=fresh)}
    rest = {
        "conv1": convolution(inputs, middle, stride=stride),
        "scaler2": Scaler(scale),
        "norm2": norm_layer(norm, middle),
        "relu2": nn.ReLU(inplace=True),
        "conv2": convolution(middle, outputs),
    }
    if stride == 1:  # not by the channels, which may be equal at one width and not at another
        return Residual(sequential(**first, **rest))
    return sequential(**first, sum=Residual(sequential(**rest), convolution(inputs, outputs, 1, stride)))


def pooled_classifier(channels: int, num_classes: int) -> dict[str, nn.Module]:
    """Returns the last layers of many networks by name: the mean over an image's pixels, and a linear layer."""
    classifier = nn.Linear(channels, num_classes)
    return {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "classifier": classifier}
