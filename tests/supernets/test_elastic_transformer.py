import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from lit_fednas.data import NextToken
from lit_fednas.data.sources.text import PAD, windows
from lit_fednas.supernets import ElasticTransformer
from lit_fednas.testing.networks import batch
from tests.supernets.instances import instance
from tests.support import refusals


def text(**settings: object) -> ElasticTransformer:
    """A network for 12 tokens, with four heads of four entries."""
    return ElasticTransformer(**{"input_shape": (12,), "num_classes": 9, "dim": 16, **settings})  # type: ignore[arg-type]


def test_size_by_hand() -> None:
    """Three ratios times three numbers of heads in each of one, two or three blocks."""
    assert text().space.size == 9 + 9**2 + 9**3


@pytest.mark.parametrize("pooled", [False, True])
def test_causality(pooled: bool) -> None:
    """A token affects no earlier output and all later ones; with pooled outputs, tokens attend to all others."""
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
def test_padding_at_the_end_does_not_change_the_loss() -> None:
    """The loss of the counted tokens does not depend on the padding tokens."""
    torch.manual_seed(0)
    net, task = text().double(), NextToken(9, ignored=PAD)
    (inputs,), (targets,) = windows(np.array([3, 1, 4, 1, 5]), 12)
    x, y = torch.from_numpy(inputs)[None], torch.from_numpy(targets)[None]
    others = x.clone()
    others[x == PAD] = torch.randint(1, 9, (8,))
    assert int(task.count(y)) == int((x != PAD).sum()) == 4
    assert float(task.loss(net(others), y)) == pytest.approx(float(task.loss(net(x), y)), rel=1e-12)


@pytest.mark.parametrize("name", ["elastic-transformer", "elastic-transformer-text"])
def test_a_subnet_by_hand(name: str) -> None:
    """It has one head and half the units, from the first rows and columns; attention is written as a softmax."""
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


test_invalid_settings_are_refused = refusals(
    (lambda: text().space.parse("d: 0, e: 0.5, h: 3"), "head count 3 is not one of [1, 2, 4]"),
    (lambda: text(heads=[1, 3]), "supernet.heads: [1, 3] must end with a divisor of dim, 16"),
    (lambda: text(input_shape=(3, 8, 8), patch=3), "supernet.patch: 3 does not divide 8x8 pixels"),
    (lambda: text(input_shape=(3, 8, 8), vocabulary=9), "supernet.vocabulary: 9 is for texts"),
    (lambda: text(pooled=True), "supernet.vocabulary: is null"),
)
