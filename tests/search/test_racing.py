"""Racing: its test by brute force, who may drop whom by hand, and searches that race."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.records import SearchFiles
from lit_fednas.search import NSGA2, Evaluator, Exhaustive, FederatedEvaluation, Racing
from lit_fednas.search.racing import Candidate, Race, Standings, evidence
from lit_fednas.tiers import Budgets
from tests.search import small

RACING = Racing(confidence=0.5, first=4)  # of 40 examples: only a bold race drops anything
BOTH, LARGE = frozenset({"small", "large"}), frozenset({"large"})


@pytest.fixture(scope="module")
def trained() -> Any:
    return small.trained_run(recalibrate_batches=3)


def search(trained: Any, folder: Path, **settings: Any) -> SearchFiles:
    raced = {"racing": RACING, "method": NSGA2(population=8, sample=6), "evaluations": 12}
    return small.search(trained, folder, **{**raced, **settings})


POPULATIONS = {
    "no difference": [1, 1, -1, -1, 0, 0],
    "shares": [0.5, -0.25, 0.75, -1, 0, 0],
    "better by one": [1, 0, -1, -1, 0, 0],
    "better": [1, -1, -1, -1, -1, -1],
    "certain": [0, 0, 0, 0, 0, 0],
}


@pytest.mark.parametrize("population", POPULATIONS.values(), ids=POPULATIONS)
def test_evidence_by_all_orders(population):
    """Of a mean of zero it is 1 on average after any number of draws, of a lower one at most; and Ville's bound."""
    orders = list(itertools.permutations(population))
    paths = np.exp([[evidence(np.array(order[:seen]), 6) for seen in range(1, 7)] for order in orders])
    if sum(population) == 0:
        # up to where nothing is left to bet on: then what is left must be -1 each
        assert paths[:, :3].mean(0) == pytest.approx(np.ones(3), abs=1e-9)
    assert (paths.mean(0) <= 1 + 1e-9).all()
    for level in (0.9, 0.75, 0.5, 0.3, 0.1):
        assert (paths.max(1) >= 1 / level).mean() <= level


def test_rivals_by_hand():
    """The least error of those that cost no more and fit every tier that the candidate fits."""
    standings = Standings(Racing(confidence=0.94))
    assert standings.candidate("x", 5, BOTH, 0) == Candidate("x")  # nobody is known
    standings.add(Candidate("cheap"), 1, 0.5, BOTH)
    standings.add(Candidate("middle"), 3, 0.4, LARGE)
    standings.add(Candidate("worse"), 4, 0.45, LARGE)  # is dominated: nobody's rival
    standings.add(Candidate("dear"), 9, 0.1, BOTH)
    assert standings.candidate("x", 0.5, BOTH, 0).rival is None  # all cost more
    assert standings.candidate("x", 1, BOTH, 0).rival == "cheap"
    assert standings.candidate("x", 5, LARGE, 0).rival == "middle"
    assert standings.candidate("x", 5, BOTH, 0).rival == "cheap"  # middle does not fit the small tier
    assert standings.candidate("x", 9, BOTH, 0).rival == "dear"


def test_improvements_are_counted():
    """Those that have a rival and are no worse; each lowers the level, and so does every place before."""
    standings = Standings(Racing(confidence=0.94))
    standings.add(Candidate("a"), 2, 0.5, BOTH)
    assert standings.candidate("x", 2, BOTH, 0).level == pytest.approx(0.06 / 2)
    assert standings.candidate("x", 2, BOTH, 2).level == pytest.approx(0.06 / 12)
    standings.add(Candidate("worse", "a", 0.03), 2, 0.6, BOTH)
    assert standings.candidate("x", 2, BOTH, 0).level == pytest.approx(0.06 / 2)
    standings.add(Candidate("better", "a", 0.03), 2, 0.4, BOTH)
    standings.add(Candidate("better", "a", 0.03), 2, 0.4, BOTH)  # again, in another tier: nothing new
    standings.add(Candidate("same", "a", 0.03), 2, 0.5, BOTH)  # a tie counts as no worse
    assert standings.candidate("x", 2, BOTH, 0).level == pytest.approx(0.06 / 12)


