"""Proxies: scores of architectures without training, from their shapes, or from their weights and one batch.

To add one, write a frozen dataclass that subclasses :class:`Proxy`. The order of scores and that of trained subnets
agree more on some tasks than on others. The baseline is the cost in MACs; NASWOT, SynFlow and gradient norms did not
exceed it (``notebooks/reproduction/results_deepfednas.ipynb``).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.costs.counting import Layer
from lit_fednas.data import Task
from lit_fednas.errors import ConfigError
from lit_fednas.ranges import NonNegativeFloat, PositiveFloat, checked
from lit_fednas.tiers import ArchitectureCosts
from lit_fednas.tiers.limits import CountedCost


class Batch(NamedTuple):
    """Examples for proxies."""

    inputs: Tensor  # [batch, *input_shape]
    targets: Tensor  # targets of the task
    task: Task


class Proxy(ABC):
    """A score of an architecture without training; higher is better, minus infinity refuses an architecture."""

    @abstractmethod
    def score(self, arch: Any, costs: ArchitectureCosts, batch: Batch | None = None) -> float:
        """Returns the score of an architecture of ``costs.supernet``."""


@dataclass(frozen=True)
class CostProxy(Proxy):
    """The cost as a score: larger networks count as better.

    Args:
        cost: Name of the cost.
    """

    cost: CountedCost = "macs"

    @override
    def score(self, arch: Any, costs: ArchitectureCosts, batch: Batch | None = None) -> float:
        return float(costs.cost(arch, self.cost))


class FitnessParts(NamedTuple):
    """The terms of DeepFedNAS' fitness."""

    entropy: float
    effectiveness: float
    depth_variation: float
    narrowing: float


@checked("search.method.proxy")
@dataclass(frozen=True)
class Fitness(Proxy):
    """DeepFedNAS' fitness of a network's shape (Khan and Daneshtalab, 2026, arXiv:2601.15127).

    It is ``entropy + effectiveness_weight * rho - depth_weight * Q - narrowing_weight * V``. With w the input channels
    of a layer's group times its kernel's positions: the entropy of a stage is ``ln(h^2 c)`` of its output's positions
    and channels times the sum of ``ln w`` over its layers; the effectiveness rho is the number of layers over their
    geometric mean of w; Q is the exponential of the variance of the stages' numbers of blocks; V is the sum of channels
    by which stages are narrower than the stages before them. Higher fitness need not mean higher accuracy: in supernets
    on distorted digits it ordered subnets of equal MACs worse than a loss on few images.

    It works for any supernet (:meth:`~lit_fednas.supernets.Supernet.layers`). The first layer is the stem, outside
    of all stages; the last is the classifier, which does not count. A stage is a row of layers with the same number of
    output positions. It has one block for every two of its layers with the largest kernel.

    Args:
        effectiveness_weight: Weight of the effectiveness.
        depth_weight: Weight of the penalty Q.
        narrowing_weight: Weight of the penalty V.
        most_effective: Maximum effectiveness; networks above it are refused.
    """

    effectiveness_weight: float = 1000.0
    depth_weight: NonNegativeFloat = 10.0
    narrowing_weight: NonNegativeFloat = 1.0
    most_effective: PositiveFloat = 0.51

    @override
    def score(self, arch: Any, costs: ArchitectureCosts, batch: Batch | None = None) -> float:
        parts = self.parts(costs.supernet.layers(arch))
        if parts.effectiveness > self.most_effective:
            return -math.inf
        penalty = self.depth_weight * parts.depth_variation + self.narrowing_weight * parts.narrowing
        return parts.entropy + self.effectiveness_weight * parts.effectiveness - penalty

    @staticmethod
    def parts(layers: Sequence[Layer]) -> FitnessParts:
        """Returns the terms of the fitness for the layers of a network."""
        if len(layers) < 3:
            raise ConfigError(
                f"search.method.proxy: Fitness needs a stem, another layer and a classifier, and an architecture has "
                f"{len(layers)} convolutions and linear layers; choose CostProxy"
            )
        stem, *rest, _ = layers
        stages = [_Stage.of(tuple(run)) for _, run in groupby(rest, key=lambda layer: layer.positions)]
        depth = 1 + len(rest)
        mean_log = (math.log(stem.fan_in) + sum(stage.logs for stage in stages)) / depth
        mean_blocks = sum(stage.blocks for stage in stages) / len(stages)
        variance = sum((stage.blocks - mean_blocks) ** 2 for stage in stages) / len(stages)
        narrowing = sum(max(0, first.width - second.width) for first, second in pairwise(stages))
        entropy = sum(stage.entropy for stage in stages)
        return FitnessParts(entropy, depth / math.exp(mean_log), math.exp(variance), narrowing)


class _Stage(NamedTuple):
    """The figures of a stage in the fitness: sum of logarithms, entropy, number of blocks, output channels."""

    logs: float
    entropy: float
    blocks: float
    width: int

    @staticmethod
    @lru_cache(maxsize=2**16)  # many architectures have the same stages
    def of(layers: tuple[Layer, ...]) -> _Stage:
        logs = sum(math.log(layer.fan_in) for layer in layers)
        width, kernel = layers[-1].channels, max(layer.kernel for layer in layers)
        blocks = sum(layer.kernel == kernel for layer in layers) / 2
        return _Stage(logs, math.log(layers[0].positions * width) * logs, blocks, width)


@dataclass(frozen=True)
class BatchLoss(Proxy):
    """The negative loss on one batch of validation data, with norms in training mode: a very small evaluation."""

    @override
    @torch.no_grad()
    def score(self, arch: Any, costs: ArchitectureCosts, batch: Batch | None = None) -> float:
        if batch is None:
            raise ConfigError(
                "search.method.proxy: BatchLoss needs validation data of the server (data.server_val, without "
                "search.federated); give some, or choose Fitness or CostProxy"
            )
        network = costs.supernet.subnet(arch).train()
        loss = float(batch.task.loss(network(batch.inputs), batch.targets))
        return -loss if math.isfinite(loss) else -math.inf
