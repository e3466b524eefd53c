"""Dirichlet partitions: of SuperFed, where sizes differ, and of FedorAS, where they are equal."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from lit_fednas.data.partitioners.base import Columns, Partitioner, Rows
from lit_fednas.errors import DataError
from lit_fednas.ranges import PositiveFloat, PositiveInt, checked


@checked("data.partitioner")
@dataclass(eq=False)
class Dirichlet(Partitioner):
    """Splits each class over the clients in proportions drawn from Dir(alpha); sizes differ too.

    The partition of SuperFed (section 3.1, appendix L), after Lin et al. (2020), which says no more than that.
    Common implementations also pass over clients that already hold their share N / num_clients when a further
    class is split (``balance``), and draw anew until every client has 10 examples (``min_size``).

    Args:
        alpha: Small values give each client few classes; 100 is close to uniform.
        min_size: Draws are repeated until every client has as many examples.
        balance: Whether to pass over clients that hold N / num_clients already; False splits every class plainly.
        max_tries: Draws before giving up.

    Raises:
        ConfigError: A setting is out of range.

    Example:
        >>> targets = np.repeat(np.arange(10), 100)
        >>> partition = Dirichlet(alpha=0.5).partition(targets, num_clients=5)
        >>> sum(partition.sizes), min(partition.sizes) >= 10
        (1000, True)
    """

    by_class = True

    alpha: PositiveFloat
    min_size: PositiveInt = 10
    balance: bool = True
    max_tries: PositiveInt = 100

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> Rows:
        if self.min_size * num_clients > len(targets):
            most = len(targets) // num_clients
            raise DataError(
                f"data.partitioner.min_size: {self.min_size} for {num_clients} clients needs more than {len(targets)} "
                f"examples; give min_size {most} or less, or fewer clients"
            )
        for _ in range(self.max_tries):
            rows = self._draw(targets, num_clients, rng)
            if min(map(len, rows)) >= self.min_size:
                return rows
        raise DataError(
            f"data.partitioner.alpha: {self.alpha} left a client below min_size {self.min_size} in each of "
            f"{self.max_tries} draws for num_clients {num_clients}; raise alpha, or lower min_size or num_clients"
        )

    def _draw(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator) -> Rows:
        """Splits one class after the other."""
        parts: list[Rows] = [[] for _ in range(num_clients)]
        sizes = np.zeros(num_clients)
        for label in np.unique(targets):
            members = rng.permutation(np.flatnonzero(targets == label))
            share = rng.dirichlet(np.full(num_clients, self.alpha))
            if self.balance:
                share = share * (sizes < len(targets) / num_clients)
            if not share.sum() > 0:  # the open clients' shares all vanished: the emptiest takes the class
                share = np.arange(num_clients) == sizes.argmin()
            # the last cut is at len(members): rounding must not hand a remainder to a full client
            cuts = (np.cumsum(share / share.sum()) * len(members)).round().astype(int)
            for client, part in enumerate(np.split(members, cuts[:-1])):
                parts[client].append(part)
                sizes[client] += len(part)
        return [np.concatenate(part) for part in parts]


@checked("data.partitioner")
@dataclass(eq=False)
class BalancedDirichlet(Partitioner):
    """Gives each client near-equally many examples, of a class mix that it draws from Dir(alpha, ..., alpha).

    The LDA partition of Hsu et al. (2019), which FedorAS uses for CIFAR (section 4.1 and appendix).

    A client draws its examples one by one, without replacement: a class by its mix, an example of that class at
    random. An exhausted class is dropped and the mix of the others renormalised. Clients draw in random order, since
    the last ones must take what is left. All examples are used; sizes differ by at most one.

    Alpha is the parameter of each class, as in ``Dirichlet`` it is that of each client, and as FedorAS' authors drew
    it. Hsu et al. write alpha for the sum of the parameters: their alpha is this one times the number of classes.

    Args:
        alpha: Small values give each client few classes; 1000 is close to as many of each.

    Raises:
        ConfigError: Alpha is not positive or not finite.

    Example:
        >>> targets = np.repeat(np.arange(10), 100)
        >>> BalancedDirichlet(alpha=0.1).partition(targets, num_clients=3).sizes
        (334, 333, 333)
    """

    by_class = True

    alpha: PositiveFloat

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> Rows:
        labels, left = np.unique(targets, return_counts=True)
        stacks = [rng.permutation(np.flatnonzero(targets == label)) for label in labels]
        sizes = np.full(num_clients, len(targets) // num_clients)
        sizes[: len(targets) % num_clients] += 1
        rows: Rows = [np.empty(0, dtype=np.int64)] * num_clients
        for client in rng.permutation(num_clients):
            mix = rng.dirichlet(np.full(len(labels), self.alpha))
            counts = draw_counts(mix, left, sizes[client], rng)
            # what is left of a stack is its front; draws come off its end
            rows[client] = np.concatenate(
                [stack[end - count : end] for stack, end, count in zip(stacks, left, counts, strict=True)]
            )
            left = left - counts
        return rows


def draw_counts(mix: np.ndarray, left: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws how many examples of each class a client gets.

    Drawing one by one and dropping a class once it is exhausted gives the same distribution as drawing all at once
    and drawing the surplus of the exhausted classes again from the others, which takes one step per such class.

    Args:
        mix: The client's class proportions.
        left: How many examples of each class remain.
        size: How many to draw, at most the sum of ``left``.
        rng: The source of randomness.

    Returns:
        int64 [classes].
    """
    counts = np.zeros_like(left)
    while (missing := size - counts.sum()) > 0:
        open_classes = counts < left
        weights = np.where(open_classes, np.nan_to_num(mix), 0.0)
        if not weights.sum() > 0:  # all proportions of the open classes vanished
            weights = (left - counts).astype(float)
        drawn = rng.multinomial(missing, weights / weights.sum())
        counts = np.minimum(counts + drawn, left)
    return counts
