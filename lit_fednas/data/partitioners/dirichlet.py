"""Dirichlet partitions: of SuperFed, where sizes differ, and of FedorAS, where they are equal."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from lit_fednas.data.partitioners.base import Columns, Partitioner
from lit_fednas.errors import DataError
from lit_fednas.ranges import PositiveFloat, PositiveInt, checked

#: How likely it may be that draws are given up of which one would have succeeded.
_CHANCE = 1e-6


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
        >>> int(partition.sizes.sum()), bool(partition.sizes.min() >= 10)
        (1000, True)
    """

    by_class = True

    alpha: PositiveFloat
    min_size: PositiveInt = 10
    balance: bool = True
    max_tries: PositiveInt = 100

    @override
    def split(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator, columns: Columns) -> np.ndarray:
        if self.min_size * num_clients > len(targets):
            most = len(targets) // num_clients
            raise DataError(
                f"data.partitioner.min_size: {self.min_size} for {num_clients} clients needs more than {len(targets)} "
                f"examples; give min_size {most} or less, or fewer clients"
            )
        short, draws = 0, 0
        while draws < self.max_tries and not hopeless(short, draws, self.max_tries):
            owners = self._draw(targets, num_clients, rng)
            small = int(np.count_nonzero(np.bincount(owners, minlength=num_clients) < self.min_size))
            if not small:
                return owners
            short, draws = short + small, draws + 1
        raise DataError(
            f"data.partitioner.alpha: {self.alpha} left clients below min_size {self.min_size} ({short / draws:.4g} on "
            f"average) in each of {draws} draws for num_clients {num_clients}; raise alpha, or lower min_size or "
            f"num_clients"
        )

    def _draw(self, targets: np.ndarray, num_clients: int, rng: np.random.Generator) -> np.ndarray:
        """Splits one class after the other; returns the client of each example."""
        owners = np.empty(len(targets), dtype=np.int64)
        sizes = np.zeros(num_clients, dtype=np.int64)
        alphas = np.full(num_clients, self.alpha)
        for label in np.unique(targets):
            members = rng.permutation(np.flatnonzero(targets == label))
            share = rng.dirichlet(alphas)
            if self.balance:
                share = share * (sizes < len(targets) / num_clients)
            if not share.sum() > 0:  # the open clients' shares all vanished: the emptiest takes the class
                share = np.arange(num_clients) == sizes.argmin()
            # the last cut is at len(members): rounding must not hand a remainder to a full client
            cuts = (np.cumsum(share / share.sum()) * len(members)).round().astype(np.int64)
            cuts[-1] = len(members)
            counts = np.diff(cuts, prepend=0)
            owners[members] = np.repeat(np.arange(num_clients), counts)
            sizes += counts
        return owners


def hopeless(short: int, draws: int, max_tries: int) -> bool:
    """Returns whether so many clients were too small that no further draw will have none.

    Within a draw clients take examples from each other, so that one being small makes it no likelier that others are
    (negative association: Joag-Dev and Proschan, 1983; it is proven for shares, and assumed where clients are passed
    over and shares are rounded). If a draw leaves ``m`` clients too small on average, one leaves none with a
    probability of at most ``exp(-m)``, and ``draws`` of them leave ``short`` or more together with one of at most
    ``exp(-draws * m) * (e * draws * m / short) ** short`` (Chernoff). So whatever ``m`` is, both happen with a
    probability of at most ``(draws / (draws + 1)) ** short``. It is summed over all further draws, and over all draws
    after which this is asked.

    Args:
        short: How many clients were too small, over all draws.
        draws: How many draws there were; each had such clients.
        max_tries: How many draws there may be.

    Example:
        >>> hopeless(30, 1, 100), hopeless(40, 1, 100), hopeless(5 * 99, 99, 100)
        (False, True, False)
    """
    return draws > 0 and short * math.log1p(1 / draws) > 2 * math.log(max_tries) - math.log(_CHANCE)


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
        array([334, 333, 333])
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
