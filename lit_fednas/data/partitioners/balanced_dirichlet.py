"""The LDA partition of Hsu et al. (2019), which FedorAS uses for CIFAR (section 4.1 and appendix)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lit_fednas.data.partitioners.base import Partitioner
from lit_fednas.errors import ConfigError


class BalancedDirichlet(Partitioner):
    """Gives each client near-equally many examples, of a class mix that it draws from Dir(alpha x prior).

    The prior is the share of each class in the data. A client draws its examples one by one, without
    replacement: a class by its mix, an example of that class at random. A class that has run dry is dropped
    and the mix of the others renormalised. Clients draw in random order, since the last ones must take what
    is left. All examples are used; sizes differ by at most one.

    Hsu et al. write alpha for the sum of the Dirichlet parameters (alpha x prior, a prior that sums to 1), so
    the same alpha is harsher here than in ``Dirichlet``, where it is the parameter of each client.

    Args:
        alpha: small values give each client few classes; 1000 is close to the prior.

    Raises:
        ConfigError: alpha is not positive.

    Example:
        >>> targets = np.repeat(np.arange(10), 100)
        >>> BalancedDirichlet(alpha=0.1).partition(targets, num_clients=3).sizes
        (334, 333, 333)
    """

    def __init__(self, alpha: float) -> None:
        if not 0 < alpha < float("inf"):
            raise ConfigError(f"alpha: {alpha} is not positive; give a finite value above 0")
        self.alpha = alpha

    def split(
        self,
        targets: np.ndarray,
        num_clients: int,
        rng: np.random.Generator,
        columns: Mapping[str, np.ndarray],
    ) -> list[np.ndarray]:
        """Lets one client after the other draw."""
        labels, left = np.unique(targets, return_counts=True)
        stacks = [rng.permutation(np.flatnonzero(targets == label)) for label in labels]
        sizes = np.full(num_clients, len(targets) // num_clients)
        sizes[: len(targets) % num_clients] += 1
        prior = left / left.sum()
        rows: list[np.ndarray] = [np.empty(0, dtype=np.int64)] * num_clients
        for client in rng.permutation(num_clients):
            mix = rng.dirichlet(self.alpha * prior)
            counts = draw_counts(mix, left, sizes[client], rng)
            # what is left of a stack is its front; draws come off its end
            rows[client] = np.concatenate(
                [stack[end - count : end] for stack, end, count in zip(stacks, left, counts, strict=True)]
            )
            left = left - counts
        return rows


def draw_counts(mix: np.ndarray, left: np.ndarray, size: int, rng: np.random.Generator) -> np.ndarray:
    """Draws how many examples of each class a client gets.

    Drawing one by one and dropping a class once it is dry gives the same distribution as drawing all at once
    and drawing the surplus of the dry classes again from the others, which takes one step per dry class.

    Args:
        mix: the client's class proportions.
        left: how many examples of each class there are.
        size: how many to draw, at most the sum of ``left``.
        rng: the source of randomness.
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
