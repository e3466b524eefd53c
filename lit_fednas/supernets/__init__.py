"""What can be trained: weights shared by many architectures."""

from lit_fednas.supernets.base import NestedSupernet, OutputsNetwork, PlainNetwork, Region, Supernet
from lit_fednas.supernets.base_networks import BaseNetworks, Bases, BaseSpace
from lit_fednas.supernets.early_exit import EarlyExitResNet, Exits, ExitSpace
from lit_fednas.supernets.elastic_resnet import ElasticArch, ElasticResNet, ElasticSpace
from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.cells import (
    Cell,
    ConvCell,
    EntryCell,
    InvertedResidualCell,
    LinearCell,
    LinearHead,
    NASBench201Cell,
    PatchCell,
    PerceptronHead,
    PooledHead,
    PreactivatedCell,
    PreactivatedHead,
    ResidualCell,
    TokenHead,
    TransformerCell,
)
from lit_fednas.supernets.growing.families.cnn import GrowableCNN
from lit_fednas.supernets.growing.families.mlp import GrowableMLP
from lit_fednas.supernets.growing.families.mobilenet import GrowableMobileNetV3Small
from lit_fednas.supernets.growing.families.nasbench201 import GrowableNASBench201
from lit_fednas.supernets.growing.families.resnet import GrowableResNet18
from lit_fednas.supernets.growing.families.vit import GrowableViT
from lit_fednas.supernets.growing.grown import GrownFamily, GrownModel, GrownNetwork
from lit_fednas.supernets.growing.suite import Model, ModelSuite, SuiteModel, SuiteSpace
from lit_fednas.supernets.labels import OWN, LabelSets
from lit_fednas.supernets.norms import BatchNorm, GroupNorm, Norm
from lit_fednas.supernets.paths.cnn import PathCNN
from lit_fednas.supernets.paths.sampling import PathSampler, SampledPath, path_sampler
from lit_fednas.supernets.paths.space import Operators, PathCosts, PathSpace
from lit_fednas.supernets.paths.supernet import PathNetwork, PathSupernet
from lit_fednas.supernets.plain import ResNet18, SmallCNN
from lit_fednas.supernets.pruning.cuts import Cut, find_cuts
from lit_fednas.supernets.pruning.prunable import Prunable
from lit_fednas.supernets.pruning.sequence import Pruned, PrunedModel, PrunedSequence, SequenceSpace, UnitCounts
from lit_fednas.supernets.scaler import Scaler
from lit_fednas.supernets.separate import Separate, SeparateNetworks, SeparateSpace
from lit_fednas.supernets.sliced_cnn import SlicedCNN, SlicedSmallCNN
from lit_fednas.supernets.sliced_convnet import SlicedConvNet
from lit_fednas.supernets.sliced_mobilenet import SlicedMobileNet
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
    "GroupNorm",
    "GrowableCNN",
    "GrowableFamily",
    "GrowableMLP",
    "GrowableMobileNetV3Small",
    "GrowableNASBench201",
    "GrowableResNet18",
    "GrowableViT",
    "GrownFamily",
    "GrownModel",
    "GrownNetwork",
    "InvertedResidualCell",
    "Kept",
    "LabelSets",
    "Ladder",
    "LinearCell",
    "LinearHead",
    "Model",
    "ModelSuite",
    "NASBench201Cell",
    "NestedSupernet",
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
    "PreactivatedHead",
    "Prunable",
    "Pruned",
    "PrunedModel",
    "PrunedSequence",
    "Region",
    "ResNet18",
    "ResidualCell",
    "SampledPath",
    "Scaler",
    "SearchSpace",
    "Separate",
    "SeparateNetworks",
    "SeparateSpace",
    "SequenceSpace",
    "SingleArchitecture",
    "SlicedCNN",
    "SlicedConvNet",
    "SlicedMobileNet",
    "SlicedResNet",
    "SlicedSmallCNN",
    "SlicedTransformer",
    "SmallCNN",
    "SuiteModel",
    "SuiteSpace",
    "Supernet",
    "TokenHead",
    "TransformerCell",
    "UnitCounts",
    "Width",
    "WidthFamily",
    "WidthSpace",
    "WidthSupernet",
    "find_cuts",
    "path_sampler",
]
