"""The data sets that torchvision downloads: MNIST, Fashion-MNIST, CIFAR-10 and CIFAR-100."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torchvision import datasets
from typing_extensions import override

from lit_fednas.data.examples import Examples
from lit_fednas.data.sources.base import DataSource, Split
from lit_fednas.data.transforms import Augmentation, Normalize, RandomCrop, RandomFlip
from lit_fednas.errors import DataError


class TorchvisionSource(DataSource):
    """A data set of ``torchvision.datasets``; a subclass has its name, and its usual mean and std.

    Args:
        root: The folder that torchvision keeps its data sets in.
        download: Whether files that are missing are downloaded.
        augmentation: Applied to training batches, in this order; None is the usual one of the data set.

    Example:
        >>> MNIST("data").input_shape, CIFAR100("data").num_classes
        ((1, 28, 28), 100)
        >>> FashionMNIST("data").class_names[-1], CIFAR10("data").class_names[:2]
        ('Ankle boot', ('airplane', 'automobile'))
    """

    def __init__(
        self,
        root: str | Path = "data",
        download: bool = False,
        augmentation: Sequence[Augmentation] | None = None,
    ) -> None:
        self.root = Path(root).expanduser()
        self.download = download
        if augmentation is not None:
            self.augmentation = tuple(augmentation)

    @override
    def prepare(self, in_memory: bool = True) -> None:
        for train in (True, False):
            self._open(train, self.download)

    @override
    def load(self, split: Split) -> Examples | None:
        if split == "val":
            return None
        data = self._open(split == "train", download=False)
        images = torch.as_tensor(np.asarray(data.data))  # [N, H, W] or [N, H, W, C]
        images = images.unsqueeze(1) if images.ndim == 3 else images.permute(0, 3, 1, 2).contiguous()
        return Examples(images, torch.as_tensor(data.targets, dtype=torch.int64))

    def _open(self, train: bool, download: bool) -> Any:
        name = type(self).__name__
        try:
            return getattr(datasets, name)(str(self.root), train=train, download=download)
        except (RuntimeError, OSError, EOFError) as error:
            remedy = "check the network and the folder" if download else "set download: true or another root"
            raise DataError(f"data.source.root: {name} cannot be read in {self.root} ({error}); {remedy}") from error


class MNIST(TorchvisionSource):
    """Handwritten digits, 60000 and 10000 images of 28x28; not augmented."""

    num_classes = 10
    input_shape = (1, 28, 28)
    normalization = Normalize((0.1307,), (0.3081,))


class FashionMNIST(TorchvisionSource):
    """Articles of clothing, 60000 and 10000 images of 28x28; cropped and flipped."""

    num_classes = 10
    input_shape = (1, 28, 28)
    class_names = tuple(datasets.FashionMNIST.classes)
    normalization = Normalize((0.2860,), (0.3530,))
    augmentation = (RandomCrop(4), RandomFlip())


class CIFAR10(TorchvisionSource):
    """Small colour photographs in 10 classes, 50000 and 10000 images of 32x32; cropped and flipped."""

    num_classes = 10
    input_shape = (3, 32, 32)
    class_names = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
    normalization = Normalize((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))
    augmentation = (RandomCrop(4), RandomFlip())


class CIFAR100(TorchvisionSource):
    """Small colour photographs in 100 numbered classes, 50000 and 10000 images of 32x32; cropped and flipped."""

    num_classes = 100
    input_shape = (3, 32, 32)
    normalization = Normalize((0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))
    augmentation = (RandomCrop(4), RandomFlip())
