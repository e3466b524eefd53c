from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.flop_counter import FlopCounterMode

from lit_fednas.costs import Cost, count_macs, count_operations, count_parameters, sent_bytes
from lit_fednas.messages import nbytes
from lit_fednas.supernets import PlainNetwork
from tests.support import refusals

LAYERS = [
    (nn.Conv2d(3, 8, 3, padding=1), (3, 8, 8), 8 * 8 * 8 * 3 * 9),
    (nn.Conv2d(3, 8, (3, 5), stride=2), (3, 9, 9), 8 * 4 * 3 * 3 * 15),
    (nn.Conv2d(4, 8, 3, groups=2), (4, 5, 5), 8 * 9 * 2 * 9),
    (nn.Conv2d(4, 4, 3, groups=4), (4, 5, 5), 4 * 9 * 9),
    (nn.Conv1d(3, 6, 3, dilation=2), (3, 12), 6 * 8 * 9),
    (nn.Conv3d(1, 2, 2), (1, 3, 3, 3), 2 * 8 * 8),
    (nn.Linear(5, 7), (5,), 35),
    (nn.Linear(5, 7, bias=False), (11, 5), 11 * 35),
    (nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU(), nn.AvgPool2d(2)), (1, 2, 2), 8),
]


class Apply(nn.Module):
    """Any function of the input and of a parameter."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], *shape: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(shape))
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, self.weight)


@pytest.mark.parametrize(("network", "shape", "macs"), LAYERS)
def test_macs_by_hand_and_by_torch(network: nn.Module, shape: tuple[int, ...], macs: int) -> None:
    assert count_macs(network, shape) == macs
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(2, *shape))
    assert counter.get_total_flops() == 2 * 2 * macs


# 6 time steps of 5 numbers, 7 hidden units: each gate reads the input and the hidden state.
# The last column has the other operations per step: biases, and additions and products of 7 hidden units.
RECURRENT = [
    (nn.RNN(5, 7, batch_first=True), 6 * 7 * (5 + 7), 2 * 7 + 7),
    (nn.GRU(5, 7, batch_first=True), 3 * 6 * 7 * (5 + 7), 3 * 2 * 7 + 7 * 7),
    (nn.LSTM(5, 7, bias=False, batch_first=True), 4 * 6 * 7 * (5 + 7), 10 * 7),
    (
        nn.LSTM(5, 7, num_layers=2, batch_first=True, bidirectional=True),
        2 * 4 * 6 * 7 * (5 + 7 + 14 + 7),
        2 * 2 * (4 * 2 * 7 + 10 * 7),
    ),
]


@pytest.mark.parametrize(("network", "macs", "extra"), RECURRENT, ids=lambda value: str(value))
def test_recurrent_layers(network: nn.Module, macs: int, extra: int) -> None:
    assert count_macs(network, (6, 5)) == macs
    assert count_operations(network, (6, 5)) == macs + 6 * extra


# 6 tokens of 8 numbers
PRODUCTS = [
    (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 6 * 4 * 8 * 8 + 2 * 6 * 6 * 8 + 6 * 2 * 8 * 16),
    (Apply(lambda x, _: functional.scaled_dot_product_attention(x, x, x), 1), 2 * 6 * 6 * 8),
    (Apply(lambda x, w: x @ w, 8, 3), 6 * 8 * 3),
    (Apply(lambda x, w: torch.einsum("btc,cd->bdt", x, w), 8, 3), 6 * 8 * 3),
    (Apply(lambda x, w: x @ w, 8), 6 * 8),
    (nn.LSTM(8, 7, batch_first=True, proj_size=3), 6 * (4 * 7 * (8 + 3) + 7 * 3)),
    (Apply(lambda x, w: nn.LSTMCell(8, 7, device=x.device)(x[0])[0] * w, 1), 6 * 4 * 7 * (8 + 7)),
    (Apply(lambda x, w: nn.GRUCell(8, 7, device=x.device)(x[0]) * w, 1), 6 * 3 * 7 * (8 + 7)),
]


@pytest.mark.parametrize(("network", "macs"), PRODUCTS)
def test_products_of_matrices(network: nn.Module, macs: int) -> None:
    assert count_macs(network, (6, 8)) == macs


def test_moving_and_scaling_numbers_is_free() -> None:
    for function in (
        lambda x, w: functional.embedding(x.long(), w),
        lambda x, w: functional.layer_norm(x, (8,), w[0], w[1]),
        lambda x, w: torch.cat([x, w.expand(len(x), -1, -1)], 1) + w.mean(),
        lambda x, w: functional.prelu(x, w[:, 0]) * w,
    ):
        assert count_macs(Apply(function, 6, 8), (6, 8)) == 0


test_what_cannot_be_counted_is_named = refusals(
    (lambda x, w: functional.bilinear(x, x, w), r"_trilinear\S* in Sequential.1 cannot be counted"),
    (lambda x, w: torch.fft.fft(x).real, r"_fft_r2c\S* in Sequential.1 cannot be counted"),
    call=lambda function: count_macs(nn.Sequential(nn.Linear(8, 8), Apply(function, 3, 8, 8)), (6, 8)),
)


def test_a_layer_that_runs_twice_counts_twice_in_any_precision_and_nothing_is_computed() -> None:
    layer = nn.Linear(4, 4, dtype=torch.float64)
    assert count_macs(nn.Sequential(layer, nn.ReLU(), layer), (4,)) == 32
    assert count_parameters(nn.Sequential(layer, nn.ReLU(), layer)) == 20
    assert layer.weight.dtype == torch.float64
    large = nn.Conv2d(512, 4096, 3, padding=1, device="meta")
    assert count_macs(large, (512, 256, 256)) == 256 * 256 * 4096 * 512 * 9


def test_bytes_are_parameters_and_buffers_as_they_are_stored() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4))
    parameters, statistics, counter = 4 + 4 + 4 + 4, 4 + 4, 1
    assert PlainNetwork(network, (1, 2, 2), 1).cost("whole") == Cost(
        macs=16, parameters=parameters, bytes=4 * (parameters + statistics) + 8 * counter
    )
    assert sent_bytes(network) == 4 * (parameters + statistics) + 8 * counter
    assert nbytes([torch.zeros(3, dtype=torch.bfloat16), torch.zeros((), dtype=torch.int64)]) == 14
    assert nbytes(tensor.expand(5) for tensor in [torch.zeros(1)]) == 20
    assert nbytes([]) == 0
