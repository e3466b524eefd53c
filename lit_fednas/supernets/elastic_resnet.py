"""SuperFed's elastic residual network (App. F): depth per stage, expand ratio per block.

With the default widths the family goes from ResNet-10 to ResNet-26, has 155^4 = 577,200,625 members (the paper: about
5*10^8), and its MACs are the GFLOPs of Table 5. App. F says "a depth of two per stage", but ResNet-10 as the smallest
member, and Tables 4 and 5, leave room for one block (of two convolutions) only.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import product
from typing import Literal

from torch import nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import NonNegativeInt, PositiveFloat, PositiveInt, checked
from lit_fednas.supernets.base import NestedSupernet, he_normal
from lit_fednas.supernets.elastic_space import ElasticArch, ElasticSpace
from lit_fednas.supernets.families import check_image
from lit_fednas.supernets.layers import basic_block, convolution, pooled_classifier, sequential
from lit_fednas.supernets.norms import BatchNorm, Norm

#: The nine subnetworks of SuperFed's figures (Table 4), smallest first.
TABLE_4 = (
    "d: [0,0,0,0], e: 0.1",
    "d: [0,0,0,1], e: 0.14",
    "d: [0,1,0,1], e: 0.14",
    "d: [0,1,1,1], e: 0.14",
    "d: [1,1,1,1], e: 0.18",
    "d: [1,1,1,2], e: 0.22",
    "d: [1,2,1,2], e: 0.22",
    "d: [1,2,2,2], e: 0.22",
    "d: [2,2,2,2], e: 0.25",
)


@checked("supernet")
class ElasticResNet(NestedSupernet):
    """SuperFed's supernet of residual networks (App. F, Tables 4 and 5).

    A stage has one block and ``d`` more. A block is a 3x3 convolution to the middle channels, which are the output's
    times the expand ratio, and one to the output, added to a shortcut: an average pooling and a 1x1 convolution where
    stride or width changes. A narrower block has the first of the channels, without a kernel transform.

    Args:
        input_shape: Channels, height and width of an image.
        num_classes: Classes.
        stem_width: Channels after the first 3x3 convolution.
        stage_widths: Output channels per stage.
        depths: Choices for the number of blocks beyond the first.
        ratios: Choices of the expand ratio.
        norm: Normalisation layer. The paper names none; the authors' code has :class:`NoNorm`.
        divisor: Middle channels are a multiple of this.
        he_init: Whether convolutions are drawn as by He et al. (2015); else by torch, as in the authors' code.
        relu_before_sum: Whether a block's second convolution has a ReLU before the shortcut is added, as in the
            authors' code.

    Raises:
        ConfigError: The choices are empty, not ascending, or out of range.

    Example:
        >>> import torch
        >>> net = ElasticResNet(stem_width=8, stage_widths=[16, 32, 64, 128])
        >>> net(torch.zeros(2, 3, 32, 32), net.space.smallest).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        input_shape: Iterable[int] = (3, 32, 32),
        num_classes: int = 10,
        stem_width: PositiveInt = 64,
        stage_widths: Sequence[PositiveInt] = (256, 512, 1024, 2048),
        depths: Sequence[NonNegativeInt] = (0, 1, 2),
        ratios: Sequence[PositiveFloat] = (0.1, 0.14, 0.18, 0.22, 0.25),
        norm: Norm = BatchNorm(affine=False, running_statistics=False),
        divisor: PositiveInt = 8,
        he_init: bool = True,
        relu_before_sum: bool = False,
    ) -> None:
        super().__init__(input_shape, num_classes)
        if not stage_widths:
            raise ConfigError("supernet.stage_widths: is empty; give the output channels of each stage")
        check_image(self, self.input_shape)
        self.stem_width = stem_width
        self.norm = norm
        self.he_init = he_init
        self.relu_before_sum = relu_before_sum
        self.space: ElasticSpace = ElasticSpace(depths, ratios, stage_widths, divisor)
        for stage, ratio in product(range(len(stage_widths)), ratios):
            norm(self.space.middle_width(stage, ratio))  # refuses a width now and not in a round
        self.network = self.build(self.space.largest)
        self.initialise(self.network)

    @override
    def initialise(self, network: nn.Module) -> None:
        if self.he_init:
            he_normal(network)

    @property
    @override
    def default_eval_archs(self) -> tuple[str, ...]:
        """The nine architectures of Table 4 if the space has them all; else its bounds."""
        try:
            for text in TABLE_4:
                self.space.parse(text)
        except ConfigError:
            return super().default_eval_archs
        return TABLE_4

    @override
    def computation(self, unit: Literal["macs", "operations"], arch: ElasticArch) -> int:
        if unit != "macs":
            return super().computation(unit, arch)
        channels, height, width = self.input_shape
        total = height * width * channels * self.stem_width * 9
        channels = self.stem_width
        for _, middle, out, stride in self.space.blocks_of(arch):
            height, width = -(-height // stride), -(-width // stride)
            shortcut = channels * out if stride != 1 or channels != out else 0
            total += height * width * (9 * channels * middle + 9 * middle * out + shortcut)
            channels = out
        return total + channels * self.num_classes

    @override
    def build(self, arch: ElasticArch) -> nn.Module:
        stages = [nn.Sequential() for _ in arch.depths]
        width = self.stem_width
        for stage, middle, out, stride in self.space.blocks_of(arch):
            stages[stage].append(elastic_block(width, middle, out, stride, self.norm, self.relu_before_sum))
            width = out
        return sequential(
            stem=convolution(self.input_shape[0], self.stem_width),
            norm=self.norm(self.stem_width),
            relu=nn.ReLU(inplace=True),
            stages=nn.Sequential(*stages),
            **pooled_classifier(width, self.num_classes),
        )


class ReLUBeforeSum(nn.ReLU):
    """A ReLU with a name of its own, by which a checkpoint's fingerprint tells networks that have it from others."""


def elastic_block(width: int, middle: int, out: int, stride: int, norm: Norm, relu_before_sum: bool) -> nn.Module:
    """Returns a basic block with the stride in its first convolution (which gives Table 5's GFLOPs)."""
    shortcut: nn.Module | None = None
    if stride != 1 or width != out:
        pool = [nn.AvgPool2d(stride, ceil_mode=True)] if stride != 1 else []
        shortcut = nn.Sequential(*pool, convolution(width, out, 1), norm(out))
    residual = basic_block(width, middle, out, stride, norm, shortcut)
    if relu_before_sum:
        residual.block.add_module("relu2", ReLUBeforeSum(inplace=True))
    return residual
