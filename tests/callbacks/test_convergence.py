"""The degree of convergence and the activeness of cells, against values worked out by hand."""

from math import isnan

import pytest
import torch

from lit_fednas.callbacks.transform_on_convergence import (
    cell_activeness,
    degree_of_convergence,
    standard_error,
)
from lit_fednas.supernets import GrowableCNN, ModelSuite
from lit_fednas.supernets.growing.growth import plan


def test_degree_of_convergence_by_hand() -> None:
    losses = [9.0, 5.0, 3.0, 2.5, 2.0, 1.9]
    # slopes over two rounds, of the last three rounds: (2.5-1.9)/2... each against two rounds before
    assert degree_of_convergence(losses, 3, 2) == pytest.approx(((2.5 - 1.9) + (3 - 2) + (5 - 2.5)) / 2 / 3)
    assert degree_of_convergence(losses, 1, 5) == pytest.approx((9 - 1.9) / 5)
    assert degree_of_convergence(losses, 5, 1) == pytest.approx((9 - 1.9) / 5)  # it telescopes
    assert degree_of_convergence([1.0, 2.0], 1, 1) == -1.0  # a rising loss
    assert degree_of_convergence([99.0, 1.0, 1.0, 1.0], 1, 2) == 0.0  # only the last rounds count


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


def test_activeness_by_hand() -> None:
    suite = ModelSuite((1, 4, 4), 3, GrowableCNN([2], norm=None))
    suite.add(0, plan(suite.models[0].blueprint, ["conv1"], 1), seed=0)
    with torch.no_grad():
        for name, parameter in suite.named_parameters():
            parameter.fill_(2.0 if "bias" in name else 1.0)
    averages = {name: tensor.clone() for name, tensor in suite.shared_tensors().items()}
    averages["networks.0.cells.conv1.conv.weight"] += 0.5  # 18 weights of 1
    averages["networks.0.cells.conv1.conv.bias"] -= 1.0  # 2 biases of 2
    averages["networks.0.cells.head.classifier.bias"] += 3.0  # 3 biases of 2, beside 6 weights of 1
    averages["networks.1.cells.head.classifier.bias"] += 100.0  # another model
    found = cell_activeness(suite, 0, averages)
    assert found == pytest.approx({"conv1": ((18 * 0.25 + 2 * 1) / (18 + 8)) ** 0.5, "head": (27 / (6 + 12)) ** 0.5})
    assert cell_activeness(suite, 1, averages)["conv1"] == 0
