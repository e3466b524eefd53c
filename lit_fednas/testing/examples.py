"""Small data that contracts train on."""

from __future__ import annotations

import torch

from lit_fednas.data import Examples


def tiny_examples(count: int = 120, seed: int = 0) -> Examples:
    """Returns images of 1x8x8 whose class, one of four, is where the light is."""
    draws = torch.Generator().manual_seed(seed)
    targets = torch.randint(4, (count,), generator=draws)
    images = 40 * torch.rand(count, 1, 8, 8, generator=draws)
    for example, target in enumerate(targets.tolist()):
        row, column = 4 * (target // 2), 4 * (target % 2)
        images[example, :, row : row + 4, column : column + 4] += 160
    return Examples(images.to(torch.uint8), targets)
