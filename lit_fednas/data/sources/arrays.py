"""Examples that are in memory: a user's own tensors, and the handwritten digits that come with scikit-learn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from lit_fednas.data.examples import Examples
from lit_fednas.data.partitions import stratified_rows
from lit_fednas.data.sources.base import DataSource, Split
from lit_fednas.data.tasks import Classification, Task
from lit_fednas.data.transforms import Augmentation, Normalize, as_float
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import NonNegativeFloat, PositiveInt, ShareBelowOne, checked
from lit_fednas.rng import generator, numpy_generator


class ArraySource(DataSource):
    """A user's own tensors as a data source; each of a run's processes holds those that it was made with.

    Args:
        train: The training examples.
        val: None lets the data module take them from ``train``.
        test: None for no test split.
        num_classes: None counts from the training targets; of ``task``, if that is given.
        class_names: None numbers the classes.
        normalization: None scales uint8 to [0, 1] and leaves floats as they are.
        augmentation: Applied to training batches, in this order.
        task: What targets are; one class per example if not given.

    Raises:
        ConfigError: ``class_names`` are not one per class, or ``num_classes`` is given beside ``task``.
        DataError: A split is empty, or has a target outside the classes or inputs of another shape.

    Example:
        >>> ArraySource(Examples(torch.zeros(4, 2), torch.tensor([0, 1, 2, 1]))).num_classes
        3
    """

    def __init__(
        self,
        train: Examples,
        val: Examples | None = None,
        test: Examples | None = None,
        num_classes: int | None = None,
        class_names: Sequence[str] | None = None,
        normalization: Normalize | None = None,
        augmentation: Sequence[Augmentation] = (),
        task: Task | None = None,
    ) -> None:
        if not len(train):
            raise DataError("train: has no examples; give at least one")
        self._splits: dict[str, Examples | None] = {"train": train, "val": val, "test": test}
        if task is not None and num_classes is not None:
            raise ConfigError(f"num_classes: {num_classes} is given beside task, which has it; give one")
        if task is None:
            Classification(1).check(train.targets[:0])  # targets of another type cannot be counted
            task = Classification(int(train.targets.max()) + 1 if num_classes is None else num_classes)
        self.task = task
        self.num_classes = task.num_outputs
        self.input_shape = tuple(train.inputs.shape[1:])
        self.input_dtype = as_float(train.inputs[:1]).dtype if normalization is None else torch.float32
        self.class_names = tuple(class_names or map(str, range(self.num_classes)))
        self.normalization = normalization
        self.augmentation = tuple(augmentation)
        if len(self.class_names) != self.num_classes:
            count = len(self.class_names)
            raise ConfigError(f"class_names: {count} names for {self.num_classes} classes; give one per class")
        for split, examples in self._splits.items():
            if examples is not None:
                self._check(split, examples)

    @override
    def load(self, split: Split) -> Examples | None:
        return self._splits[split]

    def _check(self, split: str, examples: Examples) -> None:
        if not len(examples):
            raise DataError(f"{split}: has no examples; leave it out")
        try:
            self.task.check(examples.targets)
        except DataError as error:
            raise DataError(f"{split}: {error}") from None
        shape = tuple(examples.inputs.shape[1:])
        if shape != self.input_shape:
            raise DataError(f"{split}: has inputs of shape {shape}; give {self.input_shape}, as in train")


class Digits(DataSource):
    """The 1797 handwritten digits of scikit-learn, 8x8 pixels: real images that train in seconds, no download.

    A fifth of each class is the test split, the same in every run, whatever its seed.

    Example:
        >>> test = Digits().load("test")
        >>> test.inputs.shape, test.inputs.dtype
        (torch.Size([359, 1, 8, 8]), torch.uint8)
    """

    num_classes = 10
    input_shape = (1, 8, 8)
    normalization = Normalize([0.3053], [0.3762])

    @override
    def load(self, split: Split) -> Examples | None:
        if split == "val":
            return None
        from sklearn.datasets import load_digits  # takes a second to import

        data = load_digits()
        pixels = (data.images * (255 / 16)).round().astype(np.uint8)[:, None]  # from 0..16
        targets = data.target.astype(np.int64)
        rows = stratified_rows(targets, round(0.2 * len(targets)), numpy_generator(0, "digits-test"))
        if split == "train":
            rows = np.setdiff1d(np.arange(len(targets)), rows)
        return Examples(torch.from_numpy(pixels[rows]), torch.from_numpy(targets[rows]))


@checked("data.source")
class DistortedDigits(Digits):
    """Scikit-learn's digits, turned, sheared, shifted, bent and made noisy: as many as are asked for.

    A task that networks of some size solve and narrow ones do not, and that trains in minutes. Every image of
    :class:`Digits` has ``copies`` distorted versions, all in its own split; they are the same in every run. Affine and
    elastic distortions are those of Simard et al. (2003, "Best Practices for Convolutional Neural Networks", sec. 2).

    Args:
        copies: Distorted versions of each digit.
        strength: How far they are distorted; 1 turns by up to 35 degrees, shears by up to 0.3, scales by up to a fifth,
            shifts by up to an eighth of the image, and bends by up to a twelfth.
        noise: Standard deviation of the noise that is added to pixels, which are between 0 and 1.
        val: The share of the training digits that are the validation split instead, before anything is distorted: no
            version of them is trained on.
        size: Height and width in pixels.

    Raises:
        ConfigError: A setting is out of range.

    Example:
        >>> train = DistortedDigits(copies=2).load("train")
        >>> train.inputs.shape, train.inputs.dtype
        (torch.Size([2876, 1, 12, 12]), torch.uint8)
    """

    normalization = Normalize([0.3], [0.311])

    def __init__(
        self,
        copies: PositiveInt = 5,
        strength: NonNegativeFloat = 1.0,
        noise: NonNegativeFloat = 0.1,
        val: ShareBelowOne = 0.0,
        size: PositiveInt = 12,
    ) -> None:
        self.copies = copies
        self.strength = strength
        self.noise = noise
        self.val = val
        self.input_shape = (1, size, size)

    @override
    def load(self, split: Split) -> Examples | None:
        digits = super().load("test" if split == "test" else "train")
        if split == "val" and not self.val:
            return None
        assert digits is not None  # both splits exist
        if split != "test" and self.val:
            count = round(self.val * len(digits))
            if count == 0:
                raise ConfigError(f"data.source.val: {self.val:g} of {len(digits)} digits is none; raise it, or give 0")
            held = stratified_rows(digits.targets.numpy(), count, numpy_generator(0, "distorted-digits-val"))
            rows = held if split == "val" else np.setdiff1d(np.arange(len(digits)), held)
            digits = Examples(digits.inputs[rows], digits.targets[rows])
        draws = generator(0, f"distorted-digits-{split}")
        distorted = [self._distorted(digits.inputs, draws) for _ in range(self.copies)]
        return Examples(torch.cat(distorted), digits.targets.repeat(self.copies))

    def _distorted(self, pixels: Tensor, draws: torch.Generator) -> Tensor:
        """Returns a distorted version of each image, uint8 ``[images, 1, size, size]``."""
        count = len(pixels)
        angle, shear, across, along, right, down = (torch.rand(6, count, generator=draws) * 2 - 1) * self.strength
        angle, shear = angle * 0.61, shear * 0.3
        rows = [
            torch.stack([(1 + 0.2 * across) * angle.cos(), shear - angle.sin(), 0.25 * right], dim=1),
            torch.stack([angle.sin(), (1 + 0.2 * along) * angle.cos(), 0.25 * down], dim=1),
        ]
        places = functional.affine_grid(torch.stack(rows, dim=1), [count, *self.input_shape], align_corners=False)
        # a few random displacements per image, smooth in between
        bends = (torch.rand(count, 2, 4, 4, generator=draws) * 2 - 1) * 0.15 * self.strength
        bends = functional.interpolate(bends, size=self.input_shape[1:], mode="bicubic", align_corners=True)
        images = functional.grid_sample(pixels / 255, places + bends.permute(0, 2, 3, 1), align_corners=False)
        images += self.noise * torch.randn(images.shape, generator=draws)
        return (images.clamp_(0, 1) * 255).round_().to(torch.uint8)
