import pytest
import torch
from torch import nn
from torch.nn import functional

from lit_fednas.supernets import ElasticTCN
from tests.supernets.instances import instance


def paper(**settings: object) -> ElasticTCN:
    """SuperFed's network on rows of 80 tokens, with Penn Treebank's 10,000 words."""
    with torch.device("meta"):
        return ElasticTCN((80,), 10_000, **settings)  # type: ignore[arg-type]


def test_size_of_the_paper() -> None:
    """Four ratios in each of two, three or four blocks."""
    assert paper().space.size == 4**2 + 4**3 + 4**4 == 336


@pytest.mark.parametrize(
    ("text", "middles"), [("d: 2, e: 1.0", [600] * 4), ("d: 1, e: [0.1,0.2,0.5,1]", [60, 120, 300])]
)
def test_costs_by_hand(text: str, middles: list[int]) -> None:
    """A block has two convolutions of three tokens; decoder and embedding share a weight, and a lookup is free."""
    net, weights = paper(), sum(3 * 600 * middle * 2 for middle in middles)
    cost = net.cost(net.space.parse(text))
    assert cost.macs == 80 * (weights + 600 * 10_000)
    assert cost.parameters == weights + sum(middle + 600 for middle in middles) + 600 * 10_000 + 10_000


@pytest.mark.parametrize(("depth", "kernel"), [(0, 3), (2, 3), (1, 2)])
def test_causality_and_receptive_field(depth: int, kernel: int) -> None:
    """A token affects no earlier output, and all outputs up to 2 * (kernel - 1) * (1 + 2 + ...) after it."""
    tokens, position = 80, 9
    field = 1 + 2 * (kernel - 1) * (2 ** (2 + depth) - 1)
    torch.manual_seed(0)
    net = ElasticTCN((tokens,), 11, channels=20, kernel=kernel).double().eval()
    for parameter in net.parameters():
        parameter.data.abs_()  # positive, so that no ReLU hides a change
    x = torch.randint(10, (1, tokens))
    other = x.clone()
    other[0, position] = 10
    arch = net.space.parse(f"d: {depth}, e: 0.5")
    differing = (net(x, arch) != net(other, arch)).any(-1)[0].nonzero().flatten()
    assert differing.tolist() == list(range(position, position + field))


def test_a_subnet_by_hand() -> None:
    """It consists of the first blocks and channels of the shared tensors."""
    net = instance("elastic-tcn-dropout").eval()
    arch, x = net.space.parse("d: 0, e: [0.5,0.2,1.0]"), torch.randint(7, (3, 6))
    w = net.network.state_dict()
    h = w["embedding.weight"][x].transpose(1, 2)
    for i, middle in enumerate([4, 2]):  # ratios of 8 channels
        block = {name.removeprefix(f"blocks.{i}."): tensor for name, tensor in w.items() if f"blocks.{i}." in name}
        past = nn.ConstantPad1d((2 * 2**i, 0), 0.0)
        y = functional.conv1d(
            past(h), block["block.conv1.weight"][:middle], block["block.conv1.bias"][:middle], dilation=2**i
        )
        y = functional.conv1d(
            past(y.relu()), block["block.conv2.weight"][:, :middle], block["block.conv2.bias"], dilation=2**i
        )
        h = (y.relu() + h).relu()
    expected = h.transpose(1, 2) @ w["embedding.weight"].T + w["decoder.bias"]
    torch.testing.assert_close(net(x, arch), expected)
