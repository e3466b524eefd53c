"""SuperFed's choices of depth and width (App. F and H.1), and its elastic residual network.

With the default widths the family goes from ResNet-10 to ResNet-26, has 155^4 = 577,200,625 members (the paper: about
5*10^8), and its MACs are the GFLOPs of Table 5. App. F says "a depth of two per stage", but ResNet-10 as the smallest
member, and Tables 4 and 5, leave room for one block (of two convolutions) only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from math import prod
from typing import Any, Literal

from torch import nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import NonNegativeInt, PositiveFloat, PositiveInt, checked
from lit_fednas.supernets.base import NestedSupernet, he_normal
from lit_fednas.supernets.families import check_image, divisible
from lit_fednas.supernets.layers import BatchNorm, Norm, basic_block, convolution, pooled_classifier, sequential
from lit_fednas.supernets.space import SearchSpace

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


@dataclass(frozen=True)
class ElasticArch:
    """A member of the family, written as in SuperFed's Tables 4 and 5.

    Attributes:
        depths: Blocks beyond those that are always there, per stage.
        ratios: Expand ratio per block, stage by stage; an absent block has the ratio of the one before it.
        heads: Attention heads per block, like the ratios; empty for networks without attention.

    Example:
        >>> str(ElasticArch((0, 0, 0, 1), (0.14,) * 12))
        'd: [0,0,0,1], e: 0.14'
    """

    depths: tuple[int, ...]
    ratios: tuple[float, ...]
    heads: tuple[int, ...] = ()

    def __str__(self) -> str:
        per_block = {"e": self.ratios, "h": self.heads} if self.heads else {"e": self.ratios}
        equal_as_one = {key: values[0] if len(set(values)) == 1 else values for key, values in per_block.items()}
        written = {"d": self.depths, **equal_as_one}
        # JSON has all digits, so that parse reads the same number
        return ", ".join(f"{key}: {json.dumps(values, separators=(',', ':'))}" for key, values in written.items())


class ElasticSpace(SearchSpace[ElasticArch]):
    """All depths and ratios of an elastic network, and its heads if it has attention; choices ascend."""

    def __init__(
        self,
        depths: Sequence[int],
        ratios: Sequence[float],
        stage_widths: Sequence[int],
        divisor: int = 1,
        heads: Sequence[int] = (),
        least: int = 1,
    ) -> None:
        for name, values in (("depths", depths), ("ratios", ratios), ("heads", heads)):
            if list(values) != sorted(set(values)) or not (values or name == "heads"):
                raise ConfigError(f"supernet.{name}: {list(values)} must be at least one number, ascending, distinct")
        if any(depth != int(depth) for depth in depths):
            raise ConfigError(f"supernet.depths: {list(depths)} must be whole numbers of blocks")
        self.depths = tuple(depths)
        self.ratios = tuple(ratios)
        self.stage_widths = tuple(stage_widths)
        self.divisor = divisor
        self.heads = tuple(heads)
        self.least = least
        self.blocks = least + self.depths[-1]
        stages = len(self.stage_widths)
        total = stages * self.blocks
        # of each kind of choice: its name, its key in texts, the choices, how many an architecture has
        self._kinds: list[tuple[str, str, tuple[float, ...], int]] = [
            ("depth", "d", self.depths, stages),
            ("expand ratio", "e", self.ratios, total),
            ("head count", "h", self.heads, total if self.heads else 0),
        ]
        self.choices = [values for _, _, values, count in self._kinds for _ in range(count)]

    def middle_width(self, stage: int, ratio: float) -> int:
        """Returns the middle channels of a block of a stage."""
        return divisible(round(self.stage_widths[stage] * ratio), self.divisor)

    def blocks_of(self, arch: ElasticArch) -> Iterator[tuple[int, int, int, int]]:
        """Yields the stage, middle channels, output channels and stride of each block."""
        for stage, (out, depth) in enumerate(zip(self.stage_widths, arch.depths, strict=True)):
            for block in range(self.least + depth):
                middle = self.middle_width(stage, arch.ratios[stage * self.blocks + block])
                yield stage, middle, out, 2 if block == 0 and stage > 0 else 1

    @override
    def stages(self, arch: ElasticArch) -> list[list[tuple[str, float] | None]]:
        heads = [f", h {count}" for count in arch.heads] or [""] * len(arch.ratios)
        blocks = [(f"{ratio:g}{text}", ratio) for ratio, text in zip(arch.ratios, heads, strict=True)]
        return [
            [block if place < self.least + depth else None for place, block in enumerate(islice(rest, self.blocks))]
            for rest, depth in zip([iter(blocks)] * len(arch.depths), arch.depths, strict=True)
        ]

    @override
    def decode(self, genes: Sequence[int]) -> ElasticArch:
        chosen = iter([values[gene] for values, gene in zip(self.choices, genes, strict=True)])
        return self.canonical(ElasticArch(*(tuple(islice(chosen, count)) for _, _, _, count in self._kinds)))

    @override
    def encode(self, arch: ElasticArch) -> tuple[int, ...]:
        self.validate(arch)
        chosen = (*arch.depths, *arch.ratios, *arch.heads)
        return tuple(values.index(value) for values, value in zip(self.choices, chosen, strict=True))

    def canonical(self, arch: ElasticArch) -> ElasticArch:
        """Returns the canonical architecture: fixed are the choices of absent blocks and ratios of equal widths."""
        depths = tuple(self.depths[self.depths.index(depth)] for depth in arch.depths)  # 1 for 1.0
        ratios, heads = list(arch.ratios), [self.heads[self.heads.index(count)] for count in arch.heads]
        for stage, depth in enumerate(depths):
            for block in range(self.blocks):
                i = stage * self.blocks + block
                present = block < self.least + depth
                ratios[i] = self._canonical_ratios[stage][ratios[i]] if present else ratios[i - 1]
                if heads and not present:
                    heads[i] = heads[i - 1]
        return ElasticArch(depths, tuple(ratios), tuple(heads))

    @cached_property
    def _canonical_ratios(self) -> list[dict[float, float]]:
        """Per stage and ratio: the largest ratio that gives the same middle width (narrow stages round alike)."""
        canonical = []
        for stage in range(len(self.stage_widths)):
            largest = {self.middle_width(stage, ratio): ratio for ratio in self.ratios}  # ratios ascend
            canonical.append({ratio: largest[self.middle_width(stage, ratio)] for ratio in self.ratios})
        return canonical

    @property
    @override
    def size(self) -> int:
        per_stage = []  # the sum over depths of the products of distinct middle widths and heads
        for stage in range(len(self.stage_widths)):
            widths = len({self.middle_width(stage, ratio) for ratio in self.ratios})
            blocks = widths * max(1, len(self.heads))
            per_stage.append(sum(blocks ** (self.least + depth) for depth in self.depths))
        return prod(per_stage)

    def validate(self, arch: ElasticArch) -> None:
        """Raises ``ConfigError`` if an architecture is not in the space."""
        for (name, _, choices, count), values in zip(self._kinds, (arch.depths, arch.ratios, arch.heads), strict=True):
            if len(values) != count:
                raise ConfigError(f"architecture {arch}: has {len(values)} {name}s; give {count}")
            for value in values:
                if value not in choices:
                    raise ConfigError(f"architecture {arch}: {name} {value} is not one of {list(choices)}")

    @override
    def parse(self, text: Any) -> ElasticArch:
        """Reads ``d: [0,1,0,1], e: 0.14`` (with attention, ``h: [1,2,2]`` follows), a mapping, or an architecture."""
        arch = text if isinstance(text, ElasticArch) else self._read(text)
        self.validate(arch)
        return self.canonical(arch)

    def _read(self, text: Any) -> ElasticArch:
        kinds = [(key, count) for _, key, _, count in self._kinds if count]
        try:
            read = text
            if not isinstance(text, dict):
                parts = r"\s*,\s*".join(rf"{key}:\s*(.+?)" for key, _ in kinds)
                match = re.fullmatch(rf"\s*{parts}\s*", str(text))
                written = match.groups() if match else ()
                read = {key: json.loads(value) for (key, _), value in zip(kinds, written, strict=False)}
            numbers = []
            for key, count in kinds:
                numbers.append(tuple(read[key] if isinstance(read[key], list) else [read[key]] * count))
                if any(isinstance(value, bool) or not isinstance(value, int | float) for value in numbers[-1]):
                    raise ValueError
            return ElasticArch(*numbers)
        except (KeyError, ValueError):
            heads = ", h: 2" if self.heads else ""
            raise ConfigError(
                f"architecture: {text!r} cannot be read; write it as 'd: [0,1,0,1], e: 0.14{heads}', with one number "
                f"for all if they are equal"
            ) from None


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

    Example:
        >>> net = ElasticResNet(stem_width=8, stage_widths=[16, 32, 64, 128])
        >>> net.cost(net.space.smallest).parameters
        52130
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
        try:  # Table 4's, if the space has them all
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
