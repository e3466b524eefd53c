"""Groups of clients with much the same data, and a group for each candidate (FedNAS, section 4.2, Alg. 4.1)."""

import logging
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from lit_fednas.data import ClientData
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.rng import numpy_generator

log = logging.getLogger(__name__)

#: Distances this close are equal, so that rounding decides nothing.
TOLERANCE = 1e-9
#: The largest ratio of the examples of two groups (r), unless single clients are that large.
BALANCE = 1.1


def available_groups(
    module: FederatedLightningModule, clients: ClientData, round: int, most: int, balanced: bool
) -> tuple[list[list[int]], list[dict[str, Any]]]:
    """Returns groups of the clients that are available in a round, at most as many as asked for, and their content."""
    present = module.cohort.availability.available(round, clients.num_clients, module.seed)
    if not present:
        log.warning("round %d: no client is available; the groups are formed from all", round + 1)
        present = list(range(clients.num_clients))
    if (count := min(most, len(present))) < most:
        log.warning("round %d: %d clients are available, and form as many groups", round + 1, count)
    counts = np.stack([clients.label_counts(client, module.supernet.num_classes) for client in present])
    if balanced:
        groups = balanced_groups(counts, count)
    else:
        groups = random_groups(len(present), count, numpy_generator(module.seed, "client-groups", round))
    reports = group_report(counts, groups)
    sizes = [report["examples"] for report in reports]
    if balanced and max(sizes) > min(sizes) * (BALANCE + TOLERANCE):
        log.warning(
            "round %d: groups have %d to %d examples, beyond a ratio of %g; single clients are that large",
            *(round + 1, min(sizes), max(sizes), BALANCE),
        )
    return [[present[index] for index in group] for group in groups], reports


def groups_of_candidates(
    macs: Mapping[str, float], examples: Sequence[int], rng: np.random.Generator
) -> dict[str, int]:
    """Returns a random group for each candidate; when all are busy, the one with the least examples times MACs."""
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

    The partition minimises the mean distance between the classes of a group and those of all clients, with sizes
    bound by ``max(d) <= balance * min(d)``, which the data of a few large clients may not allow.

    Clients are taken by their number of examples, largest first. A group is admissible if the inequality holds once the
    client is in it; so are always the groups with the fewest examples, and the distance of an empty group is the
    greatest, 2 (the paper does not say). The admissible group with the smallest mean distance afterwards takes the
    client; ties go to fewer examples, then fewer clients, then the lower number. No group stays without a client.

    Args:
        counts: Examples per client and class, int [clients, classes]; a client may have none.
        groups: The number of groups, K, at most that of clients.
        balance: r, how many times the smallest group's examples the largest may have, at least 1.

    Returns:
        For each group the positions in ``counts`` of its clients, ascending.

    Example:
        >>> balanced_groups(np.array([[4, 0], [0, 4], [4, 0], [0, 4]]), 2)
        [[0, 3], [1, 2]]
    """
    counts = np.asarray(counts, dtype=np.int64)
    everyone = _shares(counts.sum(axis=0))
    sizes = counts.sum(axis=1)
    held = np.zeros((groups, counts.shape[1]), dtype=np.int64)
    members = np.zeros(groups, dtype=np.int64)
    owners = np.empty(len(counts), dtype=np.int64)
    for client in np.argsort(-sizes, kind="stable"):
        examples = held.sum(axis=1)
        largest = np.maximum(examples + sizes[client], examples.max())
        keeps = largest <= balance * examples.min() * (1 + TOLERANCE)  # only a smallest group raises the minimum
        open_groups = np.flatnonzero(keeps | (examples == examples.min()))
        # the mean distance changes by this over the number of groups
        gain = (_distances(held + counts[client], everyone) - _distances(held, everyone))[open_groups]
        best = open_groups[gain <= gain.min() + TOLERANCE]
        # ``best`` ascends and the sort is stable, so the lower number comes first
        group = best[np.lexsort((members[best], examples[best]))[0]]
        held[group] += counts[client]
        members[group] += 1
        owners[client] = group
    return [np.flatnonzero(owners == group).tolist() for group in range(groups)]


def random_groups(num_clients: int, groups: int, rng: np.random.Generator) -> list[list[int]]:
    """Returns random groups of equal size, give or take one client: FedNAS's baseline."""
    return [sorted(part.tolist()) for part in np.array_split(rng.permutation(num_clients), groups)]


def group_report(counts: np.ndarray, groups: Sequence[Sequence[int]]) -> list[dict[str, Any]]:
    """Returns of each group, by positions in ``counts``, its clients, examples, and classes' distance from all."""
    held = np.stack([counts[group].sum(axis=0) for group in groups])
    distances = _distances(held, _shares(counts.sum(axis=0)))
    content = zip(groups, held.sum(axis=1).tolist(), distances.tolist(), strict=True)
    return [{"clients": len(group), "examples": count, "distance": distance} for group, count, distance in content]


def _distances(held: np.ndarray, everyone: np.ndarray) -> np.ndarray:
    """Returns the Manhattan distance of each row's class shares from ``everyone``; 2 for an empty row."""
    distances = np.abs(_shares(held) - everyone).sum(axis=1)
    return np.where(held.any(axis=1), distances, 2.0)


def _shares(held: np.ndarray) -> np.ndarray:
    """Normalises counts over the last axis to sum to 1; a row of zeros stays one."""
    return held / np.maximum(held.sum(axis=-1, keepdims=True), 1)
