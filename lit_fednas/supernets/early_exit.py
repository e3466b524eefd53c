"""A residual network with early exits: FedHeN's simple and complex architectures, and any number between.

With the paper's width and exits, the simple architecture has 0.7M parameters, and the complex one has 11.17M without
the simple head (paper: 11.1M).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import ceil

import torch
from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, PositiveInts, checked
from lit_fednas.supernets.base import NestedSupernet, OutputsNetwork, he_normal
from lit_fednas.supernets.families import check_image
from lit_fednas.supernets.layers import GroupNorm, Norm, convolution, pooled_classifier, preactivated_block, sequential
from lit_fednas.supernets.space import Subset, SubsetSpace


class Exits(Subset):
    """The stages before the heads, counted from 1, as ``exits: 2,4``; the network ends with the last stage."""

    word = "exits"


class ExitSpace(SubsetSpace[Exits]):
    """The exits of a network; with ``early_heads``, an architecture includes the heads before its last one."""

    def __init__(self, exits: Iterable[int], early_heads: bool = True) -> None:
        self.early_heads = early_heads
        super().__init__(Exits, exits)

    @property
    @override
    def superset(self) -> Exits:
        return Exits(self.numbers)

    @override
    def canonical(self, arch: Exits) -> Exits:
        return arch if self.early_heads else Exits(arch.members[-1:])


@checked("supernet")
class EarlyExitResNet(NestedSupernet):
    """A pre-activation ResNet in which every exit is an architecture.

    The network is that of He et al. (2016, "Identity Mappings in Deep Residual Networks") with a stem for 32x32 images
    and group norm (FedHeN, section 3, "Models"). A client that receives the simple head without training it (with
    :class:`~lit_fednas.objectives.SideObjective`) returns it unchanged, and it is averaged (Alg. 4, line 18). The
    architecture ``exits: 4`` omits it; without ``early_heads``, all architectures omit it.

    Args:
        input_shape: Channels, height and width of an image.
        num_classes: Number of classes.
        norm: Normalisation layer.
        width: Channels of the stem and the first stage; every later stage has twice as many.
        blocks: Residual blocks per stage; all stages but the first begin with a stride of two.
        exits: The stages before an exit, counted from 1, in ascending order; the last stage must be one of them.
        early_heads: Whether an architecture includes the heads before its last one, for the side objective.

    Example:
        >>> net = EarlyExitResNet((3, 32, 32), 10)
        >>> [net.cost(arch).parameters for arch in (net.space.smallest, net.space.largest)]
        [695627, 11192917]
    """

    def __init__(
        self,
        input_shape: Iterable[int] = (3, 32, 32),
        num_classes: int = 10,
        norm: Norm = GroupNorm(),
        width: PositiveInt = 64,
        blocks: PositiveInts = (2, 2, 2, 2),
        exits: PositiveInts = (2, 4),
        early_heads: bool = True,
    ) -> None:
        super().__init__(input_shape, num_classes)
        check_image(self, self.input_shape)
        if list(exits) != sorted(set(exits)) or exits[-1] != len(blocks):
            raise ConfigError(f"supernet.exits: {list(exits)} must be ascending stages that end with {len(blocks)}")
        self.width = width
        self.blocks = tuple(blocks)
        self._norm = norm
        self.space = ExitSpace(exits, early_heads)
        self.network = self.build(self.space.superset)
        self.initialise(self.network)

    @override
    def build(self, arch: Exits) -> ExitNetwork:
        return ExitNetwork(
            convolution(self.input_shape[0], self.width),
            [self._stage(stage) for stage in range(1, arch.members[-1] + 1)],
            {stage: self._head(stage) for stage in arch.members},
        )

    @override
    def initialise(self, network: nn.Module) -> None:
        he_normal(network)

    def _stage(self, stage: int) -> nn.Sequential:
        out = self.width << (stage - 1)
        inputs, stride = (out // 2, 2) if stage > 1 else (out, 1)
        blocks = [preactivated_block(inputs, out, out, stride, self._norm)]
        blocks += [preactivated_block(out, out, out, 1, self._norm) for _ in range(self.blocks[stage - 1] - 1)]
        return nn.Sequential(*blocks)

    def _head(self, stage: int) -> nn.Sequential:
        """Builds a head: early heads mix two kinds of pooling (section 3, "Models"); the last head averages."""
        channels = self.width << (stage - 1)
        if stage == len(self.blocks):
            head = pooled_classifier(channels, self.num_classes)
        else:
            height, width = (ceil(side / 2 ** (stage - 1)) for side in self.input_shape[1:])
            pool = MixedPool(height, width)
            entries = channels * (height // pool.kernel[0]) * (width // pool.kernel[1])
            head = {"pool": pool, "flatten": nn.Flatten(), "classifier": nn.Linear(entries, self.num_classes)}
        return sequential(norm=self._norm(channels), relu=nn.ReLU(inplace=True), **head)


class ExitNetwork(OutputsNetwork):
    """A sequence of stages, counted from 1, with heads after some of them and after the last."""

    def __init__(self, stem: nn.Module, stages: Sequence[nn.Module], heads: dict[int, nn.Module]) -> None:
        super().__init__()
        self.stem = stem
        self.stages = nn.ModuleList(stages)
        self.heads = nn.ModuleDict({str(stage): head for stage, head in heads.items()})

    def forward(self, x: Tensor) -> Tensor:
        """Returns the last exit's logits; the other heads do not run."""
        x = self.stem(x)
        for stage in self.stages:
            x = stage(x)
        return self.heads[str(len(self.stages))](x)

    @override
    def outputs(self, x: Tensor) -> list[Tensor]:
        x = self.stem(x)
        logits = []
        for number, stage in enumerate(self.stages, start=1):
            x = stage(x)
            if str(number) in self.heads:
                logits.append(self.heads[str(number)](x))
        return logits


class MixedPool(nn.Module):
    """Pooling ``a * maximum + (1 - a) * average`` to a map of about 4x4; ``a`` is learned (Lee et al., 2016)."""

    def __init__(self, height: int, width: int) -> None:
        super().__init__()
        # as in Kaya et al. (2019), the source of FedHeN: sides up to 5 stay; the share may leave [0, 1]
        self.kernel = (max(1, round(height / 4)), max(1, round(width / 4)))
        self.share = nn.Parameter(torch.tensor(0.5))

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, channels, h, w]`` to about ``[batch, channels, 4, 4]``."""
        average, maximum = functional.avg_pool2d(x, self.kernel), functional.max_pool2d(x, self.kernel)
        return average + self.share * (maximum - average)
