"""Named data sets: scikit-learn's digits, data sets of torchvision, and CelebA (Liu et al., 2015)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import compress, product
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torchvision import datasets
from typing_extensions import override

from lit_fednas.data.clients import stratified_rows
from lit_fednas.data.examples import Examples
from lit_fednas.data.sources.base import DataSource, Split, of_large_clients, reading
from lit_fednas.data.sources.images import ImageSource, LazyImages
from lit_fednas.data.transforms import Augmentation, Normalize, RandomCrop, RandomFlip
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import Count, NonNegativeFloat, PositiveInt, ShareBelowOne, checked
from lit_fednas.rng import generator, numpy_generator

#: The attributes that define CelebA's classes, highest bit first.
ATTRIBUTES = ("Smiling", "Male", "Mouth_Slightly_Open")


class Digits(DataSource):
    """The 1797 handwritten digits of scikit-learn, 8x8 pixels: real images that train in seconds, no download.

    A fifth of each class is the test split, which is the same for all seeds.
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
        pixels = (data.images * (255 / 16)).round().astype(np.uint8)[:, None]  # 0..16 becomes 0..255
        targets = data.target.astype(np.int64)
        rows = stratified_rows(targets, round(0.2 * len(targets)), numpy_generator(0, "digits-test"))
        if split == "train":
            rows = np.setdiff1d(np.arange(len(targets)), rows)
        return Examples(torch.from_numpy(pixels[rows]), torch.from_numpy(targets[rows]))


@checked("data.source")
@dataclass(eq=False)
class DistortedDigits(Digits):
    """Scikit-learn's digits, turned, sheared, shifted, bent and made noisy.

    The task trains in minutes, and networks need some width to solve it. Every image of :class:`Digits` has ``copies``
    distorted versions in its split, which are the same in every run. Affine and elastic distortions are those of
    Simard et al. (2003, "Best Practices for Convolutional Neural Networks", sec. 2).

    Args:
        copies: Number of distorted versions of each digit.
        strength: Strength of the distortions; 1 turns by up to 35 degrees, shears by up to 0.3, scales by up to a
            fifth, shifts by up to an eighth of the image, and bends by up to a twelfth.
        noise: Standard deviation of the noise that is added to pixels, which are between 0 and 1.
        val: Share of the training digits for validation; all versions of a digit are in the same split.
        size: Height and width in pixels.
        channels: Number of channels; 3 repeats the grey values, for networks of colour images.
    """

    copies: Count = 5
    strength: NonNegativeFloat = 1.0
    noise: NonNegativeFloat = 0.1
    val: ShareBelowOne = 0.0
    size: PositiveInt = 12
    channels: Literal[1, 3] = 1

    def __post_init__(self) -> None:
        self.input_shape = (self.channels, self.size, self.size)
        self.normalization = Normalize([0.3] * self.channels, [0.311] * self.channels)

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
            rows = stratified_rows(digits.targets.numpy(), count, numpy_generator(0, "distorted-digits-val"))
            if split == "train":
                rows = np.setdiff1d(np.arange(len(digits)), rows)
            digits = Examples(digits.inputs[rows], digits.targets[rows])
        draws = generator(0, f"distorted-digits-{split}")
        # one allocation, which fails at once if memory is too small
        shape = (self.channels, self.size, self.size)
        inputs = torch.empty(self.copies, len(digits), *shape, dtype=torch.uint8)
        for version in inputs:
            version.copy_(self._distorted(digits.inputs, draws))
        return Examples(inputs.flatten(0, 1), digits.targets.repeat(self.copies))

    def _distorted(self, pixels: Tensor, draws: torch.Generator) -> Tensor:
        """Returns a distorted version of each image, uint8 ``[images, 1, size, size]``."""
        count = len(pixels)
        angle, shear, across, along, right, down = (torch.rand(6, count, generator=draws) * 2 - 1) * self.strength
        angle, shear = angle * 0.61, shear * 0.3
        rows = [
            torch.stack([(1 + 0.2 * across) * angle.cos(), shear - angle.sin(), 0.25 * right], dim=1),
            torch.stack([angle.sin(), (1 + 0.2 * along) * angle.cos(), 0.25 * down], dim=1),
        ]
        grid = functional.affine_grid(torch.stack(rows, dim=1), [count, 1, self.size, self.size], align_corners=False)
        # a few random displacements per image, smooth in between
        bends = (torch.rand(count, 2, 4, 4, generator=draws) * 2 - 1) * 0.15 * self.strength
        bends = functional.interpolate(bends, size=grid.shape[1:3], mode="bicubic", align_corners=True)
        images = functional.grid_sample(pixels / 255, grid + bends.permute(0, 2, 3, 1), align_corners=False)
        images += self.noise * torch.randn(images.shape, generator=draws)
        return (images.clamp_(0, 1) * 255).round_().to(torch.uint8)


