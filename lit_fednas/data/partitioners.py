"""The contract of partitioners, which deal out the examples to clients, and the package's partitioners."""

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from lit_fednas.data.clients import NOBODY, Partition
from lit_fednas.data.examples import missing
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import PositiveFloat, PositiveInt, checked
from lit_fednas.rng import numpy_generator

#: Natural groupings of the examples by name, each [N].
Columns = Mapping[str, np.ndarray]

_MAX_DRAWS = 100

log = logging.getLogger(__name__)


class Partitioner(ABC):
    """Deals all examples out to clients, as a pure function of its settings and a seed.

    A subclass returns the client of each example from ``split``. ``partition`` validates that every example goes to a
    client, and that no client is empty. A partitioner that leaves examples out sets ``deals_all`` to False; one that
    needs classes sets ``by_class`` to True. A partitioner by owner names the owners' ``column``, by which
    ``client_test: official`` deals out the test split, too.

    Example:
        >>> class TakeTurns(Partitioner):
        ...     def split(self, targets, num_clients, rng, columns):
        ...         return np.arange(len(targets)) % num_clients
        >>> [rows.tolist() for rows in TakeTurns().partition(np.zeros(5, dtype=int), num_clients=2)]
        [[0, 2, 4], [1, 3]]
    """

    deals_all: bool = True
    by_class: bool = False
    column: str | None = None

    @abstractmethod
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        """Returns the client of each example, int [N]: from 0, or ``-1`` for an example that is left out.

        Args:
            targets: The class of each example [N].
            num_clients: Number of clients, from 1 to N.
            rng: The only source of randomness.
            columns: Natural groupings of the examples, by name.
        """

    def default_num_clients(self, columns: Columns) -> int:
        """Returns the number of clients for ``num_clients: null``; raises ConfigError if the data do not define it."""
        raise ConfigError(f"data.num_clients: null does not suit {type(self).__name__}; give 1 or more")

    def partition(
        self, targets: np.ndarray, num_clients: int | None, seed: int = 0, columns: Columns | None = None
    ) -> Partition:
        """Returns the validated split, each client's rows ascending; ``num_clients`` None takes the default."""
        targets, columns = np.asarray(targets), columns or {}
        count = self.default_num_clients(columns) if num_clients is None else num_clients
        if count > len(targets):
            raise DataError(f"data.num_clients: {count} for {len(targets)} examples; give at most {len(targets)}")
        name = type(self).__name__
        owners = np.asarray(self.split(targets, count, numpy_generator(seed, "partition"), columns))
        if owners.shape != targets.shape[:1] or owners.dtype.kind not in "iu":
            returned = f"{owners.dtype} {list(owners.shape)}"
            raise DataError(f"{name}: its split returned {returned}; return {len(targets)} integers, one per example")
        if not NOBODY <= owners.min() <= owners.max() < count:
            dealt = f"dealt examples to clients {owners.min()}..{owners.max()}"
            raise DataError(f"{name}: {dealt}; return clients 0..{count - 1}, or {NOBODY} for nobody")
        result = Partition.by_owner(owners.astype(np.int64, copy=False), count)
        if self.deals_all and len(result.rows) < len(targets):
            dealt = f"dealt {len(result.rows)} of {len(targets)} examples"
            raise DataError(f"{name}: {dealt}; deal all, or set the attribute deals_all to False")
        if not result.sizes.all():
            raise DataError(f"{name}: client {result.sizes.argmin()} is empty; give fewer clients")
        return result


class IID(Partitioner):
    """Deals out the shuffled examples in parts that differ in size by at most one."""

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        return _equal_parts(rng.permutation(len(targets)), np.arange(num_clients))


@checked("data.partitioner")
class Shards(Partitioner):
    """Sorts the examples by class, cuts them into equal shards and gives each client some at random.

    The pathological non-IID partition of McMahan et al. (2017), section 3.

    Args:
        shards_per_client: Number of shards per client; 2 gives most clients two classes.
    """

    by_class = True

    def __init__(self, shards_per_client: PositiveInt = 2) -> None:
        self.shards_per_client = shards_per_client

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        count = num_clients * self.shards_per_client
        if count > len(targets):
            field = f"data.partitioner.shards_per_client: {self.shards_per_client} for {num_clients} clients"
            raise DataError(f"{field} exceeds {len(targets)} examples; give {len(targets) // num_clients} or less")
        order = rng.permutation(len(targets))
        order = order[np.argsort(targets[order], kind="stable")]
        client_of_shard = np.empty(count, dtype=np.int64)
        client_of_shard[rng.permutation(count)] = np.arange(count) // self.shards_per_client
        return _equal_parts(order, client_of_shard)


