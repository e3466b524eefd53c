"""FedTrans' Client Manager: Eq. 2 to 4 by hand, who may get which model, what is remembered."""

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
MACS = [SUITE.macs(Model(number)) for number in range(4)]  # 0, 3, 1, 2 from the cheapest to the dearest
WEAK, MIDDLE, STRONG = Tier("weak", {"macs": MACS[0]}), Tier("middle", {"macs": MACS[1]}), Tier("strong", {})


def by_utility(clients=10, tiers=(), places=(), suite=SUITE, kind=ByUtility, **settings) -> ByUtility:
    assignment = kind(**settings)
    assignment.setup(suite, Population(clients, tiers, places))
    return assignment


by_own = partial(by_utility, kind=ByOwnUtility)


def given(assignment: ByUtility, cohort, suite: ModelSuite = SUITE, seed: int = 0) -> list[int]:
    return [arch.number for arch in planned(assignment, 0, cohort, suite.space, np.random.default_rng(seed))]


def result(client: int, model: int, loss: float, status: str = "ok") -> ClientResult:
    return ClientResult(ClientTask(0, client, Model(model), 10), status, loss=loss)


def test_models_are_drawn_by_the_softmax_of_utilities():
    utilities = [0.3, -1.0, 1.1, 0.0]
    assignment = by_utility()
    assignment.load_state_dict({"known_utilities": {4: utilities}})
    draws = 8000
    counts = Counter(given(assignment, [4] * draws))
    total = sum(map(exp, utilities))
    for number, utility in enumerate(utilities):
        share = exp(utility) / total
        assert counts[number] / draws == pytest.approx(share, abs=4 * sqrt(share * (1 - share) / draws))
    alike = Counter(given(assignment, [5] * draws))  # has seen nothing
    assert all(alike[number] / draws == pytest.approx(0.25, abs=0.02) for number in range(4))


def test_nobody_gets_what_its_tier_cannot_run():
    places = (0, 1, 2)
    assignment = by_utility(clients=3, tiers=(WEAK, MIDDLE, STRONG), places=places)
    assignment.load_state_dict({"known_utilities": {0: [0.0, 50.0, 50.0, 50.0], 1: [0.0, 0.0, 50.0, 0.0]}})
    archs = given(assignment, [2, 0, 1] * 100)
    assert set(archs[0::3]) == {0, 1, 2, 3}
    assert set(archs[1::3]) == {0}
    assert set(archs[2::3]) == {0, 1, 3}


def test_two_rounds_by_hand():
    """Losses 1, 2, 3 are -z, 0, z with z = sqrt(3/2); then 4 and 2 are 1 and -1."""
    suite = grown_suite(models=3)
    near = (40 / 80 + 222 / 438 + 1) / 3  # 0 and 1
    far = (40 / 80 + 222 / 876 + 28 / 52) / 4  # 0 and 2: one cell more
    late = (1 + 438 / 876 + 28 / 52) / 4  # 1 and 2
    z = sqrt(1.5)
    assignment = by_utility(suite=suite)
    assignment.observe([result(7, 0, 1.0), result(8, 1, 2.0), result(9, 2, 3.0)])
    state = assignment.state_dict()["known_utilities"]
    assert state[7] == pytest.approx([z, z * near, z * far])
    assert state[8] == [0.0, 0.0, 0.0]
    assert state[9] == pytest.approx([-z * far, -z * late, -z])
    assignment.observe([result(7, 2, 4.0), result(8, 1, 2.0)])
    state = assignment.state_dict()["known_utilities"]
    assert state[7] == pytest.approx([z - far, z * near - late, z * far - 1])
    assert state[8] == pytest.approx([near, 1.0, late])
    assert state[9] == pytest.approx([-z * far, -z * late, -z])
    assert state.keys() == {7, 8, 9}


def test_what_failed_does_not_count():
    assignment = by_utility(suite=grown_suite(models=1))
    failed = [result(2, 0, float("nan"), "non-finite"), result(3, 0, 99.0, "error")]
    assignment.observe([result(0, 0, 1.0), *failed, result(1, 0, 3.0)])
    assert assignment.state_dict() == {"known_utilities": {0: [1.0], 1: [-1.0]}}
    before = assignment.state_dict()
    assignment.observe(failed)
    assignment.observe([])
    assert assignment.state_dict() == before


def test_models_that_a_client_cannot_run_do_not_learn():
    assignment = by_utility(clients=2, tiers=(WEAK, STRONG), places=(0, 1))
    assignment.observe([result(0, 0, 2.0), result(1, 0, 1.0)])
    state = assignment.state_dict()["known_utilities"]
    assert state[0] == [-1.0, 0.0, 0.0, 0.0]
    assert state[1] == pytest.approx([SUITE.similarity(0, number) for number in range(4)])
    assert min(state[1]) > 0


def test_equal_losses_say_nothing():
    assert standardised([7.0]) == [0.0]
    assert standardised([0.1] * 3) == [0.0] * 3  # the mean of three 0.1 is not 0.1


