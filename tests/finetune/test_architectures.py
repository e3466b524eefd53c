"""Architectures drawn in place of the search's: which, how many, and that the best is kept (App. F.1)."""

from __future__ import annotations

import itertools
import math

import pytest

from lit_fednas.federation import ClientSettings, UniformCohort
from lit_fednas.records import FinetuneFiles
from lit_fednas.search.tier_models import load_tier_network
from lit_fednas.tiers import Budgets, ClientTiers, ListedTiers
from tests.finetune.small import (
    ELIGIBLE,
    RANGES,
    Ranges,
    Trained,
    accuracy_and_loss,
    by_tier,
    cohorts,
    last_weights,
    module_of,
    only_batch,
    rounds,
    rows,
    tier_weights,
)
from tests.support import assert_same, sgd

QUICK = {"rounds": 1, "client": ClientSettings(sgd(0.0), batch_size=32), "cohort": UniformCohort(count=1)}
COUNT = 3


@pytest.fixture(scope="module")
def drawn(searched_once, tmp_path_factory) -> Trained:
    """Three architectures per tier trained for a round, in a folder without a search. Read only."""
    made = searched_once._replace(folder=tmp_path_factory.mktemp("drawn"))
    made.finetune(architectures=COUNT, rounds=1)
    return made


def archs(files: FinetuneFiles) -> dict[str, list[str]]:
    found = rows(files.folder / "candidates.csv")
    return {tier: [row["arch"] for row in found if row["tier"] == tier] for tier in {row["tier"] for row in found}}


def files_of(made: Trained) -> FinetuneFiles:
    return FinetuneFiles(made.folder / "finetune")


@pytest.mark.slow
def test_distinct_architectures_of_each_tier_are_trained(drawn):
    supernet = drawn.module.supernet
    found = archs(files_of(drawn))
    assert found.keys() == RANGES.keys()
    for tier, (least, most) in RANGES.items():
        assert len(set(found[tier])) == COUNT
        for text in found[tier]:
            assert least < supernet.macs(supernet.space.parse(text)) <= most
    for row in rows(files_of(drawn).folder / "candidates.csv"):
        folder = drawn.path(row["tier"], int(row["number"]))
        assert len(rounds(folder)) == 1
        assert {client["arch"] for record in rounds(folder) for client in record["clients"]} == {"whole"}
        assert {client for cohort in cohorts(folder) for client in cohort} <= set(ELIGIBLE[row["tier"]])
        arch = supernet.space.parse(row["arch"])
        assert last_weights(folder).keys() == supernet.subnet(arch).state_dict().keys()


def test_the_best_on_the_validation_data_is_the_tiers(drawn):
    files = files_of(drawn)
    inputs, targets = only_batch(drawn.data.val_dataloader())
    candidates = rows(files.folder / "candidates.csv")
    firsts = 0
    for tier, best in by_tier(files).items():
        own = [row for row in candidates if row["tier"] == tier]
        expected = max(own, key=lambda row: float(row["val_accuracy"]))  # the first of equals
        firsts += expected["number"] == "0"
        assert {name: best[name] for name in expected} == expected
        assert_same(last_weights(drawn.path(tier, int(best["number"]))), tier_weights(files)[tier])
        arch, network = load_tier_network(drawn.module.supernet, files, tier)
        assert str(arch) == best["arch"]
        assert accuracy_and_loss(network, inputs, targets)[0] == pytest.approx(float(best["val_accuracy"]), abs=1e-6)
        assert files.tier_model(tier).metrics["val_accuracy"] == float(best["val_accuracy"])
    assert firsts < len(RANGES)  # else the first might be taken always


def test_every_candidate_is_tested(drawn):
    inputs, targets = only_batch(drawn.data.test_dataloader())
    supernet = drawn.module.supernet
    for row in rows(files_of(drawn).folder / "candidates.csv"):
        network = supernet.subnet(supernet.space.parse(row["arch"]))
        network.load_state_dict(last_weights(drawn.path(row["tier"], int(row["number"]))))
        accuracy, loss = accuracy_and_loss(network.eval(), inputs, targets)
        assert float(row["test_accuracy"]) == pytest.approx(accuracy, abs=1e-6)
        assert float(row["test_loss"]) == pytest.approx(loss, rel=1e-5)


def test_the_rank_correlation_of_all_candidates(drawn, tmp_path):
    """Kendall's tau: concordant minus discordant pairs, by the geometric mean of the pairs that are no ties."""
    found = rows(files_of(drawn).folder / "candidates.csv")
    scores = [(float(row["val_accuracy_before"]), float(row["test_accuracy"])) for row in found]
    pairs = [(a - c, b - d) for (a, b), (c, d) in itertools.combinations(scores, 2)]
    signs = [[(one > 0) - (one < 0) for one in pair] for pair in pairs]
    untied = [sum(abs(sign[place]) for sign in signs) for place in (0, 1)]
    tau = sum(first * second for first, second in signs) / math.sqrt(math.prod(untied))
    assert len(pairs) == 9 * 8 / 2
    assert files_of(drawn).rank_correlation() == pytest.approx(tau)

    made = FinetuneFiles(tmp_path)
    assert made.rank_correlation() is None
    made.write_settings({"initial": "random"})
    made.write("candidates", found)
    assert made.rank_correlation() is None  # the accuracies before are those of random weights
    made.write_settings({"initial": "supernet"})
    made.write("candidates", [row | {"test_accuracy": 0.5} for row in found])
    assert made.rank_correlation() is None
    ranked = [row | {"val_accuracy_before": place, "test_accuracy": place} for place, row in enumerate(found)]
    for count, expected in ((4, None), (5, 1.0)):  # of few, a rank correlation says nothing
        made.write("candidates", ranked[:count])
        assert made.rank_correlation() == (expected and pytest.approx(expected))


def test_draws_do_not_depend_on_other_tiers_nor_on_how_many(drawn, tmp_path):
    found = archs(files_of(drawn))
    tiers = ClientTiers(Ranges("middle", "large"), ListedTiers({"middle": [0, 1, 2, 4, 5], "large": [3]}))
    made = drawn._replace(module=module_of(drawn.module.supernet, tiers=tiers), folder=tmp_path)
    fewer = archs(made.finetune(architectures=2, **QUICK))
    assert fewer == {tier: found[tier][:2] for tier in ("middle", "large")}
    other = archs(made.finetune(architectures=2, seed=9, name="other", **QUICK))
    assert other != fewer


def test_tiers_of_equal_limits_draw_differently(drawn, tmp_path):
    limits = {"macs": 1e9}
    tiers = ClientTiers(Budgets({"one": limits, "two": limits}), ListedTiers({"one": [0, 1, 2], "two": [3, 4, 5]}))
    made = drawn._replace(module=module_of(drawn.module.supernet, tiers=tiers), folder=tmp_path)
    found = archs(made.finetune(architectures=2, **QUICK))
    assert found["one"] != found["two"]


def test_a_tier_of_few_architectures_has_so_many_candidates(drawn, tmp_path):
    supernet = drawn.module.supernet
    paths = [supernet.space.decode(genes) for genes in itertools.product(range(9), range(9))]
    least = sorted(supernet.macs(path) for path in paths)[1]
    tiers = ClientTiers(Budgets({"least": {"macs": float(least)}}), ListedTiers({"least": range(6)}))
    made = drawn._replace(module=module_of(supernet, tiers=tiers), folder=tmp_path)
    found = archs(made.finetune(architectures=50, **QUICK))
    assert set(found["least"]) == {str(path) for path in paths if supernet.macs(path) <= least}
    assert 1 <= len(found["least"]) < 5
