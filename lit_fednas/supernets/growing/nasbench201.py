"""A small network of NAS-Bench-201 as an initial model, and its cell (Dong & Yang, 2020; FedTrans, App. A.1)."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets.families import Sizes, check_image
from lit_fednas.supernets.growing.cells import (
    Cell,
    ConvCell,
    NormedCell,
    PooledHead,
    PreactivatedCell,
    relu_conv_norm,
)
from lit_fednas.supernets.growing.growth import Blueprint, GrowableFamily
from lit_fednas.supernets.layers import GroupNorm, Norm

INPUT, OUTPUT = 0, 3
KERNELS = {"nor_conv_1x1": 1, "nor_conv_3x3": 3}
PLAIN = ("skip_connect", "avg_pool_3x3")
_OPERATIONS = ("none", *PLAIN, *KERNELS)

#: An edge of the graph: the node where it begins, and the node where it ends.
Edge = tuple[int, int]
_EDGES = [(source, target) for target in range(1, OUTPUT + 1) for source in range(target)]
_TEXT = re.compile(
    r"\+".join(
        r"\|" + "".join(rf"({'|'.join(_OPERATIONS)})~{source}\|" for source in range(target))
        for target in range(1, OUTPUT + 1)
    )
)


@dataclass(frozen=True)
class NASBench201Cell(NormedCell):
    """Four nodes that add up their inputs: skips, 3x3 average poolings, and convolutions (ReLU, convolution, norm)."""

    genotype: str  # as the benchmark writes it: for the nodes 1, 2 and 3 the operations on the edges from those before

    opens: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        plain = self._paths([edge for edge, operation in self._operations.items() if operation in PLAIN])
        if len(plain) != 1 or any(self._operations[edge] != "skip_connect" for edge in plain[0]):
            raise ConfigError(
                f"genotype: {self.genotype} has {len(plain)} paths from node 0 to node 3 without convolutions, and "
                f"needs exactly one, of skips alone: only then is there an identity to insert; start with "
                f"|skip_connect~0|... for node 3 and put convolutions or none on the others"
            )
        if not self.kernels:
            raise ConfigError(f"genotype: {self.genotype} has no convolution between input and output; add one")

    @cached_property
    def _operations(self) -> dict[Edge, str]:
        match = _TEXT.fullmatch(self.genotype)
        if match is None:
            raise ConfigError(
                f"genotype: {self.genotype!r} cannot be read; write |op~0|+|op~0|op~1|+|op~0|op~1|op~2| with "
                f"operations out of {', '.join(_OPERATIONS)}"
            )
        return dict(zip(_EDGES, match.groups(), strict=True))

    @cached_property
    def living(self) -> dict[Edge, str]:
        """The operations of the edges on a path from input to output, by their ends; no others are built."""
        paths = self._paths([edge for edge, operation in self._operations.items() if operation != "none"])
        on_path = {edge for path in paths for edge in path}
        return {edge: self._operations[edge] for edge in sorted(on_path, key=lambda edge: (edge[1], edge[0]))}

    @cached_property
    def kernels(self) -> dict[Edge, int]:
        """The kernels of the living convolutions."""
        return {edge: KERNELS[operation] for edge, operation in self.living.items() if operation in KERNELS}

    @cached_property
    def node_groups(self) -> dict[int, str | None]:
        """The group of each living node: the stream (``None``), or one shared by nodes that skips and poolings tie."""
        nodes = sorted({node for edge in self.living for node in edge})
        tied = {node: node for node in nodes}
        for (source, target), operation in self.living.items():
            if operation in PLAIN:
                first, last = sorted((tied[source], tied[target]))
                tied = {node: first if root == last else root for node, root in tied.items()}
        return {node: None if tied[node] == INPUT else f"node{tied[node]}" for node in nodes}

    def _paths(self, edges: list[Edge], begin: int = INPUT) -> list[tuple[Edge, ...]]:
        """Returns all paths from a node to the output along these edges."""
        if begin == OUTPUT:
            return [()]
        return [(edge, *rest) for edge in edges if edge[0] == begin for rest in self._paths(edges, edge[1])]

    @property
    @override
    def hidden(self) -> tuple[str, ...]:  # type: ignore[override]
        return tuple(sorted({group for group in self.node_groups.values() if group is not None}))

    @property
    @override
    def silent(self) -> tuple[str, ...]:  # type: ignore[override]
        # the last convolutions of all paths, so that only the path of skips is left; if the others were silent, too, no
        # gradient would reach any of them
        plain = [edge for edge, operation in self.living.items() if operation in PLAIN]
        return tuple(f"edges.{_name(edge)}.norm" for edge in self.kernels if self._paths(plain, edge[1]))

    @override
    def build(self, inputs: int, outputs: int, hidden: Sizes, scale: float) -> nn.Module:
        units = {node: inputs if group is None else hidden[group] for node, group in self.node_groups.items()}
        return _Graph(self, units)


class _Graph(nn.Module):
    def __init__(self, cell: NASBench201Cell, units: Mapping[int, int]) -> None:
        super().__init__()
        self.living = cell.living
        self.edges = nn.ModuleDict()
        for (source, target), kernel in cell.kernels.items():
            self.edges[_name((source, target))] = relu_conv_norm(units[source], units[target], kernel, cell.norm)
        self.pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape, ``[batch, channels, h, w]``."""
        nodes = {INPUT: x}
        for (source, target), operation in self.living.items():
            y = nodes[source]
            if operation in KERNELS:
                y = self.edges[_name((source, target))](y)
            elif operation == "avg_pool_3x3":
                y = self.pool(y)
            nodes[target] = nodes[target] + y if target in nodes else y
        return nodes[OUTPUT]


