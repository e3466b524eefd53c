"""Networks side by side share no weights."""

from __future__ import annotations

import pytest
import torch

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
from tests.support import refusals, seeded

INPUTS = (3, 8, 8)


def exits(*shape) -> EarlyExitResNet:
    return EarlyExitResNet(*shape, width=4, norm=GroupNorm(2), blocks=[1, 1], exits=[1, 2], early_heads=False)


def net() -> SeparateNetworks:
    return seeded(SeparateNetworks, INPUTS, 5, exits)


def test_the_networks_are_those_of_the_architectures_drawn_as_there():
    separate, template = net(), exits(INPUTS, 5)
    for arch, text in zip(separate.space.each(), ("exits: 1", "exits: 2"), strict=True):
        assert str(arch) == text
        expected = template.build(template.space.parse(text)).state_dict()
        assert {name: t.shape for name, t in separate.subnet(arch).state_dict().items()} == {
            name: t.shape for name, t in expected.items()
        }
    # variances: two over the fan-out for He's initialisation, a third over the fan-in for torch's
    wide = SeparateNetworks(INPUTS, 5, lambda *shape: EarlyExitResNet(*shape, width=64, exits=[4]))
    weight = wide.subnet(wide.space.largest).stages[3][1].block.conv1.weight
    assert weight.var().item() == pytest.approx(2 / (9 * 512), rel=0.02)


def test_side_by_side():
    separate = net()
    x = torch.randn(3, *INPUTS)
    side_by_side = separate.subnet(separate.space.superset)
    expected = [separate(x, arch) for arch in separate.space.each()]
    assert all(torch.equal(a, b) for a, b in zip(side_by_side.outputs(x), expected, strict=True))
    assert torch.equal(side_by_side(x), expected[-1])


@pytest.mark.parametrize(
    ("separate", "kind", "settings"),
    [
        (SeparateExits, EarlyExitResNet, {"width": 8, "blocks": [1, 1], "exits": [1, 2], "early_heads": False}),
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
    assert all(torch.equal(a, b) for a, b in zip(short.parameters(), long.parameters(), strict=True))


test_invalid_settings_are_refused = refusals(
    (lambda: SeparateNetworks((3, 16, 16), 5, ElasticResNet), "577200625 architectures exceed 64"),
    (lambda: net().space.parse("exits: 2 | exits: 1"), "must be distinct networks in this order"),
)