@checked("data.partitioner")
class ByColumn(Partitioner):
    """Makes each value of a column, an owner, one client.

    Client k holds the k-th value in sorted order. ``num_clients`` is null or the number of values, unless they are
    merged.

    Args:
        column: The name of the column.
        least: Minimum number of examples per value, after the server's hold-out; smaller values are left out. Sources
            with natural clients have a ``least`` that counts before it, as published numbers of clients do.
        merge: Whether fewer clients than values are allowed; shuffled values are then dealt out in turn.
    """

    column: str

    def __init__(self, column: str, least: PositiveInt = 1, merge: bool = False) -> None:
        self.column = column
        self.least = least
        self.merge = merge
        self.deals_all = least == 1

    @override
    def default_num_clients(self, columns: Columns) -> int:
        return len(self._large_values(columns)[0])

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        values, rows, codes = self._large_values(columns)
        if num_clients > len(values) or (num_clients < len(values) and not self.merge):
            field = f"data.num_clients: {num_clients} for {len(values)} values of {self.column!r}"
            field += f" with {self.least} examples or more" if self.least > 1 else ""
            raise DataError(f"{field}; give null, or data.partitioner.init_args.merge: true for fewer clients")
        if omissions := len(targets) - len(rows):
            log.info("least: %d examples of clients with fewer than %d are left out", omissions, self.least)
        client_of_value = np.arange(len(values))
        if num_clients < len(values):
            client_of_value = rng.permutation(len(values)) % num_clients
        owners = np.full(len(targets), NOBODY)
        owners[rows] = client_of_value[codes]
        return owners

    def _large_values(self, columns: Columns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the sorted values with enough examples, the rows of these values, and each row's index of a value."""
        if self.column not in columns:
            remedy = f"give one of: {', '.join(sorted(columns))}" if columns else "add it, or use Dirichlet or IID"
            raise ConfigError(f"data.partitioner.column: {self.column!r} is not in the data; {remedy}")
        column = np.asarray(columns[self.column])
        if empty := np.count_nonzero(missing(column)):
            raise DataError(f"data.partitioner.column: {self.column!r} is empty for {empty} examples; fill it in")
        if column.dtype.kind == "O":
            column = column.astype(str)
        values, codes, sizes = np.unique(column, return_inverse=True, return_counts=True)
        is_large = sizes >= self.least
        if not is_large.any():
            limit = sizes.max(initial=0)
            raise DataError(f"data.partitioner.least: {self.least} omits each {self.column!r}; give at most {limit}")
        rows = np.flatnonzero(is_large[codes])
        return values[is_large], rows, (np.cumsum(is_large) - 1)[codes[rows]]


@checked("data.partitioner")
@dataclass(eq=False)
class Dirichlet(Partitioner):
    """Splits each class over the clients in proportions drawn from Dir(alpha); clients' sizes differ, too.

    The partition of SuperFed (section 3.1, appendix L), after Lin et al. (2020). The paper gives no more details; as in
    common implementations, a client with N / num_clients examples gets none of the remaining classes.

    Args:
        alpha: Concentration of the proportions: small values give each client few classes, 100 is close to uniform.
        min_size: Minimum number of examples per client; up to 100 draws are made to reach it.
    """

    by_class = True

    alpha: PositiveFloat
    min_size: PositiveInt = 10

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        if self.min_size * num_clients > len(targets):
            field = f"data.partitioner.min_size: {self.min_size} for {num_clients} clients"
            raise DataError(f"{field} exceeds {len(targets)} examples; give {len(targets) // num_clients} or less")
        for _ in range(_MAX_DRAWS):
            owners = self._draw(targets, num_clients, rng)
            if np.bincount(owners, minlength=num_clients).min() >= self.min_size:
                return owners
        fault = f"{self.alpha} misses min_size {self.min_size} in {_MAX_DRAWS} draws for num_clients {num_clients}"
        raise DataError(f"data.partitioner.alpha: {fault}; raise alpha, or lower min_size or num_clients")

    def _draw(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Splits one class after the other; returns the client of each example."""
        owners = np.empty(len(targets), dtype=np.int64)
        sizes = np.zeros(num_clients, dtype=np.int64)
        alphas = np.full(num_clients, self.alpha)
        for label in np.unique(targets):
            members = rng.permutation(np.flatnonzero(targets == label))
            share = rng.dirichlet(alphas) * (sizes < len(targets) / num_clients)
            if not share.sum() > 0:  # the open clients' shares are all 0: the smallest client takes the class
                share = np.arange(num_clients) == sizes.argmin()
            # the last cut is at len(members), so that rounding leaves no remainder to a full client
            cuts = (np.cumsum(share / share.sum()) * len(members)).round().astype(np.int64)
            cuts[-1] = len(members)
            counts = np.diff(cuts, prepend=0)
            owners[members] = np.repeat(np.arange(num_clients), counts)
            sizes += counts
        return owners


@checked("data.partitioner")
@dataclass(eq=False)
class BalancedDirichlet(Partitioner):
    """Gives clients nearly equal numbers of examples, in class mixes drawn from Dir(alpha, ..., alpha).

    The LDA partition of Hsu et al. (2019), which FedorAS uses for CIFAR (section 4.1 and appendix). In random order,
    clients draw examples one by one, without replacement: first a class from the mix, then an example of the class.
    An exhausted class is dropped and the mix of the others renormalised. All examples are used.

    Alpha is the parameter of each class, as in the code of FedorAS' authors. In Hsu et al., alpha is the sum of the
    parameters: this alpha times the number of classes.

    Args:
        alpha: Concentration of the mixes: small values give each client few classes, 1000 is close to uniform.
    """

    by_class = True

    alpha: PositiveFloat

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        labels, remaining = np.unique(targets, return_counts=True)
        stacks = [rng.permutation(np.flatnonzero(targets == label)) for label in labels]
        size, num_larger = divmod(len(targets), num_clients)
        order = rng.permutation(num_clients)
        # the smallest type for counts up to a client's size
        counts = np.empty((num_clients, len(labels)), dtype=np.min_scalar_type(size + 1))
        alphas = np.full(len(labels), self.alpha)
        for client in order.tolist():
            class_counts = draw_counts(rng.dirichlet(alphas), remaining, size + (client < num_larger), rng)
            remaining = remaining - class_counts
            counts[client] = class_counts
        owners = np.empty(len(targets), dtype=np.int64)
        for stack, of_class in zip(stacks, counts.T, strict=True):
            owners[stack[::-1]] = np.repeat(order, of_class[order])  # clients draw from the end of a stack
        return owners


def draw_counts(mix: np.ndarray, remaining: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws a client's number of examples per class, ``size`` of the ``remaining`` ones in total, int64 [classes]."""
    # All examples are drawn at once, and the surplus of exhausted classes is drawn again from the others. This has the
    # distribution of drawing one by one, and takes one step per exhausted class.
    counts, num_missing = np.zeros_like(remaining), size
    while num_missing > 0:
        weights = np.where(counts < remaining, mix, 0.0)
        total = weights.sum()
        if not total > 0:  # the proportions of the open classes are all 0, or some are NaN
            weights = np.nan_to_num(weights)
            weights = weights if weights.sum() > 0 else (remaining - counts).astype(float)
            total = weights.sum()
        counts = np.minimum(counts + rng.multinomial(num_missing, weights / total), remaining)
        num_missing = size - int(counts.sum())
    return counts


def _equal_parts(order: np.ndarray, owners_of_parts: np.ndarray) -> np.ndarray:
    """Cuts rows into parts that differ in size by at most one, larger parts first; returns each row's owner."""
    count = len(owners_of_parts)
    sizes = np.full(count, len(order) // count)
    sizes[: len(order) % count] += 1
    owners = np.empty(len(order), dtype=np.int64)
    owners[order] = np.repeat(owners_of_parts, sizes)
    return owners
