"""Paths under a budget: Eq. 2 and 3, against all paths and against the equation's own probabilities."""

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
    one, rng = sampler(LAYERS, fixed=100, budget=budget), np.random.default_rng(0)
    found = {one.sample(rng) for _ in range(4000)}
    assert found == {(path, 100 + cost) for path, cost in paths(LAYERS) if 100 + cost <= budget}


@pytest.mark.parametrize("budget", [4, 6])
def test_the_probabilities_are_those_of_equation_3(budget: int) -> None:
    orders = list(permutations(range(3)))
    expected: Counter[tuple[str, ...]] = Counter()
    for order in orders:
        for path, chance in greedy_probabilities(LAYERS, budget, order).items():
            expected[path] += chance / len(orders)  # type: ignore[assignment]
    count = 20_000
    found = drawn(sampler(LAYERS, budget=budget), count)
    assert set(found) == set(expected)
    for path, chance in expected.items():
        sigma = (chance * (1 - chance) / count) ** 0.5
        assert found[path] / count == pytest.approx(chance, abs=5 * sigma + 1e-9), path


def test_layers_without_a_free_operator_come_first_and_leave_room_for_each_other() -> None:
    """Two layers must take something: with a budget of 6, the greedy draw could spend 5 on the first."""
    layers = [{"a": 5, "b": 2}, {"a": 6, "id": 0}, {"a": 4, "b": 2}]
    found = drawn(sampler(layers, budget=6), 3000)
    assert set(found) == {path for path, cost in paths(layers) if cost <= 6}
    # a free layer visited first would take its operator half of the time, and leave nothing for the others
    assert ("b", "a", "b") not in found
    found = drawn(sampler(layers, budget=10), 4000)
    # with the two that must choose first, the middle one can take its 6 only behind b and b
    behind = sum(n for path, n in found.items() if path[::2] == ("b", "b"))
    assert found["b", "a", "b"] / behind == pytest.approx(0.5, abs=0.05)


def test_nothing_is_drawn_twice_for_one_path() -> None:
    """As many random numbers for any budget: no resampling, however tight."""
    states = []
    for budget in (0, 3, 1000):
        rng = np.random.default_rng(3)
        sampler(LAYERS, budget=budget).sample(rng)
        states.append(rng.bit_generator.state)
    assert states[0] == states[1] == states[2]


def test_unsupported_operators_cost_infinitely_much() -> None:
    one = sampler(LAYERS, unsupported=["a"])
    assert not any("a" in path for path in drawn(one, 500))
    assert one.most == 2 + 1


def test_a_busy_device_takes_less() -> None:
    allowed = {path for path, cost in paths(LAYERS) if 10 + cost <= 16}
    assert set(drawn(sampler(LAYERS, fixed=10, budget=22), 3000, free=0.5)) == allowed


test_limits_that_cannot_be_kept_are_told = refusals(
    (lambda: sampler(LAYERS, fixed=10, budget=9), "a budget of 9 is below the cheapest path, 10"),
    (lambda: sampler(LAYERS, unsupported=["a", "id"]), r"all operators of layer 2 \(a, id\) are unsupported"),
)
