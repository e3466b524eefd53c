"""What can be trained: weights shared by many architectures."""

from lit_fednas.supernets.base import NestedSupernet, OutputsNetwork, Region, Supernet
from lit_fednas.supernets.base_networks import BaseNetworks, Bases, BaseSpace
from lit_fednas.supernets.early_exit import EarlyExitResNet, Exits, ExitSpace
from lit_fednas.supernets.elastic_resnet import ElasticArch, ElasticResNet, ElasticSpace
from lit_fednas.supernets.families import NetworkFamily
from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.cells import (
    Cell,
    ConvCell,
    EntryCell,
    PooledHead,
    PreactivatedCell,
    ResidualCell,
)
from lit_fednas.supernets.growing.cnn import GrowableCNN, GrowableResNet18
from lit_fednas.supernets.growing.grown import GrownModel
from lit_fednas.supernets.growing.mobilenet import GrowableMobileNetV3Small, InvertedResidualCell, PerceptronHead
from lit_fednas.supernets.growing.nasbench201 import GrowableNASBench201, NASBench201Cell
from lit_fednas.supernets.growing.suite import ModelSuite, SuiteModel
from lit_fednas.supernets.growing.vit import GrowableViT, PatchCell, TokenHead, TransformerCell
from lit_fednas.supernets.labels import OWN, LabelSets, labelled_space, labels_of, with_labels
from lit_fednas.supernets.layers import Scaler
from lit_fednas.supernets.norms import BatchNorm, GroupNorm, Norm
from lit_fednas.supernets.paths.cnn import PathCNN
from lit_fednas.supernets.paths.sampling import PathSampler, SampledPath, path_sampler
from lit_fednas.supernets.paths.space import Operators, PathCosts, PathSpace
from lit_fednas.supernets.paths.supernet import PathNetwork, PathSupernet
from lit_fednas.supernets.plain import FamilyNetwork, PlainNetwork, ResNet18, SmallCNN
from lit_fednas.supernets.pruning.filters import Cut, Prunable, find_cuts
from lit_fednas.supernets.pruning.sequence import PrunedModel, PrunedSequence, UnitCounts
from lit_fednas.supernets.side_by_side import (
    Members,
    Model,
    ModelCollection,
    ModelSpace,
    NetworkCollection,
    SeparateNetworks,
    SeparateSpace,
    SideBySide,
    members_of,
)
from lit_fednas.supernets.space import Ladder, SearchSpace
from lit_fednas.supernets.width.cnn import SlicedCNN, SlicedConvNet, SlicedSmallCNN
from lit_fednas.supernets.width.mobilenet import SlicedMobileNet
from lit_fednas.supernets.width.resnet import SlicedResNet
from lit_fednas.supernets.width.space import UnitMask, Width, WidthSpace
from lit_fednas.supernets.width.supernet import WidthSupernet

__all__ = [
    "OWN",
    "BaseNetworks",
    "BaseSpace",
    "Bases",
    "BatchNorm",
    "Blueprint",
    "Cell",
    "ConvCell",
    "Cut",
    "EarlyExitResNet",
    "ElasticArch",
    "ElasticResNet",
    "ElasticSpace",
    "EntryCell",
    "ExitSpace",
    "Exits",
    "FamilyNetwork",
    "GroupNorm",
    "GrowableCNN",
    "GrowableFamily",
    "GrowableMobileNetV3Small",
    "GrowableNASBench201",
    "GrowableResNet18",
    "GrowableViT",
    "GrownModel",
    "InvertedResidualCell",
    "LabelSets",
    "Ladder",
    "Members",
    "Model",
    "ModelCollection",
    "ModelSpace",
    "ModelSuite",
    "NASBench201Cell",
    "NestedSupernet",
    "NetworkCollection",
    "NetworkFamily",
    "Norm",
    "Operators",
    "OutputsNetwork",
    "PatchCell",
    "PathCNN",
    "PathCosts",
    "PathNetwork",
    "PathSampler",
    "PathSpace",
    "PathSupernet",
    "PerceptronHead",
    "PlainNetwork",
    "PooledHead",
    "PreactivatedCell",
    "Prunable",
    "PrunedModel",
    "PrunedSequence",
    "Region",
    "ResNet18",
    "ResidualCell",
    "SampledPath",
    "Scaler",
    "SearchSpace",
    "SeparateNetworks",
    "SeparateSpace",
    "SideBySide",
    "SlicedCNN",
    "SlicedConvNet",
    "SlicedMobileNet",
    "SlicedResNet",
    "SlicedSmallCNN",
    "SmallCNN",
    "SuiteModel",
    "Supernet",
    "TokenHead",
    "TransformerCell",
    "UnitCounts",
    "UnitMask",
    "Width",
    "WidthSpace",
    "WidthSupernet",
    "find_cuts",
    "labelled_space",
    "labels_of",
    "members_of",
    "path_sampler",
    "with_labels",
]
