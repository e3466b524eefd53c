"""Data: sources of examples, partitions over clients, and tasks.

A :class:`DataSource` reads examples, a :class:`Partitioner` deals out the training examples to clients, a :class:`Task`
defines the loss and the metrics, and :class:`FederatedDataModule` serves all of them to the engine. The guide *Data*
lists the sources, partitions and tasks, and shows how to configure them.
"""

from lit_fednas.data.clients import ClientData, Partition
from lit_fednas.data.datamodule import FederatedDataModule
from lit_fednas.data.examples import Examples, LoaderReader, TensorReader
from lit_fednas.data.partitioners import IID, BalancedDirichlet, ByColumn, Dirichlet, Partitioner, Shards
from lit_fednas.data.sources.arrays import ArrayFiles, ArraySource
from lit_fednas.data.sources.base import DataSource
from lit_fednas.data.sources.images import ImageFolder, ImageTable
from lit_fednas.data.sources.leaf import Leaf
from lit_fednas.data.sources.library_sets import (
    CIFAR10,
    CIFAR100,
    MNIST,
    CelebA,
    DigitPairs,
    Digits,
    DistortedDigits,
    FashionMNIST,
)
from lit_fednas.data.sources.speech import SpeechFeatures, SpeechFolder
from lit_fednas.data.sources.text import ShakespeareRoles, TextFiles
from lit_fednas.data.tasks import Classification, MultiLabel, NextToken, Regression, Task
from lit_fednas.data.transforms import Augmentation, Cutout, Normalize, RandAugment, RandomCrop, RandomFlip

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IID",
    "MNIST",
    "ArrayFiles",
    "ArraySource",
    "Augmentation",
    "BalancedDirichlet",
    "ByColumn",
    "CelebA",
    "Classification",
    "ClientData",
    "Cutout",
    "DataSource",
    "DigitPairs",
    "Digits",
    "Dirichlet",
    "DistortedDigits",
    "Examples",
    "FashionMNIST",
    "FederatedDataModule",
    "ImageFolder",
    "ImageTable",
    "Leaf",
    "LoaderReader",
    "MultiLabel",
    "NextToken",
    "Normalize",
    "Partition",
    "Partitioner",
    "RandAugment",
    "RandomCrop",
    "RandomFlip",
    "Regression",
    "ShakespeareRoles",
    "Shards",
    "SpeechFeatures",
    "SpeechFolder",
    "Task",
    "TensorReader",
    "TextFiles",
]
