"""Architectures drawn in place of the search's: which, how many, and that the best is kept (App. F.1)."""

import itertools
import math

import pytest

from lit_fednas.federation import ClientSettings, UniformCohort
from lit_fednas.records import FinetuneFiles, read_rounds
from lit_fednas.tiers import ClientTiers, ListedTiers
from tests.finetune.small import (
    ELIGIBLE,
    RANGES,
    Ranges,
    Trained,
    by_tier,
    last_weights,
    module_of,
    rows,
    tier_weights,
)
from tests.support import assert_same, sgd

QUICK = {"rounds": 1, "client": ClientSettings(sgd(0.0), batch_size=32), "cohort": UniformCohort(count=1)}
COUNT = 2


@pytest.fixture(scope="module")
def drawn(searched_once, tmp_path_factory) -> Trained:
    """Two architectures per tier trained for a round, in a folder without a search. Read only."""
    made = searched_once._replace(folder=tmp_path_factory.mktemp("drawn"))
    made.finetune(architectures=COUNT, rounds=1)
    return made


@pytest.fixture
def files(drawn) -> FinetuneFiles:
    return drawn.files


def archs(files: FinetuneFiles) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for row in rows(files.folder / "candidates.csv"):
        found.setdefault(row["tier"], []).append(row["arch"])
    return found


def test_distinct_architectures_of_each_tier_are_trained(drawn, files):
    supernet = drawn.module.supernet
    assert {tier: len(set(texts)) for tier, texts in archs(files).items()} == dict.fromkeys(RANGES, COUNT)
    for row in rows(files.folder / "candidates.csv"):
        least, most = RANGES[row["tier"]]
        assert least < supernet.macs(supernet.space.parse(row["arch"])) <= most
        (record,) = read_rounds(drawn.path(row["tier"], int(row["number"])))
        assert {client["arch"] for client in record["clients"]} == {"whole"}
        assert {client["client"] for client in record["clients"]} <= set(ELIGIBLE[row["tier"]])


def test_the_best_on_the_validation_data_is_the_tiers(drawn, files):
    candidates = rows(files.folder / "candidates.csv")
    for tier, best in by_tier(files).items():
        own = [row for row in candidates if row["tier"] == tier]
        expected = max(own, key=lambda row: float(row["val_accuracy"]))  # the first of equals
        assert {name: best[name] for name in expected} == expected
        assert_same(last_weights(drawn.path(tier, int(best["number"]))), tier_weights(files)[tier])
        assert files.tier_model(tier).arch == best["arch"]
        assert files.tier_model(tier).metrics["val_accuracy"] == float(best["val_accuracy"])


def test_the_rank_correlation_of_all_candidates(files, tmp_path):
    """Kendall's tau: concordant minus discordant pairs, by the geometric mean of the pairs that are no ties."""
    found = rows(files.folder / "candidates.csv")
    scores = [(float(row["val_accuracy_before"]), float(row["test_accuracy"])) for row in found]
    pairs = [(a - c, b - d) for (a, b), (c, d) in itertools.combinations(scores, 2)]
    signs = [[(one > 0) - (one < 0) for one in pair] for pair in pairs]
    untied = [sum(abs(sign[place]) for sign in signs) for place in (0, 1)]
    tau = sum(first * second for first, second in signs) / math.sqrt(math.prod(untied))
    assert len(pairs) == 6 * 5 / 2
    assert files.rank_correlation() == pytest.approx(tau)

    made = FinetuneFiles(tmp_path)
    made.write_settings({**files.settings(), "initial": "random"})
    made.write("candidates", found)
    assert made.rank_correlation() is None  # the accuracies before are those of random weights
    made.write_settings(files.settings())
    made.write("candidates", found[:4])  # of few, a rank correlation says nothing
    assert made.rank_correlation() is None


def test_draws_do_not_depend_on_other_tiers_nor_on_how_many(drawn, files, tmp_path):
    tiers = ClientTiers(Ranges("middle", "large"), ListedTiers({"middle": [0, 1, 2, 4, 5], "large": [3]}))
    fewer = drawn._replace(module=module_of(drawn.module.supernet, tiers=tiers), folder=tmp_path)
    assert archs(fewer.finetune(**QUICK, architectures=1)) == {
        tier: archs(files)[tier][:1] for tier in ("middle", "large")
    }
