"""How unsure a degree of convergence is, against many draws."""

from math import isnan

import pytest
import torch

from lit_fednas.callbacks.transform_on_convergence import (
    degree_of_convergence,
    standard_error,
)


@pytest.mark.parametrize(("gamma", "delta"), [(3, 5), (5, 3), (1, 9)])
def test_the_standard_error_is_the_degrees_deviation(gamma: int, delta: int) -> None:
    """Of falling losses with noise, drawn many times; both need enough rounds."""
    draws = torch.Generator().manual_seed(0)
    rounds = torch.arange(gamma + delta + 2, dtype=torch.double)
    losses = 3 - 0.2 * rounds + 0.1 * torch.randn(4000, len(rounds), generator=draws, dtype=torch.double)
    degrees = torch.tensor([degree_of_convergence(one, gamma, delta) for one in losses.tolist()])
    errors = torch.tensor([standard_error(one, gamma, delta) for one in losses.tolist()])
    assert float(degrees.mean()) == pytest.approx(0.2, abs=0.002)
    assert float(errors.square().mean().sqrt()) == pytest.approx(float(degrees.std()), rel=0.12)
    for figure in (degree_of_convergence, standard_error):
        assert isnan(figure([1.0] * (gamma + delta - 1), gamma, delta))
        assert figure([1.0] * (gamma + delta), gamma, delta) == 0.0
