"""What can be trained: weights shared by many architectures."""

from lit_fednas.supernets.base import NestedSupernet, PlainNetwork, Region, Supernet
from lit_fednas.supernets.base_networks import BaseNetworks, Bases, BaseSpace
from lit_fednas.supernets.early_exit import EarlyExitResNet, Exits, ExitSpace
from lit_fednas.supernets.elastic_resnet import ElasticArch, ElasticResNet, ElasticSpace
from lit_fednas.supernets.labels import OWN, LabelSets
from lit_fednas.supernets.norms import BatchNorm, GroupNorm, Norm
from lit_fednas.supernets.outputs import OutputsNetwork
from lit_fednas.supernets.path_cnn import PathCNN
from lit_fednas.supernets.path_sampling import PathSampler, SampledPath, path_sampler
from lit_fednas.supernets.path_space import Operators, PathCosts, PathSpace
from lit_fednas.supernets.path_supernet import PathNetwork, PathSupernet
from lit_fednas.supernets.plain import ResNet18, SmallCNN
from lit_fednas.supernets.scaler import Scaler
from lit_fednas.supernets.separate import Separate, SeparateNetworks, SeparateSpace
from lit_fednas.supernets.sliced_cnn import SlicedCNN, SlicedSmallCNN
from lit_fednas.supernets.sliced_resnet import SlicedResNet
from lit_fednas.supernets.sliced_transformer import SlicedTransformer
from lit_fednas.supernets.space import Ladder, SearchSpace, SingleArchitecture
from lit_fednas.supernets.width_families import WidthFamily
from lit_fednas.supernets.width_space import Kept, Width, WidthSpace
from lit_fednas.supernets.widths import WidthSupernet

__all__ = [
    "OWN",
    "BaseNetworks",
    "BaseSpace",
    "Bases",
    "BatchNorm",
    "EarlyExitResNet",
    "ElasticArch",
    "ElasticResNet",
    "ElasticSpace",
    "ExitSpace",
    "Exits",
    "GroupNorm",
    "Kept",
    "LabelSets",
    "Ladder",
    "NestedSupernet",
    "Norm",
    "Operators",
    "OutputsNetwork",
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
    "Scaler",
    "SearchSpace",
    "Separate",
    "SeparateNetworks",
    "SeparateSpace",
    "SingleArchitecture",
    "SlicedCNN",
    "SlicedResNet",
    "SlicedSmallCNN",
    "SlicedTransformer",
    "SmallCNN",
    "Supernet",
    "Width",
    "WidthFamily",
    "WidthSpace",
    "WidthSupernet",
    "path_sampler",
]
