"""Transforms of whole batches, on the batch's device, with explicit generators.

Batches are augmented as uint8 and then normalised, as in torchvision's usual CIFAR recipe; a crop pads with black
pixels. Random numbers are drawn for all examples at once; only RandAugment waits for the device.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import torch
from torch import Tensor
from torch.nn.functional import pad
from torchvision.transforms import v2
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import Filled, PositiveFloat, PositiveInt, PositiveShare, Range, UnitInterval, checked


def as_float(batch: Tensor) -> Tensor:
    """Returns uint8 scaled to float32 in [0, 1], other floats as float32, and integers (token ids) as they are."""
    if batch.dtype == torch.uint8:
        return batch.to(torch.float32).mul_(1 / 255)
    return batch.to(torch.float32) if batch.is_floating_point() else batch


@checked("data.source")
class Normalize:
    """Subtracts the mean and divides by the standard deviation of each channel, as one multiply and add.

    uint8 batches are scaled to [0, 1] in the same step, float batches are not scaled. The input does not change.

    Args:
        mean: Mean per channel; for images, on the scale [0, 1].
        std: Standard deviation per channel, above zero.

    Example:
        >>> batch = torch.tensor([[0], [255]], dtype=torch.uint8)
        >>> Normalize([0.5], [0.25])(batch).flatten().tolist()
        [-2.0, 2.0]
    """

    def __init__(self, mean: Sequence[float], std: Sequence[PositiveFloat]) -> None:
        if not mean or len(mean) != len(std):
            raise ConfigError(f"data.source.std: {len(std)} values for {len(mean)} of mean; give one per channel")
        self.mean = tuple(float(value) for value in mean)
        self.std = tuple(float(value) for value in std)
        self._factors: dict[tuple[bool, int, torch.device], tuple[Tensor, Tensor]] = {}

    @classmethod
    def of(cls, inputs: Tensor, unchanged: int = 0) -> Self:
        """Returns the transform to mean 0 and standard deviation 1 of each channel of inputs [N, C, ...].

        Args:
            inputs: Raw inputs of a data source; a constant channel becomes 0.
            unchanged: Number of channels at the end that are not transformed.
        """
        channels = inputs.unbind(1)[: inputs.shape[1] - unchanged]
        moments = [torch.std_mean(as_float(channel).double(), correction=0) for channel in channels]
        mean, std = [float(mean) for _, mean in moments], [float(std) or 1.0 for std, _ in moments]
        return cls(mean + [0.0] * unchanged, std + [1.0] * unchanged)

    def __call__(self, batch: Tensor) -> Tensor:
        """Returns the normalised batch, float32."""
        scale, shift = self.scale_and_shift(batch)
        if batch.device.type == "cpu":  # the fused operator does not vectorise over channels there
            return batch.to(torch.float32, copy=True).mul_(scale).add_(shift)
        return torch.addcmul(shift, batch if batch.dtype == torch.uint8 else batch.float(), scale)

    def __repr__(self) -> str:
        return f"Normalize(mean={list(self.mean)}, std={list(self.std)})"

    def scale_and_shift(self, batch: Tensor) -> tuple[Tensor, Tensor]:
        """Returns scale and shift in a raw batch's shape, from a cache, so that no batch copies them to its device."""
        key = (batch.dtype == torch.uint8, batch.ndim, batch.device)
        if key not in self._factors:
            shape = (-1, *[1] * (batch.ndim - 2))
            mean, std = (torch.tensor(values, dtype=torch.float64) for values in (self.mean, self.std))
            factors = (1 / (255 * std if key[0] else std), -mean / std)
            scale, shift = (factor.float().view(shape).to(batch.device) for factor in factors)
            self._factors[key] = scale, shift
        return self._factors[key]


class Augmentation(ABC):
    """A random change of a batch [N, C, H, W] that keeps its shape, type and targets."""

    @abstractmethod
    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        """Returns the changed batch."""


