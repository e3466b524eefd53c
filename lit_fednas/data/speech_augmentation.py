"""Augmentation of features of sound, ``[N, 1, coefficients, frames]``."""

from __future__ import annotations

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.data.transforms import Augmentation
from lit_fednas.ranges import NonNegativeFloat, PositiveInt, checked


@checked("data.source.augmentation")
class TimeShift(Augmentation):
    """Moves the frames of each example to earlier or later; the first or last frame fills the gap.

    Args:
        frames: The furthest move, each one from ``-frames`` to ``frames`` being equally likely. A frame of
            FedorAS' features is 20 ms; 5 of them are the 100 ms that are usual for Speech Commands (Warden, 2018).

    Example:
        >>> from lit_fednas.rng import generator
        >>> batch = torch.arange(4.0).expand(3, 1, 1, 4)
        >>> TimeShift(1)(batch, generator(0, "augment")).shape
        torch.Size([3, 1, 1, 4])
    """

    def __init__(self, frames: PositiveInt = 5) -> None:
        self.frames = frames

    @override
    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        count, length = len(batch), batch.shape[-1]
        draws = torch.randint(-self.frames, self.frames + 1, (count, 1), generator=generator, device=batch.device)
        places = (torch.arange(length, device=batch.device) - draws).clamp_(0, length - 1)
        return batch.gather(-1, places[:, None, None].expand(batch.shape))


@checked("data.source.augmentation")
class AddNoise(Augmentation):
    """Adds normal noise to the features of each example.

    Args:
        strength: Its standard deviation, as a multiple of that of the example's own features.

    Example:
        >>> from lit_fednas.rng import generator
        >>> bool((AddNoise(0.1)(torch.ones(2, 1, 3, 4), generator(0, "augment")) == 1).all())
        True
    """

    def __init__(self, strength: NonNegativeFloat = 0.1) -> None:
        self.strength = strength

    @override
    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        noise = torch.randn(batch.shape, generator=generator, device=batch.device, dtype=batch.dtype)
        return batch + noise * (self.strength * batch.std(dim=(1, 2, 3), correction=0, keepdim=True))
