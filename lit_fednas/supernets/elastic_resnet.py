"""SuperFed's choices of depth and width (App. F and H.1), and its elastic residual network.

With the default widths the space ranges from ResNet-10 to ResNet-26 and has 155^4 = 577,200,625 networks (the paper:
about 5*10^8); their MACs are the GFLOPs of Table 5. App. F says "a depth of two per stage", but ResNet-10 as the
smallest network, and Tables 4 and 5, allow only one block (of two convolutions).

DeepFedNAS' width multipliers (Khan and Daneshtalab, 2026, arXiv:2601.15127) make the widths of stem and stages elastic
too; MACs and parameters then equal the published ones.
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
from lit_fednas.supernets.families import check_image, round_to_multiple
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
    """An elastic architecture, written as in SuperFed's Tables 4 and 5.

    Attributes:
        depths: Blocks per stage beyond those that every architecture has.
        ratios: Expand ratio per block, stage by stage; an absent block has the ratio of the previous block.
        heads: Attention heads per block, stage by stage; empty for networks without attention.
        widths: Multipliers of the widths of the stem and of each stage; empty if widths are fixed.

    Example:
        >>> str(ElasticArch((0, 0, 0, 1), (0.14,) * 12))
        'd: [0,0,0,1], e: 0.14'
    """

    depths: tuple[int, ...]
    ratios: tuple[float, ...]
    heads: tuple[int, ...] = ()
    widths: tuple[float, ...] = ()

    def __str__(self) -> str:
        settings: dict[str, Any] = {"d": self.depths}
        for key, values in (("e", self.ratios), ("h", self.heads), ("w", self.widths)):
            if values:
                settings[key] = values[0] if len(set(values)) == 1 else values
        # JSON writes all digits, so that parse reads the same number
        return ", ".join(f"{key}: {json.dumps(values, separators=(',', ':'))}" for key, values in settings.items())


class ElasticSpace(SearchSpace[ElasticArch]):
    """The ascending choices of depths and ratios of an elastic network, and of heads and widths if these are elastic.

    Several gene vectors may build one network: genes of absent blocks have no effect, and ratios or multipliers may
    round to one width. :attr:`size` counts networks; DeepFedNAS' 10^5 * 3^4 * 5^12 (about 2*10^15) counts genes.
    """

    kind = ElasticArch

    def __init__(
        self,
        depths: Sequence[int],
        ratios: Sequence[float],
        stage_widths: Sequence[int],
        divisor: int = 1,
        heads: Sequence[int] = (),
        min_blocks: int = 1,
        multipliers: Sequence[float] = (),
        stem_width: int = 1,
    ) -> None:
        settings = {"depths": depths, "ratios": ratios, "heads": heads, "width_multipliers": multipliers}
        for name, values in settings.items():
            if list(values) != sorted(set(values)) or not (values or name in ("heads", "width_multipliers")):
                raise ConfigError(f"supernet.{name}: {list(values)} must be one or more distinct ascending numbers")
        if any(depth != int(depth) or depth > 1000 for depth in depths):
            raise ConfigError(f"supernet.depths: {list(depths)} must be whole numbers of blocks, at most 1000")
        self.depths = tuple(depths)
        self.ratios = tuple(ratios)
        self.heads = tuple(heads)
        self.min_blocks = min_blocks
        self.multipliers = tuple(multipliers)
        self.base_widths = (stem_width, *stage_widths)
        self.blocks = min_blocks + self.depths[-1]
        stages = len(stage_widths)
        total = stages * self.blocks
        # kinds of choices: name, key in texts, choices, number of genes
        self._kinds: list[tuple[str, str, tuple[float, ...], int]] = [
            ("depth", "d", self.depths, stages),
            ("expand ratio", "e", self.ratios, total),
            ("head count", "h", self.heads, total if self.heads else 0),
            ("width multiplier", "w", self.multipliers, 1 + stages if self.multipliers else 0),
        ]
        self.choices = [values for _, _, values, count in self._kinds for _ in range(count)]
        # stem and stages: width by multiplier; then middle channels by width and ratio
        self._widths = [
            {multiplier: round_to_multiple(base * multiplier, divisor) for multiplier in self.multipliers}
            for base in self.base_widths
        ]
        self._middles = {
            width: {ratio: round_to_multiple(round(width * ratio), divisor) for ratio in self.ratios}
            for position in range(1, 1 + stages)
            for width in self.widths_at(position)
        }
        self._canonical_multipliers = [_canonical_choices(widths) for widths in self._widths]
        self._canonical_ratios = {width: _canonical_choices(middles) for width, middles in self._middles.items()}

    def middle_width(self, width: int, ratio: float) -> int:
        """Returns the middle channels of a block with an expand ratio, in a stage of a width."""
        return self._middles[width][ratio]

    def widths_at(self, position: int) -> list[int]:
        """Returns the distinct widths, ascending, of the stem (position 0) or of a stage (from 1)."""
        return list(dict.fromkeys(self._widths[position].values())) or [self.base_widths[position]]

    def widths_of(self, arch: ElasticArch) -> tuple[int, ...]:
        """Returns the widths of the stem and of every stage."""
        return tuple(map(getitem, self._widths, arch.widths)) if arch.widths else self.base_widths

    def blocks_of(self, arch: ElasticArch) -> Iterator[tuple[int, int, int, int]]:
        """Yields the stage, middle channels, output channels and stride of each block."""
        for stage, (out, depth) in enumerate(zip(self.widths_of(arch)[1:], arch.depths, strict=True)):
            for block in range(self.min_blocks + depth):
                middle = self.middle_width(out, arch.ratios[stage * self.blocks + block])
                yield stage, middle, out, 2 if block == 0 and stage > 0 else 1

    @override
    def stages(self, arch: ElasticArch) -> list[list[tuple[str, float] | None]]:
        heads = [f", h {count}" for count in arch.heads] or [""] * len(arch.ratios)
        widths = [width for width in arch.widths[1:] for _ in range(self.blocks)]
        heads = [f"{text}, w {width:g}" for text, width in zip(heads, widths, strict=True)] if widths else heads
        sizes = [ratio * width for ratio, width in zip(arch.ratios, widths or [1.0] * len(arch.ratios), strict=True)]
        blocks = [(f"{ratio:g}{text}", size) for ratio, text, size in zip(arch.ratios, heads, sizes, strict=True)]
        remaining = iter(blocks)  # each stage takes its next blocks; those beyond its depth are absent
        return [
            [block if i < self.min_blocks + depth else None for i, block in enumerate(islice(remaining, self.blocks))]
            for depth in arch.depths
        ]

    @override
    def from_values(self, values: list[Any]) -> ElasticArch:
        remaining = iter(values)
        return ElasticArch(*(tuple(islice(remaining, count)) for _, _, _, count in self._kinds))

    @override
    def values_of(self, arch: ElasticArch) -> tuple[float, ...]:
        return (*arch.depths, *arch.ratios, *arch.heads, *arch.widths)

    @override
    def canonical(self, arch: ElasticArch) -> ElasticArch:
        """Fixes the choices of absent blocks, and those that give equal widths."""
        depths = tuple(self.depths[self.depths.index(depth)] for depth in arch.depths)  # replaces 1.0 by 1
        multipliers = tuple(map(getitem, self._canonical_multipliers, arch.widths))
        widths = self.widths_of(arch)
        ratios, heads = list(arch.ratios), [self.heads[self.heads.index(count)] for count in arch.heads]
        for stage, depth in enumerate(depths):
            for block in range(self.blocks):
                i = stage * self.blocks + block
                is_present = block < self.min_blocks + depth
                ratios[i] = self._canonical_ratios[widths[1 + stage]][ratios[i]] if is_present else ratios[i - 1]
                if heads and not is_present:
                    heads[i] = heads[i - 1]
        return ElasticArch(depths, tuple(ratios), tuple(heads), multipliers)

    @property
    @override
    def size(self) -> int:
        size, heads = len(self.widths_at(0)), max(1, len(self.heads))
        for position in range(1, len(self.base_widths)):
            # distinct blocks (middle channels and heads) for each width
            blocks = [len({*self._middles[width].values()}) * heads for width in self.widths_at(position)]
            size *= sum(count ** (self.min_blocks + depth) for count in blocks for depth in self.depths)
        return size

    @override
    def validate(self, arch: ElasticArch) -> None:
        numbers = arch.depths, arch.ratios, arch.heads, arch.widths
        for (name, _, choices, count), values in zip(self._kinds, numbers, strict=True):
            if len(values) != count:
                raise ConfigError(f"architecture {arch}: has {len(values)} {name}s; give {count}")
            for value in values:
                if value not in choices:
                    raise ConfigError(f"architecture {arch}: {name} {value} is not one of {list(choices)}")

    @override
    def read(self, text: Any) -> ElasticArch:
        """Reads ``d: [0,1,0,1], e: 0.14``, which ``h: [1,2,2]`` and ``w: 0.5`` may follow, or a mapping."""
        kinds = {key: count for _, key, _, count in self._kinds if count}
        try:
            values = text
            if not isinstance(text, dict):
                parts = r"\s*,\s*".join(rf"{key}:\s*(.+?)" for key in kinds)
                match = re.fullmatch(rf"\s*{parts}\s*", str(text))
                groups = match.groups() if match else ()
                values = {key: json.loads(value) for key, value in zip(kinds, groups, strict=False)}
            numbers: dict[str, tuple[Any, ...]] = dict.fromkeys("dehw", ())
            for key, count in kinds.items():
                numbers[key] = tuple(values[key] if isinstance(values[key], list) else [values[key]] * count)
                if any(isinstance(value, bool) or not isinstance(value, int | float) for value in numbers[key]):
                    raise ValueError
            return ElasticArch(*numbers.values())
        except (KeyError, ValueError):
            example = "".join(f", {key}: {value}" for key, value in (("h", 2), ("w", 0.5)) if key in kinds)
            raise ConfigError(
                f"architecture: {text!r} cannot be read; write it as 'd: [0,1,0,1], e: 0.14{example}', with one "
                f"number if all are equal"
            ) from None


def _canonical_choices(widths: Mapping[float, int]) -> dict[float, float]:
    """Returns for each choice the last choice of the same width."""
    last = {width: choice for choice, width in widths.items()}
    return {choice: last[width] for choice, width in widths.items()}


@checked("supernet")
class ElasticResNet(NestedSupernet):
    """SuperFed's supernet of residual networks (App. F, Tables 4 and 5).

    A stage has one block and ``d`` more. A block has a 3x3 convolution to the middle channels (the output channels
    times the expand ratio), a second one to the output, and a shortcut: an average pooling and a 1x1 convolution where
    stride or width changes. A narrower block keeps the first channels, without a kernel transform.

    Args:
        input_shape: Channels, height and width of an image.
        num_classes: Number of classes.
        stem_width: Channels after the first 3x3 convolution.
        stage_widths: Output channels per stage.
        depths: Choices for the number of blocks beyond the first.
        ratios: Choices of the expand ratio.
        norm: Normalisation layer. ``None`` omits it, as in the authors' code: then set ``client.clip_norm``.
        divisor: Middle channels and multiplied widths are multiples of this number.
        he_init: Whether He et al. (2015) initialises convolutions; otherwise torch does, as in the authors' code.
        relu_before_sum: Whether a ReLU follows a block's second convolution, as in the authors' code.
        width_multipliers: Choices of the widths of the stem and of each stage, as multiples of ``stem_width`` and
            ``stage_widths`` (DeepFedNAS: 0.1, 0.2, ..., 1.0). With them, every stage's first block has a projection.

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
        for position, ratio in product(range(1 + len(stage_widths)), ratios):
            for width in self.space.widths_at(position):  # the norm rejects a wrong width here, not in a round
                norm_layer(norm, width)
                norm_layer(norm, self.space.middle_width(width, ratio) if position else width)
        self.network = self.build(self.space.largest)
        self.initialise(self.network)

    @override
    def initialise(self, network: nn.Module) -> None:
        if self.he_init:
            he_normal(network)

    @property
    @override
    def default_eval_archs(self) -> tuple[str, ...]:
        try:  # the networks of Table 4, if the space contains all of them
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
        """Yields each block's stage, input, middle and output channels, stride, and whether it is projected."""
        inputs = self.space.widths_of(arch)[0]
        for number, (stage, middle, out, stride) in enumerate(self.space.blocks_of(arch)):
            # With elastic widths, every stage's first block is projected; all but the first stage's have a stride.
            is_projected = inputs != out or stride != 1 or (number == 0 and bool(arch.widths))
            yield stage, inputs, middle, out, stride, is_projected
            inputs = out

    @override
    def build(self, arch: ElasticArch) -> nn.Module:
        stages = [nn.Sequential() for _ in arch.depths]
        stem, *widths = self.space.widths_of(arch)
        for stage, inputs, middle, out, stride, is_projected in self._blocks(arch):
            shortcut: nn.Module | None = None
            if is_projected:
                pool = [nn.AvgPool2d(stride, ceil_mode=True)] if stride != 1 else []
                shortcut = nn.Sequential(*pool, convolution(inputs, out, 1), norm_layer(self.norm, out))
            # With the stride in the first convolution, the MACs equal Table 5's GFLOPs.
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
    """A ReLU with its own class name, which marks such networks in a checkpoint's fingerprint."""


@lru_cache(maxsize=2**16)
def _block_layers(inputs: int, middle: int, out: int, is_projected: bool, positions: int) -> tuple[Layer, ...]:
    layers = Layer(9, 9 * inputs, middle, positions), Layer(9, 9 * middle, out, positions)
    return (*layers, Layer(1, inputs, out, positions)) if is_projected else layers
