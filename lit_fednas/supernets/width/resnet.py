"""A pre-activation residual network that is cut in width."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from torch import nn
from typing_extensions import override

from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets.families import NetworkFamily, Sizes, check_filled, check_image
from lit_fednas.supernets.layers import (
    Scaler,
    convolution,
    norm_layer,
    pooled_classifier,
    preactivated_block,
    sequential,
)
from lit_fednas.supernets.norms import BatchNorm, Norm


@checked("supernet.family")
@dataclass(frozen=True)
class SlicedResNet(NetworkFamily):
    """HeteroFL's residual network (Diao et al., 2021): pre-activation blocks of two 3x3 convolutions.

    The default is their ResNet-18. Every stage but the first begins with a stride of two. A scaler precedes every
    norm, so that all inputs of norms are scaled, and the sums over a stage's blocks stay as they are.

    Groups of units: ``stage0``, ... for the outputs of all blocks of a stage, which are added up (the first with
    the stem's), and ``stage0.block0``, ... for the channels inside a block.

    Args:
        hidden: Channels per stage.
        blocks: Blocks per stage.
        norm: Normalisation layer, ``None`` for none. The default is HeteroFL's static batch norm, see ``SlicedCNN``.

    Raises:
        ConfigError: A number is not positive, or there are not as many channels as blocks.

    Example:
        >>> SlicedResNet((8, 16), (1, 1)).units((3, 8, 8))
        {'stage0': 8, 'stage0.block0': 8, 'stage1': 16, 'stage1.block0': 16}
    """

    hidden: Sequence[PositiveInt] = (64, 128, 256, 512)
    blocks: Sequence[PositiveInt] = (2, 2, 2, 2)
    norm: Norm | None = BatchNorm(running_statistics=False)

    def __post_init__(self) -> None:
        check_filled(hidden=self.hidden, blocks=self.blocks)

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        check_image(self, input_shape)
        units = {}
        for stage, (channels, blocks) in enumerate(zip(self.hidden, self.blocks, strict=True)):
            units[f"stage{stage}"] = channels
            units |= {f"stage{stage}.block{block}": channels for block in range(blocks)}
        return units

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        channels = sizes["stage0"]
        layers: dict[str, nn.Module] = {"stem": convolution(input_shape[0], channels)}
        for stage, blocks in enumerate(self.blocks):
            modules = {}
            for block in range(blocks):
                inner, out = sizes[f"stage{stage}.block{block}"], sizes[f"stage{stage}"]
                stride = 2 if stage and not block else 1
                modules[f"block{block}"] = preactivated_block(channels, inner, out, stride, self.norm, scale)
                channels = out
            layers[f"stage{stage}"] = sequential(**modules)
        return sequential(
            **layers,
            scaler=Scaler(scale),
            norm=norm_layer(self.norm, channels),
            relu=nn.ReLU(),
            **pooled_classifier(channels, num_classes),
        )
