"""Text networks that are cut in width and predict the next token at every position."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.ranges import PositiveInt, PositiveInts, ShareBelowOne, checked
from lit_fednas.supernets.families import NetworkFamily, Sizes, check_tokens
from lit_fednas.supernets.layers import TokenEmbedding, dropout_layer, sequential, transformer_block

_GATES = 4


class UnitLSTM(nn.LSTM):
    """An LSTM of one layer with tensors of shape ``[units, gates, ...]``, so that units can be cut."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__(inputs, units, batch_first=True)
        for name, tensor in list(self.named_parameters()):
            by_unit = tensor.detach().unflatten(0, (_GATES, units)).transpose(0, 1)
            setattr(self, name, nn.Parameter(by_unit.contiguous()))  # torch's list of weights is updated too

    @override
    def flatten_parameters(self) -> None:
        """Does nothing: every call builds the kernel's layout."""

    @override
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        """Maps ``[batch, tokens, inputs]`` to ``[batch, tokens, units]``."""
        state = x.new_zeros(1, x.shape[0], self.hidden_size)
        weights = [tensor.transpose(0, 1).flatten(0, 1) for tensor in self.parameters()]
        return torch.lstm(x, (state, state), weights, True, 1, 0.0, self.training, False, True)[0]


@checked("supernet.family")
@dataclass(frozen=True)
class SlicedLSTM(NetworkFamily):
    """A recurrent network: an embedding that is never cut, layers of LSTM, and a linear classifier.

    The default is FjORD's for Shakespeare (Horvath et al., 2021): with widths of 0.2 to 1 and LEAF's 80 characters, its
    sizes and costs equal FedorAS' Table 5. Groups of units: ``layer0``, ``layer1``, ...

    Args:
        hidden: Units of the layers.
        embedding: Entries of a token's embedding.

    Example:
        >>> SlicedLSTM((8, 16)).units((80,))
        {'layer0': 8, 'layer1': 16}
    """

    input_dtype = torch.int64
    hidden: PositiveInts = (128, 128)
    embedding: PositiveInt = 8

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        check_tokens(self, input_shape)
        return {f"layer{number}": units for number, units in enumerate(self.hidden)}

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        layers: dict[str, nn.Module] = {"embedding": nn.Embedding(num_classes, self.embedding)}
        inputs = self.embedding
        for name, units in sizes.items():
            layers[name] = UnitLSTM(inputs, units)
            inputs = units
        return sequential(**layers, classifier=nn.Linear(inputs, num_classes))


@checked("supernet.family")
@dataclass(frozen=True)
class SlicedTransformer(NetworkFamily):
    """A pre-norm text transformer after HeteroFL (Diao et al., 2021), with the same sizes by default.

    Groups of units: ``dim``, the entries of a token, and for every block ``block0.heads`` and ``block0.hidden``.

    Deviations: it predicts the next token instead of masked tokens; a narrower block has fewer heads of the same size
    instead of smaller heads; there are no scalers.

    Args:
        dim: Entries of a token.
        blocks: Number of blocks.
        heads: Heads of a block; each has ``dim / heads`` entries.
        hidden: Hidden units of a block's perceptron.
        dropout: Dropout rate after the embedding, attention and perceptrons.

    Example:
        >>> SlicedTransformer(16, blocks=1, heads=2, hidden=32).units((20,))
        {'dim': 16, 'block0.heads': 2, 'block0.hidden': 32}
    """

    input_dtype = torch.int64
    dim: PositiveInt = 256
    blocks: PositiveInt = 4
    heads: PositiveInt = 8
    hidden: PositiveInt = 512
    dropout: ShareBelowOne = 0.2

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        check_tokens(self, input_shape)
        block_groups = {"heads": self.heads, "hidden": self.hidden}
        return {"dim": self.dim} | {
            f"block{block}.{group}": units for block in range(self.blocks) for group, units in block_groups.items()
        }

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        dim, head_dim = sizes["dim"], max(1, self.dim // self.heads)
        blocks = {
            f"block{block}": transformer_block(
                dim, sizes[f"block{block}.heads"], head_dim, sizes[f"block{block}.hidden"], True, self.dropout
            )
            for block in range(self.blocks)
        }
        return sequential(
            embedding=TokenEmbedding(num_classes, dim, input_shape[0]),
            dropout=dropout_layer(self.dropout),
            **blocks,
            norm=nn.LayerNorm(dim),
            classifier=nn.Linear(dim, num_classes),
        )
