"""A small vision transformer as an initial model (Dosovitskiy et al., 2021; FedTrans, section 5.4)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.cells import Cell, PatchCell, TokenHead, TransformerCell
from lit_fednas.supernets.width_families import check_image, check_layer, check_positive


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

    dim: int = 64
    heads: int = 4
    depth: int = 2
    patch_size: int = 4
    mlp_ratio: float = 2.0

    def __post_init__(self) -> None:
        check_positive(self, dim=self.dim, heads=self.heads, depth=self.depth, patch_size=self.patch_size)
        check_layer(self.dim, self.heads, self.mlp_ratio)

    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        """Patches, layers and head."""
        check_image(self, input_shape, self.patch_size)
        height, width = input_shape[1:]
        if height % self.patch_size or width % self.patch_size:
            raise ConfigError(
                f"supernet.family.patch_size: {self.patch_size} does not divide {height}x{width} pixels"
            )
        tokens = height // self.patch_size * (width // self.patch_size)
        cells: list[Cell] = [PatchCell("patches", self.patch_size, tokens)]
        sizes = {"patches.out": self.dim}
        for layer in range(1, self.depth + 1):
            cell = TransformerCell(f"layer{layer}", self.dim // self.heads, self.mlp_ratio)
            cells.append(cell)
            sizes |= {f"{cell.name}.heads": self.heads, f"{cell.name}.units": round(self.mlp_ratio * self.dim)}
        cells.append(TokenHead("head"))
        return Blueprint(tuple(cells), sizes, input_shape[0], num_classes, self.multiple)
