import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from lit_fednas.costs import Cost, count_cost, count_macs
from lit_fednas.messages import nbytes

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


@pytest.mark.parametrize(("network", "shape", "macs"), LAYERS)
def test_macs_by_hand_and_by_torch(network: nn.Module, shape: tuple[int, ...], macs: int) -> None:
    assert count_macs(network, shape) == macs
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        network(torch.zeros(2, *shape))
    assert counter.get_total_flops() == 2 * 2 * macs


def test_a_layer_that_runs_twice_counts_twice() -> None:
    layer = nn.Linear(4, 4)
    assert count_macs(nn.Sequential(layer, nn.ReLU(), layer), (4,)) == 32
    assert count_cost(nn.Sequential(layer, nn.ReLU(), layer), (4,)).parameters == 20


def test_counting_leaves_no_trace() -> None:
    network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2))
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    for training in (True, False):
        network.train(training)
        count_macs(network, (1, 2, 2))
        assert network.training == network[1].training == training
    assert all(torch.equal(tensor, before[name]) for name, tensor in network.state_dict().items())
    assert not any(module._forward_hooks for module in network.modules())


def test_hooks_go_when_the_network_fails() -> None:
    network = nn.Sequential(nn.Linear(3, 2)).train()
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        count_macs(network, (4,))
    assert not network[0]._forward_hooks
    assert network.training


def test_on_meta_nothing_is_computed() -> None:
    with torch.device("meta"):
        network = nn.Conv2d(512, 4096, 3, padding=1)
    assert count_macs(network, (512, 256, 256)) == 256 * 256 * 4096 * 512 * 9


def test_bytes_are_parameters_and_buffers_as_they_are_stored() -> None:
    network = nn.Sequential(nn.Conv2d(1, 4, 1), nn.BatchNorm2d(4))
    parameters, statistics, counter = 4 + 4 + 4 + 4, 4 + 4, 1
    assert count_cost(network, (1, 2, 2)) == Cost(
        macs=16, parameters=parameters, bytes=4 * (parameters + statistics) + 8 * counter
    )
    assert nbytes([torch.zeros(3, dtype=torch.bfloat16), torch.zeros((), dtype=torch.int64)]) == 14
    assert nbytes(tensor.expand(5) for tensor in [torch.zeros(1)]) == 20
    assert nbytes([]) == 0
