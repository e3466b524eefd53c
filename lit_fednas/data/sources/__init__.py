"""Where examples come from."""

from lit_fednas.data.sources.arrays import ArraySource, Digits
from lit_fednas.data.sources.base import DataSource
from lit_fednas.data.sources.celeba import CelebA
from lit_fednas.data.sources.image_source import ImageFolder, LazyImageFolder
from lit_fednas.data.sources.image_table import ImageTable
from lit_fednas.data.sources.leaf import Leaf, LeafImages
from lit_fednas.data.sources.torchvision_sets import CIFAR10, CIFAR100, MNIST, FashionMNIST

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "MNIST",
    "ArraySource",
    "CelebA",
    "DataSource",
    "Digits",
    "FashionMNIST",
    "ImageFolder",
    "ImageTable",
    "LazyImageFolder",
    "Leaf",
    "LeafImages",
]
