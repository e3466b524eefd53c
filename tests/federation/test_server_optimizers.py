"""The adaptive server optimizers against Algorithm 2 of Reddi et al. (2021), in numpy."""

import copy
import io
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

from lit_fednas.errors import ConfigError
from lit_fednas.federation import FedAdagrad, FedAdam, FedYogi

START = np.array([1.0, -2.0, 0.5, 0.0])
DELTAS = [  # Delta_t of three rounds: the aggregate minus the present weights
    np.array([0.5, -0.25, 0.0, 1e-3]),
    np.array([-0.1, -0.5, 0.2, -1e-3]),
    np.array([0.01, 0.02, -2.0, 0.0]),
]
LR, B1, B2, TAU = 0.1, 0.9, 0.99, 1e-2

SECOND_MOMENTS: dict[type, Callable] = {
    FedAdagrad: lambda v, delta: v + delta**2,
    FedYogi: lambda v, delta: v - (1 - B2) * delta**2 * np.sign(v - delta**2),
    FedAdam: lambda v, delta: B2 * v + (1 - B2) * delta**2,
}


def step(optimizer: torch.optim.Optimizer, x: nn.Parameter, delta: np.ndarray) -> None:
    x.grad = torch.tensor(-delta)  # the pseudo-gradient is the present weights minus the aggregate
    optimizer.step()


@pytest.mark.parametrize("kind", list(SECOND_MOMENTS))
@pytest.mark.parametrize("beta1", [0.0, B1])
def test_three_steps_by_hand(kind: type, beta1: float) -> None:
    parameter = nn.Parameter(torch.tensor(START))
    optimizer = kind([parameter], lr=LR, beta1=beta1, beta2=B2, tau=TAU)
    x, m, v = START.copy(), np.zeros(4), np.full(4, TAU**2)
    for delta in DELTAS:
        m = beta1 * m + (1 - beta1) * delta
        v = SECOND_MOMENTS[kind](v, delta)
        x = x + LR * m / (np.sqrt(v) + TAU)
        step(optimizer, parameter, delta)
        np.testing.assert_allclose(parameter.detach().numpy(), x, rtol=1e-12)


def test_they_differ_from_each_other_and_from_torch() -> None:
    ends = []
    for kind in (*SECOND_MOMENTS, torch.optim.Adam, torch.optim.Adagrad):
        parameter = nn.Parameter(torch.tensor(START))
        optimizer = kind([parameter], lr=LR)
        for delta in DELTAS:
            step(optimizer, parameter, delta)
        ends.append(tuple(parameter.tolist()))
    assert len(set(ends)) == 5


@pytest.mark.parametrize("kind", list(SECOND_MOMENTS))
def test_a_saved_state_continues_alike(kind: type) -> None:
    straight = nn.Parameter(torch.tensor(START))
    optimizer = kind([straight], lr=LR)
    step(optimizer, straight, DELTAS[0])
    stream = io.BytesIO()
    torch.save(optimizer.state_dict(), stream)
    stream.seek(0)
    resumed = copy.deepcopy(straight)
    other = kind([resumed], lr=LR)
    other.load_state_dict(torch.load(stream, weights_only=True))
    for delta in DELTAS[1:]:
        step(optimizer, straight, delta)
        step(other, resumed, delta)
        assert torch.equal(straight, resumed)


@pytest.mark.parametrize("kind", list(SECOND_MOMENTS))
def test_no_gradient_no_change(kind: type) -> None:
    still, moved = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    optimizer = kind([still, moved])
    moved.grad = torch.ones(2)
    assert optimizer.step(lambda: 3.0) == 3.0
    assert torch.equal(still, torch.ones(2))
    assert (moved < 1).all()
    assert still not in optimizer.state


def test_sgd_of_rate_one_gives_the_aggregate() -> None:
    parameter, aggregate = nn.Parameter(torch.randn(50)), torch.randn(50)
    parameter.grad = parameter.detach() - aggregate
    torch.optim.SGD([parameter], lr=1.0).step()
    torch.testing.assert_close(parameter.detach(), aggregate, rtol=0, atol=1e-6)


@pytest.mark.parametrize("kind", list(SECOND_MOMENTS))
@pytest.mark.parametrize("settings", [{"lr": 0.0}, {"beta1": 1.0}, {"beta1": -0.1}, {"beta2": 1.0}, {"tau": 0.0}])
def test_settings_out_of_range(kind: type, settings: dict) -> None:
    with pytest.raises(ConfigError, match="server_optimizer"):
        kind([nn.Parameter(torch.ones(1))], **settings)
