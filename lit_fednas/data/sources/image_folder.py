"""Image folders: ``train/<class>/<image>``, and optionally ``val``, ``test`` and ``metadata.csv``."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from lit_fednas.data.examples import ExampleDataset, Examples
from lit_fednas.data.sources.base import Split
from lit_fednas.data.sources.image_files import ImageFiles, list_images, train_classes
from lit_fednas.data.sources.image_source import ImageSource, measured_normalization
from lit_fednas.data.transforms import Augmentation


class ImageFolder(ImageSource):
    """Images in one folder per class, decoded once and then kept as one uint8 array per split.

    The classes are the folders under ``root/train``, in alphabetical order. ``root/val`` and ``root/test``
    are optional. So is ``root/metadata.csv``, whose column ``file`` holds paths such as
    ``train/cat/0001.jpg`` and whose other columns become natural groupings for ``ByColumn``.

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

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The names of the folders under ``train``."""
        return train_classes(self.root)

    def files(self, split: Split) -> ImageFiles | None:
        """Lists the files of a split; None where there is no such folder."""
        return list_images(self.root, split, self.class_names)

    def prepare_dataset(self) -> None:
        """Decodes all splits into the cache, as ``dataset`` reads them whole."""
        self.prepare()

    def load(self, split: Split) -> Examples | None:
        """Returns one split, from the cache where it is up to date.

        Raises:
            DataError: the folder is not as described above, or an image cannot be decoded.
        """
        examples = super().load(split)
        if examples is not None and split == "train" and self._normalization is None and self.mean is None:
            self._normalization = measured_normalization(examples.inputs.numpy())
        return examples

    def dataset(self, split: Split) -> ExampleDataset | None:
        """Returns one split, decoded; ``LazyImageFolder`` decodes on access."""
        return self.load(split)

    def _sample(self) -> np.ndarray:
        """Returns all training images: decoded they are anyway."""
        train = self.load("train")
        assert train is not None
        return train.inputs.numpy()


class LazyImageFolder(ImageFolder):
    """An image folder that does not fit in memory: the same layout, decoded whenever an image is read.

    Use it with ``in_memory: false`` in the data module. Nothing is written to disk. Mean and std, where not
    given, come from 1024 training images spread evenly over the folder.

    Args:
        root: the folder.
        image_size: as for ``ImageFolder``.
        channels: 3 for colour, 1 for grey.
        augmentation: applied to training batches, in this order.
        mean: per channel on the scale [0, 1].
        std: given together with ``mean``.
    """

    def __init__(
        self,
        root: str | Path,
        image_size: int | None = None,
        channels: Literal[1, 3] = 3,
        augmentation: Sequence[Augmentation] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(root, image_size, channels, False, augmentation, mean, std)

    def dataset(self, split: Split) -> ExampleDataset | None:
        """Returns one split that decodes on access; None where there is no such folder."""
        return ImageSource.dataset(self, split)

    def _sample(self) -> np.ndarray:
        return ImageSource._sample(self)