@checked("data.source.augmentation")
class RandomCrop(Augmentation):
    """Pads each side with zeros and crops the original size, at a random offset per example.

    Args:
        padding: Pixels added to each of the four sides.
    """

    def __init__(self, padding: PositiveInt = 4) -> None:
        self.padding = padding

    @override
    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        count, channels, height, width = batch.shape
        side = self.padding
        offsets = torch.randint(0, 2 * side + 1, (2, count, 1), generator=generator, device=batch.device)
        rows = offsets[0] + torch.arange(height, device=batch.device)
        columns = offsets[1] + torch.arange(width, device=batch.device)
        pixels = (rows[:, :, None] * (width + 2 * side) + columns[:, None, :]).view(count, 1, -1)
        padded = pad(batch, (side, side, side, side)).view(count, channels, -1)
        return padded.gather(2, pixels.expand(-1, channels, -1)).view(batch.shape)


@checked("data.source.augmentation")
class RandomFlip(Augmentation):
    """Mirrors each example left to right with probability ``p``.

    Args:
        p: The probability, above 0 and at most 1.
    """

    def __init__(self, p: PositiveShare = 0.5) -> None:
        self.p = p

    @override
    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        count = len(batch)
        mirrored = torch.rand(count, generator=generator, device=batch.device) < self.p
        # whole images are picked from both versions: several times faster on a CPU than torch.where
        rows = torch.arange(count, device=batch.device) + count * mirrored
        return torch.cat([batch, batch.flip(-1)]).index_select(0, rows)


@checked("data.source.augmentation")
class Cutout(Augmentation):
    """Fills a square of each example, centred at a random pixel (DeVries & Taylor, 2017).

    Part of the square may lie outside the image.

    Args:
        size: Side of the square in pixels; an even number.
        fill: Value of the square per channel, or one value for all, on the images' scale [0, 1]. The mean gives zeros
            after the normalisation, as some recipes require.
    """

    def __init__(self, size: PositiveInt = 16, fill: Annotated[Sequence[UnitInterval], Filled] = (0.0,)) -> None:
        if size % 2:
            raise ConfigError(f"data.source.augmentation.size: {size} is odd; give an even number of pixels")
        self.size = size
        self.fill = list(fill)

    @override
    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        count, channels, height, width = batch.shape
        if len(self.fill) not in (1, channels):
            raise ConfigError(
                f"data.source.augmentation.fill: {self.fill} for {channels} channels; give one, or one per channel"
            )
        inside = []
        for length in (height, width):
            centre = torch.randint(0, length, (count, 1), generator=generator, device=batch.device)
            distance = torch.arange(length, device=batch.device) - centre
            inside.append((distance >= -(self.size // 2)) & (distance < self.size // 2))
        square = inside[0][:, :, None] & inside[1][:, None, :]
        fill = self.fill if batch.is_floating_point() else [round(255 * value) for value in self.fill]
        values = fill * channels if len(fill) == 1 else fill
        filled = [channel.masked_fill(square, value) for channel, value in zip(batch.unbind(1), values, strict=True)]
        return torch.stack(filled, 1)


@checked("data.source.augmentation")
@dataclass(eq=False)
class RandAugment(Augmentation):
    """Applies some of 14 operations to each image: those of ``torchvision.transforms.RandAugment``.

    Images with the same operation are changed together.

    Args:
        num_ops: Number of operations per image, one after the other, drawn with replacement.
        magnitude: The strength of all operations, from 0 to 30.
    """

    num_ops: PositiveInt = 2
    magnitude: Annotated[int, Range(at_least=0, at_most=30)] = 9

    @override
    def __call__(self, batch: Tensor, generator: torch.Generator) -> Tensor:
        augment = v2.RandAugment()  # its call changes one image at a time, and draws from the global generator
        space = [*augment._AUGMENTATION_SPACE.items()]
        draws = torch.randint(2 * len(space), (self.num_ops, len(batch)), generator=generator, device=batch.device)
        batch = batch.clone()
        for numbers in draws.cpu():  # one wait for the device
            for number in numbers.unique().tolist():
                name, (magnitudes, signed) = space[number // 2]
                values = magnitudes(31, *batch.shape[-2:])
                magnitude = 0.0 if values is None else float(values[self.magnitude])
                magnitude *= -1 if signed and number % 2 else 1
                rows = (numbers == number).nonzero().flatten().to(batch.device)
                settings = name, magnitude, augment.interpolation, augment._fill
                batch[rows] = augment._apply_image_or_video_transform(batch[rows], *settings)
        return batch
