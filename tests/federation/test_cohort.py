from collections import Counter
from collections.abc import Iterable
from itertools import combinations

import numpy as np
import pytest

from lit_fednas.federation import (
    Availability,
    CyclicCohort,
    OnlyClients,
    PoissonCohort,
    RandomAvailability,
    UniformCohort,
)
from tests.support import refusals


@pytest.mark.parametrize(
    ("ratio", "clients", "size"),
    [
        (0.29, 100, 29),  # 28.999999999999996 in floats
        (0.39, 10, 3),
        (0.01, 20, 1),
    ],
)
def test_size_is_max_of_c_k_and_one(ratio: float, clients: int, size: int) -> None:
    sampler = UniformCohort(ratio=ratio)
    assert sampler.size(clients) == size
    assert len(sampler.draw(3, [5] * clients, seed=0)) == size


test_settings_that_cannot_work = refusals(
    ({"ratio": 0.5, "count": 2}, "give one of the two"),
    ({"ratio": 1.1}, "cohort.ratio: 1.1"),
    ({"count": 4}, r"cohort\.count: 4 is more than the 3"),
    call=lambda settings: UniformCohort(**settings).draw(0, [1] * 3, seed=1),
)


def test_a_cohort_belongs_to_seed_and_round() -> None:
    def draw(t: int, seed: int) -> tuple[int, ...]:
        return tuple(UniformCohort(count=4).draw(t, [1] * 40, seed))

    assert draw(7, 3) == draw(7, 3)
    assert len({draw(t, 3) for t in range(20)}) == 20
    assert len({draw(7, seed) for seed in range(20)}) == 20


@pytest.mark.parametrize(("sizes", "available"), [([1, 50, 3, 0, 9], range(5)), ([1] * 6, (0, 2, 4, 5))])
def test_all_cohorts_of_available_clients_are_equally_likely(sizes: list[int], available: Iterable[int]) -> None:
    sampler, pairs = UniformCohort(count=2, availability=OnlyClients(available)), list(combinations(available, 2))
    counts = Counter(tuple(sampler.draw(t, sizes, seed=0)) for t in range(3000))
    assert set(counts) == set(pairs)
    assert all(count == pytest.approx(3000 / len(pairs), abs=90) for count in counts.values())


def test_few_clients_are_invited_in_few_waves() -> None:
    waves: list[list[int]] = []

    class Even(Availability):
        def present(self, round: int, clients: np.ndarray, seed: int) -> np.ndarray:
            waves.append(clients.tolist())
            return clients % 2 == 0

    assert len(UniformCohort(count=10, availability=Even()).draw(0, np.ones(10**6, dtype=np.int64), seed=0)) == 10
    everyone = [client for wave in waves for client in wave]
    assert len(everyone) == len(set(everyone)) <= 60
    assert len(waves) < 12


def test_fewer_clients_are_available_than_needed() -> None:
    assert UniformCohort(count=3, availability=OnlyClients([2, 5])).draw(0, [1] * 8, seed=0) == [2, 5]
    assert UniformCohort(count=3, availability=OnlyClients([])).draw(0, [1] * 8, seed=0) == []
    # a ratio counts all clients, not only available ones
    assert len(UniformCohort(ratio=0.5, availability=OnlyClients(range(6))).draw(0, [1] * 8, seed=0)) == 4


@pytest.mark.parametrize(("clients", "count"), [(12, 3), (11, 3), (7, 5), (4, 4), (9, 1)])
def test_clients_of_cyclic_cohorts_take_turns_with_pauses(clients: int, count: int) -> None:
    """A client that is unavailable, or excluded by ``among``, misses its turn and is not replaced."""
    sampler, rounds = CyclicCohort(count=count), 60
    cohorts = [sampler.draw(t, [1] * clients, seed=2) for t in range(rounds)]
    assert all(len(set(cohort)) == count for cohort in cohorts)
    turns = [[t for t in range(rounds) if client in cohorts[t]] for client in range(clients)]
    gaps = {int(gap) for turns_of_client in turns for gap in np.diff(turns_of_client)}
    assert min(gaps) == sampler.separation(clients) == clients // count
    assert max(gaps) == -(-clients // count)
    assert cohorts[0] != CyclicCohort(count=count).draw(0, [1] * clients, seed=3) or count == clients
    away = RandomAvailability(0.4)
    sampler_of_some = CyclicCohort(count=count, availability=away).among(range(0, clients, 2))
    for t, cohort in enumerate(cohorts):
        available = set(away.available(t, clients, seed=2)) & set(range(0, clients, 2))
        assert sampler_of_some.draw(t, [1] * clients, seed=2) == sorted(available & set(cohort))


def test_availability() -> None:
    availability = RandomAvailability(0.3)
    days = [availability.available(t, 200, seed=0) for t in range(20)]
    assert sum(map(len, days)) / 4000 == pytest.approx(0.7, abs=0.04)
    assert len({tuple(day) for day in days}) == 20
    assert availability.available(4, 200, seed=0) == days[4]


def test_poisson_cohorts_draw_each_available_client_independently() -> None:
    """Sizes are binomial, clients are equally likely, and pairs take part together independently."""
    cohorts = [set(PoissonCohort(0.3).draw(round, [5] * 20, seed=1)) for round in range(3000)]
    sizes = [len(cohort) for cohort in cohorts]
    mean = sum(sizes) / 3000
    assert mean == pytest.approx(20 * 0.3, rel=0.02)
    assert sum((size - mean) ** 2 for size in sizes) / 3000 == pytest.approx(20 * 0.3 * 0.7, rel=0.1)
    for client in range(20):
        assert sum(client in cohort for cohort in cohorts) / 3000 == pytest.approx(0.3, abs=0.04)
    for pair in combinations(range(6), 2):
        assert sum(cohort.issuperset(pair) for cohort in cohorts) / 3000 == pytest.approx(0.09, abs=0.025)
    assert PoissonCohort(1.0, OnlyClients([2, 4])).draw(0, [5] * 9, seed=0) == [2, 4]
