"""Layers that transformers are made of (Vaswani et al., 2017; for images: Dosovitskiy et al., 2021)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.layers import Residual, dropout_layer, sequential

_POSITION_STD = 0.02  # small beside the embeddings, as is usual


class PatchEmbedding(nn.Module):
    """A linear map of every patch, and a learned vector for its position."""

    def __init__(self, channels: int, dim: int, patch_size: int, tokens: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(channels, dim, patch_size, stride=patch_size)
        self.positions = nn.Parameter(torch.empty(1, tokens, dim))
        nn.init.trunc_normal_(self.positions, std=_POSITION_STD)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, channels, h, w]`` to ``[batch, tokens, dim]``."""
        return self.patches(x).flatten(2).transpose(1, 2) + self.positions


class TokenEmbedding(nn.Module):
    """A vector for every token of a vocabulary, and a learned vector for its position."""

    def __init__(self, vocabulary: int, dim: int, tokens: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, dim)
        self.positions = nn.Parameter(torch.empty(1, tokens, dim))
        for weight in (self.tokens.weight, self.positions):
            nn.init.trunc_normal_(weight, std=_POSITION_STD)

    def forward(self, x: Tensor) -> Tensor:
        """Maps tokens, int64 ``[batch, tokens]``, to ``[batch, tokens, dim]``."""
        return self.tokens(x) + self.positions


class Attention(nn.Module):
    """Self-attention with any number of heads of a fixed size; causal: to a token itself and those before it."""

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
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=self.causal)
        return self.output(mixed.transpose(1, 2).flatten(2))


class TokenMean(nn.Module):
    """The mean over tokens."""

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, tokens, dim]`` to ``[batch, dim]``."""
        return x.mean(1)


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


def count_patches(setting: str, patch_size: int, height: int, width: int) -> int:
    """Returns the patches of an image; raises ``ConfigError`` if they do not cover it."""
    if height % patch_size or width % patch_size:
        raise ConfigError(f"{setting}: {patch_size} does not divide {height}x{width} pixels")
    return height // patch_size * (width // patch_size)
