"""Layers and norms that several networks share; those of transformers follow Dosovitskiy et al. (2021).

Batch statistics differ between a subnet and the largest network, and between clients (Hsieh et al., 2020). Therefore
they are not used (:class:`GroupNorm`), or averaged, or gathered again before an evaluation.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, UnitInterval, checked

_POSITION_STD = 0.02  # small compared with the embeddings


class Norm(ABC):
    """Makes the normalisation layer for a number of channels.

    Attributes:
        multiple: Every number of channels must be a multiple of this number.
        affine: Whether the layers have a scale and a shift.
    """

    multiple: int
    affine: bool

    @abstractmethod
    def __call__(self, channels: int) -> nn.Module:
        """Returns a layer for ``[batch, channels, h, w]``; raises ``ConfigError`` for an invalid number of channels."""


@checked("norm")
@dataclass(frozen=True)
class GroupNorm(Norm):
    """Group normalisation, without batch statistics (FedHeN).

    Groups have a fixed size: a narrower subnet has fewer groups, and each contains the same channels in every subnet.

    Args:
        group_size: Channels per group; every width must be a multiple of it.

    Example:
        >>> GroupNorm(8)(32).num_groups
        4
    """

    group_size: PositiveInt = 8

    affine = True

    @property
    @override
    def multiple(self) -> int:  # type: ignore[override]
        return self.group_size

    @override
    def __call__(self, channels: int) -> nn.Module:
        if channels % self.group_size:
            raise ConfigError(f"norm.group_size: {self.group_size} does not divide {channels} channels; give a divisor")
        return nn.GroupNorm(channels // self.group_size, channels)


@checked("norm")
@dataclass(frozen=True)
class BatchNorm(Norm):
    """Batch normalisation.

    Args:
        affine: Whether scale and shift are learned.
        running_statistics: Whether means and variances are tracked in training, averaged as buffers (FedorAS) and
            used in evaluation. Otherwise evaluation uses each batch's, or recalibrates them on a copy of the subnet.
        momentum: Weight of the newest batch in the running statistics.

    Example:
        >>> layer = BatchNorm(affine=False, running_statistics=False)(16)
        >>> len(list(layer.parameters())) + len(list(layer.buffers()))
        0
    """

    affine: bool = True
    running_statistics: bool = True
    momentum: UnitInterval = 0.1

    multiple = 1

    @override
    def __call__(self, channels: int) -> nn.Module:
        return nn.BatchNorm2d(
            channels, momentum=self.momentum, affine=self.affine, track_running_stats=self.running_statistics
        )


class Scaler(nn.Module):
    """Divides by the subnet's width in training, as a cut layer sums fewer terms (HeteroFL: Diao et al., 2021)."""

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = float(scale)

    def forward(self, x: Tensor) -> Tensor:
        """Maps any shape to the same shape."""
        return x / self.scale if self.training and self.scale != 1 else x


class Residual(nn.Module):
    """The activated sum of a block and a shortcut, by default the identity (He et al., 2016)."""

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


class CausalConv1d(nn.Conv1d):
    """A dilated convolution over the present and the past: only the left side is padded."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, channels, tokens]`` to the same number of tokens."""
        return super().forward(functional.pad(x, (self.dilation[0] * (self.kernel_size[0] - 1), 0)))


class PatchEmbedding(nn.Module):
    """A linear map of every patch, plus a learned vector for its position."""

    def __init__(self, channels: int, dim: int, patch_size: int, tokens: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, dim, patch_size, stride=patch_size)
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens, dim), std=_POSITION_STD))

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, channels, h, w]`` to ``[batch, tokens, dim]``."""
        return self.patches(x).flatten(2).transpose(1, 2) + self.positions


class TokenEmbedding(nn.Module):
    """A learned vector for every token of a vocabulary, plus one for its position."""

    def __init__(self, vocabulary: int, dim: int, tokens: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        nn.init.trunc_normal_(self.tokens.weight, std=_POSITION_STD)
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(1, tokens, dim), std=_POSITION_STD))

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens, int64 ``[batch, tokens]``, to ``[batch, tokens, dim]``."""
        return self.tokens(x) + self.positions


