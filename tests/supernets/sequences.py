"""Small sequences of pruned models for tests."""

from __future__ import annotations

import torch

from lit_fednas.supernets import PrunedSequence, SlicedConvNet, find_cuts


def pruned_sequence(
    seed: int = 0, hidden: tuple[int, ...] = (4, 6), steps: int = 0, candidates: bool = False, **settings
) -> PrunedSequence:
    """A sequence of layers without norms, on images of 1x8x8 and four classes.

    Args:
        seed: Of the weights.
        hidden: Filters of the layers.
        steps: How many models it has beside the initial one; they lose a filter of the first layer each.
        candidates: Whether there are candidates for another.
    """
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        sequence = PrunedSequence((1, 8, 8), 4, SlicedConvNet(hidden, pools=range(1, 1 + len(hidden))[:3]), **settings)
    for step in range(steps):
        propose(sequence)
        sequence.select("conv1", round=step)
    if candidates:
        propose(sequence)
    return sequence


def propose(sequence: PrunedSequence) -> list:
    """Candidates that lose a filter each."""
    sizes = sequence.models[-1].sizes
    total = sum(sizes.values())
    return sequence.propose(find_cuts(sequence.units, sizes, 1, lambda left: sum(left.values()), total - 1))
