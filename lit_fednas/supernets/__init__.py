"""Supernets: networks with weights that many architectures share.

A :class:`Supernet` owns the global weights. Its ``space`` (:class:`SearchSpace`) lists the architectures, and
``subnet(arch)`` returns an ordinary ``nn.Module`` with a copy of one architecture's weights, which a client receives.

* **Elastic in depth and width** (SuperFed): :class:`ElasticResNet`, :class:`ElasticTCN` for the next token,
  :class:`ElasticTransformer` for images and text, :class:`ElasticMLP` for tables.
* **Operators as paths** (FedorAS): :class:`PathCNN`, :class:`PathRNN`.
* **Early exits** (FedHeN): :class:`EarlyExitResNet`.
* **Cut in width** (HeteroFL, FjORD, FedRolex, FLuID): :class:`WidthSupernet` of any :class:`NetworkFamily`, such as
  :class:`SlicedCNN`, :class:`SlicedResNet`, :class:`GrowableViT`, and :class:`SlicedLSTM` for text; wrap any
  network of torchvision or of your own as a :class:`TracedNetwork`.
* **Networks side by side**: :class:`BaseNetworks` (SplitMix), :class:`SeparateNetworks`, :class:`ModelSuite` of models
  that grow (FedTrans), :class:`PrunedSequence` of models that shrink (FedNAS).
* **Cells** (DARTS): :class:`CellSupernet`, and :class:`GenotypeNetwork` for one genotype.
* **One network** (FedAvg): :class:`SmallCNN`, :class:`ResNet18`, and :class:`PlainNetwork` around any network of yours.

The guide "A supernet of your own" (``scripts/docs``) shows a complete subclass.
"""

from lit_fednas.supernets.base import NestedSupernet, OutputsNetwork, Region, Supernet
from lit_fednas.supernets.cells.space import Genotype
from lit_fednas.supernets.cells.supernet import CellSupernet, GenotypeNetwork
from lit_fednas.supernets.early_exit import EarlyExitResNet, Exits
from lit_fednas.supernets.elastic_networks import ElasticMLP, ElasticTCN, ElasticTransformer
from lit_fednas.supernets.elastic_resnet import ElasticArch, ElasticResNet
from lit_fednas.supernets.families import NetworkFamily, UngroupedFamily
from lit_fednas.supernets.growing.families import (
    GrowableCNN,
    GrowableMobileNetV3Small,
    GrowableNASBench201,
    GrowablePerceptron,
    GrowableResNet18,
    GrowableViT,
)
from lit_fednas.supernets.growing.growth import GrowableFamily
from lit_fednas.supernets.growing.suite import GrownModel, ModelSuite
from lit_fednas.supernets.layers import BatchNorm, GroupNorm, Norm
from lit_fednas.supernets.paths.cnn import PathCNN
from lit_fednas.supernets.paths.rnn import PathRNN
from lit_fednas.supernets.paths.supernet import Operators, PathCosts, PathSampler, PathSupernet, path_sampler
from lit_fednas.supernets.plain import FamilyNetwork, PlainNetwork, ResNet18, SmallCNN
from lit_fednas.supernets.pruning import Cut, PrunedSequence, UnitCounts, find_cuts
from lit_fednas.supernets.side_by_side import (
    BaseNetworks,
    Bases,
    Model,
    ModelCollection,
    NetworkCollection,
    SeparateExits,
    SeparateNetworks,
    SeparateWidths,
)
from lit_fednas.supernets.sliced import SlicedCNN, SlicedConvNet, SlicedMobileNet, SlicedResNet
from lit_fednas.supernets.sliced_text import SlicedLSTM, SlicedTransformer
from lit_fednas.supernets.space import Ladder, SearchSpace
from lit_fednas.supernets.traced import TracedNetwork
from lit_fednas.supernets.widths import UnitMask, Width, WidthSupernet

__all__ = [
    "BaseNetworks",
    "Bases",
    "BatchNorm",
    "CellSupernet",
    "Cut",
    "EarlyExitResNet",
    "ElasticArch",
    "ElasticMLP",
    "ElasticResNet",
    "ElasticTCN",
    "ElasticTransformer",
    "Exits",
    "FamilyNetwork",
    "Genotype",
    "GenotypeNetwork",
    "GroupNorm",
    "GrowableCNN",
    "GrowableFamily",
    "GrowableMobileNetV3Small",
    "GrowableNASBench201",
    "GrowablePerceptron",
    "GrowableResNet18",
    "GrowableViT",
    "GrownModel",
    "Ladder",
    "Model",
    "ModelCollection",
    "ModelSuite",
    "NestedSupernet",
    "NetworkCollection",
    "NetworkFamily",
    "Norm",
    "Operators",
    "OutputsNetwork",
    "PathCNN",
    "PathCosts",
    "PathRNN",
    "PathSampler",
    "PathSupernet",
    "PlainNetwork",
    "PrunedSequence",
    "Region",
    "ResNet18",
    "SearchSpace",
    "SeparateExits",
    "SeparateNetworks",
    "SeparateWidths",
    "SlicedCNN",
    "SlicedConvNet",
    "SlicedLSTM",
    "SlicedMobileNet",
    "SlicedResNet",
    "SlicedTransformer",
    "SmallCNN",
    "Supernet",
    "TracedNetwork",
    "UngroupedFamily",
    "UnitCounts",
    "UnitMask",
    "Width",
    "WidthSupernet",
    "find_cuts",
    "path_sampler",
]
