"""What all sources of image files have in common: decoding, the cache, mean and standard deviation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset

from lit_fednas.data.examples import ExampleDataset, Examples
from lit_fednas.data.sources.base import DataSource, Split
from lit_fednas.data.sources.image_cache import ImageCache
from lit_fednas.data.sources.image_files import ImageFiles, checked_image, decode_all, read_size
from lit_fednas.data.transforms import Augmentation, Normalize
from lit_fednas.errors import ConfigError, DataError

SAMPLE = 1024
"""Where not all training images are decoded, mean and std come from this many."""


class ImageSource(DataSource):
    """Image files below a folder; a subclass says which, and what they show.

    ``load`` decodes a split once, and keeps it on disk as one uint8 array. ``dataset``, which the data module
    asks for where not ``in_memory``, decodes whenever an image is read and writes nothing. Mean and std, where
    not given, come from 1024 training images spread evenly, so that they are the same either way.

    Args:
        root: the folder.
        image_size: the shorter side is scaled to this and the centre square cut out; None takes the images as
            they are, which must then all be of one size.
        channels: 3 for colour, 1 for grey.
        cache: keep the decoded images on disk, next to the folder or in the user's cache folder.
        augmentation: applied to training batches, in this order.
        mean: per channel on the scale [0, 1]; None computes mean and std from the training images.
        std: given together with ``mean``.

    Raises:
        ConfigError: a setting cannot work.
    """

    def __init__(
        self,
        root: str | Path,
        image_size: int | None = None,
        channels: Literal[1, 3] = 3,
        cache: bool = True,
        augmentation: Sequence[Augmentation] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        if image_size is not None and image_size < 1:
            raise ConfigError(f"image_size: {image_size} is no size; give 1 or more pixels")
        if channels not in (1, 3):
            raise ConfigError(f"channels: {channels} is not known; give 1 (grey) or 3 (colour)")
        check_mean_and_std(mean, std, channels)
        self.root = Path(root).expanduser()
        self.image_size = image_size
        self.channels = channels
        self.cache = cache
        self.mean = mean
        self.std = std
        self._augmentation = tuple(augmentation)
        self._normalization: Normalize | None = None

    @abstractmethod
    def files(self, split: Split) -> ImageFiles | None:
        """Returns the files of a split, with their classes; None where there is no such split."""

    @property
    def num_classes(self) -> int:
        """The number of class names."""
        return len(self.class_names)

    @cached_property
    def input_shape(self) -> tuple[int, ...]:
        """(C, H, W), from the header of the first training image where there is no ``image_size``."""
        if self.image_size is not None:
            return (self.channels, self.image_size, self.image_size)
        files = self._train_files()
        return (self.channels, *read_size(files.root / files.names[0]))

    @property
    def normalization(self) -> Normalize:
        """As given, or else computed from training images, once."""
        if self._normalization is None:
            if self.mean is not None and self.std is not None:
                self._normalization = Normalize(self.mean, self.std)
            else:
                self._normalization = measured_normalization(self._sample())
        return self._normalization

    @property
    def augmentation(self) -> Sequence[Augmentation]:
        """As given."""
        return self._augmentation

    def prepare(self) -> None:
        """Decodes all splits into the cache."""
        if self.cache:
            for split in ("train", "val", "test"):
                self.load(split)

    def prepare_dataset(self) -> None:
        """Does nothing: images are decoded when they are read."""

    def load(self, split: Split) -> Examples | None:
        """Returns one split, from the cache where it is up to date.

        Raises:
            DataError: the files are not as described, or an image cannot be decoded.
        """
        files = self.files(split)
        if files is None:
            return None
        shape = self.input_shape

        def decode() -> np.ndarray:
            return decode_all(files, shape, self.image_size)

        images = ImageCache(files.root).images(files, shape, decode) if self.cache else decode()
        return Examples(torch.from_numpy(images), torch.from_numpy(files.targets), files.columns)

    def dataset(self, split: Split) -> ExampleDataset | None:
        """Returns one split that decodes on access; None where there is no such split."""
        files = self.files(split)
        return None if files is None else LazyImages(files, self.input_shape, self.image_size)

    def _train_files(self) -> ImageFiles:
        files = self.files("train")
        if files is None:
            raise DataError(f"source: {type(self).__name__} has no training examples; give some")
        return files

    def _sample(self) -> np.ndarray:
        """Returns the images that mean and std are computed from."""
        files = self._train_files()
        rows = np.unique(np.linspace(0, len(files) - 1, SAMPLE).round().astype(int))
        return np.stack([checked_image(files, row, self.input_shape, self.image_size) for row in rows])


class LazyImages(Dataset[tuple[Tensor, Tensor]]):
    """One split of image files, decoded on access: uint8 [C, H, W] and its class."""

    def __init__(self, files: ImageFiles, shape: tuple[int, ...], image_size: int | None) -> None:
        self.files = files
        self.shape = shape
        self.image_size = image_size
        self.targets = torch.from_numpy(files.targets)
        self.columns: Mapping[str, np.ndarray] = files.columns

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image = checked_image(self.files, index, self.shape, self.image_size)
        return torch.from_numpy(np.ascontiguousarray(image)), self.targets[index]


def check_mean_and_std(mean: Sequence[float] | None, std: Sequence[float] | None, channels: int) -> None:
    """Raises ConfigError unless there are both, one per channel, or neither."""
    if (mean is None) != (std is None):
        raise ConfigError(f"mean and std: {mean} and {std}; give both or neither")
    for name, value in (("mean", mean), ("std", std)):
        if value is not None and len(value) != channels:
            raise ConfigError(f"{name}: {len(value)} values for {channels} channels; give one per channel")


def measured_normalization(images: np.ndarray) -> Normalize:
    """Returns the normalisation by mean and standard deviation of uint8 images [N, C, H, W].

    Example:
        >>> measured_normalization(np.array([0, 255], dtype=np.uint8).reshape(2, 1, 1, 1))
        Normalize(mean=[0.5], std=[0.5])
    """
    values = np.arange(256) / 255
    counts = [np.zeros(256, dtype=np.int64) for _ in range(images.shape[1])]
    for start in range(0, len(images), 1024):
        for channel, count in enumerate(counts):
            count += np.bincount(images[start : start + 1024, channel].ravel(), minlength=256)
    shares = [count / max(1, count.sum()) for count in counts]
    mean = [float(share @ values) for share in shares]
    std = [float(np.sqrt(share @ (values - m) ** 2)) for share, m in zip(shares, mean, strict=True)]
    if not all(value > 0 for value in std):
        raise DataError(f"std: {std} of the training images is 0 in a channel; give mean and std")
    return Normalize(mean, std)
