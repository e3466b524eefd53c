"""FedorAS' recurrent supernet, compared with the paper's figures and its operators' published equations."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.errors import ConfigError
from lit_fednas.rng import isolated
from lit_fednas.supernets import PathRNN
from lit_fednas.supernets.paths.rnn import OPERATORS
from lit_fednas.testing.networks import batch
from tests.supernets.instances import kept_instance

RNN = kept_instance("path-rnn")
STEPS, INPUTS, WIDTH = 7, 4, 6


def operator(name: str) -> nn.Module:
    with isolated(0, name):
        return OPERATORS[name](INPUTS, WIDTH)


def features() -> Tensor:
    return torch.randn(3, STEPS, INPUTS, generator=torch.Generator().manual_seed(0))


@pytest.mark.slow
def test_table_8s_models_and_tiers() -> None:
    net = PathRNN()
    costs = net.path_costs("operations")
    assert net.space.size == 6 * 7 * 7 * 8 == 2352
    assert costs.of(net.space.largest) == pytest.approx(33.8e6, abs=0.05e6)
    totals = [costs.fixed + sum(path) for path in itertools.product(*costs.layers)]
    models, _ = np.histogram(totals, [0, 7.8e6, 12.8e6, 17.8e6, 22.8e6, 33.8e6])
    assert models.sum() == 2352
    assert models == pytest.approx([316, 577, 787, 473, 196], rel=0.11)  # the paper counts 2,349 paths


def of_torch(kind: type[nn.RNNBase]) -> Callable[[Tensor, dict[str, Tensor]], Tensor]:
    def run(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        layer = kind(INPUTS, WIDTH, batch_first=True)
        layer.load_state_dict(w)
        return layer(x)[0]

    return run


def ligru(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    wz, wh = w["input.weight"].split(WIDTH)
    bz, bh = w["input.bias"].split(WIDTH)
    uz, uh = w["recurrent.weight"].split(WIDTH)
    h, outputs = torch.zeros(len(x), WIDTH), []
    for t in range(STEPS):
        z = torch.sigmoid(x[:, t] @ wz.T + bz + h @ uz.T)
        h = z * h + (1 - z) * torch.tanh(x[:, t] @ wh.T + bh + h @ uh.T)
        outputs.append(h)
    return torch.stack(outputs, 1)


def qrnn(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    (wz, wf, wo), (bz, bf, bo) = w["gates.weight"].split(WIDTH), w["gates.bias"].split(WIDTH)
    c, outputs = torch.zeros(len(x), WIDTH), []
    for t in range(STEPS):
        f = torch.sigmoid(x[:, t] @ wf.T + bf)
        c = f * c + (1 - f) * torch.tanh(x[:, t] @ wz.T + bz)
        outputs.append(torch.sigmoid(x[:, t] @ wo.T + bo) * c)
    return torch.stack(outputs, 1)


def conv5(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    outputs = []
    for t in range(STEPS):
        taps = [x[:, t - back] @ w["conv.weight"][:, :, 4 - back].T for back in range(5) if t >= back]
        outputs.append(torch.sigmoid(torch.stack(taps).sum(0) + w["conv.bias"]))
    return torch.stack(outputs, 1)


REFERENCES: dict[str, Callable[[Tensor, dict[str, Tensor]], Tensor]] = {
    "lstm": of_torch(nn.LSTM),
    "gru": of_torch(nn.GRU),
    "ligru": ligru,
    "qrnn": qrnn,
    "linear": lambda x, w: torch.sigmoid(x @ w["linear.weight"].T + w["linear.bias"]),
    "conv5": conv5,
    "id": lambda x, w: x,
    "zero": lambda x, w: torch.zeros(*x.shape[:2], WIDTH),
}


@pytest.mark.parametrize("name", OPERATORS)
def test_operators_are_their_equations(name: str) -> None:
    module, x = operator(name), features()
    weights = dict(module.named_parameters())
    torch.testing.assert_close(module(x), REFERENCES[name](x, weights))
    others = {key: tensor.detach() * 2 for key, tensor in weights.items()}  # not remembered
    torch.testing.assert_close(torch.func.functional_call(module, others, x), REFERENCES[name](x, others))


@pytest.mark.parametrize("name", [name for name in OPERATORS if name not in ("id", "zero")])
@pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
def test_gradients_under_vmap_are_those_of_each_client(name: str) -> None:
    module, x = operator(name), torch.stack([features(), 2 * features()])
    stacked = {key: torch.stack([w.detach(), -w.detach()]) for key, w in module.named_parameters()}

    def loss(weights: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(module, weights, x).square().sum()

    together = torch.func.vmap(torch.func.grad(loss))(stacked, x)
    for client in range(2):
        alone = {key: w[client].clone().requires_grad_() for key, w in stacked.items()}
        loss(alone, x[client]).backward()
        for key, weight in alone.items():
            torch.testing.assert_close(together[key][client], weight.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("layer", range(4))
def test_no_logit_sees_what_comes_later(layer: int) -> None:
    tokens = batch(RNN, 2)
    for name in RNN.space.choices[layer]:
        names = ["linear"] * 4
        names[layer] = name
        path = RNN.space.parse(" ".join(names))
        expected = RNN.eval()(tokens, path)
        for t in range(STEPS):
            other = tokens.clone()
            other[:, t] = (other[:, t] + 1) % RNN.num_classes
            changed = RNN(other, path)
            torch.testing.assert_close(changed[:, :t], expected[:, :t], rtol=0, atol=0)
            assert not torch.allclose(changed[:, t], expected[:, t])


def test_outputs_of_one_input_are_added() -> None:
    path = RNN.space.parse("gru linear conv5 id")
    network = RNN.subnet(path)
    first, skip, second, _ = (next(iter(layer.values())) for layer in network.layers)
    x = network.stem(batch(RNN))
    x = first(x) + skip(x)
    x = second(x) + x
    expected = functional.linear(x, network.head.weight, network.head.bias)
    torch.testing.assert_close(network(batch(RNN)), expected)


def test_operators_that_are_none() -> None:
    with pytest.raises(ConfigError, match="must be distinct and among lstm"):
        PathRNN((5,), 9, width=4, operators=["lstm", "rnn"])