@checked("data.source")
@dataclass(eq=False)
class DigitPairs(DistortedDigits):
    """Two distorted digits in each image, in 100 classes: a task on which larger networks are better.

    Every example of :class:`DistortedDigits` is once a left digit and once a right digit, in the same pairs in every
    run. The right digit begins at column ``size // 2``; pixels of both digits take the larger value. The arguments are
    those of :class:`DistortedDigits`, with ``size`` for one digit: images are ``size + size // 2`` wide.
    """

    size: PositiveInt = 8
    num_classes = 100
    class_names = tuple(f"{label:02}" for label in range(100))

    def __post_init__(self) -> None:
        super().__post_init__()
        self.input_shape = (self.channels, self.size, self.size + self.size // 2)

    @override
    def load(self, split: Split) -> Examples | None:
        if (digits := super().load(split)) is None:
            return None
        partners = torch.randperm(len(digits), generator=generator(0, f"digit-pairs-{split}"))
        width = self.size // 2  # padding beside each digit
        left, right = functional.pad(digits.inputs, (0, width)), functional.pad(digits.inputs[partners], (width, 0))
        return Examples(torch.maximum(left, right), 10 * digits.targets + digits.targets[partners])


class TorchvisionSource(DataSource):
    """A data set of ``torchvision.datasets``; a subclass bears its name, and sets its usual mean and std.

    Args:
        root: The folder of torchvision's data sets.
        download: Whether missing files are downloaded.
        augmentation: Applied to training batches, in this order; None is the data set's usual augmentation.
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
        except Exception as error:  # downloading, unpacking and decoding raise many types
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


@checked("data.source")
class CelebA(ImageSource):
    """Faces, in classes made of three attributes, with a column ``client``: the person.

    ``<root>/celeba`` holds torchvision's files: the folder ``img_align_celeba``, ``identity_CelebA.txt`` and
    ``list_attr_celeba.txt``. Nothing is downloaded; all images are dealt to clients.

    The first attribute is the highest bit: class 6 = 110 in binary is a smiling man with closed mouth,
    ``Smiling+Male``; class 0 is ``none``.

    FedNAS (section 5.1) has 9,343 clients, the people with at least 5 images, as in LEAF. Each client splits its images
    6:2:2, which is ``client_val: 0.2`` and ``client_test: 0.2`` in the data module.

    Args:
        root: The folder that holds ``celeba``.
        least: Minimum number of images per person; people with fewer images are left out.
        image_size: Height and width in pixels, as in :class:`ImageSource`.
        images: Other settings of :class:`ImageSource`.
    """

    def __init__(
        self,
        root: str | Path = "data",
        least: PositiveInt = 5,
        image_size: int = 128,
        **images: Any,
    ) -> None:
        super().__init__(Path(root) / "celeba", image_size, **images)
        self.least = least

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The attributes that a class has, joined by ``+``; ``none`` for class 0."""
        all_bits = product((0, 1), repeat=len(ATTRIBUTES))
        return tuple("+".join(compress(ATTRIBUTES, bits)) or "none" for bits in all_bits)

    @override
    def list_files(self, split: Split) -> LazyImages | None:
        if split != "train":
            return None
        is_large = of_large_clients(self._faces["person"].to_numpy(), self.least)
        self.left_out[split] = +Counter({f"of people with fewer than {self.least}": int((~is_large).sum())})
        faces = self._faces[is_large]
        if not len(faces):
            return None
        names = [f"img_align_celeba/{image}" for image in faces.index]
        people = {"client": faces["person"].to_numpy()}
        return LazyImages(self, names, faces["label"].to_numpy(copy=True), people, "celeba-train")

    @cached_property
    def _faces(self) -> Any:
        """The person and the class of each image, sorted by the images' names."""
        people = self._table("identity_CelebA.txt", [1], header=None, index_col=0)
        attributes = self._table("list_attr_celeba.txt", list(ATTRIBUTES), header=1)
        if other := {*people.index} ^ {*attributes.index}:
            raise DataError(f"data.source.root: one list of {self.root} lacks {min(other)}; replace it by CelebA's")
        faces = people.sort_index().set_axis(["person"], axis=1)
        bits = attributes.loc[faces.index].to_numpy() > 0  # each is 1 or -1
        return faces.assign(label=bits @ (1 << np.arange(len(ATTRIBUTES))[::-1]))

    def _table(self, name: str, columns: list[Any], **settings: Any) -> Any:
        """Reads columns of whole numbers, indexed by the images' names."""
        import pandas as pd  # takes a while to import

        with reading(self.root / name, "data.source.root", f"put CelebA's {name} there"):
            table = pd.read_csv(self.root / name, sep=r"\s+", **settings)[columns].astype(np.int64)
            if not table.index.is_unique or isinstance(table.index, pd.MultiIndex):
                raise ValueError("a line is repeated, or has too many values")
        return table
