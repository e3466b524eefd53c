"""Data sets in the JSON format of LEAF (Caldas et al., 2018), whose users become clients.

``root`` holds the folders ``train`` and ``test``, each with one or several files
``{"users": [...], "num_samples": [...], "user_data": {user: {"x": [...], "y": [...]}}}``, as LEAF's
``preprocess.sh`` leaves them in ``data/<name>/data``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from lit_fednas.data.examples import Examples
from lit_fednas.data.sources.base import DataSource, Split
from lit_fednas.data.sources.dealing import Deal, check_deal
from lit_fednas.data.sources.image_files import ImageFiles, file_stamps
from lit_fednas.data.sources.image_source import ImageSource, check_mean_and_std
from lit_fednas.data.sources.leaf_files import LeafPart, check_num_classes, folders, joined, read_leaf
from lit_fednas.data.transforms import Augmentation, Normalize
from lit_fednas.errors import ConfigError


class Leaf(DataSource):
    """LEAF data whose ``x`` is a flat list of numbers, such as FEMNIST's 784 grey values from 0 to 1.

    The examples have a column ``client``, the user, so that ``ByColumn("client")`` makes one client of each.
    The whole is kept in memory, as float32.

    Args:
        root: the folder that holds ``train`` and ``test``.
        input_shape: what each list is reshaped to; (1, 28, 28) for FEMNIST.
        num_classes: 62 for FEMNIST; None counts from all labels, for which all files are read.
        deal: ``train`` deals the examples of ``train`` to the clients and leaves ``test`` to the server;
            ``all`` deals both to the clients, to be split there (client_val, client_test).
        least: users with fewer examples to be dealt are left out.
        augmentation: applied to training batches, in this order.
        mean: per channel, on the data's own scale; None leaves the numbers as they are.
        std: given together with ``mean``.

    Raises:
        ConfigError: a setting cannot work.
    """

    def __init__(
        self,
        root: str | Path,
        input_shape: Sequence[int] = (1, 28, 28),
        num_classes: int | None = None,
        deal: Deal = "train",
        least: int = 1,
        augmentation: Sequence[Augmentation] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        if not input_shape or min(input_shape) < 1:
            raise ConfigError(f"input_shape: {list(input_shape)} is no shape; give sizes such as [1, 28, 28]")
        check_num_classes(num_classes)
        check_deal(deal, least)
        check_mean_and_std(mean, std, input_shape[0])
        self.root = Path(root).expanduser()
        self.deal: Deal = deal
        self.least = least
        self._input_shape = tuple(input_shape)
        self._num_classes = num_classes
        self._augmentation = tuple(augmentation)
        self._normalization = None if mean is None or std is None else Normalize(mean, std)
        self._kept: dict[str, LeafPart] = {}

    @property
    def num_classes(self) -> int:
        """As given, or counted."""
        if self._num_classes is None:
            self._num_classes = 1 + max(int(self._read(part).labels.max()) for part in ("train", "test"))
        return self._num_classes

    @property
    def input_shape(self) -> tuple[int, ...]:
        """As given."""
        return self._input_shape

    @property
    def normalization(self) -> Normalize | None:
        """As given."""
        return self._normalization

    @property
    def augmentation(self) -> Sequence[Augmentation]:
        """As given."""
        return self._augmentation

    def load(self, split: Split) -> Examples | None:
        """Returns ``train``, or ``test`` where it is not dealt.

        Raises:
            DataError: the files are missing or not as described above.
        """
        parts = folders(split, self.deal)
        if not parts:
            return None
        found = joined([self._read(part) for part in parts])
        found.check_labels(self.num_classes, self.root)
        found = found.of_large_clients(self.least) if split == "train" else found
        return Examples(torch.from_numpy(found.inputs), torch.from_numpy(found.labels), {"client": found.clients})

    def _read(self, part: str) -> LeafPart:
        """Reads one folder, once."""
        if part not in self._kept:
            self._kept[part] = read_leaf(self.root, part, self._inputs)
        return self._kept[part]

    def _inputs(self, x: list[Any]) -> np.ndarray:
        """Makes float32 inputs of a user's lists of numbers."""
        try:
            array = np.asarray(x, dtype=np.float32)
        except (TypeError, ValueError) as error:
            raise ValueError("an x that is no list of numbers; use LeafImages for names of files") from error
        if array.size != len(x) * math.prod(self._input_shape):
            size, shape = array.size // len(x), list(self._input_shape)
            raise ValueError(f"an x of {size} numbers; give an input_shape that has as many, not {shape}")
        return array.reshape(len(x), *self._input_shape)


