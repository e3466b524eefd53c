"""Groups of clients with similar data, and a group for each candidate (FedNAS, section 4.2, Alg. 4.1)."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lit_fednas.data import ClientData
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.rng import numpy_generator

log = logging.getLogger(__name__)

#: Maximum difference of equal distances, so that rounding errors have no effect.
TOLERANCE = 1e-9
#: The largest ratio of the examples of two groups (r); large clients may exceed it.
BALANCE = 1.1


def available_groups(
    module: FederatedLightningModule, clients: ClientData, round: int, max_groups: int, balanced: bool
) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Returns at most ``max_groups`` groups of the clients that are available in a round, and the groups' contents."""
    present = module.cohort.availability.available(round, clients.num_clients, module.seed)
    if not present:
        log.warning("round %d: no client is available; the groups are formed from all clients", round + 1)
        present = list(range(clients.num_clients))
    if (count := min(max_groups, len(present))) < max_groups:
        log.warning("round %d: only %d clients are available, and each is a group", round + 1, count)
    counts = np.stack([clients.label_counts(client, module.supernet.num_classes) for client in present])
    if balanced:
        groups = balanced_groups(counts, count)
    else:
        groups = random_groups(len(present), count, numpy_generator(module.seed, "client-groups", round))
    reports = group_report(counts, groups)
    sizes = [report["examples"] for report in reports]
    if balanced and max(sizes) > min(sizes) * (BALANCE + TOLERANCE):
        log.warning(
            "round %d: groups have %d to %d examples, above the ratio of %g, because of large clients",
            *(round + 1, min(sizes), max(sizes), BALANCE),
        )
    return [[present[index] for index in group] for group in groups], reports


def groups_of_candidates(
    macs: Mapping[str, float], examples: Sequence[int], rng: np.random.Generator
) -> dict[str, int]:
    """Returns a random free group for each candidate; without one, the group with the least examples times MACs."""
    order = [int(group) for group in rng.permutation(len(examples))]
    busy = dict.fromkeys(order, 0.0)
    assigned = {}
    for candidate, work in macs.items():
        group = min(order, key=lambda number: (busy[number], order.index(number)))
        busy[group] += max(1, examples[group]) * work
        assigned[candidate] = group
    return assigned


def balanced_groups(counts: np.ndarray, groups: int, balance: float = BALANCE) -> list[list[int]]:
    """Partitions clients greedily into groups of about the same size and mix of classes (FedNAS, section 4.2).

    The partition minimises the mean distance between the class shares of a group and those of all clients, with sizes
    bound by ``max(d) <= balance * min(d)``, unless a few large clients make that impossible.

    Clients are assigned in descending order of their numbers of examples. A group is admissible if the inequality holds
    with the client in it, or if it has the fewest examples; an empty group has the greatest distance, 2 (the paper
    does not define these cases). The client joins the admissible group that then has the smallest mean distance; ties
    go to fewer examples, then fewer clients, then the lower number. No group remains empty.

    Args:
        counts: Number of examples by client and class, int [clients, classes]; rows may be zero.
        groups: The number of groups, K, at most the number of clients.
        balance: r, the maximum ratio of the examples of two groups, at least 1.

    Returns:
        The ascending positions in ``counts`` of each group's clients.

    Example:
        >>> balanced_groups(np.array([[4, 0], [0, 4], [4, 0], [0, 4]]), 2)
        [[0, 3], [1, 2]]
    """
    counts = np.asarray(counts, dtype=np.int64)
    total_shares = _shares(counts.sum(axis=0))
    sizes = counts.sum(axis=1)
    group_counts = np.zeros((groups, counts.shape[1]), dtype=np.int64)
    members = np.zeros(groups, dtype=np.int64)
    owners = np.empty(len(counts), dtype=np.int64)
    for client in np.argsort(-sizes, kind="stable"):
        examples = group_counts.sum(axis=1)
        largest = np.maximum(examples + sizes[client], examples.max())
        # The client can raise the minimum only in a smallest group, which is always admissible.
        is_balanced = largest <= balance * examples.min() * (1 + TOLERANCE)
        open_groups = np.flatnonzero(is_balanced | (examples == examples.min()))
        # The mean distance changes by these values divided by the number of groups.
        changes = _distances(group_counts + counts[client], total_shares) - _distances(group_counts, total_shares)
        changes = changes[open_groups]
        best = open_groups[changes <= changes.min() + TOLERANCE]
        # ``best`` ascends and the sort is stable, so the lower number wins.
        group = best[np.lexsort((members[best], examples[best]))[0]]
        group_counts[group] += counts[client]
        members[group] += 1
        owners[client] = group
    return [np.flatnonzero(owners == group).tolist() for group in range(groups)]


def random_groups(num_clients: int, groups: int, rng: np.random.Generator) -> list[list[int]]:
    """Returns random groups with sizes that differ by at most one client (FedNAS' baseline)."""
    return [sorted(part.tolist()) for part in np.array_split(rng.permutation(num_clients), groups)]


def group_report(counts: np.ndarray, groups: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Returns each group's numbers of clients and examples, and the distance of its class shares from all clients'."""
    group_counts = np.stack([counts[group].sum(axis=0) for group in groups])
    distances = _distances(group_counts, _shares(counts.sum(axis=0)))
    content = zip(groups, group_counts.sum(axis=1).tolist(), distances.tolist(), strict=True)
    return [{"clients": len(group), "examples": count, "distance": distance} for group, count, distance in content]


def _distances(counts: np.ndarray, total_shares: np.ndarray) -> np.ndarray:
    """Returns the Manhattan distance of each row's class shares from ``total_shares``; 2 for an empty row."""
    distances = np.abs(_shares(counts) - total_shares).sum(axis=1)
    return np.where(counts.any(axis=1), distances, 2.0)


def _shares(counts: np.ndarray) -> np.ndarray:
    """Returns counts divided by their sum over the last axis; rows of zeros stay zero."""
    return counts / np.maximum(counts.sum(axis=-1, keepdims=True), 1)
