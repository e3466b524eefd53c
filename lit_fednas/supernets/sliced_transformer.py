"""A small vision transformer that is cut in width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.scaler import Scaler
from lit_fednas.supernets.width_families import WidthFamily, check_image, check_layer, check_positive

_POSITION_STD = 0.02  # small beside the patches' embeddings, as is usual


@dataclass(frozen=True)
class SlicedTransformer(WidthFamily):
    """A vision transformer (Dosovitskiy et al., 2021) without a class token: its tokens are averaged.

    Patches are embedded by a strided convolution and get learned positions. Each layer is attention and a
    perceptron of one hidden layer, both behind a layer norm and with a residual. Queries, keys, values and
    outputs have a linear layer of their own each, so that whole heads can be cut. A scaler stands behind every
    layer that is cut, as in HeteroFL's transformer.

    Groups of units: ``embedding``, ``layer0.heads``, ``layer0.hidden``, ...; a head has ``dim / heads`` entries at
    every width.

    Args:
        dim: Entries of the embedding.
        heads: Heads per layer.
        depth: Layers.
        mlp_ratio: Hidden units of a perceptron, in embeddings.
        patch_size: Height and width of a patch in pixels.

    Raises:
        ConfigError: A number is not positive, or ``dim`` is not a multiple of ``heads``.

    Example:
        >>> SlicedTransformer(dim=32, heads=2, depth=1).units((3, 8, 8))
        {'embedding': 32, 'layer0.heads': 2, 'layer0.hidden': 64}
    """

    dim: int = 64
    heads: int = 4
    depth: int = 4
    mlp_ratio: float = 2.0
    patch_size: int = 4

    def __post_init__(self) -> None:
        check_positive(self, dim=self.dim, heads=self.heads, depth=self.depth, patch_size=self.patch_size)
        check_layer(self.dim, self.heads, self.mlp_ratio)

    @property
    def head_dim(self) -> int:
        """Entries of a head."""
        return self.dim // self.heads

    def tokens(self, input_shape: Sequence[int]) -> int:
        """Patches of an image."""
        return (input_shape[1] // self.patch_size) * (input_shape[2] // self.patch_size)

    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        """The embedding, and each layer's heads and hidden units."""
        check_image(self, input_shape, self.patch_size)
        if any(size % self.patch_size for size in input_shape[1:]):
            raise ConfigError(
                f"supernet.family.patch_size: {self.patch_size} does not divide {input_shape[1]}x"
                f"{input_shape[2]} pixels"
            )
        units = {"embedding": self.dim}
        for layer in range(self.depth):
            units |= {f"layer{layer}.heads": self.heads, f"layer{layer}.hidden": round(self.mlp_ratio * self.dim)}
        return units

    def build(
        self, sizes: Mapping[str, int], input_shape: Sequence[int], num_classes: int, scale: float = 1.0
    ) -> nn.Module:
        """Builds embedding, layers and classifier."""
        dim = sizes["embedding"]
        network = nn.Sequential()
        network.add_module(
            "embedding", PatchEmbedding(input_shape[0], dim, self.patch_size, self.tokens(input_shape), scale)
        )
        for place in range(self.depth):
            heads, hidden = sizes[f"layer{place}.heads"], sizes[f"layer{place}.hidden"]
            layer = nn.Sequential()
            layer.add_module("attention", SlicedAttention(dim, heads, self.head_dim, scale))
            layer.add_module("perceptron", SlicedPerceptron(dim, hidden, scale))
            network.add_module(f"layer{place}", layer)
        network.add_module("norm", nn.LayerNorm(dim))
        network.add_module("pool", TokenMean())
        network.add_module("classifier", nn.Linear(dim, num_classes))
        return network


class PatchEmbedding(nn.Module):
    """A linear map of every patch, and a learned vector for its place."""

    def __init__(self, channels: int, dim: int, patch_size: int, tokens: int, scale: float) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, dim, patch_size, stride=patch_size)
        self.scaler = Scaler(scale)
        self.positions = nn.Parameter(torch.empty(1, tokens, dim))
        nn.init.trunc_normal_(self.positions, std=_POSITION_STD)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, channels, h, w]`` to ``[batch, tokens, dim]``."""
        return self.scaler(self.patches(x)).flatten(2).transpose(1, 2) + self.positions


class SlicedAttention(nn.Module):
    """Layer norm and self-attention, added to its input; any number of heads of a fixed size."""

    def __init__(self, dim: int, heads: int, head_dim: int, scale: float) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.norm = nn.LayerNorm(dim)
        self.query = nn.Linear(dim, heads * head_dim)
        self.key = nn.Linear(dim, heads * head_dim)
        self.value = nn.Linear(dim, heads * head_dim)
        self.output = nn.Linear(heads * head_dim, dim)
        self.scaler = Scaler(scale)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, tokens, dim]`` to the same shape."""
        y = self.norm(x)
        query, key, value = (self._heads(layer(y)) for layer in (self.query, self.key, self.value))
        mixed = functional.scaled_dot_product_attention(query, key, value)
        return x + self.scaler(self.output(mixed.transpose(1, 2).flatten(2)))

    def _heads(self, x: Tensor) -> Tensor:
        """``[batch, tokens, heads * head_dim]`` to ``[batch, heads, tokens, head_dim]``."""
        return self.scaler(x).unflatten(2, (-1, self.head_dim)).transpose(1, 2)


class SlicedPerceptron(nn.Module):
    """Layer norm and a perceptron of one hidden layer, added to its input."""

    def __init__(self, dim: int, hidden: int, scale: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.hidden = nn.Linear(dim, hidden)
        self.gelu = nn.GELU()
        self.output = nn.Linear(hidden, dim)
        self.scaler = Scaler(scale)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, tokens, dim]`` to the same shape."""
        y = self.gelu(self.scaler(self.hidden(self.norm(x))))
        return x + self.scaler(self.output(y))


class TokenMean(nn.Module):
    """The mean over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, tokens, dim]`` to ``[batch, dim]``."""
        return x.mean(1)
