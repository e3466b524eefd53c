"""How the examples are dealt out to clients: the contract of partitioners, and those that come with the package."""

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

_MOST_DRAWS = 100

log = logging.getLogger(__name__)


class Partitioner(ABC):
    """Deals all examples out to clients, as a pure function of its settings and a seed.

    To add one, subclass this and return the client of each example from ``split``. ``partition`` validates that every
    example goes to a client, and that no client is empty. A partitioner that leaves examples out sets ``deals_all`` to
    False; one that needs classes sets ``by_class`` to True; one that deals out by owner names their ``column``, which
    also deals out the test split (``client_test: official``).

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
        """Returns the client of each example, from 0, or ``-1`` where an example is left out, int [N].

        Args:
            targets: The class of each example [N].
            num_clients: At least 1, at most N.
            rng: The only source of randomness.
            columns: Natural groupings.
        """

    def default_num_clients(self, columns: Columns) -> int:
        """Returns the number of clients where none was given; raises ConfigError where the data do not tell it."""
        raise ConfigError(f"data.num_clients: null does not suit {type(self).__name__}; give 1 or more")

    def partition(
        self, targets: np.ndarray, num_clients: int | None, seed: int = 0, columns: Columns | None = None
    ) -> Partition:
        """Returns the validated partition of the examples, each client's rows in ascending order.

        Args:
            targets: The class of each example [N].
            num_clients: At least 1; None leaves the number to the partitioner.
            seed: The run's seed.
            columns: Natural groupings.

        Raises:
            ConfigError: ``num_clients`` is not given to a partitioner that needs it.
            DataError: Clients outnumber the examples, or the examples cannot be split so.
        """
        targets, columns = np.asarray(targets), columns or {}
        count = self.default_num_clients(columns) if num_clients is None else num_clients
        if count > len(targets):
            raise DataError(f"data.num_clients: {count} for {len(targets)} examples; give at most {len(targets)}")
        name = type(self).__name__
        owners = np.asarray(self.split(targets, count, numpy_generator(seed, "partition"), columns))
        if owners.shape != targets.shape[:1] or owners.dtype.kind not in "iu":
            returned = f"{owners.dtype} {list(owners.shape)}"
            raise DataError(f"{name}: its split returned {returned}; return {len(targets)} integers, a client each")
        if not NOBODY <= owners.min() <= owners.max() < count:
            dealt = f"dealt examples to clients {owners.min()}..{owners.max()}"
            raise DataError(f"{name}: {dealt}; its split must name clients 0..{count - 1}, or {NOBODY} for nobody")
        result = Partition.by_owner(owners.astype(np.int64, copy=False), count)
        if self.deals_all and len(result.rows) < len(targets):
            raise DataError(
                f"{name}: dealt {len(result.rows)} of {len(targets)} examples; its split must deal each example, or "
                f"the class set deals_all to False"
            )
        if not result.sizes.all():
            raise DataError(f"{name}: client {result.sizes.argmin()} is empty; give fewer clients")
        return result


class IID(Partitioner):
    """Deals the shuffled examples out in sizes that differ by at most one."""

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        return _equal_parts(rng.permutation(len(targets)), np.arange(num_clients))


@checked("data.partitioner")
class Shards(Partitioner):
    """Sorts the examples by class, cuts them into equal shards and gives each client some at random.

    The pathological non-IID partition of McMahan et al. (2017), section 3.

    Args:
        shards_per_client: 2 gives most clients two classes.
    """

    by_class = True

    def __init__(self, shards_per_client: PositiveInt = 2) -> None:
        self.shards_per_client = shards_per_client

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        count = num_clients * self.shards_per_client
        if count > len(targets):
            raise DataError(
                f"data.partitioner.shards_per_client: {self.shards_per_client} for {num_clients} clients is more than "
                f"the {len(targets)} examples; give {len(targets) // num_clients} or less"
            )
        order = rng.permutation(len(targets))
        order = order[np.argsort(targets[order], kind="stable")]
        client_of_shard = np.empty(count, dtype=np.int64)
        client_of_shard[rng.permutation(count)] = np.arange(count) // self.shards_per_client
        return _equal_parts(order, client_of_shard)


@checked("data.partitioner")
class ByColumn(Partitioner):
    """Makes one client of each value of a column: an owner.

    Client k holds the k-th value in sorted order. ``num_clients`` is null or the number of values, unless they are
    merged.

    Args:
        column: The name of the column.
        least: Values with fewer examples are left out, and their examples go to no client. They are counted after
            the server's hold-out; sources with natural clients have a ``least`` of their own, which counts before it,
            as published numbers of clients do.
        merge: Whether fewer clients than values are allowed. The seed then shuffles the values, which are dealt out in
            turn.
    """

    column: str

    def __init__(self, column: str, least: PositiveInt = 1, merge: bool = False) -> None:
        self.column = column
        self.least = least
        self.merge = merge
        self.deals_all = least == 1

    @override
    def default_num_clients(self, columns: Columns) -> int:
        return len(self._kept(columns)[0])

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        values, rows, codes = self._kept(columns)
        if num_clients > len(values) or (num_clients < len(values) and not self.merge):
            few = f" with {self.least} examples or more" if self.least > 1 else ""
            raise DataError(
                f"data.num_clients: {num_clients} for {len(values)} values of {self.column!r}{few}; give null for a "
                "client of each, or set data.partitioner.init_args.merge: true for fewer clients"
            )
        if len(rows) < len(targets):
            left = len(targets) - len(rows)
            log.info("least: %d examples of clients with fewer than %d are left out", left, self.least)
        client_of_value = np.arange(len(values))
        if num_clients < len(values):
            client_of_value = rng.permutation(len(values)) % num_clients
        owners = np.full(len(targets), NOBODY)
        owners[rows] = client_of_value[codes]
        return owners

    def _kept(self, columns: Columns) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Returns the sorted values with enough examples, the rows that hold one of them, and its position."""
        if self.column not in columns:
            remedy = f"give one of: {', '.join(sorted(columns))}" if columns else "add it, or use Dirichlet or IID"
            raise ConfigError(f"data.partitioner.column: {self.column!r} is not in the data; {remedy}")
        column = np.asarray(columns[self.column])
        if empty := np.count_nonzero(missing(column)):
            raise DataError(f"data.partitioner.column: {self.column!r} is empty for {empty} examples; fill it in")
        if column.dtype.kind == "O":
            column = column.astype(str)
        values, codes, sizes = np.unique(column, return_inverse=True, return_counts=True)
        enough = sizes >= self.least
        if not enough.any():
            most = sizes.max(initial=0)
            raise DataError(
                f"data.partitioner.least: {self.least} is more than any {self.column!r} has; give at most {most}"
            )
        rows = np.flatnonzero(enough[codes])
        return values[enough], rows, (np.cumsum(enough) - 1)[codes[rows]]


