"""Racing: its test by brute force, who may drop whom by hand, and searches that race."""

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torchmetrics import MeanSquaredError

from lit_fednas.errors import ConfigError
from lit_fednas.federation import EvaluationSettings
from lit_fednas.federation.ranks import Ranks
from lit_fednas.records import SearchFiles
from lit_fednas.search import NSGA2, Evaluator, Exhaustive, FederatedEvaluation, Racing, evaluations
from lit_fednas.search.evaluations import Evaluations, Processes, Scorer
from lit_fednas.search.racing import Candidate, Race, Standings, evidence
from lit_fednas.tiers import ArchitectureCosts, Budgets
from tests.search import small
from tests.support import make_module, tiny_data

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


def test_evidence_by_hand():
    """Six of ten are one: the other four cannot make up for it; five and a half can. The fewer are left, the surer."""
    assert evidence(np.array([1.0] * 6), 10) == float("inf") == evidence(np.array([1.0] * 5 + [0.0]), 10)
    assert np.isfinite(evidence(np.array([1.0] * 5), 10))
    better = np.array([1, 0, 0, 1, 1, -1, 1, 0, 1, 1] * 50)
    assert evidence(better, 600) > evidence(better, 2000) > evidence(better, 10**9) > evidence(better[:100], 10**9)
    assert evidence(better, 2000) > np.log(1e5)
    assert evidence(-better, 2000) < 0


def test_levels_add_up_to_what_is_left_of_the_confidence():
    racing = Racing(confidence=0.95)
    levels = [racing.level(count) for count in range(10_000)]
    assert levels == sorted(levels, reverse=True)
    assert 0.0499 < sum(levels) <= 0.05


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


def test_mistakes_are_as_rare_as_was_said():
    """The hardest case: every candidate is better than its rival, by one of 60 examples; half of the races may fail."""
    size, mistakes = 60, 0
    for seed in range(100):
        draws = np.random.default_rng(seed)
        standings = Standings(Racing(confidence=0.5))
        right = {0: draws.permutation(np.arange(size) < 24)}
        standings.add(Candidate(0), 1, 0.6, BOTH)
        for number in range(1, 10):
            candidate = standings.candidate(number, 1, BOTH, 0)
            rivals = right[candidate.rival]
            own = rivals.copy()
            own[draws.choice(np.flatnonzero(rivals), 10, replace=False)] = False
            own[draws.choice(np.flatnonzero(~rivals), 11, replace=False)] = True
            gap = (rivals.astype(float) - own)[draws.permutation(size)]
            if any(evidence(gap[:seen], size) >= -np.log(candidate.level) for seen in range(1, size)):
                mistakes += 1
                break
            right[number] = own
            standings.add(candidate, 1, 1 - own.mean(), BOTH)
        else:
            assert standings.candidate(10, 1, BOTH, 0).level == Racing(confidence=0.5).level(9)
    assert 5 < mistakes < 50  # some: the bound is not so wide that it says nothing


def evaluator_of(trained: Any, metrics: Any = None) -> Evaluator:
    module, data = trained
    ((inputs, targets),) = data.val_dataloader()
    batches = list(zip(inputs.split([13, 27]), targets.split([13, 27]), strict=True))
    recalibration = module.recalibration_batches(data.clients)
    return Evaluator(module.supernet, batches, module.evaluation, recalibration, data.task, metrics)


def test_scores_in_full_are_the_evaluators(trained):
    evaluator = evaluator_of(trained)
    race = Race(evaluator, RACING, "accuracy", 0)
    whole = evaluator._examples[0].untyped_storage().data_ptr()
    assert all(inputs.untyped_storage().data_ptr() == whole for inputs, _ in evaluator.batches)  # they are kept once
    for arch in list(evaluator.supernet.space.each())[:6]:
        scored = race.score(Candidate(arch))
        assert scored.pop("examples") == 40
        assert scored == pytest.approx(evaluator_of(trained)(arch), rel=1e-5)
        right = race.answers(arch)[:, 0]
        assert race.evaluator.answering(arch)(torch.tensor([3, 0, 17]))[:, 0].tolist() == right[[3, 0, 17]].tolist()


def test_what_is_dropped_has_its_rivals_accuracy_less_the_difference(trained):
    evaluator = evaluator_of(trained)
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


class Both(Processes):
    """The first of two processes, which scores all."""

    def send(self, candidates: Any) -> Any:
        return candidates

    def gather(self, found: Any) -> Any:
        return found


@pytest.mark.parametrize(("processes", "written"), [(Both(Ranks(0, 2)), 16), (Processes(), 1)], ids=["two", "one"])
def test_what_is_scored_together_is_written_at_once(trained, tmp_path, monkeypatch, processes, written):
    monkeypatch.setattr(evaluations, "deal", lambda work, ranks: [range(len(work)), ()])
    evaluator = evaluator_of(trained)
    archs = list(evaluator.supernet.space.each())[:20]
    files = SearchFiles(tmp_path)
    scorer = Scorer(evaluator, ArchitectureCosts(evaluator.supernet), None, processes)
    rows = Evaluations(scorer, files).of("*", 0, archs, 20)
    first = next(rows)
    assert [row["arch"] for row in files.rows("evaluations")] == [str(arch) for arch in archs[:written]]
    assert [{"examples": None, **row} for row in (first, *rows)] == files.rows("evaluations")
    assert len(files.rows("evaluations")) == 20


