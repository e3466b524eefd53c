"""MaxNet's beta: SuperFed, section 2.4, values worked out by hand."""

from __future__ import annotations

import pytest

from lit_fednas.aggregation import Beta, MaxNet
from lit_fednas.assignment import TrackingSandwich
from lit_fednas.callbacks import BetaDecay
from lit_fednas.errors import ConfigError
from lit_fednas.federation import UniformCohort
from tests.support import Noted, fit, make_module, tiny_data


# beta0 0.9, final 1/4, over 8 of 10 rounds; (1 + cos(pi/4)) / 2 = 0.853553, (1 + cos(3 pi/4)) / 2 = 0.146447
@pytest.mark.parametrize(
    ("decay", "expected"),
    [
        ("cosine", {0: 0.9, 2: 0.804810, 4: 0.575, 6: 0.345190, 8: 0.25, 9: 0.25}),
        ("linear", {0: 0.9, 2: 0.7375, 4: 0.575, 6: 0.4125, 8: 0.25, 9: 0.25}),
        ("constant", {0: 0.9, 2: 0.9, 4: 0.9, 6: 0.9, 8: 0.9, 9: 0.9}),
    ],
)
def test_beta_follows_the_formula(decay, expected):
    callback = BetaDecay(beta0=0.9, decay=decay, period=0.8)
    got = {round: callback.beta(round, 10, 4) for round in expected}
    assert got == pytest.approx(expected, abs=1e-6)


def test_an_extended_run_keeps_its_betas_if_the_period_is_in_rounds():
    """Eight clients: 0.125 from round 80 on. As a share, round 100 of 200 has 0.125 + 0.775 (1 + cos(5 pi / 8)) / 2."""
    share, rounds = BetaDecay(), BetaDecay(rounds=80)
    for round in (0, 20, 40, 79, 80, 100):
        assert rounds.beta(round, 100, 8) == rounds.beta(round, 200, 8) == rounds.beta(round, -1, 8)
        assert rounds.beta(round, 100, 8) == pytest.approx(share.beta(round, 100, 8))
    assert rounds.beta(40, 200, 8) == pytest.approx(0.5125)
    assert rounds.beta(100, 200, 8) == 0.125
    assert share.beta(100, 200, 8) == pytest.approx(0.364210, abs=1e-6)


def test_decay_needs_an_end():
    with pytest.raises(ConfigError, match=r"trainer\.max_rounds"):
        fit(make_module(aggregation=MaxNet()), tiny_data(), -1, callbacks=[BetaDecay()])


def test_every_round_uses_and_logs_its_beta():
    """Whatever the aggregation's own is."""
    used = Noted("on_cohort_start", lambda trainer, module, round: round.values.get(Beta).value)
    logged = Noted("on_train_epoch_end", lambda trainer, module: float(trainer.callback_metrics["beta"]))
    module = make_module(assignment=TrackingSandwich(), aggregation=MaxNet(beta=0.123), cohort=UniformCohort(count=4))
    fit(module, tiny_data(), 4, callbacks=[BetaDecay(0.9, "linear", period=1.0), used, logged])
    assert used.all == pytest.approx([0.9, 0.7375, 0.575, 0.4125])
    assert logged.all == pytest.approx(used.all)
