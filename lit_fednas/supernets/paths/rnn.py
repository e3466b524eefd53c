"""FedorAS' recurrent supernet for Shakespeare (App. E.3, Fig. 7): the next character at every position.

The layers are an embedding of 8 numbers per character, two stages and a linear classifier of every position. A stage
adds the outputs of an operator and of a searchable skip connection on the same input. With all operators there are
6 * 7 * 7 * 8 = 2,352 paths (Table 8: 2,349), and on 80 characters the most expensive path has 33.78 million operations
(33.8). The tiers of Table 8 have 285, 603, 784, 463 and 217 paths (316, 577, 787, 473 and 196).

All operators map features ``[batch, positions, inputs]`` to ``[batch, positions, width]``. Outputs do not depend on
later positions; states start at zero. Under ``torch.vmap`` a CPU runs ``lstm`` client by client.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets.families import check_tokens
from lit_fednas.supernets.layers import CausalConv1d, sequential
from lit_fednas.supernets.paths.supernet import Operators, PathNetwork, PathSupernet, in_order


class LSTM(nn.LSTM):
    """An LSTM of one layer that returns only its outputs."""

    @override
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        state = x.new_zeros(1, x.shape[0], self.hidden_size)
        return torch.lstm(x, (state, state), _weights(self), True, 1, 0.0, self.training, False, True)[0]


class GRU(nn.GRU):
    """A GRU of one layer that returns only its outputs."""

    @override
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        state = x.new_zeros(1, x.shape[0], self.hidden_size)
        return torch.gru(x, state, _weights(self), True, 1, 0.0, self.training, False, True)[0]


def _weights(layer: nn.RNNBase) -> list[Tensor]:
    # read at every call, because functional_call does not update nn.RNNBase's own list of weights
    return [getattr(layer, name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")]


class LiGRU(nn.Module):
    """A light GRU, without reset gate and with tanh (Ravanelli et al., 2018, Eq. 3, without batch norm)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, 2 * width)
        self.recurrent = nn.Linear(width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Runs over all positions."""
        state, states = x.new_zeros(x.shape[0], self.recurrent.in_features), []
        for projection in self.input(x).unbind(1):
            gate, candidate = (projection + self.recurrent(state)).chunk(2, dim=-1)
            gate = gate.sigmoid()
            state = gate * state + (1 - gate) * candidate.tanh()
            states.append(state)
        return torch.stack(states, dim=1)


class QRNN(nn.Module):
    """A quasi-recurrent layer of window 1 with fo-pooling, SpeechBrain's default (Bradbury et al., 2017, Eq. 4)."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(inputs, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Runs over all positions."""
        candidates, forget, output = self.gates(x).chunk(3, dim=-1)
        forget = forget.sigmoid()
        added = (1 - forget) * candidates.tanh()
        cell, cells = torch.zeros_like(added[:, 0]), []
        for share, addend in zip(forget.unbind(1), added.unbind(1), strict=True):
            cell = share * cell + addend
            cells.append(cell)
        return output.sigmoid() * torch.stack(cells, dim=1)


class CausalConv(CausalConv1d):
    """A causal convolution over ``[batch, positions, inputs]``."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class Zero(nn.Module):
    """Returns zeros."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``[batch, positions, width]`` zeros."""
        return x.new_zeros(*x.shape[:-1], self.width)


#: All candidates by input and output width; ``id`` needs equal widths.
OPERATORS: dict[str, Callable[[int, int], nn.Module]] = {
    "lstm": partial(LSTM, batch_first=True),
    "gru": partial(GRU, batch_first=True),
    "ligru": LiGRU,
    "qrnn": QRNN,
    "linear": lambda inputs, width: sequential(linear=nn.Linear(inputs, width), sigmoid=nn.Sigmoid()),
    "conv5": lambda inputs, width: sequential(conv=CausalConv(inputs, width, 5), sigmoid=nn.Sigmoid()),
    "id": lambda inputs, width: nn.Identity(),
    "zero": lambda inputs, width: Zero(width),
}


@checked("supernet")
class PathRNN(PathSupernet):
    """FedorAS' RNN: two stages, each with a searchable operator and skip connection (App. E.3).

    An architecture names four operators: those of the first stage, its skip connection, the second stage and its
    skip connection.

    Args:
        input_shape: Number of tokens per example.
        num_classes: Size of the vocabulary, for inputs and predictions.
        embedding: Numbers per token that the first stage reads.
        width: Numbers per position that both stages return.
        operators: The candidates, among ``lstm``, ``gru``, ``ligru``, ``qrnn``, ``linear``, ``conv5``, ``id`` (in the
            second stage alone, as the first changes the width) and ``zero`` (in skip connections alone).

    Example:
        >>> net = PathRNN((12,), 90, width=16)
        >>> tokens = torch.randint(90, (2, 12))
        >>> net(tokens, net.space.parse("gru zero linear id")).shape
        torch.Size([2, 12, 90])
    """

    input_dtype = torch.int64

    def __init__(
        self,
        input_shape: Iterable[int] = (80,),
        num_classes: int = 90,
        embedding: PositiveInt = 8,
        width: PositiveInt = 128,
        operators: Sequence[str] = tuple(OPERATORS),
    ) -> None:
        super().__init__(input_shape, num_classes)
        check_tokens(self, self.input_shape)
        common = [name for name in in_order(operators, OPERATORS) if name not in ("id", "zero")]
        if not common:
            raise ConfigError(f"supernet.operators: {list(operators)} cannot widen the embedding; add gru or lstm")
        self.embedding = embedding
        self.width = width
        identity, zero = ([name] if name in operators else [] for name in ("id", "zero"))
        self._inputs = [embedding, embedding, width, width]
        self.set_candidates([common, common + zero, common + identity, common + identity + zero])

    @override
    def build(self, arch: Operators) -> PathNetwork:
        layers = [
            nn.ModuleDict({name: OPERATORS[name](inputs, self.width) for name in names})
            for inputs, names in zip(self._inputs, arch.layers, strict=True)
        ]
        stem = nn.Embedding(self.num_classes, self.embedding)
        head = nn.Linear(self.width, self.num_classes)
        return PathNetwork(stem, layers, {}, head, parallel=2)  # operator and skip connection
