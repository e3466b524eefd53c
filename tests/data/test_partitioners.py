"""The contract of partitioners, and the properties of each."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import lit_fednas.data
from lit_fednas.data import IID, BalancedDirichlet, ByColumn, Dirichlet, Partition, Partitioner, Shards, partitioners
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.testing import PartitionerContract
from tests.support import without_instance

TARGETS, COLUMNS = PartitionerContract.targets, PartitionerContract.columns

SETTINGS: dict[type[Partitioner], Callable[[], Partitioner]] = {
    IID: IID,
    Dirichlet: lambda: Dirichlet(0.5),
    BalancedDirichlet: lambda: BalancedDirichlet(0.5),
    Shards: Shards,
    ByColumn: lambda: ByColumn("site", merge=True),
}


class TestContract(PartitionerContract):
    instances = {kind.__name__: make for kind, make in SETTINGS.items()}  # noqa: RUF012


def test_each_partitioner_is_in_the_contract() -> None:
    missing = without_instance(Partitioner, lit_fednas.data, SETTINGS.values())
    assert not missing, f"add {missing} to SETTINGS"


class Careless(Partitioner):
    """A partitioner that breaks the contract."""

    def __init__(self, owners: object) -> None:
        self.owners = owners

    def split(self, targets, num_clients, rng, columns):  # type: ignore[no-untyped-def]
        return self.owners


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ([0, 0, 1, -1], "dealt 3 of 4 examples; .* deals_all"),
        ([0, 0, 0, 0], "client 1 is empty"),
        ([0, 0, 1, 2], r"clients 0\.\.2; return clients 0\.\.1, or -1"),
    ],
)
def test_an_invalid_split_is_refused(owners: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Careless(owners).partition(np.zeros(4, dtype=int), 2)


def test_a_partition_is_a_sequence_of_the_clients_rows_and_counts_them() -> None:
    partition = Partition.by_owner(np.array([1, 3, -1, 0, 3, 1]), 4)
    assert [rows.tolist() for rows in partition] == [[3], [0, 5], [], [1, 4]]
    assert partition[-1].tolist() == [1, 4]
    assert [rows.tolist() for rows in partition[1:3]] == [[0, 5], []]
    with pytest.raises(IndexError):
        partition[4]
    assert partition.sizes.tolist() == [1, 2, 0, 2]
    targets = np.array([2, 0, 0, 1, 2, 2])
    assert partition.class_counts(targets, 4).tolist() == [[0, 1, 0, 0], [0, 0, 2, 0], [0] * 4, [1, 0, 1, 0]]
    with pytest.raises(DataError, match=r"num_classes: 2 for classes 0\.\.2"):
        partition.class_counts(targets, 2)


class Counting(Dirichlet):
    """Counts the draws of all instances."""

    draws = 0

    def _draw(self, targets, num_clients, rng):  # type: ignore[no-untyped-def]
        Counting.draws += 1
        return super()._draw(targets, num_clients, rng)


class TestDirichlet:
    @pytest.fixture(autouse=True)
    def reset_draws(self) -> None:
        Counting.draws = 0

    def test_shares_have_the_dirichlet_moments(self) -> None:
        """For Dir(α) over K clients, a share of the first class has mean 1/K and variance (K-1) / (K² (Kα + 1))."""
        alpha, clients = 0.5, 4
        partitions = [Dirichlet(alpha, min_size=1).partition(TARGETS, clients, seed) for seed in range(1000)]
        shares = np.stack([partition.class_counts(TARGETS, 10)[:, 0] / 200 for partition in partitions])
        variance = (clients - 1) / (clients**2 * (clients * alpha + 1))
        assert shares.mean(axis=0) == pytest.approx([1 / clients] * clients, abs=0.03)
        assert shares.var(axis=0) == pytest.approx([variance] * clients, rel=0.15)

    def test_full_clients_get_no_examples_and_min_size_holds(self) -> None:
        """A client with N / K examples gets nothing of the remaining classes."""
        for seed in range(20):
            partition = Dirichlet(0.3, min_size=40).partition(TARGETS, 5, seed)
            counts = partition.class_counts(TARGETS, 10).cumsum(axis=1)
            full = counts[:, :-1] >= len(TARGETS) / 5
            assert (np.diff(counts, axis=1)[full] == 0).all()
            assert min(partition.sizes) >= 40

    def test_gives_up_after_100_draws_and_names_the_settings(self) -> None:
        with pytest.raises(DataError, match=r"alpha: 0\.01 .*min_size 90 .*100 draws .*num_clients 20; raise alpha"):
            Counting(0.01, min_size=90).partition(TARGETS, 20)
        with pytest.raises(DataError, match="min_size: 300 for 10 clients"):  # before any draw
            Counting(1.0, min_size=300).partition(TARGETS, 10)
        assert Counting.draws == 100

    def test_a_tiny_alpha_gives_whole_classes(self) -> None:
        """A class with its only share at a full client goes to the smallest client."""
        for seed in range(20):
            with np.errstate(all="raise"):
                partition = Dirichlet(1e-12, min_size=1).partition(TARGETS, 5, seed)
            assert partition.sizes.tolist() == [400] * 5


def draw_one_by_one(mix: np.ndarray, remaining: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws one example at a time, and drops exhausted classes from the mix (Hsu et al., 2019)."""
    counts = np.zeros_like(remaining)
    for _ in range(size):
        weights = np.where(counts < remaining, mix, 0)
        counts[rng.choice(len(mix), p=weights / weights.sum())] += 1
    return counts