@checked("data.partitioner")
@dataclass(eq=False)
class Dirichlet(Partitioner):
    """Splits each class over the clients in proportions drawn from Dir(alpha); sizes differ too.

    The partition of SuperFed (section 3.1, appendix L), after Lin et al. (2020), which says no more than that. As in
    common implementations, clients that hold N / num_clients already get nothing of a further class.

    Args:
        alpha: Small values give each client few classes; 100 is close to uniform.
        min_size: Draws are repeated, up to 100 times, until every client has as many examples.
    """

    by_class = True

    alpha: PositiveFloat
    min_size: PositiveInt = 10

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        if self.min_size * num_clients > len(targets):
            most = len(targets) // num_clients
            raise DataError(
                f"data.partitioner.min_size: {self.min_size} for {num_clients} clients needs more than {len(targets)} "
                f"examples; give min_size {most} or less, or fewer clients"
            )
        for _ in range(_MOST_DRAWS):
            owners = self._draw(targets, num_clients, rng)
            if np.bincount(owners, minlength=num_clients).min() >= self.min_size:
                return owners
        raise DataError(
            f"data.partitioner.alpha: {self.alpha} left clients below min_size {self.min_size} in each of "
            f"{_MOST_DRAWS} draws for num_clients {num_clients}; raise alpha, or lower min_size or num_clients"
        )

    def _draw(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Splits one class after the other; returns the client of each example."""
        owners = np.empty(len(targets), dtype=np.int64)
        sizes = np.zeros(num_clients, dtype=np.int64)
        alphas = np.full(num_clients, self.alpha)
        for label in np.unique(targets):
            members = rng.permutation(np.flatnonzero(targets == label))
            share = rng.dirichlet(alphas) * (sizes < len(targets) / num_clients)
            if not share.sum() > 0:  # the open clients' shares all vanished: the emptiest takes the class
                share = np.arange(num_clients) == sizes.argmin()
            # the last cut is at len(members): rounding must not hand a remainder to a full client
            cuts = (np.cumsum(share / share.sum()) * len(members)).round().astype(np.int64)
            cuts[-1] = len(members)
            counts = np.diff(cuts, prepend=0)
            owners[members] = np.repeat(np.arange(num_clients), counts)
            sizes += counts
        return owners


@checked("data.partitioner")
@dataclass(eq=False)
class BalancedDirichlet(Partitioner):
    """Gives each client near-equally many examples, of a class mix that it draws from Dir(alpha, ..., alpha).

    The LDA partition of Hsu et al. (2019), which FedorAS uses for CIFAR (section 4.1 and appendix): in random order,
    clients draw their examples one by one, without replacement: a class by the mix, an example of that class at random.
    An exhausted class is dropped and the mix of the others renormalised. All examples are used.

    Alpha is the parameter of each class, as FedorAS' authors drew it. Hsu et al. write alpha for the sum of the
    parameters: their alpha is this one times the number of classes.

    Args:
        alpha: Small values give each client few classes; 1000 is close to as many of each.
    """

    by_class = True

    alpha: PositiveFloat

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        labels, left = np.unique(targets, return_counts=True)
        stacks = [rng.permutation(np.flatnonzero(targets == label)) for label in labels]
        least, larger = divmod(len(targets), num_clients)
        order = rng.permutation(num_clients)
        # a client's examples of a class are no more than its examples
        counts = np.empty((num_clients, len(labels)), dtype=np.min_scalar_type(least + 1))
        alphas = np.full(len(labels), self.alpha)
        for client in order.tolist():
            drawn = draw_counts(rng.dirichlet(alphas), left, least + (client < larger), rng)
            left = left - drawn
            counts[client] = drawn
        owners = np.empty(len(targets), dtype=np.int64)
        for stack, of_class in zip(stacks, counts.T, strict=True):
            owners[stack[::-1]] = np.repeat(order, of_class[order])  # draws come off a stack's end
        return owners


def draw_counts(mix: np.ndarray, left: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws how many examples of each class a client gets, ``size`` of those that are left, int64 [classes]."""
    # Drawing one by one and dropping a class once it is exhausted gives the same distribution as drawing all at once
    # and drawing the surplus of the exhausted classes again from the others, which takes one step per such class.
    counts, missing = np.zeros_like(left), size
    while missing > 0:
        weights = np.where(counts < left, mix, 0.0)
        total = weights.sum()
        if not total > 0:  # all proportions of the open classes vanished, or some could not be drawn
            weights = np.nan_to_num(weights)
            weights = weights if weights.sum() > 0 else (left - counts).astype(float)
            total = weights.sum()
        counts = np.minimum(counts + rng.multinomial(missing, weights / total), left)
        missing = size - int(counts.sum())
    return counts


def _equal_parts(order: np.ndarray, owners_of_parts: np.ndarray) -> np.ndarray:
    """Cuts rows into consecutive parts, sizes differing by at most one, larger ones first; returns each row's owner."""
    parts = len(owners_of_parts)
    sizes = np.full(parts, len(order) // parts)
    sizes[: len(order) % parts] += 1
    owners = np.empty(len(order), dtype=np.int64)
    owners[order] = np.repeat(owners_of_parts, sizes)
    return owners
