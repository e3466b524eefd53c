"""Sources of image files: what they have in common, and folders ``train/<class>/<image>``."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from typing_extensions import override

from lit_fednas.data.examples import ExampleDataset, Examples
from lit_fednas.data.sources.base import SPLITS, DataSource, Split
from lit_fednas.data.sources.image_files import ImageFiles, LazyImages, list_images, read_image, train_classes
from lit_fednas.data.transforms import Augmentation, Normalize
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import PositiveInt, checked

#: Where not all training images are decoded, mean and std come from this many.
SAMPLE = 1024


@checked("data.source")
class ImageSource(DataSource):
    """Image files below a folder; a subclass says which, and what they show.

    ``load`` decodes a split once, and keeps it on disk as one uint8 array. ``dataset``, which the data module
    asks for where not ``in_memory``, decodes whenever an image is read and writes nothing. Mean and std, where
    not given, come from 1024 training images spread evenly, so that they are the same either way. A subclass with
    ``decodes_all`` has both from decoded splits: ``dataset`` is ``load``, and mean and std are of all images.

    Args:
        root: The folder.
        image_size: The shorter side is scaled to this and the centre square cut out; None takes the images as
            they are, which must then all be of one size.
        channels: 3 for colour, 1 for grey.
        cache: Whether decoded images are kept on disk, next to the files or in the user's cache folder.
        augmentation: Applied to training batches, in this order.
        mean: Per channel on the scale [0, 1]; None computes mean and std from training images.
        std: Given together with ``mean``.

    Raises:
        ConfigError: A setting is out of range, or only one of mean and std is given.
    """

    decodes_all: ClassVar[bool] = False

    def __init__(
        self,
        root: str | Path,
        image_size: PositiveInt | None = None,
        channels: Literal[1, 3] = 3,
        cache: bool = True,
        augmentation: Sequence[Augmentation] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        self._given = given_normalization(mean, std, channels)
        self.root = Path(root).expanduser()
        self.image_size = image_size
        self.channels = channels
        self.cache = cache
        self.augmentation = tuple(augmentation)

    @abstractmethod
    def files(self, split: Split) -> ImageFiles | None:
        """Returns the files of a split, with their classes; None where the source has no such split.

        Raises:
            DataError: The files are missing or not as the source describes them.
        """

    @cached_property
    def num_classes(self) -> int:  # type: ignore[override]  # mypy takes cached properties for read-only
        """The number of class names."""
        return len(self.class_names)

    @cached_property
    def input_shape(self) -> tuple[int, ...]:  # type: ignore[override]
        """(C, H, W); that of the first training image where ``image_size`` is None."""
        if self.image_size is not None:
            return (self.channels, self.image_size, self.image_size)
        files = self._train_files()
        return read_image(files.root / files.names[0], None, self.channels).shape

    @cached_property
    def normalization(self) -> Normalize:  # type: ignore[override]
        """As given, or else computed from training images, once."""
        return self._given or measured_normalization(self._sample())

    @override
    def prepare(self, in_memory: bool = True) -> None:
        if self.cache and (in_memory or self.decodes_all):  # else images are decoded when they are read
            for split in SPLITS:
                self.load(split)

    @override
    def load(self, split: Split) -> Examples | None:
        files = self.files(split)
        if files is None:
            return None
        images = LazyImages(files, self.input_shape, self.image_size)
        decoded = images.decoded(self.cache)
        if self.decodes_all and split == "train" and "normalization" not in vars(self):
            self.normalization = self._given or measured_normalization(decoded)
        return Examples(torch.from_numpy(decoded), images.targets, images.columns)

    @override
    def dataset(self, split: Split) -> ExampleDataset | None:
        if self.decodes_all:
            return self.load(split)
        files = self.files(split)
        return None if files is None else LazyImages(files, self.input_shape, self.image_size)

    def _train_files(self) -> ImageFiles:
        files = self.files("train")
        if files is None:
            raise DataError(f"data.source: {type(self).__name__} has no training examples; give some")
        return files

    def _sample(self) -> np.ndarray:
        """Returns the images that mean and std are computed from."""
        images = LazyImages(self._train_files(), self.input_shape, self.image_size)
        if self.decodes_all:
            return images.decoded(self.cache)
        rows = np.unique(np.linspace(0, len(images) - 1, SAMPLE).round().astype(int))
        return np.stack([images.image(row) for row in rows])


class ImageFolder(ImageSource):
    """Images in one folder per class, decoded once and then kept as one uint8 array per split.

    The classes are the folders under ``root/train``, in alphabetical order. ``root/val`` and ``root/test`` are
    optional. So is ``root/metadata.csv``, whose column ``file`` holds paths such as ``train/cat/0001.jpg`` and
    whose other columns become natural groupings for ``ByColumn``. Mean and std, where not given, come from all
    training images. The arguments are those of :class:`ImageSource`.
    """

    decodes_all = True

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The names of the folders under ``train``."""
        return train_classes(self.root)

    @override
    def files(self, split: Split) -> ImageFiles | None:
        return list_images(self.root, split, self.class_names)


class LazyImageFolder(ImageFolder):
    """An image folder that does not fit in memory: the same layout, decoded whenever an image is read.

    Use it with ``in_memory: false`` in the data module. Nothing is written to disk. Mean and std, where not
    given, come from 1024 training images spread evenly over the folder.

    Args:
        root: The folder.
        images: Settings of :class:`ImageSource`, except ``cache``.
    """

    decodes_all = False

    def __init__(self, root: str | Path, **images: Any) -> None:
        super().__init__(root, cache=False, **images)


def given_normalization(mean: Sequence[float] | None, std: Sequence[float] | None, channels: int) -> Normalize | None:
    """Returns the normalisation by given numbers; None where neither is given."""
    if mean is None and std is None:
        return None
    if mean is None or std is None:
        raise ConfigError(f"data.source.mean: {mean} and std {std} do not belong together; give both or neither")
    if len(mean) != channels:
        raise ConfigError(f"data.source.mean: {mean} are not one per channel; give {channels}")
    return Normalize(mean, std)


def measured_normalization(images: np.ndarray) -> Normalize:
    """Returns the normalisation by mean and standard deviation of uint8 images [N, C, H, W].

    Raises:
        DataError: A channel has one value in all images.

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
        raise DataError(f"data.source.std: {std} of the training images is 0 in a channel; give mean and std")
    return Normalize(mean, std)