class Attention(nn.Module):
    """Self-attention with any number of heads of a fixed size; if causal, a token attends to no later token."""

    def __init__(self, dim: int, heads: int, head_dim: int, causal: bool = False) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.causal = causal
        self.query, self.key, self.value = (nn.Linear(dim, heads * head_dim) for _ in range(3))
        self.output = nn.Linear(heads * head_dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, tokens, dim]`` to the same shape."""
        parts = (layer(x) for layer in (self.query, self.key, self.value))  # [batch, tokens, heads * head_dim]
        query, key, value = (part.unflatten(2, (-1, self.head_dim)).transpose(1, 2) for part in parts)
        # [batch, heads, tokens, head_dim]
        values = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(values.transpose(1, 2).flatten(2))


class TokenMean(nn.Module):
    """The mean over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, tokens, dim]`` to ``[batch, dim]``."""
        return x.mean(1)


def sequential(**modules: nn.Module | None) -> nn.Sequential:
    """Returns a sequence of named modules, without those that are ``None``."""
    return nn.Sequential(OrderedDict((name, module) for name, module in modules.items() if module is not None))


def norm_layer(norm: Norm | None, channels: int) -> nn.Module:
    """Returns a normalisation layer, or the identity if ``norm`` is ``None``."""
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
    """Returns a layer of ``conv``, ``scaler``, ``norm``, ``activation`` and ``pool``, without unset ones."""
    return sequential(
        conv=conv,
        scaler=None if scale is None else Scaler(scale),
        norm=norm_layer(norm, conv.out_channels),
        activation=None if activation is None else activation(inplace=True),
        pool=nn.MaxPool2d(pool) if pool else None,
    )


def relu_conv_norm(inputs: int, outputs: int, norm: Norm, kernel: int = 1, stride: int = 1) -> nn.Module:
    """Returns ReLU, a convolution without bias that keeps height and width (except for its stride), and a norm."""
    return sequential(relu=nn.ReLU(), conv=convolution(inputs, outputs, kernel, stride), norm=norm(outputs))


def basic_block(
    inputs: int, middle: int, outputs: int, stride: int, norm: Norm | None, shortcut: nn.Module | None
) -> Residual:
    """Returns a residual block of two 3x3 convolutions, each followed by a norm (He et al., 2016)."""
    block = sequential(
        conv1=convolution(inputs, middle, stride=stride),
        norm1=norm_layer(norm, middle),
        relu=nn.ReLU(inplace=True),
        conv2=convolution(middle, outputs),
        norm2=norm_layer(norm, outputs),
    )
    return Residual(block, shortcut, nn.ReLU(inplace=True))


def preactivated_block(
    inputs: int, middle: int, outputs: int, stride: int, norm: Norm | None, scale: float = 1.0
) -> nn.Module:
    """Returns a residual block in which norm and ReLU precede each of two 3x3 convolutions (He et al., 2016)."""
    inplace = norm is not None  # without a norm, the ReLU would overwrite the block's input
    first_layers = {"scaler1": Scaler(scale), "norm1": norm_layer(norm, inputs), "relu1": nn.ReLU(inplace=inplace)}
    last_layers = {
        "conv1": convolution(inputs, middle, stride=stride),
        "scaler2": Scaler(scale),
        "norm2": norm_layer(norm, middle),
        "relu2": nn.ReLU(inplace=True),
        "conv2": convolution(middle, outputs),
    }
    if stride == 1:  # channels do not decide this: they may be equal at one width and differ at another
        return Residual(sequential(**first_layers, **last_layers))
    return sequential(**first_layers, sum=Residual(sequential(**last_layers), convolution(inputs, outputs, 1, stride)))


def transformer_block(
    dim: int, heads: int, head_dim: int, units: int, causal: bool = False, dropout_rate: float = 0.0
) -> nn.Sequential:
    """Returns self-attention and a perceptron of one hidden layer, each preceded by a norm and added to its input."""
    attention = sequential(
        norm=nn.LayerNorm(dim),
        attention=Attention(dim, heads, head_dim, causal),
        dropout=dropout_layer(dropout_rate),
    )
    perceptron = sequential(
        norm=nn.LayerNorm(dim),
        hidden=nn.Linear(dim, units),
        gelu=nn.GELU(),
        output=nn.Linear(units, dim),
        dropout=dropout_layer(dropout_rate),
    )
    return nn.Sequential(Residual(attention), Residual(perceptron))


def pooled_classifier(channels: int, num_classes: int) -> dict[str, nn.Module]:
    """Returns the last layers of many networks by name: the mean over an image's pixels and a linear layer."""
    classifier = nn.Linear(channels, num_classes)
    return {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten(), "classifier": classifier}


def count_patches(setting: str, patch_size: int, height: int, width: int) -> int:
    """Returns the number of patches of an image; raises ``ConfigError`` if they do not cover it."""
    if height % patch_size or width % patch_size:
        raise ConfigError(f"{setting}: {patch_size} does not divide {height}x{width} pixels; give a divisor")
    return height // patch_size * (width // patch_size)
