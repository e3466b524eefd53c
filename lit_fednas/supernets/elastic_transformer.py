"""An elastic transformer for text and images: depth, and per block the heads and the perceptron's units."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import NonNegativeInt, PositiveFloat, PositiveInt, ShareBelowOne, checked
from lit_fednas.supernets.attention import PatchEmbedding, TokenEmbedding, TokenMean, count_patches, transformer_block
from lit_fednas.supernets.base import NestedSupernet
from lit_fednas.supernets.elastic_space import ElasticArch, ElasticSpace
from lit_fednas.supernets.families import check_image
from lit_fednas.supernets.layers import dropout_layer, sequential


@checked("supernet")
class ElasticTransformer(NestedSupernet):
    """A pre-norm transformer, elastic as SuperFed's networks are.

    A block is self-attention and a perceptron of one hidden layer (GELU), each behind a layer norm of the fixed width
    and added to its input. A narrower block keeps the first heads and the first hidden units. Positions are learned.

    Of images ``[channels, height, width]`` the patches are the tokens, which are averaged for one output (as in
    FedTrans' vision transformer here). Of text, int64 ``[tokens]``, the output is one per position, from that position
    and those before it; or, pooled, one per example, the mean over all tokens (padding, if any, counts as tokens).
    Nothing is masked for padding: at the end of a text, where this package's sources have it, no output that counts
    attends to it.

    Args:
        input_shape: Channels, height and width of an image, or tokens of a text.
        num_classes: Width of an output.
        dim: Entries of a token.
        depths: Choices for the number of blocks beyond the first.
        ratios: Choices of a block's hidden units, as multiples of ``dim``.
        heads: Choices of a block's heads, each of ``dim`` by the largest choice entries.
        patch: Height and width of a patch in pixels (images).
        vocabulary: Tokens of the vocabulary (text); ``None`` for as many as classes, unless it is pooled.
        pooled: Whether a text has one output.
        dropout: Rate behind the embedding, attention and perceptrons (Vaswani et al., 2017, section 5.4: 0.1).

    Raises:
        ConfigError: Choices are empty, not ascending, or out of range; the heads do not divide ``dim``; examples are
            neither images nor texts, or patches do not cover an image; a setting of texts is given for images, or
            one of pooled texts is not.

    Example:
        >>> import torch
        >>> net = ElasticTransformer((1, 8, 8), 10, dim=16, patch=2)
        >>> str(net.space.smallest), net(torch.zeros(2, 1, 8, 8), net.space.smallest).shape
        ('d: [0], e: 0.5, h: 1', torch.Size([2, 10]))
        >>> ElasticTransformer((20,), 50, dim=16)(torch.zeros(2, 20, dtype=torch.int64)).shape
        torch.Size([2, 20, 50])
    """

    def __init__(
        self,
        input_shape: Iterable[int],
        num_classes: int,
        dim: PositiveInt = 64,
        depths: Sequence[NonNegativeInt] = (0, 1, 2),
        ratios: Sequence[PositiveFloat] = (0.5, 1.0, 2.0),
        heads: Sequence[PositiveInt] = (1, 2, 4),
        patch: PositiveInt = 4,
        vocabulary: PositiveInt | None = None,
        pooled: bool = False,
        dropout: ShareBelowOne = 0.0,
    ) -> None:
        super().__init__(input_shape, num_classes)
        if not heads or dim % heads[-1]:
            raise ConfigError(f"supernet.heads: {list(heads)} must be numbers of which the last divides dim, {dim}")
        self.is_text = len(self.input_shape) == 1
        if self.is_text:
            self.input_dtype = torch.int64
            if pooled and vocabulary is None:
                raise ConfigError("supernet.vocabulary: is not given, and classes of texts are not tokens; give it")
        else:
            check_image(self, self.input_shape)
            for name, given in (("vocabulary", vocabulary), ("pooled", pooled)):
                if given:
                    raise ConfigError(f"supernet.{name}: {given} is for texts and the inputs are images; leave it out")
        self.dim = dim
        self.head_dim = dim // heads[-1]
        self.patch = patch
        self.vocabulary = vocabulary or self.num_classes
        self.pooled = pooled or not self.is_text
        self.dropout = dropout
        self.space: ElasticSpace = ElasticSpace(depths, ratios, (dim,), heads=heads)
        self.network = self.build(self.space.largest)

    @override
    def build(self, arch: ElasticArch) -> nn.Module:
        blocks = nn.Sequential()
        for (_, units, _, _), heads in zip(self.space.blocks_of(arch), arch.heads, strict=False):  # absent ones behind
            blocks.append(transformer_block(self.dim, heads, self.head_dim, units, not self.pooled, self.dropout))
        return sequential(
            embedding=self._embedding(),
            dropout=dropout_layer(self.dropout),
            blocks=blocks,
            norm=nn.LayerNorm(self.dim),
            pool=TokenMean() if self.pooled else None,
            classifier=nn.Linear(self.dim, self.num_classes),
        )

    def _embedding(self) -> nn.Module:
        if self.is_text:
            return TokenEmbedding(self.vocabulary, self.dim, self.input_shape[0])
        channels, height, width = self.input_shape
        tokens = count_patches("supernet.patch", self.patch, height, width)
        return PatchEmbedding(channels, self.dim, self.patch, tokens)