def _name(edge: Edge) -> str:
    return "edge{}{}".format(*edge)


_STAGES = 3
_GENOTYPE = "|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|nor_conv_1x1~1|none~2|"


@checked("supernet.family")
@dataclass(frozen=True)
class GrowableNASBench201(GrowableFamily):
    """NAS-Bench-201's skeleton (Dong & Yang, 2020, Fig. 1): convolution and norm, three stages of equal cells.

    Between the stages are residual blocks that halve height and width and double the channels; norm, ReLU, pooling and
    a linear layer end it. FedTrans starts from "the smallest model in NAS-Bench-201", whose Figure 14 the text at hand
    lacks: the benchmark's own smallest has no weights in its cells and could not grow there, so the default is one cell
    per stage (the benchmark has five) with a skip and the fewest convolutions that give it units of its own.

    The cells are ``stem``, ``stage1_cell1``, ..., ``reduction1``, ``stage2_cell1``, ... and ``head``. Behind the stem,
    deepening inserts a residual block as between the stages, but for its stride.

    Args:
        width: Channels of the stem and the first stage.
        cells: Cells per stage.
        genotype: Of all cells, as the benchmark writes it; with exactly one path of skips from input to output,
            and no other without convolutions.
        norm: Normalisation layer, with a scale.

    Example:
        >>> str(GrowableNASBench201(8).blueprint((3, 8, 8), 10))
        'stem 8, stage1_cell1 8, reduction1 16/16, stage2_cell1 16, reduction2 32/32, stage3_cell1 32, head'
    """

    width: PositiveInt = 16
    cells: PositiveInt = 1
    genotype: str = _GENOTYPE
    norm: Norm = GroupNorm()

    def __post_init__(self) -> None:
        NASBench201Cell("probe", self.norm, self.genotype)

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
                cell = NASBench201Cell(f"stage{stage + 1}_cell{number}", self.norm, self.genotype)
                cells.append((cell, dict.fromkeys(cell.hidden, channels)))
        return self.assembled([*cells, (PooledHead("head", self.norm), {})], input_shape, num_classes)
