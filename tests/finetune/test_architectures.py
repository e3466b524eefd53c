"""Fine-tuning of random architectures in place of the search's; the best one is the tier's (App. F.1)."""

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
def random_run(searched_once, tmp_path_factory) -> Trained:
    """Two architectures per tier, trained for a round in a folder without a search. Read only."""
    run = searched_once._replace(folder=tmp_path_factory.mktemp("random"))
    run.finetune(architectures=COUNT, rounds=1)
    return run


@pytest.fixture
def files(random_run) -> FinetuneFiles:
    return random_run.files


def archs(files: FinetuneFiles) -> dict[str, list[str]]:
    texts: dict[str, list[str]] = {}
    for row in rows(files.folder / "candidates.csv"):
        texts.setdefault(row["tier"], []).append(row["arch"])
    return texts


def test_distinct_architectures_of_each_tier_are_trained(random_run, files):
    supernet = random_run.module.supernet
    assert {tier: len(set(texts)) for tier, texts in archs(files).items()} == dict.fromkeys(RANGES, COUNT)
    for row in rows(files.folder / "candidates.csv"):
        lower, upper = RANGES[row["tier"]]
        assert lower < supernet.macs(supernet.space.parse(row["arch"])) <= upper
        (record,) = read_rounds(random_run.path(row["tier"], int(row["number"])))
        assert {client["arch"] for client in record["clients"]} == {"whole"}
        assert {client["client"] for client in record["clients"]} <= set(ELIGIBLE[row["tier"]])


def test_the_best_on_the_validation_data_is_the_tiers(random_run, files):
    candidates = rows(files.folder / "candidates.csv")
    for tier, best in by_tier(files).items():
        tier_rows = [row for row in candidates if row["tier"] == tier]
        expected = max(tier_rows, key=lambda row: float(row["val_accuracy"]))  # max returns the first of equal rows
        assert {name: best[name] for name in expected} == expected
        assert_same(last_weights(random_run.path(tier, int(best["number"]))), tier_weights(files)[tier])
        assert files.tier_model(tier).arch == best["arch"]
        assert files.tier_model(tier).metrics["val_accuracy"] == float(best["val_accuracy"])


def test_the_rank_correlation_of_all_candidates(files, tmp_path):
    """Kendall's tau: concordant minus discordant pairs, divided by the geometric mean of the untied pairs."""
    candidates = rows(files.folder / "candidates.csv")
    scores = [(float(row["val_accuracy_before"]), float(row["test_accuracy"])) for row in candidates]
    pairs = [(a - c, b - d) for (a, b), (c, d) in itertools.combinations(scores, 2)]
    signs = [[(difference > 0) - (difference < 0) for difference in pair] for pair in pairs]
    untied = [sum(abs(sign[index]) for sign in signs) for index in (0, 1)]
    tau = sum(first * second for first, second in signs) / math.sqrt(math.prod(untied))
    assert len(pairs) == 6 * 5 / 2
    assert files.rank_correlation() == pytest.approx(tau)

    files_copy = FinetuneFiles(tmp_path)
    files_copy.write_settings({**files.settings(), "initial": "random"})
    files_copy.write("candidates", candidates)
    assert files_copy.rank_correlation() is None  # accuracies of random weights have no rank
    files_copy.write_settings(files.settings())
    files_copy.write("candidates", candidates[:4])  # a rank correlation needs more candidates
    assert files_copy.rank_correlation() is None


def test_draws_do_not_depend_on_other_tiers_or_their_number(random_run, files, tmp_path):
    tiers = ClientTiers(Ranges("middle", "large"), ListedTiers({"middle": [0, 1, 2, 4, 5], "large": [3]}))
    fewer = random_run._replace(module=module_of(random_run.module.supernet, tiers=tiers), folder=tmp_path)
    assert archs(fewer.finetune(**QUICK, architectures=1)) == {
        tier: archs(files)[tier][:1] for tier in ("middle", "large")
    }
