"""Clients dealt out, so that several models are trained at the same time (FedNAS, section 4.4)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from lit_fednas.data import FederatedDataModule
from lit_fednas.data.client_groups import balanced_groups
from lit_fednas.errors import ConfigError


def dealt(eligible: Mapping[str, Sequence[int]], data: FederatedDataModule) -> dict[str, list[int]]:
    """Gives each candidate a group of clients of its own, balanced by their training examples (section 4.2).

    Args:
        eligible: The clients that could train it, by candidate.
        data: Theirs.

    Returns:
        The clients of its group, ascending, by candidate.

    Raises:
        ConfigError: Not all candidates have the same eligible clients, or there are too few for so many groups.
    """
    (first, clients), *others = eligible.items()
    for name, theirs in others:
        if list(theirs) != list(clients):
            raise ConfigError(
                f"finetune.in_groups: {first} and {name} have other eligible clients ({len(clients)} and "
                f"{len(theirs)}), which cannot be dealt out among them; set finetune.tier_aware or "
                f"finetune.in_groups to false"
            )
    counts = np.stack([data.clients.label_counts(client, data.num_classes, ["train"]) for client in clients])
    holders = int(counts.any(axis=1).sum())
    if holders < len(eligible):
        raise ConfigError(
            f"finetune.in_groups: {holders} eligible clients hold examples, too few for {len(eligible)} "
            f"candidates; train fewer at once, or set finetune.in_groups to false"
        )
    groups = balanced_groups(counts, len(eligible))
    return {name: [clients[place] for place in group] for name, group in zip(eligible, groups, strict=True)}
