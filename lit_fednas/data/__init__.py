"""Data sources, partitions of them over clients, and the data module that serves both to the engine."""

from lit_fednas.data.client_groups import GroupReport, balanced_groups, group_report, imbalance, random_groups
from lit_fednas.data.clients import ClientData, InMemoryClients, LoaderClients
from lit_fednas.data.datamodule import FederatedDataModule
from lit_fednas.data.examples import Examples
from lit_fednas.data.partition import Partition
from lit_fednas.data.partitioners import IID, BalancedDirichlet, ByColumn, Dirichlet, Partitioner, Shards
from lit_fednas.data.sources import (
    CIFAR10,
    CIFAR100,
    MNIST,
    ArraySource,
    CelebA,
    DataSource,
    Digits,
    FashionMNIST,
    ImageFolder,
    ImageTable,
    LazyImageFolder,
    Leaf,
    LeafImages,
)
from lit_fednas.data.statistics import partition_rows, partition_table, plot_partition, write_partition
from lit_fednas.data.transforms import Augmentation, Normalize, RandomCrop, RandomFlip

__all__ = [
    "CIFAR10",
    "CIFAR100",
    "IID",
    "MNIST",
    "ArraySource",
    "Augmentation",
    "BalancedDirichlet",
    "ByColumn",
    "CelebA",
    "ClientData",
    "DataSource",
    "Digits",
    "Dirichlet",
    "Examples",
    "FashionMNIST",
    "FederatedDataModule",
    "GroupReport",
    "ImageFolder",
    "ImageTable",
    "InMemoryClients",
    "LazyImageFolder",
    "Leaf",
    "LeafImages",
    "LoaderClients",
    "Normalize",
    "Partition",
    "Partitioner",
    "RandomCrop",
    "RandomFlip",
    "Shards",
    "balanced_groups",
    "group_report",
    "imbalance",
    "partition_rows",
    "partition_table",
    "plot_partition",
    "random_groups",
    "write_partition",
]
