"""Elastic networks for tables, text and images: perceptron, SuperFed's temporal convolutional network, transformer."""

from collections.abc import Iterable, Sequence
from math import prod

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import NonNegativeInt, PositiveFloat, PositiveInt, ShareBelowOne, checked
from lit_fednas.supernets.base import NestedSupernet
from lit_fednas.supernets.elastic_resnet import ElasticArch, ElasticSpace
from lit_fednas.supernets.families import check_image, check_tokens
from lit_fednas.supernets.layers import (
    CausalConv1d,
    PatchEmbedding,
    Residual,
    TokenEmbedding,
    TokenMean,
    count_patches,
    dropout_layer,
    sequential,
    transformer_block,
)


@checked("supernet")
class ElasticMLP(NestedSupernet):
    """An elastic residual perceptron for tables, after the ResNet of Gorishniy et al. (2021).

    A linear layer maps the flattened input to ``dim`` entries, each block adds ``Linear(ReLU(Linear(norm(x))))`` to
    them, and the head is ``Linear(ReLU(norm(x)))``. Deviations: layer norm instead of batch norm, and no dropout.

    Args:
        input_shape: Shape of one example; it is flattened.
        num_classes: Width of the output.
        dim: Entries of the vector to which the blocks add.
        depths: Choices for the number of blocks beyond the first.
        ratios: Choices of a block's hidden units, as multiples of ``dim``.

    Example:
        >>> net = ElasticMLP((30,), 2, dim=16, depths=[0, 1], ratios=[0.5, 1, 2])
        >>> net.space.size, str(net.space.smallest)
        (12, 'd: [0], e: 0.5')
    """

    def __init__(
        self,
        input_shape: Iterable[int],
        num_classes: int,
        dim: PositiveInt = 128,
        depths: Sequence[NonNegativeInt] = (0, 1, 2),
        ratios: Sequence[PositiveFloat] = (0.25, 0.5, 1.0, 2.0),
    ) -> None:
        super().__init__(input_shape, num_classes)
        self.dim = dim
        self.space: ElasticSpace = ElasticSpace(depths, ratios, (dim,))
        self.network = self.build(self.space.largest)

    @override
    def build(self, arch: ElasticArch) -> nn.Module:
        dim, blocks = self.dim, nn.Sequential()
        for _, middle, _, _ in self.space.blocks_of(arch):
            hidden, output = nn.Linear(dim, middle), nn.Linear(middle, dim)
            blocks.append(
                Residual(sequential(norm=nn.LayerNorm(dim), hidden=hidden, relu=nn.ReLU(inplace=True), output=output))
            )
        return sequential(
            flatten=nn.Flatten(),
            stem=nn.Linear(prod(self.input_shape), dim),
            blocks=blocks,
            norm=nn.LayerNorm(dim),
            relu=nn.ReLU(inplace=True),
            classifier=nn.Linear(dim, self.num_classes),
        )