def test_losses_that_differ_by_a_rounding_error_are_numbers():
    assert np.isfinite(standardised([1.0, 1.0 + 2**-52])).all()


def test_new_models_inherit_their_parents_utilities():
    suite = grown_suite(models=1)
    assignment = by_utility(suite=suite)
    assignment.observe([result(0, 0, 1.0), result(1, 0, 3.0)])
    suite.add(*GROWTH[0][:2], seed=0, round=0)
    near = suite.similarity(0, 1)
    assert assignment.utilities(0) == [1.0, 1.0]
    assert assignment.utilities(5) == [0.0, 0.0]
    assignment.observe([result(0, 0, 3.0), result(1, 1, 1.0)])
    assert assignment.utilities(0) == pytest.approx([0.0, 1.0 - near])
    assert assignment.utilities(1) == pytest.approx([-1.0 + near, 0.0])
    suite.add(*GROWTH[1][:2], seed=0, round=1)  # from 1
    suite.add(*GROWTH[2][:2], seed=0, round=1)  # from 0
    assert assignment.utilities(0) == pytest.approx([0.0, 1.0 - near, 1.0 - near, 0.0])
    assert assignment.utilities(1) == pytest.approx([-1.0 + near, 0.0, 0.0, -1.0 + near])
    assert assignment.state_dict()["known_utilities"][0] == pytest.approx([0.0, 1.0 - near])
    assert set(given(assignment, [0] * 200, suite)) == {0, 1, 2, 3}


def test_deployed():
    assignment = by_utility(clients=4, tiers=(WEAK, MIDDLE, STRONG), places=(0, 1, 2, 2))
    assert [assignment.deployed(client).number for client in range(4)] == [0, 1, 2, 2]  # the largest of equals
    state = {0: [-9.0, 1.0, 2.0, 3.0], 1: [0.0, 1.0, 5.0, 3.0], 2: [0.5, 0.0, 0.0, 0.5], 3: [1.0, 0.9, 0.9, 0.9]}
    assignment.load_state_dict({"known_utilities": state})
    assert [assignment.deployed(client) for client in range(4)] == [Model(n) for n in (0, 3, 3, 0)]


def test_states_that_do_not_fit():
    assignment = by_utility()
    assignment.load_state_dict({"known_utilities": {0: [1.0]}})
    with pytest.raises(CheckpointError, match="client 10, the data have 10 clients; set"):
        assignment.load_state_dict({"known_utilities": {10: [0.0]}})
    assert assignment.utilities(0) == [1.0] * 4


def test_a_tier_that_can_run_nothing():
    poor = Tier("poor", {"macs": MACS[0] - 1})
    with pytest.raises(ConfigError, match=f"'poor' cannot afford the first model: macs .*{MACS[0]}.*raise its"):
        by_utility(clients=2, tiers=(poor, STRONG), places=(0, 1))


def test_own_losses_by_hand():
    """Averages of half and half; the other model moves along by the similarity."""
    own = by_own()
    assert own.utilities(3) == [0.0] * 4
    own.observe([result(3, 0, 2.0), result(5, 1, 9.0)])
    own.observe([result(3, 1, 1.0)])  # new to it: nothing moves
    own.observe([result(3, 0, 1.0)])  # 2.0 -> 1.5
    other = 1.0 - 0.5 * SUITE.similarity(0, 1)
    assert own.state_dict()["losses"] == {3: pytest.approx({0: 1.5, 1: other}), 5: {1: 9.0}}
    assert own.utilities(3) == pytest.approx([-1.0, 1.0, 1.0, 1.0])  # what it has not tried is as good as its best
    draws = 4000
    counts = Counter(given(own, [3] * draws))
    total = exp(-1) + 3 * exp(1)
    assert counts[0] / draws == pytest.approx(exp(-1) / total, abs=0.02)


def test_deployed_on_what_was_tried():
    own = by_own(4, [WEAK, STRONG], [0, 0, 1, 1])
    assert [own.deployed(client) for client in range(4)] == [Model(0)] * 4
    own.observe([result(2, 1, 1.0), result(1, 0, 0.1)])
    own.observe([result(2, 2, 3.0)])
    assert own.deployed(2) == Model(1)
    assert own.deployed(3) == Model(1)  # as its tier
    assert own.deployed(0) == Model(0)
    for model, accuracy in ((1, 0.6), (2, 0.7)):
        own.observe([replace(result(2, model, 1.0 + model), tested={"accuracy": accuracy}, num_tested=5)])
    assert own.deployed(2) == Model(2)  # better on its own validation data, whatever the losses
    restored = by_own(4, [WEAK, STRONG], [0, 0, 1, 1])
    restored.load_state_dict(own.state_dict())
    assert restored.state_dict() == own.state_dict()
    assert restored.deployed(2) == Model(2)
    with pytest.raises(CheckpointError, match="client 9, the data have 4 clients"):
        restored.load_state_dict({"losses": {9: {0: 1.0}}, "accuracies": {}})