def test_the_front_is_the_exhaustive_one(trained, tmp_path):
    every = {"method": Exhaustive(), "evaluations": 1000}
    plain = search(trained, tmp_path / "plain", **every, racing=None)
    raced = search(trained, tmp_path / "raced", **every, racing=Racing(first=4))
    fronts = [[(row["tier"], row["macs"], row["accuracy"]) for row in files.rows("front")] for files in (plain, raced)]
    assert fronts[0] == fronts[1]
    rows = raced.rows("evaluations")
    assert {row["arch"] for row in rows} == {row["arch"] for row in plain.rows("evaluations")}
    dropped = [row for row in rows if row["examples"] < 40]
    assert dropped
    complete = {row["arch"]: row for row in rows if row["examples"] == 40}
    assert {row["arch"] for row in raced.rows("front")} <= complete.keys()
    for row in dropped:  # its estimate says what is known of it
        assert any(one["macs"] <= row["macs"] and one["accuracy"] > row["accuracy"] for one in complete.values())
    fitting = [row for row in rows if row["macs"] <= 120_000 and row["parameters"] <= 4_000]
    assert raced.rows("tiers")[-1]["evaluations"] == sum(row["examples"] == 40 for row in fitting)
    (last,) = [row for row in raced.rows("history") if row["tier"] == "large"]
    assert last["evaluations"] < last["architectures"] == len(fitting)
    assert plain.rows("evaluations")[0]["examples"] is None


def test_a_budget_ends_within_a_generation(trained, tmp_path, monkeypatch):
    """Of 36 proposals the first 16 are known to each other by their places alone, then what is left of the budget.

    It is spent on more architectures than it would be in full.
    """
    places = []
    plain = Standings.candidate

    def noting(self: Any, arch: Any, cost: float, tiers: Any, place: int) -> Candidate:
        places.append(place)
        return plain(self, arch, cost, tiers, place)

    monkeypatch.setattr(Standings, "candidate", noting)
    every = {"method": Exhaustive(), "tiers": Budgets({"all": {"macs": 1e9}})}
    files = search(trained, tmp_path, evaluations=20, **every)
    rows = files.rows("evaluations")
    assert places[:20] == [*range(16), *range(4)]
    assert all(row["examples"] == 40 for row in rows[:16])
    spent = sum(row["examples"] for row in rows)
    assert 20 * 40 <= spent < 21 * 40
    assert 20 < len(rows) < 36
    assert files.rows("history")[-1]["evaluations"] == 21 - (spent == 20 * 40)


def test_stopped_and_resumed_equals_straight(trained, tmp_path):
    """In the middle of what is scored together too."""
    straight = small.outcome(search(trained, tmp_path / "straight"))
    assert any(row["examples"] < 40 for row in straight["evaluations"])
    for count in (2, 13):
        with small.stopped_after(count):
            search(trained, tmp_path / str(count))
        assert small.outcome(search(trained, tmp_path / str(count))) == straight, count
    for changed in ({"racing": None}, {"evaluations": 13}, {"racing": Racing(0.5, first=5)}):
        with pytest.raises(ConfigError, match="holds a search with other"):
            search(trained, tmp_path / "straight", **changed)


@pytest.mark.parametrize(
    ("racing", "settings", "words"),
    [
        ({}, {"metric": "loss"}, r"search.racing: 'loss' is not a mean of what is between 0 and 1"),
        ({"first": 40}, {}, r"search.racing.first: 40 leaves nothing of 40 validation examples"),
        ({"first": 4}, {"validation_share": 0.1}, r"search.racing.first: 4 leaves nothing of 4"),
        ({}, {"federated": FederatedEvaluation()}, r"search.racing: scores on the server's validation data"),
        ({"confidence": 1.0}, {}, r"search.racing.confidence"),
        ({"confidence": 0.0}, {}, r"search.racing.confidence"),
        ({"first": 0}, {}, r"search.racing.first"),
    ],
)
def test_races_that_make_no_sense(trained, tmp_path, racing, settings, words):
    with pytest.raises(ConfigError, match=words):
        search(trained, tmp_path, racing=Racing(**racing), **settings)
    assert not (tmp_path / "search").exists()


def test_examples_and_metrics_that_depend_on_each_other_do_not_race(trained, tmp_path):
    with pytest.raises(ConfigError, match=r"search.racing: norms use the statistics of the batch.*recalibrate_batches"):
        search((make_module(evaluation=EvaluationSettings(["largest"], recalibrate_batches=0)), tiny_data()), tmp_path)
    evaluator = evaluator_of(trained, {"mse": MeanSquaredError()})
    with pytest.raises(ConfigError, match=r"search.racing: 'mse' of model.metrics is not a mean over examples"):
        Race(evaluator, RACING, "accuracy", 0)
