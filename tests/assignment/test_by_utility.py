"""Tests FedTrans' Client Manager: Eq. 2 to 4 by hand, compatible models, and the state."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import partial
from math import exp, sqrt

import numpy as np
import pytest

from lit_fednas.assignment import ByOwnUtility, ByUtility
from lit_fednas.assignment.by_utility import standardised
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.messages import ClientResult, ClientTask
from lit_fednas.supernets import Model, ModelSuite
from lit_fednas.tiers import Population, Tier
from tests.assignment.instances import planned
from tests.supernets.suites import GROWTH, grown_suite

SUITE = grown_suite()
MACS = [SUITE.macs(Model(number)) for number in range(4)]  # ascending: models 0, 3, 1, 2
WEAK, MIDDLE, STRONG = Tier("weak", {"macs": MACS[0]}), Tier("middle", {"macs": MACS[1]}), Tier("strong", {})


def by_utility(clients=10, tiers=(), tier_numbers=(), suite=SUITE, kind=ByUtility, **settings) -> ByUtility:
    assignment = kind(**settings)
    assignment.setup(suite, Population(clients, tiers, tier_numbers))
    return assignment


by_own = partial(by_utility, kind=ByOwnUtility)


def drawn_models(assignment: ByUtility, cohort, suite: ModelSuite = SUITE, seed: int = 0) -> list[int]:
    return [arch.number for arch in planned(assignment, 0, cohort, suite.space, np.random.default_rng(seed))]


def result(client: int, model: int, loss: float, status: str = "ok") -> ClientResult:
    return ClientResult(ClientTask(0, client, Model(model), 10), status, loss=loss)


def test_models_are_drawn_by_the_softmax_of_utilities():
    utilities = [0.3, -1.0, 1.1, 0.0]
    assignment = by_utility()
    assignment.load_state_dict({"known_utilities": {4: utilities}})
    draws = 8000
    counts = Counter(drawn_models(assignment, [4] * draws))
    total = sum(map(exp, utilities))
    for number, utility in enumerate(utilities):
        share = exp(utility) / total
        assert counts[number] / draws == pytest.approx(share, abs=4 * sqrt(share * (1 - share) / draws))
    uniform_counts = Counter(drawn_models(assignment, [5] * draws))  # a new client
    assert all(uniform_counts[number] / draws == pytest.approx(0.25, abs=0.02) for number in range(4))


def test_clients_train_only_models_within_their_limits():
    tier_numbers = (0, 1, 2)
    assignment = by_utility(clients=3, tiers=(WEAK, MIDDLE, STRONG), tier_numbers=tier_numbers)
    assignment.load_state_dict({"known_utilities": {0: [0.0, 50.0, 50.0, 50.0], 1: [0.0, 0.0, 50.0, 0.0]}})
    archs = drawn_models(assignment, [2, 0, 1] * 100)
    assert set(archs[0::3]) == {0, 1, 2, 3}
    assert set(archs[1::3]) == {0}
    assert set(archs[2::3]) == {0, 1, 3}


def test_two_rounds_by_hand():
    """Losses 1, 2, 3 are -z, 0, z with z = sqrt(3/2); then 4 and 2 are 1 and -1."""
    suite = grown_suite(models=3)
    sim_01 = (40 / 80 + 222 / 438 + 1) / 3  # similarity of models 0 and 1
    sim_02 = (40 / 80 + 222 / 876 + 28 / 52) / 4  # models 0 and 2, which has one more cell
    sim_12 = (1 + 438 / 876 + 28 / 52) / 4  # models 1 and 2
    z = sqrt(1.5)
    assignment = by_utility(suite=suite)
    assignment.observe([result(7, 0, 1.0), result(8, 1, 2.0), result(9, 2, 3.0)])
    state = assignment.state_dict()["known_utilities"]
    assert state[7] == pytest.approx([z, z * sim_01, z * sim_02])
    assert state[8] == [0.0, 0.0, 0.0]
    assert state[9] == pytest.approx([-z * sim_02, -z * sim_12, -z])
    assignment.observe([result(7, 2, 4.0), result(8, 1, 2.0)])
    state = assignment.state_dict()["known_utilities"]
    assert state[7] == pytest.approx([z - sim_02, z * sim_01 - sim_12, z * sim_02 - 1])
    assert state[8] == pytest.approx([sim_01, 1.0, sim_12])
    assert state[9] == pytest.approx([-z * sim_02, -z * sim_12, -z])
    assert state.keys() == {7, 8, 9}


def test_failed_results_do_not_count():
    assignment = by_utility(suite=grown_suite(models=1))
    failed = [result(2, 0, float("nan"), "non-finite"), result(3, 0, 99.0, "error")]
    assignment.observe([result(0, 0, 1.0), *failed, result(1, 0, 3.0)])
    assert assignment.state_dict() == {"known_utilities": {0: [1.0], 1: [-1.0]}}
    old_state = assignment.state_dict()
    assignment.observe(failed)
    assignment.observe([])
    assert assignment.state_dict() == old_state


def test_incompatible_models_keep_their_utilities():
    assignment = by_utility(clients=2, tiers=(WEAK, STRONG), tier_numbers=(0, 1))
    assignment.observe([result(0, 0, 2.0), result(1, 0, 1.0)])
    state = assignment.state_dict()["known_utilities"]
    assert state[0] == [-1.0, 0.0, 0.0, 0.0]
    assert state[1] == pytest.approx([SUITE.similarity(0, number) for number in range(4)])
    assert min(state[1]) > 0


def test_equal_losses_become_zeros():
    assert standardised([7.0]) == [0.0]
    assert standardised([0.1] * 3) == [0.0] * 3  # the mean of three 0.1 is not 0.1


def test_losses_with_rounding_errors_are_finite():
    assert np.isfinite(standardised([1.0, 1.0 + 2**-52])).all()


def test_new_models_inherit_their_parents_utilities():
    suite = grown_suite(models=1)
    assignment = by_utility(suite=suite)
    assignment.observe([result(0, 0, 1.0), result(1, 0, 3.0)])
    suite.add(*GROWTH[0][:2], seed=0, round=0)
    similarity = suite.similarity(0, 1)
    assert assignment.utilities(0) == [1.0, 1.0]
    assert assignment.utilities(5) == [0.0, 0.0]
    assignment.observe([result(0, 0, 3.0), result(1, 1, 1.0)])
    assert assignment.utilities(0) == pytest.approx([0.0, 1.0 - similarity])
    assert assignment.utilities(1) == pytest.approx([-1.0 + similarity, 0.0])
    suite.add(*GROWTH[1][:2], seed=0, round=1)  # child of model 1
    suite.add(*GROWTH[2][:2], seed=0, round=1)  # child of model 0
    assert assignment.utilities(0) == pytest.approx([0.0, 1.0 - similarity, 1.0 - similarity, 0.0])
    assert assignment.utilities(1) == pytest.approx([-1.0 + similarity, 0.0, 0.0, -1.0 + similarity])
    assert assignment.state_dict()["known_utilities"][0] == pytest.approx([0.0, 1.0 - similarity])
    assert set(drawn_models(assignment, [0] * 200, suite)) == {0, 1, 2, 3}


def test_deployed():
    assignment = by_utility(clients=4, tiers=(WEAK, MIDDLE, STRONG), tier_numbers=(0, 1, 2, 2))
    assert [assignment.deployed(client).number for client in range(4)] == [0, 1, 2, 2]  # the largest among ties
    state = {0: [-9.0, 1.0, 2.0, 3.0], 1: [0.0, 1.0, 5.0, 3.0], 2: [0.5, 0.0, 0.0, 0.5], 3: [1.0, 0.9, 0.9, 0.9]}
    assignment.load_state_dict({"known_utilities": state})
    assert [assignment.deployed(client) for client in range(4)] == [Model(n) for n in (0, 3, 3, 0)]


def test_wrong_states_are_refused():
    assignment = by_utility()
    assignment.load_state_dict({"known_utilities": {0: [1.0]}})
    with pytest.raises(CheckpointError, match="client 10, the data have 10 clients; set"):
        assignment.load_state_dict({"known_utilities": {10: [0.0]}})
    assert assignment.utilities(0) == [1.0] * 4


def test_a_tier_must_afford_the_first_model():
    poor = Tier("poor", {"macs": MACS[0] - 1})
    with pytest.raises(ConfigError, match=f"'poor' cannot afford the first model: macs .*{MACS[0]}.*raise its"):
        by_utility(clients=2, tiers=(poor, STRONG), tier_numbers=(0, 1))


def test_own_losses_by_hand():
    """Averages have a momentum of 0.5; the other model changes by the similarity."""
    assignment = by_own()
    assert assignment.utilities(3) == [0.0] * 4
    assignment.observe([result(3, 0, 2.0), result(5, 1, 9.0)])
    assignment.observe([result(3, 1, 1.0)])  # the first loss of a model changes no other average
    assignment.observe([result(3, 0, 1.0)])  # 2.0 -> 1.5
    other_loss = 1.0 - 0.5 * SUITE.similarity(0, 1)
    assert assignment.state_dict()["losses"] == {3: pytest.approx({0: 1.5, 1: other_loss}), 5: {1: 9.0}}
    assert assignment.utilities(3) == pytest.approx([-1.0, 1.0, 1.0, 1.0])  # untrained models have the highest utility
    draws = 4000
    counts = Counter(drawn_models(assignment, [3] * draws))
    total = exp(-1) + 3 * exp(1)
    assert counts[0] / draws == pytest.approx(exp(-1) / total, abs=0.02)


def test_the_best_trained_model_is_deployed():
    assignment = by_own(4, [WEAK, STRONG], [0, 0, 1, 1])
    assert [assignment.deployed(client) for client in range(4)] == [Model(0)] * 4
    assignment.observe([result(2, 1, 1.0), result(1, 0, 0.1)])
    assignment.observe([result(2, 2, 3.0)])
    assert assignment.deployed(2) == Model(1)
    assert assignment.deployed(3) == Model(1)  # the best model of its tier
    assert assignment.deployed(0) == Model(0)
    for model, accuracy in ((1, 0.6), (2, 0.7)):
        assignment.observe([replace(result(2, model, 1.0 + model), tested={"accuracy": accuracy}, num_tested=5)])
    assert assignment.deployed(2) == Model(2)  # validation accuracy takes precedence over losses
    restored = by_own(4, [WEAK, STRONG], [0, 0, 1, 1])
    restored.load_state_dict(assignment.state_dict())
    assert restored.state_dict() == assignment.state_dict()
    assert restored.deployed(2) == Model(2)
    with pytest.raises(CheckpointError, match="client 9, the data have 4 clients"):
        restored.load_state_dict({"losses": {9: {0: 1.0}}, "accuracies": {}})
