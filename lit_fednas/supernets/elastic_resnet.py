"""SuperFed's choices of depth and width (App. F and H.1), and its elastic residual network.

With the default widths the family goes from ResNet-10 to ResNet-26, has 155^4 = 577,200,625 members (the paper: about
5*10^8), and its MACs are the GFLOPs of Table 5. App. F says "a depth of two per stage", but ResNet-10 as the smallest
member, and Tables 4 and 5, leave room for one block (of two convolutions) only.

DeepFedNAS' width multipliers (Khan and Daneshtalab, 2026, arXiv:2601.15127) make stem and stages elastic in width too;
MACs and parameters are then those that its authors published.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice, product
from operator import getitem
from typing import Any

from torch import nn
from typing_extensions import override

from lit_fednas.costs.counting import Layer
from lit_fednas.errors import ConfigError
from lit_fednas.ranges import NonNegativeInt, PositiveFloat, PositiveInt, PositiveInts, checked
from lit_fednas.supernets.base import NestedSupernet, he_normal
from lit_fednas.supernets.families import check_image, divisible
from lit_fednas.supernets.layers import (
    BatchNorm,
    Norm,
    basic_block,
    convolution,
    norm_layer,
    pooled_classifier,
    sequential,
)
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
        widths: Multipliers of the widths of the stem and of each stage; empty where widths are fixed.

    Example:
        >>> str(ElasticArch((0, 0, 0, 1), (0.14,) * 12))
        'd: [0,0,0,1], e: 0.14'
    """

    depths: tuple[int, ...]
    ratios: tuple[float, ...]
    heads: tuple[int, ...] = ()
    widths: tuple[float, ...] = ()

    def __str__(self) -> str:
        written: dict[str, Any] = {"d": self.depths}
        for key, values in (("e", self.ratios), ("h", self.heads), ("w", self.widths)):
            if values:
                written[key] = values[0] if len(set(values)) == 1 else values
        # JSON has all digits, so that parse reads the same number
        return ", ".join(f"{key}: {json.dumps(values, separators=(',', ':'))}" for key, values in written.items())


