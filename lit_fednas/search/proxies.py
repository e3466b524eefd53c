"""Proxies: scores of architectures that need no training, from their shapes, or from their weights and one batch.

To add one, write a frozen dataclass that subclasses :class:`Proxy`. How well scores order trained subnets differs from
task to task: the cost in MACs is the proxy to beat.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby, pairwise
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.costs.layers import Layer
from lit_fednas.data import Task
from lit_fednas.errors import ConfigError
from lit_fednas.ranges import NonNegativeFloat, PositiveFloat, checked
from lit_fednas.tiers import ArchitectureCosts
from lit_fednas.tiers.limits import CountedCost


class Batch(NamedTuple):
    """Examples that a proxy may look at.

    Attributes:
        inputs: ``[batch, *input_shape]``.
        targets: Of the task.
        task: What they are.
    """

    inputs: Tensor
    targets: Tensor
    task: Task


class Proxy(ABC):
    """A score of an architecture without training; more is better, minus infinity is for what cannot be chosen.

    Attributes:
        needs_batch: Whether it looks at examples; else it needs the architecture's shape alone.
    """

    needs_batch: ClassVar[bool] = False

    @abstractmethod
    def score(self, arch: Any, costs: ArchitectureCosts, batch: Batch | None = None) -> float:
        """Returns the score of an architecture of ``costs.supernet``."""


@dataclass(frozen=True)
class CostProxy(Proxy):
    """The cost itself: what may cost more is taken for better.

    Args:
        cost: Which of the costs that are counted.
    """

    cost: CountedCost = "macs"

    @override
    def score(self, arch: Any, costs: ArchitectureCosts, batch: Batch | None = None) -> float:
        return float(costs.cost(arch, self.cost))


class FitnessParts(NamedTuple):
    """What DeepFedNAS' fitness consists of."""

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
    geometric mean of w; Q is the exponential of the variance of the stages' numbers of blocks; V is by how many
    channels a stage is narrower than the one before, added up. Higher fitness is not known to mean higher accuracy:
    in supernets on distorted digits it ordered subnets of equal MACs worse than a loss on few images.

    It reads any supernet (:meth:`~lit_fednas.supernets.Supernet.layers`). The first layer is the stem, which is in
    no stage; the last is the classifier, which does not count. A stage is the layers in a row whose outputs have
    equally many positions, and has a block for every two of its layers of the largest kernel.

    Args:
        effectiveness_weight: What a unit of effectiveness is worth.
        depth_weight: What a unit of Q costs.
        narrowing_weight: What a channel of V costs.
        most_effective: Networks of a greater effectiveness are no candidates.
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
        """Returns the parts of the fitness of a network with these layers, two at least."""
        if len(layers) < 3:
            raise ConfigError(
                f"search.method.proxy: Fitness needs a stem, another layer and a classifier, and an architecture has "
                f"{len(layers)} convolutions and linear layers; choose CostProxy"
            )
        stem, *rest, _ = layers
        stages = [_Stage.of(tuple(run)) for _, run in groupby(rest, key=_POSITIONS)]
        depth = 1 + len(rest)
        mean_log = (math.log(stem.fan_in) + sum(stage.logs for stage in stages)) / depth
        mean_blocks = sum(stage.blocks for stage in stages) / len(stages)
        variance = sum((stage.blocks - mean_blocks) ** 2 for stage in stages) / len(stages)
        narrowing = sum(max(0, before.width - after.width) for before, after in pairwise(stages))
        entropy = sum(stage.entropy for stage in stages)
        return FitnessParts(entropy, depth / math.exp(mean_log), math.exp(variance), narrowing)


class _Stage(NamedTuple):
    """What the fitness reads of a stage: its sum of logarithms, entropy, number of blocks and output channels."""

    logs: float
    entropy: float
    blocks: float
    width: int

    @staticmethod
    @lru_cache(maxsize=2**16)  # a search meets the same stages in many architectures
    def of(layers: tuple[Layer, ...]) -> _Stage:
        logs = sum(math.log(layer.fan_in) for layer in layers)
        width, kernel = layers[-1].channels, max(layer.kernel for layer in layers)
        blocks = sum(layer.kernel == kernel for layer in layers) / 2
        return _Stage(logs, math.log(layers[0].positions * width) * logs, blocks, width)


