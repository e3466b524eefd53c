"""A small network of NAS-Bench-201 as an initial model (FedTrans, section 5.1 and App. A.1)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lit_fednas.supernets.growing.blueprint import Blueprint, GrowableFamily
from lit_fednas.supernets.growing.cells import Cell, EntryCell, NASBench201Cell, PreactivatedCell, PreactivatedHead
from lit_fednas.supernets.norms import GroupNorm, Norm
from lit_fednas.supernets.width_families import check_image, check_positive, norm_multiple

_STAGES = 3
_NORM = GroupNorm()
_GENOTYPE = "|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|nor_conv_1x1~1|none~2|"


@dataclass(frozen=True)
class GrowableNASBench201(GrowableFamily):
    """NAS-Bench-201's skeleton (Dong & Yang, 2020, Fig. 1): convolution and norm, three stages of equal cells.

    Between the stages stand residual blocks that halve height and width and double the channels; norm, ReLU,
    pooling and a linear layer end it. FedTrans starts from "the smallest model in NAS-Bench-201", whose Figure 14
    the text at hand lacks: the benchmark's own smallest has no weights in its cells and could not grow there, so
    the default is one cell per stage (the benchmark has five) with a skip and the fewest convolutions that give
    it units of its own.

    The cells are ``stem``, ``stage1_cell1``, ..., ``reduction1``, ``stage2_cell1``, ..., ``reduction2``,
    ``stage3_cell1``, ... and ``head``. Behind the stem, deepening inserts a residual block as between the stages,
    but for its stride.

    Args:
        width: Channels of the stem and the first stage.
        cells: Cells per stage.
        genotype: Of all cells, as the benchmark writes it; with exactly one path of skips from input to output,
            and no other without convolutions.
        norm: Normalisation layer, with a scale.

    Raises:
        ConfigError: A number is not positive, the norm has no scale, or no such cell can be inserted.

    Example:
        >>> str(GrowableNASBench201(8).blueprint((3, 8, 8), 10))
        'stem 8, stage1_cell1 8, reduction1 16/16, stage2_cell1 16, reduction2 32/32, stage3_cell1 32, head'
    """

    width: int = 16
    cells: int = 1
    genotype: str = _GENOTYPE
    norm: Norm = _NORM

    def __post_init__(self) -> None:
        check_positive(self, width=self.width, cells=self.cells)
        NASBench201Cell("probe", self.norm, self.genotype)

    @property
    def multiple(self) -> int:
        """A group norm's group size."""
        return norm_multiple(self.norm)

    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        """Stem, stages with what stands between them, and head."""
        check_image(self, input_shape)
        cells: list[Cell] = [EntryCell("stem", self.norm, inserted=PreactivatedCell("", self.norm))]
        sizes = {"stem.out": self.width}
        for stage in range(_STAGES):
            channels = self.width << stage
            if stage:
                reduction = PreactivatedCell(f"reduction{stage}", self.norm, projection=True, stride=2)
                cells.append(reduction)
                sizes |= {f"{reduction.name}.hidden": channels, f"{reduction.name}.out": channels}
            for place in range(self.cells):
                cell = NASBench201Cell(f"stage{stage + 1}_cell{place + 1}", self.norm, self.genotype)
                cells.append(cell)
                sizes |= {f"{cell.name}.{group}": channels for group in cell.hidden}
        cells.append(PreactivatedHead("head", self.norm))
        return Blueprint(tuple(cells), sizes, input_shape[0], num_classes, self.multiple)
