"""The adaptive server optimizers against Algorithm 2 of Reddi et al. (2021), in numpy."""

import copy
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize("kind", SECOND_MOMENTS)
@pytest.mark.parametrize("beta1", [0.0, B1])
def test_three_steps_by_hand(kind: type, beta1: float) -> None:
    """Its state is saved and loaded before each."""
    parameter, state = nn.Parameter(torch.tensor(START)), None
    x, m, v = START.copy(), np.zeros(4), np.full(4, TAU**2)
    for delta in DELTAS:
        m = beta1 * m + (1 - beta1) * delta
        v = SECOND_MOMENTS[kind](v, delta)
        x = x + LR * m / (np.sqrt(v) + TAU)
        optimizer = kind([parameter], lr=LR, beta1=beta1, beta2=B2, tau=TAU)
        if state is not None:
            optimizer.load_state_dict(state)
        parameter.grad = torch.tensor(-delta)  # the pseudo-gradient is the present weights minus the aggregate
        optimizer.step()
        state = copy.deepcopy(optimizer.state_dict())
        np.testing.assert_allclose(parameter.detach().numpy(), x, rtol=1e-12)
