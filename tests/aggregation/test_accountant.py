"""Tests epsilon against closed forms of the Gaussian mechanism and a published value."""

from __future__ import annotations

from functools import partial
from math import exp, log

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from lit_fednas.aggregation.private import KnownCohorts, SampledCohorts
from lit_fednas.errors import CheckpointError


def gaussian_delta(epsilon: float, mu: float) -> float:
    """Balle and Wang (2018), Theorem 8, for a sensitivity of mu and noise of 1."""
    return norm.cdf(mu / 2 - epsilon / mu) - exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)


def sampled_delta(epsilon: float, noise: float, q: float) -> float:
    """One sampled round: the excess of (1 - q) N(0, z^2) + q N(1, z^2) over exp(epsilon) N(0, z^2)."""
    threshold = 0.5 + noise**2 * log((exp(epsilon) - (1 - q)) / q)  # the ratio of the densities is exp(epsilon) here
    mixture = (1 - q) * norm.sf(threshold / noise) + q * norm.sf((threshold - 1) / noise)
    return mixture - exp(epsilon) * norm.sf(threshold / noise)


def epsilon_of(delta_at: object, delta: float) -> float:
    return brentq(lambda epsilon: delta_at(epsilon) - delta, 1e-6, 60)  # type: ignore[operator]


@pytest.mark.parametrize(("noise", "rounds"), [(1.0, 1), (4.0, 30)])
def test_a_known_client_has_the_closed_form_of_its_rounds(noise: float, rounds: int) -> None:
    accountant = KnownCohorts(noise)
    assert accountant.epsilon(1e-5) == 0
    for number in range(rounds):
        accountant.add({7: 1.0, 100 + number: 1.0})  # other clients take part once
    expected = epsilon_of(lambda epsilon: gaussian_delta(epsilon, rounds**0.5 / noise), 1e-5)
    assert accountant.epsilon(1e-5) == pytest.approx(expected, rel=1e-6)
    assert KnownCohorts.noise_for(expected, 1e-5, rounds) == pytest.approx(noise, rel=1e-6)


def test_a_client_with_less_influence_spends_less() -> None:
    """Nine rounds with a third of the influence equal one round with full influence."""
    often, once = KnownCohorts(2.0), KnownCohorts(2.0)
    for _ in range(9):
        often.add({0: (1 / 3) ** 2})
    once.add({0: 1.0})
    assert often.epsilon(1e-5) == pytest.approx(once.epsilon(1e-5), rel=1e-9)


@pytest.mark.parametrize(("noise", "q"), [(0.7, 0.5), (2.0, 0.05)])
def test_one_sampled_round_has_the_closed_form(noise: float, q: float) -> None:
    accountant = SampledCohorts(noise, q)
    assert accountant.epsilon(1e-5) == 0
    accountant.add({})
    expected = epsilon_of(lambda epsilon: sampled_delta(epsilon, noise, q), 1e-5)
    assert accountant.epsilon(1e-5) == pytest.approx(expected, rel=1e-3, abs=1e-4)


def test_many_sampled_rounds_are_below_the_published_bound() -> None:
    """Abadi et al. (2016), section 4: q = 0.01, sigma = 4, 10,000 steps, delta 1e-5; the moments accountant's 1.26."""
    from dp_accounting import GaussianDpEvent, PoissonSampledDpEvent
    from dp_accounting.rdp import RdpAccountant

    published = RdpAccountant()
    published.compose(PoissonSampledDpEvent(0.01, GaussianDpEvent(4.0)), 10_000)
    accountant = SampledCohorts(4.0, 0.01)
    accountant.load_state_dict({"rounds": 10_000, "probability": 0.01})
    assert accountant.epsilon(1e-5) < published.get_epsilon(1e-5) < 1.26
    # The central limit of sampled Gaussians, mu = q sqrt(T (exp(1 / sigma^2) - 1)) (Bu et al., 2020)
    limit = epsilon_of(lambda epsilon: gaussian_delta(epsilon, 0.01 * (10_000 * (exp(1 / 16) - 1)) ** 0.5), 1e-5)
    assert accountant.epsilon(1e-5) == pytest.approx(limit, rel=0.02)


def test_the_noise_for_a_target_keeps_it_closely(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uses a coarser grid of privacy losses than the package, to save time."""
    from dp_accounting import pld

    coarse, mechanism = {"value_discretization_interval": 5e-3}, pld.privacy_loss_distribution.from_gaussian_mechanism
    monkeypatch.setattr(pld, "PLDAccountant", partial(pld.PLDAccountant, **coarse))
    coarse_mechanism = lambda *noise, **settings: mechanism(*noise, **{**settings, **coarse})  # noqa: E731
    monkeypatch.setattr(pld.privacy_loss_distribution, "from_gaussian_mechanism", coarse_mechanism)
    noise = SampledCohorts.noise_for(4.0, 1e-5, rounds=50, probability=0.1)
    for factor, is_within in ((1.0, True), (0.99, False)):
        accountant = SampledCohorts(noise * factor, 0.1)
        accountant.load_state_dict({"rounds": 50, "probability": 0.1})
        assert (accountant.epsilon(1e-5) <= 4.0) == is_within


def test_a_state_of_another_probability_is_refused() -> None:
    state = SampledCohorts(1.5, 0.2).state_dict()
    with pytest.raises(CheckpointError, match=r"model\.cohort\.ratio: 0\.01 is not the checkpoint's 0\.2"):
        SampledCohorts(1.5, 0.01).load_state_dict(state)
