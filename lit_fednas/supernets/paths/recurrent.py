"""The operators that FedorAS' recurrent search space offers for a layer (App. E.3, Fig. 7).

All take features ``[batch, positions, inputs]`` and return ``[batch, positions, width]``. A position sees itself and
those before it; states start at zero; nothing is normalised. All can be run under ``torch.vmap``, which on a CPU runs
``lstm`` client by client.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from lit_fednas.supernets.layers import sequential


class LSTM(nn.LSTM):
    """An LSTM of one layer that returns its outputs alone.

    At every call it reads the parameters that it has; ``nn.LSTM`` keeps a list, which does not follow a network that
    is run with other weights in their places.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__(inputs, width, batch_first=True)

    @override
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        state = x.new_zeros(1, x.shape[0], self.hidden_size)
        return torch.lstm(x, (state, state), _weights(self), True, 1, 0.0, self.training, False, True)[0]


class GRU(nn.GRU):
    """A GRU of one layer that returns its outputs alone; see :class:`LSTM`."""

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__(inputs, width, batch_first=True)

    @override
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        state = x.new_zeros(1, x.shape[0], self.hidden_size)
        return torch.gru(x, state, _weights(self), True, 1, 0.0, self.training, False, True)[0]


def _weights(layer: nn.RNNBase) -> list[Tensor]:
    return [getattr(layer, name) for name in ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")]


class LiGRU(nn.Module):
    """A light GRU, without reset gate and with tanh (Ravanelli et al., 2018, Eq. 3, without batch norm).

    With update gates z and candidates a, the state becomes ``z * h + (1 - z) * tanh(a)``.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.input = nn.Linear(inputs, 2 * width)
        self.recurrent = nn.Linear(width, 2 * width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Runs over all positions."""
        state, states = x.new_zeros(x.shape[0], self.recurrent.in_features), []
        for driven in self.input(x).unbind(1):
            gate, candidate = (driven + self.recurrent(state)).chunk(2, dim=-1)
            gate = gate.sigmoid()
            state = gate * state + (1 - gate) * candidate.tanh()
            states.append(state)
        return torch.stack(states, dim=1)


class QRNN(nn.Module):
    """A quasi-recurrent layer of window 1 with fo-pooling, SpeechBrain's default (Bradbury et al., 2017, Eq. 4).

    With candidates z, forget gates f and output gates o of each position by itself, the cell becomes
    ``f * c + (1 - f) * z``, and ``o * c`` is returned.
    """

    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.gates = nn.Linear(inputs, 3 * width)

    def forward(self, x: Tensor) -> Tensor:
        """Runs over all positions."""
        candidates, forget, output = self.gates(x).chunk(3, dim=-1)
        forget = forget.sigmoid()
        added = (1 - forget) * candidates.tanh()
        cell, cells = torch.zeros_like(added[:, 0]), []
        for kept, new in zip(forget.unbind(1), added.unbind(1), strict=True):
            cell = kept * cell + new
            cells.append(cell)
        return output.sigmoid() * torch.stack(cells, dim=1)


class CausalConv(nn.Conv1d):
    """A convolution over positions that sees the present one and the ``kernel - 1`` before it."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        before = self.kernel_size[0] - 1
        return super().forward(functional.pad(x.transpose(1, 2), (before, 0))).transpose(1, 2)


class Zero(nn.Module):
    """Returns zeros."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Returns ``[batch, positions, width]`` zeros."""
        return x.new_zeros(*x.shape[:-1], self.width)


#: All candidates, of inputs and width; ``id`` needs them equal.
OPERATORS: dict[str, Callable[[int, int], nn.Module]] = {
    "lstm": LSTM,
    "gru": GRU,
    "ligru": LiGRU,
    "qrnn": QRNN,
    "linear": lambda inputs, width: sequential(linear=nn.Linear(inputs, width), sigmoid=nn.Sigmoid()),
    "conv5": lambda inputs, width: sequential(conv=CausalConv(inputs, width, 5), sigmoid=nn.Sigmoid()),
    "id": lambda inputs, width: nn.Identity(),
    "zero": lambda inputs, width: Zero(width),
}
