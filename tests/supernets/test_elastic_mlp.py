import torch
from torch.nn import functional

from lit_fednas.supernets import ElasticMLP
from lit_fednas.testing.networks import batch
from tests.supernets.instances import instance


def test_size_and_costs_by_hand() -> None:
    net = ElasticMLP((30,), 2, dim=16, depths=[0, 1, 3], ratios=[0.25, 0.5, 1, 2])
    assert net.space.size == 4 + 4**2 + 4**4
    cost, linear = net.cost(net.space.parse("d: 1, e: [0.5,2,1,1]")), 16 * 8 * 2 + 16 * 32 * 2
    assert cost.macs == 30 * 16 + linear + 16 * 2
    assert cost.parameters == 31 * 16 + linear + (8 + 32) + 2 * (16 + 32) + 32 + 17 * 2


def test_a_subnet_by_hand() -> None:
    """It consists of the first blocks and hidden units of the shared tensors."""
    net = instance("elastic-mlp")
    x, w = batch(net), net.network.state_dict()
    h = x.flatten(1) @ w["stem.weight"].T + w["stem.bias"]
    normed = functional.layer_norm(h, (8,), w["blocks.0.block.norm.weight"], w["blocks.0.block.norm.bias"])
    hidden = (normed @ w["blocks.0.block.hidden.weight"][:4].T + w["blocks.0.block.hidden.bias"][:4]).relu()
    h = h + hidden @ w["blocks.0.block.output.weight"][:, :4].T + w["blocks.0.block.output.bias"]
    h = functional.layer_norm(h, (8,), w["norm.weight"], w["norm.bias"]).relu()
    expected = h @ w["classifier.weight"].T + w["classifier.bias"]
    torch.testing.assert_close(net(x, net.space.parse("d: 0, e: 0.5")), expected)
