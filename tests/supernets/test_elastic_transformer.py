import re

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lit_fednas.data import NextToken
from lit_fednas.data.sources.tokens import PAD, windows
from lit_fednas.errors import ConfigError
from lit_fednas.supernets import ElasticTransformer
from lit_fednas.testing.networks import batch
from tests.supernets.instances import instance


def text(**settings: object) -> ElasticTransformer:
    """Of 12 tokens, with four entries in each of four heads."""
    return ElasticTransformer(**{"input_shape": (12,), "num_classes": 9, "dim": 16, **settings})  # type: ignore[arg-type]


def test_size_by_hand() -> None:
    """Three ratios times three numbers of heads in each of one, two or three blocks."""
    assert text().space.size == 9 + 9**2 + 9**3


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize(
    ("name", "blocks"),
    [("d: 0, e: 0.5, h: 1", [(1, 8)]), ("d: 1, e: [0.5,2,2], h: [4,2,2]", [(4, 8), (2, 32)])],
)
def test_costs_of_text_by_hand(pooled: bool, name: str, blocks: list[tuple[int, int]]) -> None:
    """Of a block of h heads: queries, keys, values and the output, two products over all pairs, and the perceptron.

    The pairs that a mask takes out are counted, as kernels compute them.
    """
    net = text(pooled=pooled, vocabulary=20)
    tokens, dim, head = 12, 16, 4
    macs, parameters = dim * 9 * (1 if pooled else tokens), (20 + tokens) * dim + 2 * dim + dim * 9 + 9
    for heads, units in blocks:
        macs += tokens * 4 * dim * heads * head + 2 * tokens * tokens * heads * head + tokens * 2 * dim * units
        parameters += 4 * dim * heads * head + 3 * heads * head + dim + 2 * dim * units + units + dim + 4 * dim
    cost = net.cost(net.space.parse(name))
    assert (cost.macs, cost.parameters) == (macs, parameters)


def test_costs_of_images_by_hand() -> None:
    net = ElasticTransformer((3, 8, 12), 5, dim=8, heads=[1, 2], patch=4)
    tokens, dim, units = 6, 8, 4
    macs = tokens * dim * 3 * 16 + tokens * 4 * dim * 4 + 2 * tokens**2 * 4 + tokens * 2 * dim * units + dim * 5
    assert net.cost(net.space.smallest).macs == macs


@pytest.mark.parametrize("pooled", [False, True])
def test_causality(pooled: bool) -> None:
    """A token changes no output before it, and all others; where outputs are pooled, all tokens see each other."""
    torch.manual_seed(0)
    net = text(pooled=pooled, vocabulary=9).double()
    nn.init.normal_(net.network.embedding.tokens.weight)
    x = torch.randint(8, (1, 12))
    other = x.clone()
    other[0, 7] = 8
    block = torch.nn.Sequential(net.network.embedding, net.network.blocks)
    differing = (block(x) - block(other)).abs().amax(-1)[0] > 1e-12
    assert differing.nonzero().flatten().tolist() == list(range(0 if pooled else 7, 12))


@torch.no_grad()
def test_padding_at_the_end_changes_nothing_that_counts() -> None:
    """Whatever tokens fill a text up, the loss of those that are counted is the same."""
    torch.manual_seed(0)
    net, task = text().double(), NextToken(9, ignored=PAD)
    (inputs,), (targets,) = windows(np.array([3, 1, 4, 1, 5]), 12)
    x, y = torch.from_numpy(inputs)[None], torch.from_numpy(targets)[None]
    others = x.clone()
    others[x == PAD] = torch.randint(1, 9, (8,))
    assert int(task.units(y)) == int((x != PAD).sum()) == 4
    assert float(task.loss(net(others), y)) == pytest.approx(float(task.loss(net(x), y)), rel=1e-12)


def test_dropout() -> None:
    """One layer behind the embedding and two per block, which matter in training alone."""
    torch.manual_seed(0)
    plain, dropping = text(), text(dropout=0.5)
    dropping.load_state_dict(plain.state_dict())
    x = torch.randint(9, (2, 12))
    arch = plain.space.parse("d: 1, e: 1, h: 2")
    assert sum(isinstance(module, nn.Dropout) for module in dropping.subnet(arch).modules()) == 1 + 2 * 2
    assert torch.equal(dropping.eval()(x, arch), plain(x, arch))
    assert not torch.equal(dropping.train()(x, arch), plain(x, arch))