class LeafImages(ImageSource):
    """LEAF data whose ``x`` are names of image files, such as LEAF's CelebA (Smiling or not).

    The examples have a column ``client``, the user. With the data module's ``in_memory`` the images are decoded
    once, and kept on disk with ``cache``; without, they are decoded whenever they are read. Mean and std, where
    not given, come from 1024 training images.

    Args:
        root: the folder that holds ``train`` and ``test`` with the JSON files.
        images: the folder that the names of files start from; LEAF's is ``data/celeba/data/raw/img_align_celeba``.
        num_classes: None counts from all labels.
        deal: ``train`` deals the examples of ``train`` to the clients and leaves ``test`` to the server;
            ``all`` deals both to the clients, to be split there (client_val, client_test).
        least: users with fewer examples to be dealt are left out.
        image_size: the shorter side is scaled to this and the centre square cut out; None takes the images as
            they are, which must then all be of one size. LEAF uses 84.
        channels: 3 for colour, 1 for grey.
        cache: keep the decoded images on disk, next to the files or in the user's cache folder.
        augmentation: applied to training batches, in this order.
        mean: per channel on the scale [0, 1].
        std: given together with ``mean``.

    Raises:
        ConfigError: a setting cannot work.
    """

    def __init__(
        self,
        root: str | Path,
        images: str | Path,
        num_classes: int | None = None,
        deal: Deal = "train",
        least: int = 1,
        image_size: int | None = None,
        channels: Literal[1, 3] = 3,
        cache: bool = True,
        augmentation: Sequence[Augmentation] = (),
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
    ) -> None:
        super().__init__(images, image_size, channels, cache, augmentation, mean, std)
        check_num_classes(num_classes)
        check_deal(deal, least)
        self.json_root = Path(root).expanduser()
        self.deal: Deal = deal
        self.least = least
        self._num_classes = num_classes
        self._kept: dict[str, LeafPart] = {}

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The numbers of the classes."""
        count = self._num_classes
        if count is None:
            count = 1 + max(int(self._read(part).labels.max()) for part in ("train", "test"))
        return tuple(map(str, range(count)))

    def files(self, split: Split) -> ImageFiles | None:
        """Returns the files of ``train``, or of ``test`` where it is not dealt.

        Raises:
            DataError: JSON or image files are missing, or not as described above.
        """
        parts = folders(split, self.deal)
        if not parts:
            return None
        found = joined([self._read(part) for part in parts])
        found.check_labels(self.num_classes, self.json_root)
        found = found.of_large_clients(self.least) if split == "train" else found
        names = tuple(found.inputs.tolist())
        if not names:
            return None
        columns = {"client": found.clients}
        return ImageFiles(self.root, names, found.labels, file_stamps(self.root, names), columns, f"leaf-{split}")

    def _read(self, part: str) -> LeafPart:
        """Reads one folder, once."""
        if part not in self._kept:
            self._kept[part] = read_leaf(self.json_root, part, _names)
        return self._kept[part]


def _names(x: list[Any]) -> np.ndarray:
    """Makes an array of a user's names of files."""
    if not all(isinstance(name, str) for name in x):
        raise ValueError("an x that is no name of a file; use Leaf for lists of numbers")
    return np.array(x)
