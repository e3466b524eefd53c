"""RandAugment (Cubuk et al., 2020): a few operations of one strength, drawn anew for every image."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Annotated

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as tv
from typing_extensions import override

from lit_fednas.data.transforms import Augmentation
from lit_fednas.ranges import PositiveInt, Range, checked

Operation = Callable[[Tensor], Tensor]
Magnitude = Annotated[int, Range(at_least=0, at_most=30)]


@checked("data.source.augmentation")
class RandAugment(Augmentation):
    """Applies some of 14 operations to each image, as ``torchvision.transforms.RandAugment`` does.

    Shears, shifts, rotations, changes of brightness, saturation, contrast and sharpness go either way, as drawn; there
    are posterize, solarize, autocontrast, equalize, and no change. Images that drew the same are changed together.

    Args:
        num_ops: Operations per image, one after the other; the same one may be drawn twice.
        magnitude: The strength of all operations, from 0 to 30.

    Raises:
        ConfigError: A setting is out of range.

    Example:
        >>> from lit_fednas.rng import generator
        >>> images = torch.zeros(8, 3, 32, 32, dtype=torch.uint8)
        >>> RandAugment(2, 9)(images, generator(0, "augment")).shape
        torch.Size([8, 3, 32, 32])
    """

    def __init__(self, num_ops: PositiveInt = 2, magnitude: Magnitude = 9) -> None:
        self.num_ops = num_ops
        self.magnitude = magnitude

    @override
    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        operations = self.operations(batch)
        drawn = torch.randint(len(operations), (self.num_ops, len(batch)), generator=generator, device=batch.device)
        batch = batch.clone()
        for numbers in drawn.cpu():  # waits for the device once
            for number, operation in enumerate(operations):
                rows = (numbers == number).nonzero().flatten().to(batch.device)
                if len(rows):
                    batch[rows] = operation(batch[rows])
        return batch

    def operations(self, batch: Tensor) -> list[Operation]:
        """Returns the operations on images like these, each twice: either way, where there are two."""
        share = self.magnitude / 30
        height, width = batch.shape[-2:]
        brightest = 255 if batch.dtype == torch.uint8 else 1
        unsigned: list[Operation] = [
            torch.clone,
            partial(tv.posterize, bits=8 - round(4 * share)),
            partial(tv.solarize, threshold=brightest * (1 - share)),
            tv.autocontrast,
            tv.equalize,
        ]
        signed: list[Operation] = []
        for sign in (1, -1):
            shear = math.degrees(math.atan(0.3 * sign * share))
            shift = 150 / 331 * share
            signed += [
                _affine(shear=[shear, 0.0], center=[0, 0]),
                _affine(shear=[0.0, shear], center=[0, 0]),
                _affine(translate=[sign * int(shift * width), 0]),
                _affine(translate=[0, sign * int(shift * height)]),
                partial(tv.rotate, angle=30 * sign * share),
                partial(tv.adjust_brightness, brightness_factor=1 + 0.9 * sign * share),
                partial(tv.adjust_saturation, saturation_factor=1 + 0.9 * sign * share),
                partial(tv.adjust_contrast, contrast_factor=1 + 0.9 * sign * share),
                partial(tv.adjust_sharpness, sharpness_factor=1 + 0.9 * sign * share),
            ]
        return [*unsigned, *unsigned, *signed]


def _affine(**settings: list[float] | list[int]) -> Operation:
    return partial(tv.affine, **{"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0], **settings})