_POSITIONS = attrgetter("positions")


class BatchProxy(Proxy):
    """A proxy that runs the architecture, with the weights that it has, on a batch."""

    needs_batch = True

    @override
    def score(self, arch: Any, costs: ArchitectureCosts, batch: Batch | None = None) -> float:
        if batch is None:
            raise ConfigError(
                f"search.method.proxy: {type(self).__name__} looks at validation data of the server, and there are "
                f"none (data.server_val, search.federated); give some, or choose Fitness or CostProxy"
            )
        value = self.of_network(costs.supernet.subnet(arch).train(), batch)
        return value if math.isfinite(value) else -math.inf

    @abstractmethod
    def of_network(self, network: nn.Module, batch: Batch) -> float:
        """Returns the score of a network, a copy in training mode (norms have the batch's statistics)."""


@dataclass(frozen=True)
class BatchLoss(BatchProxy):
    """Minus the loss on the batch, with the batch's statistics in norms: a very small evaluation."""

    @override
    @torch.no_grad()
    def of_network(self, network: nn.Module, batch: Batch) -> float:
        return -float(batch.task.loss(network(batch.inputs), batch.targets))


@dataclass(frozen=True)
class GradientNorm(BatchProxy):
    """The norm of the loss's gradient on the batch (Abdelfattah et al., 2021, section 3.1)."""

    @override
    def of_network(self, network: nn.Module, batch: Batch) -> float:
        with torch.enable_grad():
            weights = [weight for weight in network.parameters() if weight.requires_grad]
            gradients = torch.autograd.grad(batch.task.loss(network(batch.inputs), batch.targets), weights)
        return float(torch.stack([gradient.norm() for gradient in gradients]).norm())


@dataclass(frozen=True)
class NASWOT(BatchProxy):
    """How differently ReLUs separate the batch's examples: Mellor et al. (2021), Eq. 2, the log determinant of K_H."""

    @override
    @torch.no_grad()
    def of_network(self, network: nn.Module, batch: Batch) -> float:
        kernel = torch.zeros(len(batch.inputs), len(batch.inputs), dtype=torch.float64, device=batch.inputs.device)

        def add(module: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> None:
            codes = (output.flatten(1) > 0).double()
            kernel.add_(codes @ codes.T + (1 - codes) @ (1 - codes).T)

        for module in network.modules():
            if isinstance(module, nn.ReLU):
                module.register_forward_hook(add)
        network(batch.inputs)
        return float(torch.linalg.slogdet(kernel)[1])


@dataclass(frozen=True)
class SynFlow(BatchProxy):
    """The logarithm of the sum of weights times their gradients, of an input of ones (Tanaka et al., 2020, Eq. 1).

    Weights are replaced by their absolute values and norms of batches left out, as by Abdelfattah et al. (2021).
    """

    @override
    def of_network(self, network: nn.Module, batch: Batch) -> float:
        if not batch.inputs.is_floating_point():
            raise ConfigError("search.method.proxy: SynFlow needs inputs that are numbers, not tokens; choose another")
        network = network.double()
        for module in network.modules():
            if isinstance(module, nn.modules.batchnorm._BatchNorm):
                module.forward = nn.Identity().forward  # type: ignore[method-assign]
        weights = [weight for weight in network.parameters() if weight.requires_grad]
        for weight in weights:
            weight.data.abs_()
        with torch.enable_grad():
            ones = torch.ones_like(batch.inputs[:1], dtype=torch.float64)
            gradients = torch.autograd.grad(network(ones).sum(), weights, allow_unused=True)
        flows = zip(weights, gradients, strict=True)
        return math.log(sum(float((weight * flow).sum()) for weight, flow in flows if flow is not None))
