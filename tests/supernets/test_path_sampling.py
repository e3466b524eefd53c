"""Paths under a budget (Eq. 2 and 3), compared with all paths and the equation's probabilities."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest

from lit_fednas.supernets import PathCosts, PathSampler
from lit_fednas.supernets.paths.supernet import PathSpace
from tests.references.fedoras import greedy_probabilities, paths
from tests.support import refusals

LAYERS = [{"a": 5, "b": 2, "id": 0}, {"a": 4, "b": 1, "id": 0}, {"a": 3, "id": 0}]


def sampler(layers: list[dict[str, int]], fixed: int = 0, **settings: object) -> PathSampler:
    costs = [list(layer.values()) for layer in layers]
    space = PathSpace([list(layer) for layer in layers], costs)
    return PathSampler(PathCosts(space, costs, fixed), space.superset, **settings)  # type: ignore[arg-type]


def drawn(sampler: PathSampler, count: int, free: float = 1.0) -> Counter[tuple[str, ...]]:
    rng = np.random.default_rng(0)
    return Counter(sampler.sample(rng, free)[0] for _ in range(count))


@pytest.mark.parametrize("budget", [100, 107, 112])
def test_every_path_within_the_budget_comes_with_its_cost_and_no_other(budget: int) -> None:
    limited_sampler, rng = sampler(LAYERS, fixed=100, budget=budget), np.random.default_rng(0)
    samples = {limited_sampler.sample(rng) for _ in range(4000)}
    assert samples == {(path, 100 + cost) for path, cost in paths(LAYERS) if 100 + cost <= budget}


@pytest.mark.parametrize("budget", [4, 6])
def test_the_probabilities_are_those_of_equation_3(budget: int) -> None:
    orders = list(permutations(range(3)))
    expected: Counter[tuple[str, ...]] = Counter()
    for order in orders:
        for path, chance in greedy_probabilities(LAYERS, budget, order).items():
            expected[path] += chance / len(orders)  # type: ignore[assignment]
    count = 20_000
    counts = drawn(sampler(LAYERS, budget=budget), count)
    assert set(counts) == set(expected)
    for path, chance in expected.items():
        sigma = (chance * (1 - chance) / count) ** 0.5
        assert counts[path] / count == pytest.approx(chance, abs=5 * sigma + 1e-9), path


def test_layers_without_a_free_operator_come_first_and_leave_room_for_each_other() -> None:
    """Two layers need an operator that is not free; a greedy draw could spend 5 of 6 on the first."""
    layers = [{"a": 5, "b": 2}, {"a": 6, "id": 0}, {"a": 4, "b": 2}]
    counts = drawn(sampler(layers, budget=6), 3000)
    assert set(counts) == {path for path, cost in paths(layers) if cost <= 6}
    # a free layer visited first would take its operator in half of the draws and use up the budget
    assert ("b", "a", "b") not in counts
    counts = drawn(sampler(layers, budget=10), 4000)
    # the first and last layer choose first, so that the middle one can take its 6 only after b and b
    behind = sum(n for path, n in counts.items() if path[::2] == ("b", "b"))
    assert counts["b", "a", "b"] / behind == pytest.approx(0.5, abs=0.05)


def test_nothing_is_resampled() -> None:
    """The number of random numbers does not depend on the budget: nothing is resampled."""
    states = []
    for budget in (0, 3, 1000):
        rng = np.random.default_rng(3)
        sampler(LAYERS, budget=budget).sample(rng)
        states.append(rng.bit_generator.state)
    assert states[0] == states[1] == states[2]


def test_unsupported_operators_cost_infinitely_much() -> None:
    limited_sampler = sampler(LAYERS, unsupported=["a"])
    assert not any("a" in path for path in drawn(limited_sampler, 500))
    assert limited_sampler.most == 2 + 1


def test_a_busy_device_takes_less() -> None:
    allowed = {path for path, cost in paths(LAYERS) if 10 + cost <= 16}
    assert set(drawn(sampler(LAYERS, fixed=10, budget=22), 3000, free=0.5)) == allowed


test_limits_that_cannot_be_met_are_refused = refusals(
    (lambda: sampler(LAYERS, fixed=10, budget=9), "a budget of 9 is below the cheapest path, 10"),
    (lambda: sampler(LAYERS, unsupported=["a", "id"]), r"all operators of layer 2 \(a, id\) are unsupported"),
)
