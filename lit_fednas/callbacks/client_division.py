"""Which clients try which candidates: groups, and a group for each candidate (FedNAS, Algorithm 4.1)."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from lit_fednas.assignment.client_groups import (
    GroupReport,
    balanced_groups,
    group_report,
    imbalance,
    random_groups,
)
from lit_fednas.data import ClientData
from lit_fednas.federation import FederatedLightningModule
from lit_fednas.rng import numpy_generator

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class ClientDivision:
    """How the clients that are available are divided into groups (section 4.2).

    Args:
        groups: The number of groups.
        balance: How unbalanced they may be: most examples of a group over fewest.
        partition: ``balanced`` is the greedy algorithm of section 4.2; ``random`` deals clients out at random.
    """

    groups: int
    balance: float
    partition: Literal["balanced", "random"]

    def divide(
        self, module: FederatedLightningModule, clients: ClientData, round: int
    ) -> tuple[list[list[int]], list[GroupReport]]:
        """Returns the groups of the clients that are available for a round, and what each group holds."""
        present = module.cohort.availability.available(round, clients.num_clients, module.seed)
        if not present:
            log.warning("round %d: no client is available; the groups are made of all", round)
            present = list(range(clients.num_clients))
        count = min(self.groups, len(present))
        if count < self.groups:
            log.warning("round %d: %d clients are available, and make as many groups", round, count)
        counts = np.stack([clients.label_counts(client, module.supernet.num_classes) for client in present])
        if self.partition == "balanced":
            groups = balanced_groups(counts, count, self.balance)
        else:
            groups = random_groups(len(present), count, numpy_generator(module.seed, "client-groups", round))
        reports = group_report(counts, groups)
        if self.partition == "balanced" and imbalance(reports) > self.balance + 1e-9:
            log.warning(
                "round %d: the largest group has %.3g times the examples of the smallest, and prune_by_budgets."
                "balance is %g; so large are single clients",
                *(round, imbalance(reports), self.balance),
            )
        return [[present[index] for index in group] for group in groups], reports


def groups_of_candidates(
    macs: Mapping[str, float], examples: Sequence[int], rng: np.random.Generator
) -> dict[str, int]:
    """Gives each candidate a group at random; when all are busy, the first to be free.

    That is the one with the least to do, by its examples and the candidates' multiply-accumulates.

    Args:
        macs: Multiply-accumulates per example of each candidate, in the order in which they are given out.
        examples: Of each group.
        rng: Draws.

    Returns:
        The group of each candidate.

    Example:
        >>> groups_of_candidates({"conv1": 1, "conv2": 1, "conv3": 1}, [1000, 10], np.random.default_rng(0))
        {'conv1': 0, 'conv2': 1, 'conv3': 1}
    """
    order = [int(group) for group in rng.permutation(len(examples))]
    busy = dict.fromkeys(order, 0.0)
    given = {}
    for candidate, work in macs.items():
        group = min(order, key=lambda one: (busy[one], order.index(one)))
        busy[group] += max(1, examples[group]) * work
        given[candidate] = group
    return given
