"""A small network of NAS-Bench-201 as an initial model (Dong & Yang, 2020; FedTrans, App. A.1)."""

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets.families import Sizes, check_image
from lit_fednas.supernets.growing.cells import Cell, ConvCell, PooledHead, PreactivatedCell
from lit_fednas.supernets.growing.growth import Blueprint, GrowableFamily
from lit_fednas.supernets.layers import GroupNorm, Norm

_STAGES = 3


@checked("supernet.family")
@dataclass(frozen=True)
class GrowableNASBench201(GrowableFamily):
    """NAS-Bench-201's skeleton (Dong & Yang, 2020, Fig. 1): convolution and norm, three stages of equal cells.

    Between the stages are residual blocks that halve height and width and double the channels; norm, ReLU, pooling and
    a linear layer end it. FedTrans starts from "the smallest model in NAS-Bench-201", whose Figure 14 the text at hand
    lacks: the benchmark's own smallest has no weights in its cells and could not grow there, so here it is one cell
    per stage (the benchmark has five) with a skip and the fewest convolutions that give it units of its own:
    ``|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|nor_conv_1x1~1|none~2|``.

    The cells are ``stem``, ``stage1_cell1``, ..., ``reduction1``, ``stage2_cell1``, ... and ``head``. Behind the stem,
    deepening inserts a residual block as between the stages, but for its stride.

    Args:
        width: Channels of the stem and the first stage.
        cells: Cells per stage.
        norm: Normalisation layer, with a scale.

    Example:
        >>> str(GrowableNASBench201(8).blueprint((3, 8, 8), 10))
        'stem 8, stage1_cell1 8, reduction1 16/16, stage2_cell1 16, reduction2 32/32, stage3_cell1 32, head'
    """

    width: PositiveInt = 16
    cells: PositiveInt = 1
    norm: Norm = GroupNorm()

    @override
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        check_image(self, input_shape)
        # behind the stem, whose output may be negative, only a residual cell is the identity
        stem = ConvCell("stem", norm=self.norm, activation=None, inserted=PreactivatedCell("", self.norm))
        cells: list[tuple[Cell, Sizes]] = [(stem, {"out": self.width})]
        for stage in range(_STAGES):
            channels = self.width << stage
            if stage:
                reduction = PreactivatedCell(f"reduction{stage}", self.norm, opens=True, stride=2)
                cells.append((reduction, {"hidden": channels, "out": channels}))
            for number in range(1, self.cells + 1):
                cell = PreactivatedCell(f"stage{stage + 1}_cell{number}", self.norm, last_kernel=1)
                cells.append((cell, {"hidden": channels}))
        return self.assembled([*cells, (PooledHead("head", self.norm), {})], input_shape, num_classes)
