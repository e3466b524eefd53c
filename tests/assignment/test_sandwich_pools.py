"""Tests sandwiches that draw from a pool, and pools from files."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from lit_fednas.aggregation import MaxNet
from lit_fednas.assignment import FromFile, Listed, RisingPath, Round, Sandwich, TrackingSandwich
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.messages import ClientResult, ClientTask, Largest, RoundValues
from lit_fednas.tiers import ArchitectureCosts, Population, Tier
from tests.support import Noted, fit, make_module, tiny_data, tiny_supernet

NET = tiny_supernet(depths=[0, 1, 2], ratios=[0.25, 0.5, 1.0])
PATH = RisingPath(6).architectures(ArchitectureCosts(NET), "macs")[1:-1]  # without the bounds of the space
POOL = Listed([str(arch) for arch in PATH[::-1]])  # not in the order of cost


def plan(assignment, population, number=0, cohort=(0, 1, 2, 3)):
    return assignment.plan(Round(number, cohort, NET.space, population, np.random.default_rng(number)))


@pytest.mark.parametrize("kind", [Sandwich, TrackingSandwich])
def test_bounds_and_draws_are_of_the_pool(kind):
    population, counts = Population(4), Counter()
    assignment = kind(POOL)
    assignment.setup(NET, population)
    for number in range(600):
        archs = [task.arch for task in plan(assignment, population, number)]
        assert PATH[0] in archs
        assert PATH[-1] in archs
        counts.update(archs)
    assert assignment.pools.largest == PATH[-1]
    assert set(counts) == set(PATH)
    # Of four clients, two train the bounds, and two draw one of four architectures.
    assert [counts[arch] / 600 for arch in PATH] == pytest.approx([1.5, 0.5, 0.5, 1.5], abs=0.09)


def test_a_round_has_the_largest_of_the_pool():
    values_seen = Noted("on_cohort_start", lambda trainer, module, round: round.values.get(Largest))
    parts = {"supernet": tiny_supernet(depths=[0, 1, 2], ratios=[0.25, 0.5, 1.0]), "aggregation": MaxNet(0.6)}
    for assignment in (Sandwich(POOL), Sandwich()):
        fit(make_module(assignment=assignment, **parts), tiny_data(), 1, callbacks=[values_seen])
    assert values_seen.all == [Largest(PATH[-1]), None]


def test_tracking_counts_the_bounds_of_the_pool():
    population, assignment = Population(5), TrackingSandwich(POOL)
    assignment.setup(NET, population)
    for number in range(20):
        tasks = plan(assignment, population, number, cohort=(0, 1, 2, 3, 4))
        assignment.observe([ClientResult(task) for task in tasks])
    counts = assignment.state_dict()
    for bound in ("largest_seen", "smallest_seen"):
        assert max(counts[bound].values()) - min(counts[bound].values()) <= 4  # draws count as well
        assert sum(counts[bound].values()) >= 20


@pytest.mark.parametrize("kind", [Sandwich, TrackingSandwich])
def test_the_bounds_respect_tiers(kind):
    limit = NET.macs(PATH[1])
    population = Population(4, (Tier("weak", {"macs": limit}), Tier("strong", {})), (0, 0, 0, 1))
    assignment = kind(POOL)
    assignment.setup(NET, population)
    for number in range(50):
        tasks = plan(assignment, population, number)
        assert tasks[3].arch == PATH[-1]  # the only client that can
        assert all(NET.macs(task.arch) <= limit for task in tasks[:3])
        tasks = plan(assignment, population, number, cohort=(0, 1, 2))
        assert PATH[-1] not in [task.arch for task in tasks]
        assert PATH[0] in [task.arch for task in tasks]


def test_the_largest_of_a_pool_counts_by_beta():
    tasks = [ClientTask(0, client, arch, 2) for client, arch in enumerate(PATH[:3])]
    aggregation, values = MaxNet(0.6), RoundValues()
    aggregation.setup(NET)
    for largest, expected in ((None, [2, 2, 2]), (Largest(PATH[2]), [0.4, 0.4, 1.2])):
        if largest is not None:
            values.give(largest)
        aggregation.start(tasks, values)
        assert [aggregation.coefficient(task) for task in tasks] == pytest.approx(expected)


def test_a_pool_from_a_file(tmp_path):
    path = tmp_path / "front.csv"
    path.write_text("tier,arch,macs\n" + "".join(f'{n},"{arch}",1\n' for n, arch in enumerate([*PATH, PATH[0]])))
    assert FromFile(path).architectures(ArchitectureCosts(NET), "macs") == PATH


@pytest.mark.parametrize(
    ("name", "content", "error", "message"),
    [
        ("none.csv", None, DataError, "none.csv cannot be read"),
        ("empty.csv", "tier,arch\n", DataError, "holds no architecture"),
        ("other.csv", "tier,macs\nsmall,1\n", DataError, "is damaged"),
        ("cut.csv", "arch\nsmal", DataError, "is damaged"),
        ("foreign.csv", 'arch\n"width: 0.5"\n', ConfigError, "is of another supernet"),
    ],
)
def test_wrong_pool_files_are_refused_before_training(tmp_path, name, content, error, message):
    path = tmp_path / name
    if content is not None:
        path.write_text(content)
    with pytest.raises(error, match=message) as raised:
        Sandwich(FromFile(path)).setup(NET, Population(2))
    assert "\n" not in str(raised.value)
