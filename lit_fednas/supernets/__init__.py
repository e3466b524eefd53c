"""What can be trained: weights shared by many architectures."""

from lit_fednas.supernets.base import NestedSupernet, PlainNetwork, Region, Supernet
from lit_fednas.supernets.elastic_resnet import ElasticArch, ElasticResNet, ElasticSpace
from lit_fednas.supernets.labels import OWN, LabelSets
from lit_fednas.supernets.norms import BatchNorm, GroupNorm, Norm
from lit_fednas.supernets.path_cnn import PathCNN
from lit_fednas.supernets.path_sampling import PathSampler, SampledPath, path_sampler
from lit_fednas.supernets.path_space import Operators, PathCosts, PathSpace
from lit_fednas.supernets.path_supernet import PathNetwork, PathSupernet
from lit_fednas.supernets.plain import ResNet18, SmallCNN
from lit_fednas.supernets.space import SearchSpace, SingleArchitecture

__all__ = [
    "OWN",
    "BatchNorm",
    "ElasticArch",
    "ElasticResNet",
    "ElasticSpace",
    "GroupNorm",
    "LabelSets",
    "NestedSupernet",
    "Norm",
    "Operators",
    "PathCNN",
    "PathCosts",
    "PathNetwork",
    "PathSampler",
    "PathSpace",
    "PathSupernet",
    "PlainNetwork",
    "Region",
    "ResNet18",
    "SampledPath",
    "SearchSpace",
    "SingleArchitecture",
    "SmallCNN",
    "Supernet",
    "path_sampler",
]
