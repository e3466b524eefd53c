"""Small sequences of pruned models for tests."""

from __future__ import annotations

from lit_fednas.supernets import PrunedSequence, SlicedConvNet, find_cuts
from tests.support import seeded


def pruned_sequence(
    seed: int = 0,  # of the weights
    hidden: tuple[int, ...] = (4, 6),
    steps: int = 0,  # models beside the initial one
    candidates: bool = False,  # for another
    input_shape: tuple[int, ...] = (1, 8, 8),
    num_classes: int = 4,
    **settings,
) -> PrunedSequence:
    """A sequence of layers without norms; its models after the first have lost a filter of the first layer each."""
    family = SlicedConvNet(hidden, pools=range(1, 1 + len(hidden))[:3])
    sequence = seeded(PrunedSequence, input_shape, num_classes, family, seed=seed, **settings)
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
    return sequence.propose(find_cuts(sizes, 1, lambda left: sum(left.values()), total - 1))
