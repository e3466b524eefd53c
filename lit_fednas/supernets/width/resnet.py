"""A pre-activation residual network that is cut in width."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.families import NetworkFamily, check_image, check_positive, norm_layer, norm_multiple
from lit_fednas.supernets.norms import BatchNorm, Norm
from lit_fednas.supernets.scaler import Scaler

_STATIC = BatchNorm(running_statistics=False)


@dataclass(frozen=True)
class SlicedResNet(NetworkFamily):
    """HeteroFL's residual network (Diao et al., 2021): pre-activation blocks of two 3x3 convolutions.

    The default is their ResNet-18. Every stage but the first begins with a stride of two. A scaler stands before
    every norm, so that all that the norms see is scaled, and the sums over a stage's blocks stay as they are.

    Groups of units: ``stage0``, ... for the outputs of all blocks of a stage, which are added up (the first with
    the stem's), and ``stage0.block0``, ... for the channels inside a block.

    Args:
        hidden: Channels per stage.
        blocks: Blocks per stage.
        norm: Normalisation layer, ``None`` for none. The default is HeteroFL's static batch norm, see
            ``SlicedCNN``.

    Raises:
        ConfigError: A number is not positive, or there are not as many channels as blocks.

    Example:
        >>> SlicedResNet((8, 16), (1, 1)).units((3, 8, 8))
        {'stage0': 8, 'stage0.block0': 8, 'stage1': 16, 'stage1.block0': 16}
    """

    hidden: Sequence[int] = (64, 128, 256, 512)
    blocks: Sequence[int] = (2, 2, 2, 2)
    norm: Norm | None = _STATIC

    def __post_init__(self) -> None:
        check_positive(self, hidden=self.hidden, blocks=self.blocks)
        if len(self.hidden) != len(self.blocks):
            raise ConfigError(
                f"supernet.family.blocks: {list(self.blocks)} must be as many numbers as hidden, "
                f"{list(self.hidden)}"
            )

    @property
    def multiple(self) -> int:
        """A group norm's group size."""
        return norm_multiple(self.norm)

    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        """The outputs of each stage, and the inner channels of each of its blocks."""
        check_image(self, input_shape, 1)
        units = {}
        for stage, (channels, blocks) in enumerate(zip(self.hidden, self.blocks, strict=True)):
            units[f"stage{stage}"] = channels
            units |= {f"stage{stage}.block{block}": channels for block in range(blocks)}
        return units

    def build(
        self, sizes: Mapping[str, int], input_shape: Sequence[int], num_classes: int, scale: float = 1.0
    ) -> nn.Module:
        """Builds stem, stages and classifier."""
        network = nn.Sequential()
        channels = sizes["stage0"]
        network.add_module("stem", nn.Conv2d(input_shape[0], channels, 3, padding=1, bias=False))
        for stage, blocks in enumerate(self.blocks):
            made = nn.Sequential()
            for block in range(blocks):
                out, stride = sizes[f"stage{stage}"], 2 if stage and not block else 1
                inner = sizes[f"stage{stage}.block{block}"]
                made.add_module(f"block{block}", SlicedBlock(channels, inner, out, stride, self.norm, scale))
                channels = out
            network.add_module(f"stage{stage}", made)
        network.add_module("scaler", Scaler(scale))
        network.add_module("norm", norm_layer(self.norm, channels))
        network.add_module("relu", nn.ReLU())
        network.add_module("pool", nn.AdaptiveAvgPool2d(1))
        network.add_module("flatten", nn.Flatten())
        network.add_module("classifier", nn.Linear(channels, num_classes))
        return network


class SlicedBlock(nn.Module):
    """Norm, ReLU and a 3x3 convolution, twice; a 1x1 convolution as shortcut where the stride is not one.

    The shortcut begins behind the first ReLU. Whether there is one depends on the stride alone, for a stage's
    first block may have as many inputs as outputs at one width and not at another.

    Args:
        channels: Inputs.
        inner: Outputs of the first convolution.
        out: Outputs; with a stride of one as many as the inputs.
        stride: Of the first convolution.
        norm: Normalisation layer.
        scale: What the scalers divide by in training.
    """

    def __init__(self, channels: int, inner: int, out: int, stride: int, norm: Norm | None, scale: float) -> None:
        super().__init__()
        self.scaler = Scaler(scale)
        self.norm1 = norm_layer(norm, channels)
        self.conv1 = nn.Conv2d(channels, inner, 3, stride=stride, padding=1, bias=False)
        self.norm2 = norm_layer(norm, inner)
        self.conv2 = nn.Conv2d(inner, out, 3, padding=1, bias=False)
        self.relu = nn.ReLU()
        self.shortcut = None if stride == 1 else nn.Conv2d(channels, out, 1, stride=stride, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, channels, h, w]`` to ``[batch, out, h / stride, w / stride]``."""
        active = self.relu(self.norm1(self.scaler(x)))
        inner = self.relu(self.norm2(self.scaler(self.conv1(active))))
        return self.conv2(inner) + (x if self.shortcut is None else self.shortcut(active))
