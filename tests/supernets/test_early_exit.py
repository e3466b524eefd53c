"""The early-exit ResNet against counts and formulas by hand (FedHeN, section 3)."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional

from lit_fednas.supernets import BatchNorm, EarlyExitResNet, Exits, GroupNorm
from lit_fednas.supernets.early_exit import MixedPool
from lit_fednas.supernets.layers import preactivated_block
from tests.support import refusals, seeded


def net(**settings) -> EarlyExitResNet:
    small = {"input_shape": (3, 8, 8), "num_classes": 5, "width": 4, "norm": GroupNorm(2)}
    return seeded(EarlyExitResNet, **{**small, **settings})


def test_the_papers_network_has_its_parameters():
    def stage(inputs: int, out: int) -> int:  # two blocks: convolutions, shortcut, scale and shift of the norms
        convolutions = 9 * out * (inputs + 3 * out) + (inputs * out if inputs != out else 0)
        return convolutions + 2 * (inputs + 3 * out)

    simple = 9 * 3 * 64 + stage(64, 64) + stage(64, 128) + 2 * 128 + 1 + 128 * 16 * 10 + 10  # the map is 4x4
    complex = simple + stage(128, 256) + stage(256, 512) + 2 * 512 + 512 * 10 + 10
    paper = EarlyExitResNet((3, 32, 32), 10)
    counted = [paper.cost(arch).parameters for arch in (paper.space.smallest, paper.space.largest)]
    assert counted == [simple, complex]
    assert simple == 695_627  # 0.7M, as the paper says
    head = 2 * 128 + 1 + 128 * 16 * 10 + 10
    without_head = paper.cost(paper.space.parse("exits: 4")).parameters  # PreActResNet-18 and a last norm
    assert without_head == complex - head == 11_172_170  # the paper says 11.1M


def test_without_early_heads_an_architecture_holds_its_last():
    whole, single = net(blocks=[1, 1, 1], exits=[1, 2, 3]), net(blocks=[1, 1, 1], exits=[1, 2, 3], early_heads=False)
    assert [str(arch) for arch in single.space.each()] == ["exits: 1", "exits: 2", "exits: 3"]
    assert single.space.parse("exits: 1,2") == single.space.named("exits: 2") == Exits((2,))
    assert single.state_dict().keys() == whole.state_dict().keys()
    x = torch.randn(2, 3, 8, 8)
    for alone, all_heads in zip(single.space.each(), whole.space.each(), strict=True):
        assert single.index(alone) == {
            name: region for name, region in whole.index(all_heads).items() if name in single.index(alone)
        }
        assert len(single.subnet(alone).heads) == 1
        assert torch.equal(single(x, alone), whole(x, all_heads))


def test_an_architecture_without_the_early_head():
    whole = net(exits=[2, 4])
    alone, all_heads = whole.space.parse("exits: 4"), whole.space.largest
    names = set(whole.index(all_heads)) - set(whole.index(alone))
    assert names
    assert all(name.startswith("heads.2.") for name in names)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(whole(x, alone), whole(x, all_heads))
    assert whole.cost(alone).macs == whole.cost(all_heads).macs, "only the last head runs forward"


def test_a_block_by_hand():
    block = preactivated_block(4, 8, 8, 2, BatchNorm()).eval()
    inner = block.sum.block
    for norm in (block.norm1, inner.norm2):
        norm.running_mean.uniform_(-1, 1)
        norm.running_var.uniform_(0.5, 2)
        nn.init.uniform_(norm.weight)
    x = torch.randn(3, 4, 6, 6)
    a = functional.relu(block.norm1(x))
    b = functional.relu(inner.norm2(functional.conv2d(a, inner.conv1.weight, stride=2, padding=1)))
    want = functional.conv2d(b, inner.conv2.weight, padding=1)
    want = want + functional.conv2d(a, block.sum.shortcut.weight, stride=2)
    original = x.clone()
    torch.testing.assert_close(block(x), want)
    assert torch.equal(x, original)  # ReLUs in place leave the input unchanged
    same = preactivated_block(4, 4, 4, 1, GroupNorm(2))
    nn.init.zeros_(same.block.conv2.weight)
    assert torch.equal(same(x), x)  # the shortcut is the input itself


def test_mixed_pooling():
    """Windows of 4x4 (14 / 4 is nearer to 4) map 16x14 pixels to 4x3."""
    pool = MixedPool(16, 14)
    x = torch.randn(2, 3, 16, 14)
    windows = x[..., :12].unflatten(2, (4, 4)).unflatten(4, (3, 4)).transpose(3, 4).flatten(4)
    for share in (0.0, 0.3, 1.0):
        with torch.no_grad():
            pool.share.fill_(share)
        want = share * windows.amax(-1) + (1 - share) * windows.mean(-1)
        torch.testing.assert_close(pool(x), want)
    pool(x).sum().backward()
    want = (windows.amax(-1) - windows.mean(-1)).sum()
    torch.testing.assert_close(pool.share.grad, want)


test_invalid_settings_are_refused = refusals(
    (lambda: net().space.encode(Exits((4,))), "exits: 4: omits a number before its last"),
    (lambda: net().space.parse("exits: two"), "write it as 'exits: 2,4'"),
    (lambda: net(exits=[2]), r"supernet.exits: \[2\] must be ascending stages that end with 4"),
    (lambda: net(norm=GroupNorm(8)), "norm.group_size: 8 does not divide 4 channels"),
)
