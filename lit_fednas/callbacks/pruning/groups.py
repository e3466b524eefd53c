"""Groups of clients with much the same data, and a group for each candidate (FedNAS, section 4.2, Alg. 4.1)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.rng import numpy_generator

log = logging.getLogger(__name__)

#: Distances this close are equal, so that rounding decides nothing.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class GroupReport:
    """The content of one group.

    Attributes:
        clients: The number of its clients.
        examples: The number of their examples, ``d_i``.
        distance: The Manhattan distance between the class shares of the group and of all clients, 0 to 2.
    """

    clients: int
    examples: int
    distance: float


@dataclass(frozen=True)
class ClientDivision:
    """How the available clients are divided into groups (section 4.2); arguments as of ``PruneByBudgets``."""

    groups: int
    balance: float
    partition: Literal["balanced", "random"]

    def divide(
        self, module: FederatedLightningModule, clients: ClientData, round: int
    ) -> tuple[list[list[int]], list[GroupReport]]:
        """Returns the groups of the clients that are available in a round, and their content."""
        present = module.cohort.availability.available(round, clients.num_clients, module.seed)
        if not present:
            log.warning("round %d: no client is available; the groups are formed from all", round)
            present = list(range(clients.num_clients))
        count = min(self.groups, len(present))
        if count < self.groups:
            log.warning("round %d: %d clients are available, and form as many groups", round, count)
        counts = np.stack([clients.label_counts(client, module.supernet.num_classes) for client in present])
        if self.partition == "balanced":
            groups = balanced_groups(counts, count, self.balance)
        else:
            groups = random_groups(len(present), count, numpy_generator(module.seed, "client-groups", round))
        reports = group_report(counts, groups)
        if self.partition == "balanced" and imbalance(reports) > self.balance + 1e-9:
            log.warning(
                "round %d: the largest group has %.3g times the examples of the smallest, and prune_by_budgets."
                "balance is %g; single clients are that large",
                *(round, imbalance(reports), self.balance),
            )
        return [[present[index] for index in group] for group in groups], reports


def groups_of_candidates(
    macs: Mapping[str, float], examples: Sequence[int], rng: np.random.Generator
) -> dict[str, int]:
    """Returns a random group for each candidate; when all are busy, the group that is free first.

    That is the group with the least work, by its ``examples`` and its candidates' multiply-accumulates per example.

    Example:
        >>> groups_of_candidates({"conv1": 1, "conv2": 1, "conv3": 1}, [1000, 10], np.random.default_rng(0))
        {'conv1': 0, 'conv2': 1, 'conv3': 1}
    """
    order = [int(group) for group in rng.permutation(len(examples))]
    busy = dict.fromkeys(order, 0.0)
    assigned = {}
    for candidate, work in macs.items():
        group = min(order, key=lambda number: (busy[number], order.index(number)))
        busy[group] += max(1, examples[group]) * work
        assigned[candidate] = group
    return assigned


def balanced_groups(counts: np.ndarray, groups: int, balance: float = 1.1) -> list[list[int]]:
    """Partitions clients greedily into groups of about the same size and mix of classes (FedNAS, section 4.2).

    Each group trains and tests other candidates, so their accuracies can only be compared where the groups hold
    about equally many examples and about the same mix of classes. The partition minimises the mean distance
    between the classes of a group and those of all clients, with sizes bound by ``max(d) <= balance * min(d)``.

    Clients are taken by their number of examples, largest first, ties by position. A group is admissible if the
    inequality holds once the client is in it. The paper does not say what happens while it cannot hold, as at the
    beginning, when groups are empty: here the groups with the fewest examples so far are always admissible, so
    that sizes grow alike from the start and a large client that broke the inequality is compensated for. Nor does
    it say how far an empty group is from everyone: here it is the greatest distance, 2. Of the admissible groups
    the one with the smallest mean distance afterwards takes the client; ties go to the group with fewer examples,
    then with fewer clients, then to the lower number. No group stays without a client.

    The data of a few large clients may not allow the balance, which is not an error (:func:`imbalance`).

    Args:
        counts: Examples per client and class, int [clients, classes]; a client may have none.
        groups: The number of groups, K.
        balance: r, how many times the smallest group's examples the largest may have.

    Returns:
        For each group the positions in ``counts`` of its clients, ascending.

    Raises:
        ConfigError: Fewer clients than groups, no groups, or ``balance`` is below 1.

    Example:
        >>> balanced_groups(np.array([[4, 0], [0, 4], [4, 0], [0, 4]]), 2)
        [[0, 3], [1, 2]]
    """
    counts = np.asarray(counts, dtype=np.int64)
    _check(len(counts), groups)
    if not balance >= 1:
        raise ConfigError(f"balance: {balance} is less than 1; give 1 or more, such as 1.1")
    everyone = _shares(counts.sum(axis=0))
    sizes = counts.sum(axis=1)
    held = np.zeros((groups, counts.shape[1]), dtype=np.int64)
    examples = np.zeros(groups, dtype=np.int64)
    members = np.zeros(groups, dtype=np.int64)
    distances = np.full(groups, 2.0)
    owners = np.empty(len(counts), dtype=np.int64)
    for client in np.argsort(-sizes, kind="stable"):
        after = _distances(held + counts[client], everyone)
        open_groups = np.flatnonzero(_admissible(examples, sizes[client], balance))
        gain = (after - distances)[open_groups]  # the mean distance changes by this over the number of groups
        best = open_groups[gain <= gain.min() + TOLERANCE]
        # ``best`` ascends and the sort is stable, so the lower number comes first
        group = best[np.lexsort((members[best], examples[best]))[0]]
        held[group] += counts[client]
        examples[group] += sizes[client]
        members[group] += 1
        distances[group] = after[group]
        owners[client] = group
    return [np.flatnonzero(owners == group).tolist() for group in range(groups)]


def random_groups(num_clients: int, groups: int, rng: np.random.Generator) -> list[list[int]]:
    """Returns random groups of equal size, give or take one client: FedNAS's baseline.

    Example:
        >>> sorted(map(len, random_groups(7, 3, np.random.default_rng(0))))
        [2, 2, 3]
    """
    _check(num_clients, groups)
    return [sorted(part.tolist()) for part in np.array_split(rng.permutation(num_clients), groups)]


def group_report(counts: np.ndarray, groups: Sequence[Sequence[int]]) -> list[GroupReport]:
    """Returns the content of each group, given as positions in ``counts``; one without examples is at distance 2.

    Example:
        >>> group_report(np.array([[3, 1], [1, 3]]), [[0], [1]])[0]
        GroupReport(clients=1, examples=4, distance=0.5)
    """
    counts = np.asarray(counts, dtype=np.int64)
    everyone = _shares(counts.sum(axis=0))
    reports = []
    for group in groups:
        held = counts[np.asarray(group, dtype=np.int64)].sum(axis=0)
        distance = float(_distances(held[None], everyone)[0])
        reports.append(GroupReport(len(group), int(held.sum()), distance))
    return reports


def imbalance(reports: Sequence[GroupReport]) -> float:
    """Returns the examples of the largest group over the smallest's: infinite if only some have any, 1 if none."""
    examples = [report.examples for report in reports]
    if not any(examples):
        return 1.0
    return max(examples) / min(examples) if min(examples) else float("inf")


def _admissible(examples: np.ndarray, size: int, balance: float) -> np.ndarray:
    """Returns which groups may take a client of ``size`` examples: bool [groups]."""
    smallest = examples.min()
    largest = np.maximum(examples + size, examples.max())
    keeps = largest <= balance * smallest * (1 + TOLERANCE)  # only a smallest group raises the minimum
    return keeps | (examples == smallest)


def _distances(held: np.ndarray, everyone: np.ndarray) -> np.ndarray:
    """Returns the Manhattan distance of each row's class shares from ``everyone``; 2 for an empty row."""
    distances = np.abs(_shares(held) - everyone).sum(axis=1)
    return np.where(held.any(axis=1), distances, 2.0)


def _shares(held: np.ndarray) -> np.ndarray:
    """Normalises counts over the last axis to sum to 1; a row of zeros stays one."""
    return held / np.maximum(held.sum(axis=-1, keepdims=True), 1)


def _check(num_clients: int, groups: int) -> None:
    if groups < 1:
        raise ConfigError(f"groups: {groups} is less than 1; give 1 or more")
    if num_clients < groups:
        raise ConfigError(
            f"groups: {groups} for {num_clients} clients leaves groups empty; give at most {num_clients}, "
            "or have more clients"
        )
