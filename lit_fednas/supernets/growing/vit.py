"""A small vision transformer as an initial model, and its cells (Dosovitskiy et al., 2021; FedTrans, 5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveFloat, PositiveInt, checked
from lit_fednas.supernets.families import Sizes, check_image
from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.cells import Cell, Head
from lit_fednas.supernets.layers import PatchEmbedding, TokenMean, count_patches, sequential, transformer_block


@dataclass(frozen=True)
class PatchCell(Cell):
    """A linear map of every patch of an image, and a learned vector for its position; it is not transformed.

    Its stream, the embedding, does not grow: the layer norms average over it, and copies of some entries would
    change their means.
    """

    patch_size: int
    tokens: int

    stream_grows: ClassVar[bool] = False
    growable: ClassVar[bool] = False

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        return PatchEmbedding(inputs, outputs, self.patch_size, self.tokens)


@dataclass(frozen=True)
class TransformerCell(Cell):
    """Self-attention and a perceptron of one hidden layer, each preceded by a layer norm and added to its input.

    It keeps the stream; ``heads`` and ``units``, the hidden units of the perceptron, are its own. Its follower is
    such a cell in which both output layers are zero.
    """

    head_dim: int
    mlp_ratio: float

    opens: ClassVar[bool] = False
    hidden: ClassVar[tuple[str, ...]] = ("heads", "units")
    silent: ClassVar[tuple[str, ...]] = ("0.block.attention.output", "1.block.output")

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        return transformer_block(inputs, hidden["heads"], self.head_dim, hidden["units"])

    @override
    def fresh_hidden(self, outputs: int) -> dict[str, int]:
        return {"heads": outputs // self.head_dim, "units": round(self.mlp_ratio * outputs)}


@dataclass(frozen=True)
class TokenHead(Head):
    """Layer norm, the mean over tokens, and a linear layer."""

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes) -> nn.Module:
        return sequential(norm=nn.LayerNorm(inputs), pool=TokenMean(), classifier=nn.Linear(inputs, outputs))


@checked("supernet.family")
@dataclass(frozen=True)
class GrowableViT(GrowableFamily):
    """A pre-norm vision transformer without a class token: its tokens are averaged.

    Widening gives a layer more heads and hidden units; the embedding keeps its size, which the layer norms average
    over. The cells are ``patches``, ``layer1``, ``layer2``, ... and ``head``.

    Args:
        dim: Entries of the embedding.
        heads: Heads per layer, of ``dim / heads`` entries each.
        depth: Layers.
        patch_size: Height and width of a patch in pixels.
        mlp_ratio: Hidden units of a perceptron, in embeddings.

    Raises:
        ConfigError: A number is not positive, or ``dim`` is not a multiple of ``heads``.

    Example:
        >>> str(GrowableViT(dim=32, heads=2, depth=1).blueprint((3, 8, 8), 10))
        'patches 32, layer1 2/64, head'
    """

    dim: PositiveInt = 64
    heads: PositiveInt = 4
    depth: PositiveInt = 2
    patch_size: PositiveInt = 4
    mlp_ratio: PositiveFloat = 2.0

    def __post_init__(self) -> None:
        if self.dim % self.heads:
            raise ConfigError(f"supernet.family.heads: {self.heads} must divide dim, {self.dim}")
        if round(self.mlp_ratio * self.dim) < 1:
            raise ConfigError(f"supernet.family.mlp_ratio: {self.mlp_ratio} leaves no hidden units; raise it")

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        check_image(self, input_shape, self.patch_size)
        height, width = input_shape[1:]
        tokens = count_patches("supernet.family.patch_size", self.patch_size, height, width)
        cells: list[tuple[Cell, Sizes]] = [(PatchCell("patches", self.patch_size, tokens), {"out": self.dim})]
        for layer in range(1, self.depth + 1):
            cell = TransformerCell(f"layer{layer}", self.dim // self.heads, self.mlp_ratio)
            cells.append((cell, {"heads": self.heads, "units": round(self.mlp_ratio * self.dim)}))
        return self.assembled([*cells, (TokenHead("head"), {})], input_shape, num_classes)
