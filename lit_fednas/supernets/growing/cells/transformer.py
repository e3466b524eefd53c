"""The cells of a vision transformer (Dosovitskiy et al., 2021; FedTrans, section 4.1: "Transformer blocks")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import nn

from lit_fednas.supernets.growing.cells.base import Cell
from lit_fednas.supernets.growing.cells.silence import silence
from lit_fednas.supernets.sliced_transformer import PatchEmbedding, SlicedAttention, SlicedPerceptron, TokenMean

_UNSCALED = 1.0  # these layers can divide by a subnet's width; nothing is cut here


@dataclass(frozen=True)
class PatchCell(Cell):
    """A linear map of every patch of an image, and a learned vector for its place.

    Its stream, the embedding, does not grow: the layer norms average over it, and copies of some entries would
    change their means. It is not transformed itself.

    Args:
        name: Its name.
        patch_size: Height and width of a patch in pixels.
        tokens: Patches of an image.
    """

    patch_size: int
    tokens: int

    stream_grows: ClassVar[bool] = False
    growable: ClassVar[bool] = False

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``patches`` and ``positions``."""
        return PatchEmbedding(inputs, outputs, self.patch_size, self.tokens, _UNSCALED)


@dataclass(frozen=True)
class TransformerCell(Cell):
    """Self-attention and a perceptron of one hidden layer, both behind a layer norm and added to their input.

    It keeps the stream; ``heads`` and ``units``, the hidden units of the perceptron, are its own. Its follower is
    such a cell in which both output layers are zero.

    Args:
        name: Its name.
        head_dim: Entries of a head.
        mlp_ratio: Hidden units of the perceptron with which it is inserted, in embeddings.
    """

    head_dim: int
    mlp_ratio: float

    opens: ClassVar[bool] = False
    hidden: ClassVar[tuple[str, ...]] = ("heads", "units")

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``attention`` and ``perceptron``."""
        module = nn.Sequential()
        module.add_module("attention", SlicedAttention(inputs, hidden["heads"], self.head_dim, _UNSCALED))
        module.add_module("perceptron", SlicedPerceptron(inputs, hidden["units"], _UNSCALED))
        return module

    def follower(self, name: str) -> TransformerCell:
        """A cell with heads of the same size."""
        return TransformerCell(name, self.head_dim, self.mlp_ratio)

    def fresh_hidden(self, outputs: int) -> dict[str, int]:
        """As many as in the initial model."""
        return {"heads": outputs // self.head_dim, "units": round(self.mlp_ratio * outputs)}

    def make_identity(self, module: nn.Module) -> None:
        """Nothing is added to its input."""
        silence(module.get_submodule("attention.output"))
        silence(module.get_submodule("perceptron.output"))


@dataclass(frozen=True)
class TokenHead(Cell):
    """Layer norm, the mean over tokens, and a linear layer."""

    growable: ClassVar[bool] = False

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``norm``, ``pool`` and ``classifier``."""
        module = nn.Sequential()
        module.add_module("norm", nn.LayerNorm(inputs))
        module.add_module("pool", TokenMean())
        module.add_module("classifier", nn.Linear(inputs, outputs))
        return module