def test_what_is_dropped_has_its_rivals_accuracy_less_the_difference(trained):
    module, data = trained
    ((inputs, targets),) = data.val_dataloader()
    batches = list(zip(inputs.split([13, 27]), targets.split([13, 27]), strict=True))
    recalibration = module.recalibration_batches(data.clients)
    evaluator = Evaluator(module.supernet, batches, module.evaluation, recalibration, data.task)
    race = Race(evaluator, RACING, "accuracy", 0)
    archs = sorted(evaluator.supernet.space.each(), key=lambda arch: evaluator(arch)["accuracy"])
    worst, best = archs[0], next(arch for arch in archs[::-1] if evaluator(arch)["accuracy"] < 1)
    scored = race.score(Candidate(worst, best, 0.3))
    seen = int(scored["examples"])
    assert seen in (4, 8, 16, 32)
    order = race.order(worst)[:seen]
    theirs, own = (race.evaluator.answering(arch)(order).mean(0) for arch in (best, worst))
    for place, name in enumerate(("accuracy", "loss")):
        assert scored[name] == pytest.approx(max(0, evaluator(best)[name] + own[place] - theirs[place]), abs=1e-5)
    assert scored["loss"] != pytest.approx(own[1], abs=1e-3)  # not the mean of these examples alone
    assert scored["accuracy"] < evaluator(best)["accuracy"]
    assert race.score(Candidate(best, worst, 0.3))["examples"] == 40  # the better one is never dropped
    assert sorted(race.order(worst).tolist()) == list(range(40))
    assert race.order(worst).tolist() != race.order(best).tolist()  # each its own draw


def test_the_front_is_the_exhaustive_one(trained, tmp_path):
    every = {"method": Exhaustive(), "evaluations": 1000}
    plain = search(trained, tmp_path / "plain", **every, racing=None)
    raced = search(trained, tmp_path / "raced", **every, racing=Racing(first=4))
    fronts = [[(row["tier"], row["macs"], row["accuracy"]) for row in files.rows("front")] for files in (plain, raced)]
    assert fronts[0] == fronts[1]
    rows = raced.rows("evaluations")
    dropped = [row for row in rows if row["examples"] < 40]
    assert dropped
    complete = {row["arch"]: row for row in rows if row["examples"] == 40}
    assert {row["arch"] for row in raced.rows("front")} <= complete.keys()
    for row in dropped:  # its estimate says what is known of it
        assert any(one["macs"] <= row["macs"] and one["accuracy"] > row["accuracy"] for one in complete.values())


def test_a_budget_is_spent_on_more_architectures_than_in_full(trained, tmp_path):
    every = {"method": Exhaustive(), "tiers": Budgets({"all": {"macs": 1e9}})}
    rows = search(trained, tmp_path, evaluations=20, **every).rows("evaluations")
    assert 20 * 40 <= sum(row["examples"] for row in rows) < 21 * 40
    assert 20 < len(rows) < 36


def test_stopped_and_resumed_equals_straight(trained, tmp_path):
    straight = small.outcome(search(trained, tmp_path / "straight"))
    assert any(row["examples"] < 40 for row in straight["evaluations"])
    with small.stopped_after(13):  # in the middle of what is scored together
        search(trained, tmp_path)
    assert small.outcome(search(trained, tmp_path)) == straight
    with pytest.raises(ConfigError, match="holds a search with other"):
        search(trained, tmp_path, racing=Racing(0.5, first=5))


@pytest.mark.parametrize(
    ("racing", "settings", "words"),
    [
        ({}, {"metric": "loss"}, r"search.racing: 'loss' is not a mean of what is between 0 and 1"),
        ({"first": 40}, {}, r"search.racing.first: 40 leaves nothing of 40 validation examples"),
        (
            {},
            {"federated": FederatedEvaluation()},
            r"search.racing: .* has no meaning for the scores of search.federated",
        ),
        ({"confidence": 1.0}, {}, r"search.racing.confidence"),
    ],
)
def test_races_that_make_no_sense(trained, tmp_path, racing, settings, words):
    with pytest.raises(ConfigError, match=words):
        search(trained, tmp_path, racing=Racing(**racing), **settings)
    assert not (tmp_path / "search").exists()
