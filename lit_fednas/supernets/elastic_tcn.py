"""SuperFed's elastic temporal convolutional network for text (App. H.1), after Bai et al. (2018)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import NonNegativeInt, PositiveFloat, PositiveInt, ShareBelowOne, checked
from lit_fednas.supernets.base import NestedSupernet
from lit_fednas.supernets.elastic_space import ElasticArch, ElasticSpace
from lit_fednas.supernets.layers import Residual, dropout_layer, sequential

_LEAST = 2  # blocks at depth 0
_INIT_STD = 0.01  # of Bai et al.'s code for words


class CausalConv1d(nn.Conv1d):
    """A dilated convolution over the present and the past: padded on the left alone."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, channels, tokens]`` to as many tokens."""
        return super().forward(functional.pad(x, (self.dilation[0] * (self.kernel_size[0] - 1), 0)))


class ChannelsAndTokens(nn.Module):
    """Swaps the last two dimensions: ``[batch, tokens, channels]`` for ``[batch, channels, tokens]``, and back."""

    def forward(self, x: Tensor) -> Tensor:
        """Returns a view of a batch."""
        return x.transpose(1, 2)


@checked("supernet")
class ElasticTCN(NestedSupernet):
    """SuperFed's supernet of temporal convolutional networks, for the next token at every position.

    Four temporal blocks, the i-th of two causal convolutions of dilation 2^i, added to their input; the choices
    are the depth, of two blocks and ``d`` more, and per block the ratio of the first convolution's output channels to
    all. The paper keeps the "top two blocks" at depth 0; these are taken to be the first ones, as everywhere in its
    supernets. They have the smaller dilations: the receptive field is 13 tokens at depth 0 and 61 at depth 2.

    Bai et al.'s weight norm is left out: a narrower block would share directions and not lengths. Embedding and decoder
    begin as in their code for words (normal, standard deviation 0.01), convolutions as torch draws them.

    Args:
        input_shape: Tokens of an example.
        num_classes: Tokens of the vocabulary.
        channels: Output channels of every block.
        embedding: Entries of a token's embedding; ``None`` for as many as channels.
        kernel: Tokens under a convolution's kernel.
        depths: Choices for the number of blocks beyond the first two.
        ratios: Choices of the expand ratio.
        tied: Whether the decoder's weight is the embedding's.
        dropout: Rate behind each convolution (Bai et al.: 0.45 for words).
        embedding_dropout: Rate behind the embedding (Bai et al.: 0.25 for words).

    Raises:
        ConfigError: The choices are empty, not ascending, or out of range; an example is not a row of tokens; tied
            weights differ in size.

    Example:
        >>> import torch
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
        embedding: PositiveInt | None = None,
        kernel: PositiveInt = 3,
        depths: Sequence[NonNegativeInt] = (0, 1, 2),
        ratios: Sequence[PositiveFloat] = (0.1, 0.2, 0.5, 1.0),
        tied: bool = True,
        dropout: ShareBelowOne = 0.0,
        embedding_dropout: ShareBelowOne = 0.0,
    ) -> None:
        super().__init__(input_shape, num_classes)
        if len(self.input_shape) != 1:
            raise ConfigError(f"supernet.input_shape: {list(self.input_shape)} must be a number of tokens")
        self.channels = channels
        self.embedding = channels if embedding is None else embedding
        if tied and self.embedding != channels:
            raise ConfigError(
                f"supernet.embedding: {embedding} is not the decoder's width, {channels} channels; leave it out, or "
                f"set supernet.tied to false"
            )
        self.kernel = kernel
        self.tied = tied
        self.dropout = dropout
        self.embedding_dropout = embedding_dropout
        self.space: ElasticSpace = ElasticSpace(depths, ratios, (channels,), least=_LEAST)
        self.network = self.build(self.space.largest)
        self.initialise(self.network)

    @override
    @torch.no_grad()
    def initialise(self, network: nn.Module) -> None:
        for name in ("embedding", "decoder"):
            network.get_parameter(f"{name}.weight").normal_(0, _INIT_STD)
        network.get_parameter("decoder.bias").zero_()

    @override
    def build(self, arch: ElasticArch) -> nn.Module:
        width, blocks = self.embedding, nn.Sequential()
        for _, middle, out, _ in self.space.blocks_of(arch):
            blocks.append(self._block(width, middle, out, dilation=2 ** len(blocks)))
            width = out
        network = sequential(
            embedding=nn.Embedding(self.num_classes, self.embedding),
            dropout=dropout_layer(self.embedding_dropout),
            to_channels=ChannelsAndTokens(),
            blocks=blocks,
            to_tokens=ChannelsAndTokens(),
            decoder=nn.Linear(width, self.num_classes),
        )
        if self.tied:
            network.get_submodule("decoder").weight = network.get_parameter("embedding.weight")
        return network

    def _block(self, inputs: int, middle: int, outputs: int, dilation: int) -> nn.Module:
        block = sequential(
            conv1=CausalConv1d(inputs, middle, self.kernel, dilation=dilation),
            relu1=nn.ReLU(inplace=True),
            dropout1=dropout_layer(self.dropout),
            conv2=CausalConv1d(middle, outputs, self.kernel, dilation=dilation),
            relu2=nn.ReLU(inplace=True),
            dropout2=dropout_layer(self.dropout),
        )
        shortcut = nn.Conv1d(inputs, outputs, 1) if inputs != outputs else None
        return Residual(block, shortcut, nn.ReLU(inplace=True))