class ElasticSpace(SearchSpace[ElasticArch]):
    """All depths and ratios of an elastic network, and its heads and widths if it has a choice; choices ascend.

    Gene vectors outnumber networks: choices of absent blocks, ratios that round to one middle width and multipliers
    that round to one width count once in :attr:`size`. DeepFedNAS' 10^5 * 3^4 * 5^12 (about 2*10^15) counts genes.
    """

    kind = ElasticArch

    def __init__(
        self,
        depths: Sequence[int],
        ratios: Sequence[float],
        stage_widths: Sequence[int],
        divisor: int = 1,
        heads: Sequence[int] = (),
        least: int = 1,
        multipliers: Sequence[float] = (),
        stem_width: int = 1,
    ) -> None:
        given = {"depths": depths, "ratios": ratios, "heads": heads, "width_multipliers": multipliers}
        for name, values in given.items():
            if list(values) != sorted(set(values)) or not (values or name in ("heads", "width_multipliers")):
                raise ConfigError(f"supernet.{name}: {list(values)} must be at least one number, ascending, distinct")
        if any(depth != int(depth) or depth > 1000 for depth in depths):
            raise ConfigError(f"supernet.depths: {list(depths)} must be whole numbers of blocks, at most 1000")
        self.depths = tuple(depths)
        self.ratios = tuple(ratios)
        self.heads = tuple(heads)
        self.least = least
        self.multipliers = tuple(multipliers)
        self.base_widths = (stem_width, *stage_widths)
        self.blocks = least + self.depths[-1]
        stages = len(stage_widths)
        total = stages * self.blocks
        # of each kind of choice: its name, its key in texts, the choices, how many an architecture has
        self._kinds: list[tuple[str, str, tuple[float, ...], int]] = [
            ("depth", "d", self.depths, stages),
            ("expand ratio", "e", self.ratios, total),
            ("head count", "h", self.heads, total if self.heads else 0),
            ("width multiplier", "w", self.multipliers, 1 + stages if self.multipliers else 0),
        ]
        self.choices = [values for _, _, values, count in self._kinds for _ in range(count)]
        # the width by multiplier, of the stem and per stage, and the middle channels by width and ratio
        self._widths = [
            {multiplier: divisible(base * multiplier, divisor) for multiplier in self.multipliers}
            for base in self.base_widths
        ]
        self._middles = {
            width: {ratio: divisible(round(width * ratio), divisor) for ratio in self.ratios}
            for place in range(1, 1 + stages)
            for width in self.widths_at(place)
        }
        self._canonical_multipliers = [_last_alike(widths) for widths in self._widths]
        self._canonical_ratios = {width: _last_alike(middles) for width, middles in self._middles.items()}

    def middle_width(self, width: int, ratio: float) -> int:
        """Returns the middle channels of a block of a stage of a width."""
        return self._middles[width][ratio]

    def widths_at(self, place: int) -> list[int]:
        """Returns the distinct widths, ascending, of the stem (place 0) or of a stage (from 1)."""
        return list(dict.fromkeys(self._widths[place].values())) or [self.base_widths[place]]

    def widths_of(self, arch: ElasticArch) -> tuple[int, ...]:
        """Returns the widths of the stem and of every stage."""
        return tuple(map(getitem, self._widths, arch.widths)) if arch.widths else self.base_widths

    def blocks_of(self, arch: ElasticArch) -> Iterator[tuple[int, int, int, int]]:
        """Yields the stage, middle channels, output channels and stride of each block."""
        for stage, (out, depth) in enumerate(zip(self.widths_of(arch)[1:], arch.depths, strict=True)):
            for block in range(self.least + depth):
                middle = self.middle_width(out, arch.ratios[stage * self.blocks + block])
                yield stage, middle, out, 2 if block == 0 and stage > 0 else 1

    @override
    def stages(self, arch: ElasticArch) -> list[list[tuple[str, float] | None]]:
        heads = [f", h {count}" for count in arch.heads] or [""] * len(arch.ratios)
        widths = [width for width in arch.widths[1:] for _ in range(self.blocks)]
        heads = [f"{text}, w {width:g}" for text, width in zip(heads, widths, strict=True)] if widths else heads
        sizes = [ratio * width for ratio, width in zip(arch.ratios, widths or [1.0] * len(arch.ratios), strict=True)]
        blocks = [(f"{ratio:g}{text}", size) for ratio, text, size in zip(arch.ratios, heads, sizes, strict=True)]
        # one iterator for all stages: each takes its next blocks, of which those beyond its depth are not there
        return [
            [block if place < self.least + depth else None for place, block in enumerate(islice(rest, self.blocks))]
            for rest, depth in zip([iter(blocks)] * len(arch.depths), arch.depths, strict=True)
        ]

    @override
    def from_values(self, values: list[Any]) -> ElasticArch:
        left = iter(values)
        return ElasticArch(*(tuple(islice(left, count)) for _, _, _, count in self._kinds))

    @override
    def values_of(self, arch: ElasticArch) -> tuple[float, ...]:
        return (*arch.depths, *arch.ratios, *arch.heads, *arch.widths)

    @override
    def canonical(self, arch: ElasticArch) -> ElasticArch:
        """Returns the canonical architecture: fixed are choices of absent blocks, and those that give equal widths."""
        depths = tuple(self.depths[self.depths.index(depth)] for depth in arch.depths)  # 1 for 1.0
        multipliers = tuple(map(getitem, self._canonical_multipliers, arch.widths))
        widths = self.widths_of(arch)
        ratios, heads = list(arch.ratios), [self.heads[self.heads.index(count)] for count in arch.heads]
        for stage, depth in enumerate(depths):
            for block in range(self.blocks):
                i = stage * self.blocks + block
                present = block < self.least + depth
                ratios[i] = self._canonical_ratios[widths[1 + stage]][ratios[i]] if present else ratios[i - 1]
                if heads and not present:
                    heads[i] = heads[i - 1]
        return ElasticArch(depths, tuple(ratios), tuple(heads), multipliers)

    @property
    @override
    def size(self) -> int:
        size, heads = len(self.widths_at(0)), max(1, len(self.heads))
        for place in range(1, len(self.base_widths)):
            # by width: the choices of a block, which are distinct middle widths, and heads
            blocks = [len({*self._middles[width].values()}) * heads for width in self.widths_at(place)]
            size *= sum(count ** (self.least + depth) for count in blocks for depth in self.depths)
        return size

    @override
    def validate(self, arch: ElasticArch) -> None:
        chosen = arch.depths, arch.ratios, arch.heads, arch.widths
        for (name, _, choices, count), values in zip(self._kinds, chosen, strict=True):
            if len(values) != count:
                raise ConfigError(f"architecture {arch}: has {len(values)} {name}s; give {count}")
            for value in values:
                if value not in choices:
                    raise ConfigError(f"architecture {arch}: {name} {value} is not one of {list(choices)}")

    @override
    def read(self, text: Any) -> ElasticArch:
        """Reads ``d: [0,1,0,1], e: 0.14`` (``h: [1,2,2]``, ``w: 0.5`` follow), or a mapping."""
        kinds = {key: count for _, key, _, count in self._kinds if count}
        try:
            read = text
            if not isinstance(text, dict):
                parts = r"\s*,\s*".join(rf"{key}:\s*(.+?)" for key in kinds)
                match = re.fullmatch(rf"\s*{parts}\s*", str(text))
                written = match.groups() if match else ()
                read = {key: json.loads(value) for key, value in zip(kinds, written, strict=False)}
            numbers: dict[str, tuple[Any, ...]] = dict.fromkeys("dehw", ())
            for key, count in kinds.items():
                numbers[key] = tuple(read[key] if isinstance(read[key], list) else [read[key]] * count)
                if any(isinstance(value, bool) or not isinstance(value, int | float) for value in numbers[key]):
                    raise ValueError
            return ElasticArch(*numbers.values())
        except (KeyError, ValueError):
            further = "".join(f", {key}: {example}" for key, example in (("h", 2), ("w", 0.5)) if key in kinds)
            raise ConfigError(
                f"architecture: {text!r} cannot be read; write it as 'd: [0,1,0,1], e: 0.14{further}', with one "
                f"number for all if they are equal"
            ) from None