@pytest.mark.parametrize("name", ["elastic-transformer", "elastic-transformer-text"])
def test_a_subnet_by_hand(name: str) -> None:
    """One head and half the units, from the first rows and columns of the shared tensors; attention by softmax."""
    net = instance(name)
    arch, x, dim = net.space.parse("d: 0, e: 0.5, h: 1"), batch(net), 8
    size = dim // net.space.heads[-1]
    w = net.network.state_dict()
    if net.is_text:
        h = w["embedding.tokens.weight"][x]
    else:
        patches = x.unfold(2, 4, 4).unfold(3, 4, 4).flatten(2, 3).permute(0, 2, 1, 3, 4).flatten(2)
        h = patches @ w["embedding.patches.weight"].flatten(1).T + w["embedding.patches.bias"]
    h = h + w["embedding.positions"]
    w0 = {key.removeprefix("blocks.0."): value for key, value in w.items()}
    normed = functional.layer_norm(h, (dim,), w0["0.block.norm.weight"], w0["0.block.norm.bias"])
    q, k, v = (
        normed @ w0[f"0.block.attention.{part}.weight"][:size].T + w0[f"0.block.attention.{part}.bias"][:size]
        for part in ("query", "key", "value")
    )
    scores = q @ k.transpose(1, 2) / size**0.5
    if net.is_text:
        scores = scores + torch.full_like(scores, -torch.inf).triu(1)
    mixed = scores.softmax(-1) @ v
    h = h + mixed @ w0["0.block.attention.output.weight"][:, :size].T + w0["0.block.attention.output.bias"]
    normed = functional.layer_norm(h, (dim,), w0["1.block.norm.weight"], w0["1.block.norm.bias"])
    hidden = functional.gelu(normed @ w0["1.block.hidden.weight"][:4].T + w0["1.block.hidden.bias"][:4])
    h = h + hidden @ w0["1.block.output.weight"][:, :4].T + w0["1.block.output.bias"]
    h = functional.layer_norm(h, (dim,), w["norm.weight"], w["norm.bias"])
    h = h if net.is_text else h.mean(1)
    torch.testing.assert_close(net(x, arch), h @ w["classifier.weight"].T + w["classifier.bias"])


@pytest.mark.parametrize(
    ("written", "told"),
    [
        ("d: 0, e: 0.5, h: 3", "head count 3 is not one of [1, 2, 4]"),
        ("d: 0, e: 0.5, h: [1,2]", "has 2 head counts; give 3"),
        ("d: 0, e: 0.5", "'d: 0, e: 0.5' cannot be read; write it as 'd: [0,1,0,1], e: 0.14, h: 2'"),
        ("d: 0, h: 1, e: 0.5", "cannot be read"),
    ],
)
def test_what_cannot_be_an_architecture(written: str, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        text().space.parse(written)


def test_ways_to_write_an_architecture() -> None:
    space = text().space
    expected = "d: [1], e: [0.5,2.0,2.0], h: 2"
    for written in (expected, {"d": 1, "e": [0.5, 2, 1], "h": 2}, "d: 1, e: [0.5,2,0.5], h: [2,2,4]"):
        assert str(space.parse(written)) == expected  # the third block is not there


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"heads": []}, "supernet.heads: [] must be"),
        ({"heads": [1, 3]}, "supernet.heads: [1, 3] must be numbers of which the last divides dim, 16"),
        ({"heads": [4, 2]}, "supernet.heads: [4, 2]"),
        ({"input_shape": (3, 8)}, "supernet.input_shape: [3, 8] must be channels, height, width"),
        ({"input_shape": (3, 8, 8), "patch": 3}, "supernet.patch: 3 does not divide 8x8 pixels"),
        ({"input_shape": (3, 8, 8), "vocabulary": 9}, "supernet.vocabulary: 9 is for texts"),
        ({"dropout": 1.0}, "supernet.dropout: 1.0"),
        ({"pooled": True}, "supernet.vocabulary: is not given"),
        ({"input_shape": (3, 8, 8), "pooled": True}, "supernet.pooled: True is for texts"),
    ],
)
def test_settings_that_cannot_work(settings: dict, told: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(told)):
        text(**settings)
