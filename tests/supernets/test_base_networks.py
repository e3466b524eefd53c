"""Base networks: how wide they are, that they share nothing, how they are mixed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets import BaseNetworks, Bases, BatchNorm, GroupNorm, OutputsNetwork
from lit_fednas.supernets.families import NetworkFamily
from lit_fednas.supernets.space import SubsetSpace
from lit_fednas.supernets.width.cnn import SlicedCNN

SHAPE = (1, 4, 4)


class SelfProduct(nn.Module):
    """The product of each hidden layer with its own transpose."""

    def forward(self, x):
        return (x[:, :, None] @ x[:, None, :]).mean(2)


class Attention(NetworkFamily):
    """One hidden layer, with a product of its activations."""

    def units(self, input_shape):
        return {"hidden": 6}

    def build(self, sizes, input_shape, num_classes, scale=1.0):
        return nn.Sequential(
            nn.Flatten(), nn.Linear(16, sizes["hidden"]), SelfProduct(), nn.Linear(sizes["hidden"], num_classes)
        )


def bases(count: int = 4, hidden=(8, 16), **settings) -> BaseNetworks:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return BaseNetworks(SHAPE, 3, SlicedCNN(hidden, **settings), count)


def batch() -> torch.Tensor:
    return torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))


# ---- one base is the network itself -------------------------------------------------------------------


def test_one_base_is_the_plain_network():
    family = SlicedCNN((4, 6), norm=BatchNorm())
    net = BaseNetworks(SHAPE, 3, family, count=1)
    plain = family.build({"layer0": 4, "layer1": 6}, SHAPE, 3)
    plain.load_state_dict({name.removeprefix("networks.0."): value for name, value in net.state_dict().items()})
    expected = plain(batch())
    assert torch.equal(net.subnet(net.space.largest)(batch()), expected)
    assert set(net.index(net.space.largest)) == {f"networks.0.{name}" for name in plain.state_dict()}
    assert net.cost(net.space.largest).parameters == sum(p.numel() for p in plain.parameters())
    subnet = net.subnet(net.space.largest)
    for network in (subnet, plain):
        nn.functional.cross_entropy(network(batch()), torch.tensor([0, 1, 2, 0, 1])).backward()
    gradients = {name: parameter.grad for name, parameter in plain.named_parameters()}
    for name, parameter in subnet.named_parameters():
        assert torch.equal(parameter.grad, gradients[name.removeprefix("networks.0.")]), name


# ---- how wide they are --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hidden", "norm", "count", "widths"),
    [
        ((8, 16), None, 4, (2, 4)),
        ((6, 9), None, 4, (2, 3)),  # 1.5 and 2.25
        ((49, 3), None, 49, (1, 1)),  # not even one unit each
        ((8, 12), GroupNorm(2), 3, (4, 4)),  # 2.67 and 4, in groups of two
        ((4, 12), GroupNorm(4), 3, (4, 4)),
    ],
)
def test_each_has_its_share_of_every_group(hidden, norm, count, widths):
    net = bases(count, hidden, norm=norm)
    assert len(net.networks) == count
    for network in net.networks:
        assert tuple(network.layer0.conv.weight.shape[:2]) == (widths[0], 1)
        assert tuple(network.layer1.conv.weight.shape[:2]) == (widths[1], widths[0])
        assert tuple(network.classifier.weight.shape) == (3, widths[1])


def test_none_is_wider_than_the_whole():
    with pytest.raises(ConfigError, match="4 does not divide a width of 6 channels"):
        bases(1, (6, 8), norm=GroupNorm(4))


def test_costs_add_up():
    net = bases()
    one = net.cost(Bases((0,)))
    for members in ((2,), (1, 3), (0, 1, 2, 3)):
        cost = net.cost(Bases(members))
        assert (cost.macs, cost.parameters) == (len(members) * one.macs, len(members) * one.parameters)


def test_products_of_activations_are_counted():
    net = BaseNetworks(SHAPE, 3, Attention(), 3)
    one, biases = 16 * 2 + 2 * 2 + 2 * 3, 2 + 3
    assert net.macs(Bases((1,))) == one
    assert net.macs(Bases((0, 2))) == 2 * one
    assert net.operations(Bases((0, 2))) == 2 * (one + biases)


# ---- what they say ------------------------------------------------------------------------------------


def test_the_mix_is_the_mean_of_the_logits():
    net = bases()
    arch = Bases((1, 3))
    expected = [net.networks[1](batch()), net.networks[3](batch())]
    subnet = net.subnet(arch)
    assert isinstance(subnet, OutputsNetwork)
    for got, logits in zip(subnet.outputs(batch()), expected, strict=True):
        assert torch.equal(got, logits)
    torch.testing.assert_close(subnet(batch()), (expected[0] + expected[1]) / 2)
    torch.testing.assert_close(net(batch(), arch), (expected[0] + expected[1]) / 2)


def test_initial_weights_differ():
    weights = [network.layer1.conv.weight for network in bases().networks]
    for place, one in enumerate(weights):
        assert not any(torch.equal(one, other) for other in weights[place + 1 :])


def test_a_subset_holds_its_members_and_nothing_else():
    net = bases(12, (24, 24))  # 1 and 10, 11 begin alike
    index = net.index(Bases((1, 4)))
    for name, region in index.items():
        _, position, tensor = name.split(".", 2)
        assert region.name == f"networks.{(1, 4)[int(position)]}.{tensor}"
        assert region.index is None
    assert len(index) == 2 * len(net.networks[0].state_dict())


def test_building_takes_no_memory_on_meta():
    with torch.device("meta"):
        network = bases().build(Bases((0, 2)))
    assert all(parameter.is_meta for parameter in network.parameters())


# ---- architectures ------------------------------------------------------------------------------------


def test_what_is_searched_are_the_first_ones():
    space = SubsetSpace(Bases, range(3))
    assert [str(arch) for arch in space.each()] == ["bases: 0", "bases: 0,1", "bases: 0,1,2"]
    assert [space.encode(arch) for arch in space.each()] == [(0,), (1,), (2,)]
    assert (space.smallest, space.largest) == (Bases((0,)), Bases((0, 1, 2)))


def test_any_subset_is_read_and_not_searched():
    space = SubsetSpace(Bases, range(4))
    for text in ("bases: 1,3", " bases:1, 3 ", "1,3", Bases((1, 3))):
        assert space.parse(text) == Bases((1, 3))
    for members in ((1,), (1, 3), (0, 2)):
        with pytest.raises(ConfigError, match="leaves out a number before its last"):
            space.encode(Bases(members))


def test_widths_are_so_many_bases():
    net = BaseNetworks(SHAPE, 3, SlicedCNN((8, 16)), widths=[1, 0.5, 0.25])
    assert net.count == 4
    assert net.default_eval_archs == ("width: 0.25", "width: 0.5", "width: 1")
    assert [net.space.parse(text).members for text in net.default_eval_archs] == [(0,), (0, 1), (0, 1, 2, 3)]
    assert BaseNetworks(SHAPE, 3, SlicedCNN((9, 9)), widths=[1, 1 / 3]).space.parse("width: 0.333333") == Bases((0,))
    for wrong in ({"widths": [1, 0.4]}, {"widths": [1, 0.3, 0.25]}, {"widths": [0.5], "count": 3}):
        with pytest.raises(ConfigError, match=r"supernet.widths: 0\.\d is not the width of whole base networks"):
            BaseNetworks(SHAPE, 3, SlicedCNN((8, 16)), **wrong)
    for text in ("width: 0.3", "width: 2", "width: 0"):
        with pytest.raises(ConfigError, match=r"is not the width of whole base networks, of which there are 4"):
            net.space.parse(text)
    with pytest.raises(ConfigError, match=r"supernet.count: is null"):
        BaseNetworks(SHAPE, 3, SlicedCNN((8, 16)))


@pytest.mark.parametrize("text", ["", "bases:", "bases: a", "bases: 1;2", "bases: -1", "whole", "exits: 1"])
def test_what_cannot_be_read(text):
    with pytest.raises(ConfigError, match=r"cannot be read; write it as 'bases: 0,1,2,3'"):
        SubsetSpace(Bases, range(4)).parse(text)


@pytest.mark.parametrize("members", [(), (4,), (1, 1), (2, 1), (-1, 2)])
def test_what_is_no_subset(members):
    with pytest.raises(ConfigError, match="name bases, each once and ascending, out of: 0, 1, 2, 3"):
        SubsetSpace(Bases, range(4)).parse(Bases(members))
    with pytest.raises(ConfigError, match="name bases, each once and ascending, out of: 0, 1, 2, 3"):
        SubsetSpace(Bases, range(4)).encode(Bases(members))


@pytest.mark.parametrize(
    ("count", "reason"), [(0, "at least 1"), (-1, "at least 1"), (17, "more than .*, 16; lower it")]
)
def test_a_count_that_leaves_no_bases(count, reason):
    with pytest.raises(ConfigError, match=f"supernet.count: {count} .*{reason}"):
        bases(count)
