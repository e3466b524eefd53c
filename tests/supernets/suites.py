"""A small suite with wider models, deeper models, both, and two branches."""

from __future__ import annotations

from lit_fednas.supernets import GrowableCNN, ModelSuite, Norm
from lit_fednas.supernets.growing.growth import Deepen, Widen
from tests.support import seeded

WIDER = (Widen("conv1", {"conv1.out": 8}),)
BOTH = (Deepen("conv1", ("conv1_m2",)), Widen("conv2", {"conv2.out": 12}))
DEEPER = (Deepen("conv1", ("conv1_m3",)),)
#: Parent, steps and round of addition of each model.
GROWTH = ((0, WIDER, 2), (1, BOTH, 5), (0, DEEPER, 6))


def grown_suite(
    models: int = 4, norm: Norm | None = None, num_classes: int = 4, input_shape: tuple[int, ...] = (1, 8, 8)
) -> ModelSuite:
    """Model 1 has parent 0, model 2 has 1, and model 3 has 0; ordered by cost they are 0, 3, 1, 2."""
    suite = seeded(ModelSuite, input_shape, num_classes, GrowableCNN([4, 6], norm=norm))
    for parent, steps, round in GROWTH[: models - 1]:
        suite.add(parent, steps, seed=0, round=round)
    return suite