def _last_alike(widths: Mapping[float, int]) -> dict[float, float]:
    """Returns, for each of ascending choices by their widths, the last of the same width."""
    last = {width: choice for choice, width in widths.items()}
    return {choice: last[width] for choice, width in widths.items()}


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
        norm: Normalisation layer, ``None`` for none, as in the authors' code (then clip gradients,
            ``client.clip_norm``); the paper names none.
        divisor: Middle channels, and widths that are multiplied, are a multiple of this.
        he_init: Whether convolutions are drawn as by He et al. (2015); else by torch, as in the authors' code.
        relu_before_sum: Whether a block's second convolution has a ReLU before the shortcut is added, as in the
            authors' code.
        width_multipliers: Choices of the widths of the stem and of each stage, as multiples of ``stem_width`` and
            ``stage_widths`` (DeepFedNAS: 0.1, 0.2, ..., 1.0); fixed if not given. With them, the first block of every
            stage has a 1x1 convolution in its shortcut, also where widths happen to be equal.

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
        stage_widths: PositiveInts = (256, 512, 1024, 2048),
        depths: Sequence[NonNegativeInt] = (0, 1, 2),
        ratios: Sequence[PositiveFloat] = (0.1, 0.14, 0.18, 0.22, 0.25),
        norm: Norm | None = BatchNorm(affine=False, running_statistics=False),
        divisor: PositiveInt = 8,
        he_init: bool = True,
        relu_before_sum: bool = False,
        width_multipliers: Sequence[PositiveFloat] = (),
    ) -> None:
        super().__init__(input_shape, num_classes)
        check_image(self, self.input_shape)
        self.norm = norm
        self.he_init = he_init
        self.relu_before_sum = relu_before_sum
        self.space: ElasticSpace = ElasticSpace(
            depths, ratios, stage_widths, divisor, multipliers=width_multipliers, stem_width=stem_width
        )
        for place, ratio in product(range(1 + len(stage_widths)), ratios):
            for width in self.space.widths_at(place):  # norm refuses one now and not in a round
                norm_layer(norm, width)
                norm_layer(norm, self.space.middle_width(width, ratio) if place else width)
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
    def counted(self, name: str, arch: ElasticArch) -> int:
        return sum(layer.macs for layer in self.layers(arch)) if name == "macs" else super().counted(name, arch)

    @override
    def layers(self, arch: ElasticArch) -> list[Layer]:
        channels, height, width = self.input_shape
        layers = [Layer(9, 9 * channels, self.space.widths_of(arch)[0], height * width)]
        for _, inputs, middle, out, stride, projected in self._blocks(arch):
            height, width = -(-height // stride), -(-width // stride)
            layers += _block_layers(inputs, middle, out, projected, height * width)
        return [*layers, Layer(1, layers[-1].channels, self.num_classes, 1)]

    def _blocks(self, arch: ElasticArch) -> Iterator[tuple[int, int, int, int, int, bool]]:
        """Yields each block's stage, input, middle and output channels, stride, and whether it has a projection."""
        inputs = self.space.widths_of(arch)[0]
        for number, (stage, middle, out, stride) in enumerate(self.space.blocks_of(arch)):
            # elastic widths: every stage's first block, which has a stride but in the first stage
            projected = inputs != out or stride != 1 or (number == 0 and bool(arch.widths))
            yield stage, inputs, middle, out, stride, projected
            inputs = out

    @override
    def build(self, arch: ElasticArch) -> nn.Module:
        stages = [nn.Sequential() for _ in arch.depths]
        stem, *widths = self.space.widths_of(arch)
        for stage, inputs, middle, out, stride, projected in self._blocks(arch):
            shortcut: nn.Module | None = None
            if projected:
                pool = [nn.AvgPool2d(stride, ceil_mode=True)] if stride != 1 else []
                shortcut = nn.Sequential(*pool, convolution(inputs, out, 1), norm_layer(self.norm, out))
            # the stride is in the first convolution, which gives Table 5's GFLOPs
            residual = basic_block(inputs, middle, out, stride, self.norm, shortcut)
            if self.relu_before_sum:
                residual.block.add_module("relu2", ReLUBeforeSum(inplace=True))
            stages[stage].append(residual)
        return sequential(
            stem=convolution(self.input_shape[0], stem),
            norm=norm_layer(self.norm, stem),
            relu=nn.ReLU(inplace=True),
            stages=nn.Sequential(*stages),
            **pooled_classifier(widths[-1], self.num_classes),
        )


class ReLUBeforeSum(nn.ReLU):
    """A ReLU with a name of its own, by which a checkpoint's fingerprint tells networks that have it from others."""


@lru_cache(maxsize=2**16)
def _block_layers(inputs: int, middle: int, out: int, projected: bool, positions: int) -> tuple[Layer, ...]:
    both = Layer(9, 9 * inputs, middle, positions), Layer(9, 9 * middle, out, positions)
    return (*both, Layer(1, inputs, out, positions)) if projected else both