class ChannelsAndTokens(nn.Module):
    """Swaps channels and tokens, the last two dimensions."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return x.transpose(1, 2)


@checked("supernet")
class ElasticTCN(NestedSupernet):
    """SuperFed's temporal convolutional network (App. H.1, after Bai et al., 2018) for the next token.

    Block i has two causal convolutions of dilation 2^i and a residual connection. The choices are the depth (two blocks
    and ``d`` more) and each block's ratio of middle to output channels. The "top two blocks" that remain at depth 0 are
    here the first two, as in the paper's other supernets. The receptive field is 13 tokens at depth 0, 61 at depth 2.

    Deviation: no weight norm, because a narrower block would share directions but not lengths. Embedding and decoder
    share their weight, drawn as in Bai et al.'s code for words (standard deviation 0.01).

    Args:
        input_shape: Tokens of an example.
        num_classes: Tokens of the vocabulary.
        channels: Entries of a token's embedding and output channels of every block.
        kernel: Kernel size of the convolutions in tokens.
        depths: Choices for the number of blocks beyond the first two.
        ratios: Choices of the expand ratio.
        dropout: Dropout rate after each convolution (Bai et al.: 0.45 for words).
        embedding_dropout: Dropout rate after the embedding (Bai et al.: 0.25 for words).

    Example:
        >>> net = ElasticTCN((20,), 50, channels=10)
        >>> net.space.size, net(torch.zeros(3, 20, dtype=torch.int64), net.space.smallest).shape
        (336, torch.Size([3, 20, 50]))
    """

    input_dtype = torch.int64

    def __init__(
        self,
        input_shape: Iterable[int],
        num_classes: int,
        channels: PositiveInt = 600,
        kernel: PositiveInt = 3,
        depths: Sequence[NonNegativeInt] = (0, 1, 2),
        ratios: Sequence[PositiveFloat] = (0.1, 0.2, 0.5, 1.0),
        dropout: ShareBelowOne = 0.0,
        embedding_dropout: ShareBelowOne = 0.0,
    ) -> None:
        super().__init__(input_shape, num_classes)
        check_tokens(self, self.input_shape)
        self.channels = channels
        self.kernel = kernel
        self.dropout = dropout
        self.embedding_dropout = embedding_dropout
        self.space: ElasticSpace = ElasticSpace(depths, ratios, (channels,), min_blocks=2)
        self.network = self.build(self.space.largest)
        self.initialise(self.network)

    @override
    @torch.no_grad()
    def initialise(self, network: nn.Module) -> None:
        for name in ("embedding", "decoder"):
            network.get_parameter(f"{name}.weight").normal_(0, 0.01)
        network.get_parameter("decoder.bias").zero_()

    @override
    def build(self, arch: ElasticArch) -> nn.Module:
        channels, kernel, blocks = self.channels, self.kernel, nn.Sequential()
        for _, middle, _, _ in self.space.blocks_of(arch):
            dilation = 2 ** len(blocks)
            block = sequential(
                conv1=CausalConv1d(channels, middle, kernel, dilation=dilation),
                relu1=nn.ReLU(inplace=True),
                dropout1=dropout_layer(self.dropout),
                conv2=CausalConv1d(middle, channels, kernel, dilation=dilation),
                relu2=nn.ReLU(inplace=True),
                dropout2=dropout_layer(self.dropout),
            )
            blocks.append(Residual(block, activation=nn.ReLU(inplace=True)))
        network = sequential(
            embedding=nn.Embedding(self.num_classes, channels),
            dropout=dropout_layer(self.embedding_dropout),
            to_channels=ChannelsAndTokens(),
            blocks=blocks,
            to_tokens=ChannelsAndTokens(),
            decoder=nn.Linear(channels, self.num_classes),
        )
        network.get_submodule("decoder").weight = network.get_parameter("embedding.weight")
        return network


@checked("supernet")
class ElasticTransformer(NestedSupernet):
    """A pre-norm transformer that is elastic like SuperFed's networks.

    A block has self-attention and a perceptron of one hidden layer (GELU). A layer norm of fixed width precedes each,
    and each is added to its input. A narrower block keeps the first heads and hidden units. Positions are learned.

    The tokens of an image ``[channels, height, width]`` are its patches; their mean gives one output. A text, int64
    ``[tokens]``, has an output per position, from this position and earlier ones; a pooled text has one output, from
    the mean over all tokens. Padding is not masked; of outputs that count, it affects only pooled ones.

    Args:
        input_shape: Channels, height and width of an image, or tokens of a text.
        num_classes: Width of an output.
        dim: Entries of a token's embedding.
        depths: Choices for the number of blocks beyond the first.
        ratios: Choices of a block's hidden units, as multiples of ``dim``.
        heads: Choices of a block's heads. The largest must divide ``dim``: a head has ``dim / largest`` entries.
        patch: Height and width of an image's patch in pixels; a divisor of the image's height and width.
        vocabulary: Size of a text's vocabulary; by default ``num_classes``. A pooled text needs it.
        pooled: Whether a text has one output.
        dropout: Dropout rate after the embedding, attention and perceptrons (Vaswani et al., 2017: 0.1).

    Example:
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
            raise ConfigError(f"supernet.heads: {list(heads)} must end with a divisor of dim, {dim}")
        self.is_text = len(self.input_shape) == 1
        if self.is_text:
            self.input_dtype = torch.int64
            if pooled and vocabulary is None:
                raise ConfigError("supernet.vocabulary: is null, and classes of texts are not tokens; give its size")
        else:
            check_image(self, self.input_shape)
            for name, value in (("vocabulary", vocabulary), ("pooled", pooled)):
                if value:
                    raise ConfigError(f"supernet.{name}: {value} is for texts, and the inputs are images; remove it")
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
        present_blocks = self.space.blocks_of(arch)  # absent blocks would be last
        for (_, units, _, _), heads in zip(present_blocks, arch.heads, strict=False):
            blocks.append(transformer_block(self.dim, heads, self.head_dim, units, not self.pooled, self.dropout))
        if self.is_text:
            embedding: nn.Module = TokenEmbedding(self.vocabulary, self.dim, self.input_shape[0])
        else:
            channels, height, width = self.input_shape
            tokens = count_patches("supernet.patch", self.patch, height, width)
            embedding = PatchEmbedding(channels, self.dim, self.patch, tokens)
        return sequential(
            embedding=embedding,
            dropout=dropout_layer(self.dropout),
            blocks=blocks,
            norm=nn.LayerNorm(self.dim),
            pool=TokenMean() if self.pooled else None,
            classifier=nn.Linear(self.dim, self.num_classes),
        )
