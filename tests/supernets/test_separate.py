"""Networks side by side: nothing is shared."""

from __future__ import annotations

import pytest
import torch

from lit_fednas.errors import ConfigError
from lit_fednas.supernets import (
    EarlyExitResNet,
    ElasticResNet,
    GroupNorm,
    SeparateExits,
    SeparateNetworks,
    SeparateWidths,
    SlicedCNN,
    WidthSupernet,
)

INPUTS = (3, 8, 8)


def exits(*shape) -> EarlyExitResNet:
    return EarlyExitResNet(*shape, width=4, norm=GroupNorm(2), blocks=[1, 1], exits=[1, 2])


def net(archs=("exits: 1", "exits: 2")) -> SeparateNetworks:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return SeparateNetworks(INPUTS, 5, exits, archs)


def test_no_tensor_belongs_to_two():
    one = net()
    simple, complex = one.index(one.space.smallest), one.index(one.space.largest)
    held = [{region.name for region in index.values()} for index in (simple, complex)]
    assert held[0].isdisjoint(held[1])
    assert held[0] | held[1] == set(one.shared_tensors())
    assert all(region.index is None for region in [*simple.values(), *complex.values()])


def test_training_one_leaves_the_other():
    one = net()
    before = one.subnet(one.space.smallest).state_dict()
    one(torch.randn(2, *INPUTS), one.space.largest).sum().backward()
    torch.optim.SGD(one.parameters(), lr=1.0).step()
    after = one.subnet(one.space.smallest).state_dict()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_the_networks_are_those_of_the_architectures_drawn_as_there():
    one, of = net(), exits(INPUTS, 5)
    for arch, text in ((one.space.smallest, "exits: 1"), (one.space.largest, "exits: 2")):
        network = of.build(of.space.parse(text))
        own = one.subnet(arch)
        assert {name: t.shape for name, t in own.state_dict().items()} == {
            name: t.shape for name, t in network.state_dict().items()
        }
        assert str(arch) == text
    first, second = (one.subnet(arch).stem.weight for arch in one.space.each())
    assert not torch.equal(first, second)
    # He's initialisation has twice the variance over the fan-out, a fresh convolution a third over the fan-in
    wide = SeparateNetworks(INPUTS, 5, lambda *shape: EarlyExitResNet(*shape, width=64), ["largest"])
    weight = wide.subnet(wide.space.largest).stages[3][1].block.conv1.weight
    assert weight.var().item() == pytest.approx(2 / (9 * 512), rel=0.02)


def test_side_by_side():
    one = net()
    x = torch.randn(3, *INPUTS)
    both = one.subnet(one.space.superset)
    want = [one(x, arch) for arch in one.space.each()]
    assert all(torch.equal(a, b) for a, b in zip(both.outputs(x), want, strict=True))
    assert torch.equal(both(x), want[-1])


def test_any_supernet_cheapest_first():
    def elastic(shape, classes):
        return ElasticResNet(shape, classes, 4, [8, 8], [0, 1], [0.5, 1.0], divisor=4, norm=GroupNorm(2))

    every = SeparateNetworks(INPUTS, 5, elastic, None)
    macs = [every.cost(arch).macs for arch in every.space.each()]
    assert macs == sorted(macs)
    assert every.space.size == elastic(INPUTS, 5).space.size > 4
    two = SeparateNetworks(INPUTS, 5, elastic, ["largest", "smallest"])
    assert two.cost(two.space.largest).macs > two.cost(two.space.smallest).macs


@pytest.mark.parametrize(
    ("separate", "kind", "settings"),
    [
        (SeparateExits, EarlyExitResNet, {"width": 8, "exits": [2, 4], "early_heads": False}),
        (SeparateWidths, WidthSupernet, {"family": SlicedCNN((4, 6)), "widths": [1, 0.5], "scaler": True}),
    ],
)
def test_settings_are_those_of_the_other_supernet(separate, kind, settings):
    torch.manual_seed(0)
    short = separate(INPUTS, 5, **settings)
    torch.manual_seed(0)
    long = SeparateNetworks(INPUTS, 5, lambda *shape: kind(*shape, **settings))
    assert [str(arch) for arch in short.space.each()] == [
        str(arch) for arch in kind(INPUTS, 5, **settings).space.each()
    ]
    assert all(torch.equal(own, weights) for own, weights in zip(short.parameters(), long.parameters(), strict=True))


def test_errors():
    with pytest.raises(ConfigError, match=r"supernet.archs: \['exits: 1', 'exits: 1'\] must be 1 to 64"):
        net(("exits: 1", "smallest"))
    with pytest.raises(ConfigError, match="name exits, each once and ascending, out of: 1, 2"):
        net(("exits: 3",))
    with pytest.raises(ConfigError, match=r"supernet.archs: is null, and ElasticResNet has"):
        SeparateNetworks((3, 16, 16), 5, lambda *shape: ElasticResNet(*shape))
    one = net()
    with pytest.raises(ConfigError, match="is not one network"):
        one.space.encode(one.space.superset)
    with pytest.raises(ConfigError, match="each once and in this order"):
        one.space.parse("exits: 2 | exits: 1")
