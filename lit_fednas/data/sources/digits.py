"""The handwritten digits that come with scikit-learn: 1797 images of 8x8 pixels, no download."""

from __future__ import annotations

import numpy as np
import torch

from lit_fednas.data.examples import Examples
from lit_fednas.data.sources.base import DataSource, Split
from lit_fednas.data.splits import stratified_rows
from lit_fednas.data.transforms import Normalize
from lit_fednas.rng import numpy_generator


class Digits(DataSource):
    """Real images that train in seconds, for examples and tests.

    A fifth of each class is the test split, the same in every run, whatever its seed.

    Example:
        >>> test = Digits().load("test")
        >>> test.inputs.shape, test.inputs.dtype
        (torch.Size([359, 1, 8, 8]), torch.uint8)
    """

    num_classes = 10
    input_shape = (1, 8, 8)

    @property
    def normalization(self) -> Normalize:
        """Mean and standard deviation of the training pixels."""
        return Normalize([0.3053], [0.3762])

    def load(self, split: Split) -> Examples | None:
        """Returns ``train`` or ``test``, its pixels scaled from 0..16 to 0..255."""
        if split == "val":
            return None
        from sklearn.datasets import load_digits  # takes a second to import

        data = load_digits()
        pixels = (data.images * (255 / 16)).round().astype(np.uint8)[:, None]
        targets = data.target.astype(np.int64)
        rows = stratified_rows(targets, round(0.2 * len(targets)), numpy_generator(0, "digits-test"))
        if split == "train":
            rows = np.setdiff1d(np.arange(len(targets)), rows)
        return Examples(torch.from_numpy(pixels[rows]), torch.from_numpy(targets[rows]))
