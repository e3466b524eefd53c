"""Base networks: widths, separate weights and mixing."""

from __future__ import annotations

import pytest
import torch

from lit_fednas.errors import ConfigError
from lit_fednas.supernets import BaseNetworks, Bases, GroupNorm, OutputsNetwork, SlicedCNN
from lit_fednas.supernets.space import SubsetSpace
from tests.support import refusals, seeded

SHAPE = (1, 4, 4)


def bases(count: int = 4, hidden=(8, 16), **settings) -> BaseNetworks:
    return seeded(BaseNetworks, SHAPE, 3, SlicedCNN(hidden, **settings), count)


def batch() -> torch.Tensor:
    return torch.randn(5, *SHAPE, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize(
    ("hidden", "norm", "count", "widths"),
    [
        ((8, 16), None, 4, (2, 4)),
        ((6, 9), None, 4, (2, 3)),  # 1.5 and 2.25
        ((8, 12), GroupNorm(2), 3, (4, 4)),  # 2.67 and 4, in groups of two
    ],
)
def test_every_base_has_its_share_of_every_group(hidden, norm, count, widths):
    net = bases(count, hidden, norm=norm)
    assert len(net.networks) == count
    for network in net.networks:
        assert tuple(network.layer0.conv.weight.shape[:2]) == (widths[0], 1)
        assert tuple(network.layer1.conv.weight.shape[:2]) == (widths[1], widths[0])
        assert tuple(network.classifier.weight.shape) == (3, widths[1])


@pytest.mark.parametrize("members", [(1, 3), (2,)])
def test_the_mix_is_the_mean_of_the_logits(members):
    net = bases()
    expected = [net.networks[number](batch()) for number in members]
    subnet = net.subnet(Bases(members))
    assert isinstance(subnet, OutputsNetwork)
    for got, logits in zip(subnet.outputs(batch()), expected, strict=True):
        assert torch.equal(got, logits)
    torch.testing.assert_close(subnet(batch()), sum(expected) / len(expected))


def test_a_subset_holds_its_members_and_nothing_else():
    net = bases(12, (24, 24))  # names of 1, 10 and 11 have one prefix
    index = net.index(Bases((1, 4)))
    for name, region in index.items():
        _, position, tensor = name.split(".", 2)
        assert region.name == f"networks.{(1, 4)[int(position)]}.{tensor}"
        assert region.index is None
    assert len(index) == 2 * len(net.networks[0].state_dict())


def test_any_subset_is_read_and_not_searched():
    space = SubsetSpace(Bases, range(4))
    for text in ("bases: 1,3", " bases:1, 3 ", "1,3", Bases((1, 3))):
        assert space.parse(text) == Bases((1, 3))
    for members in ((1,), (1, 3), (0, 2)):
        with pytest.raises(ConfigError, match="omits a number before its last"):
            space.encode(Bases(members))
    with pytest.raises(ConfigError, match=r"cannot be read; write it as 'bases: 0,1,2,3'"):
        space.parse("bases: a")
    with pytest.raises(ConfigError, match="must be distinct bases in ascending order out of 0, 1, 2, 3"):
        space.parse(Bases((2, 1)))


def test_widths_are_numbers_of_bases():
    net = BaseNetworks(SHAPE, 3, SlicedCNN((8, 16)), widths=[1, 0.5, 0.25])
    assert net.count == 4
    assert net.default_eval_archs == ("width: 0.25", "width: 0.5", "width: 1")
    assert [net.space.parse(text).members for text in net.default_eval_archs] == [(0,), (0, 1), (0, 1, 2, 3)]
    assert BaseNetworks(SHAPE, 3, SlicedCNN((9, 9)), widths=[1, 1 / 3]).space.parse("width: 0.333333") == Bases((0,))
    assert BaseNetworks(SHAPE, 3, SlicedCNN((18, 18)), count=6, widths=[1, 0.16667]).space.parse(
        "width: 0.16667"
    ) == Bases((0,))
    for text in ("width: 0.3", "width: 2", "width: 0"):
        with pytest.raises(ConfigError, match=r"is not a share of whole base networks"):
            net.space.parse(text)


test_settings_that_cannot_work = refusals(
    ({"count": 17}, "supernet.count: 17 .*more than .*, 16; lower it"),
    ({}, "supernet.count: is null"),
    ({"widths": [1, 0.3, 0.25]}, r"supernet.widths: 0\.3 is not a share of whole base networks"),
    call=lambda settings: BaseNetworks(SHAPE, 3, **{"family": SlicedCNN((8, 16)), **settings}),
)
