"""Small sequences of pruned models for tests."""

from __future__ import annotations

from lit_fednas.supernets import PrunedSequence, SlicedConvNet, find_cuts
from tests.support import seeded


def pruned_sequence(
    seed: int = 0,  # seed of the weights
    hidden: tuple[int, ...] = (4, 6),
    steps: int = 0,  # number of models besides the initial one
    candidates: bool = False,  # for another
    input_shape: tuple[int, ...] = (1, 8, 8),
    num_classes: int = 4,
    **settings,
) -> PrunedSequence:
    """A sequence of models without norms; each model after the initial one has lost a filter of the first layer."""
    family = SlicedConvNet(hidden, pools=range(1, 1 + len(hidden))[:3])
    sequence = seeded(PrunedSequence, input_shape, num_classes, family, seed=seed, **settings)
    for step in range(steps):
        propose(sequence)
        sequence.select("conv1", round=step)
    if candidates:
        propose(sequence)
    return sequence


def propose(sequence: PrunedSequence) -> list:
    """Proposes candidates that lose one filter each."""
    sizes = sequence.models[-1].sizes
    total = sum(sizes.values())
    return sequence.propose(find_cuts(sizes, 1, lambda units: sum(units.values()), total - 1))
