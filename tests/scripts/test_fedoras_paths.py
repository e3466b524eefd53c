"""The counts over all paths against enumeration; rejection against the counts."""

from __future__ import annotations

import csv
from itertools import product

import numpy as np
import pytest

from lit_fednas.supernets.paths.space import PathCosts, PathSpace
from tests.scripts.conftest import load

OPERATORS = ["a", "b", "id"]
LAYERS = [[7, 3, 0], [5, 4, 0], [7, 3, 0]]


@pytest.fixture(scope="module")
def script():
    return load("fedoras_paths")


@pytest.fixture
def costs():
    return PathCosts(PathSpace([OPERATORS] * 3, LAYERS), LAYERS, fixed=10)


def enumerated(budget):
    """All paths that fit, one by one."""
    every = product(range(3), repeat=3)
    return [p for p in every if 10 + sum(LAYERS[layer][place] for layer, place in enumerate(p)) <= budget]


@pytest.mark.parametrize("budget", [10, 13, 14, 17, 20, 29, 100])
def test_paths_and_operators_are_counted_as_by_enumeration(script, costs, budget):
    fitting = enumerated(budget)
    paths, shares = script.uniform(costs, OPERATORS).within(budget)
    assert paths == len(fitting)
    chosen = np.bincount([place for path in fitting for place in path], minlength=3)
    assert shares == pytest.approx(chosen / len(fitting) / 3)


def test_paths_of_the_same_cost_count_each(script):
    """Of equal layers many paths cost the same."""
    layers = [[7, 3, 0]] * 6
    costs = PathCosts(PathSpace([OPERATORS] * 6, layers), layers, fixed=0)
    fitting = [path for path in product(range(3), repeat=6) if sum(layers[0][place] for place in path) <= 20]
    paths, shares = script.uniform(costs, OPERATORS).within(20)
    assert paths == len(fitting)
    chosen = np.bincount([place for path in fitting for place in path], minlength=3)
    assert shares == pytest.approx(chosen / len(fitting) / 6)


def test_rejection_is_uniform_and_takes_as_many_draws_as_counted(script, costs):
    rng = np.random.default_rng(0)
    sampler = script.RejectionSampler(costs, 14)
    drawn = [sampler.sample(rng, 10**6) for _ in range(3000)]
    counts = dict.fromkeys(enumerated(14), 0)  # 27 paths in all, 4 that fit
    for path, _ in drawn:
        counts[tuple(OPERATORS.index(name) for name in path)] += 1
    assert len(counts) == 4
    assert all(abs(count - 750) < 5 * 24 for count in counts.values())  # 24 is a count's deviation
    assert np.mean([draws for _, draws in drawn]) == pytest.approx(27 / 4, abs=5 * 6.2 / 3000**0.5)
    assert sampler.sample(rng, 0) == (None, 0)


def test_a_budget_of_one_path_is_given_up(script, costs):
    every = script.uniform(costs, OPERATORS)
    found = script.measure(costs, OPERATORS, every, 10, 20, 30, np.random.default_rng(0))
    assert found.expected_draws == 27
    assert 0 < found.draws <= 30
    assert found.greedy.tolist() == found.all_fitting.tolist() == [0, 0, 1]


@pytest.mark.slow
def test_command_writes_what_it_prints(script, tmp_path, capsys):
    arguments = ["--samples", "300", "--paths", "40", "--most", "400"]
    script.main([*arguments, "--csv", str(tmp_path / "a.csv"), "--plot", str(tmp_path / "a.png")])
    text = capsys.readouterr().out
    assert "1,853,020,188,851,841 paths" in text  # 9^16
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    tight = [f"{times} x smallest" for times in ("1.05", "1.2", "2", "4")]
    assert [row["budget"] for row in rows[::9]] == [*tight, "T1", "T2", "T3", "T4"]
    for name in ("greedy", "uniform"):
        assert sum(float(row[name]) for row in rows) == pytest.approx(8, abs=1e-4)
    assert [float(row["uniform"]) for row in rows[-9:]] == pytest.approx([1 / 9] * 9, abs=1e-6)  # T4 holds all
    assert (tmp_path / "a.png").stat().st_size > 0
    with pytest.raises(SystemExit):
        script.main(["--paths", "1"])