class TestBalancedDirichlet:
    def test_mix_has_the_dirichlet_moments_and_sizes_are_within_one(self) -> None:
        """The variance of shares is p(1-p)/(10α+1), plus that of the multinomial."""
        alpha, size = 0.3, 50
        partitions = [BalancedDirichlet(alpha).partition(TARGETS, 40, seed) for seed in range(200)]
        shares = np.concatenate([partition.class_counts(TARGETS, 10) / size for partition in partitions])
        spread = 0.1 * 0.9 / (10 * alpha + 1)
        assert shares.mean() == pytest.approx(0.1)
        assert shares.var() == pytest.approx(spread + (0.1 * 0.9 - spread) / size, rel=0.15)
        assert np.ptp(BalancedDirichlet(0.01).partition(TARGETS, 7).sizes) <= 1

    def test_counts_are_distributed_as_if_drawn_one_by_one(self) -> None:
        # the first and the last class are exhausted
        mix, remaining = np.array([0.7, 0.2, 0.06, 0.04]), np.array([5, 30, 30, 2])
        fast, slow = (
            np.array([draw(mix, remaining, 20, np.random.default_rng(seed)) for seed in range(400)])
            for draw in (partitioners.draw_counts, draw_one_by_one)
        )
        assert (fast.sum(axis=1) == 20).all()
        assert (fast <= remaining).all()
        assert fast.mean(axis=0) == pytest.approx(slow.mean(axis=0), abs=0.4)
        assert fast.var(axis=0) == pytest.approx(slow.var(axis=0), abs=0.6)


def test_shards_are_near_equal_runs_of_sorted_classes() -> None:
    partition = Shards(2).partition(TARGETS, 20)
    assert set(partition.sizes) == {100}
    assert set(partition.class_counts(TARGETS, 10).ravel()) <= {0, 50, 100}  # each class of 200 has four shards


MISSING: dict[str, Any] = {
    "nan": np.array([np.nan, *range(len(TARGETS) - 1)]),
    "none": np.array([None, *map(str, TARGETS[1:])], dtype=object),
    "white": np.array([" ", *map(str, TARGETS[1:])]),
    "bytes": np.array([b"", *[b"a"] * (len(TARGETS) - 1)]),
    "time": np.array(["NaT", *["2020"] * (len(TARGETS) - 1)], dtype="datetime64[Y]"),
}


@pytest.mark.parametrize(
    ("make", "clients", "message"),
    [
        (lambda: Dirichlet(0.0), 2, "alpha: 0"),
        (lambda: Shards(3), 700, "shards_per_client: 3 for 700 clients"),
        (lambda: IID(), len(TARGETS) + 1, "num_clients: 2001 for 2000 examples"),
        (lambda: IID(), None, "num_clients: null"),  # only ByColumn has a natural number of clients
        (lambda: ByColumn("room"), 2, r"column: 'room' .* give one of: bytes, name, nan, none, site"),
        (lambda: ByColumn("site"), 26, "num_clients: 26 for 25 values of 'site'"),
        (lambda: ByColumn("site"), 10, "num_clients: 10 for 25 values of 'site'; give null, .*merge: true for fewer"),
        (lambda: ByColumn("name"), 2, "'name' is empty for 2 examples"),
        *((lambda name=name: ByColumn(name), 2, f"'{name}' is empty for 1 examples") for name in MISSING),
    ],
)
def test_refusals(make: Callable[[], Partitioner], clients: int | None, message: str) -> None:
    columns = {**COLUMNS, **MISSING, "name": np.repeat(["a", ""], [1998, 2])}
    with pytest.raises((ConfigError, DataError), match=message):
        make().partition(TARGETS, clients, columns=columns)


def test_missing_owners_are_reported_with_alternatives() -> None:
    with pytest.raises(ConfigError, match=r"column: 'owner' is not in the data; add it, or use Dirichlet or IID$"):
        ByColumn("owner").partition(TARGETS, None)
