"""Networks of cells: a mixture, or a genotype's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lit_fednas.supernets.cells.operators import FactorizedReduce, operator, relu_conv_norm
from lit_fednas.supernets.cells.space import CANDIDATES, INPUTS, MIXTURE, Arch, Edge, edges_of, operators_of
from lit_fednas.supernets.layers import convolution, pooled_classifier, sequential
from lit_fednas.supernets.norms import Norm

_STEM_MULTIPLIER = 3
_INITIAL_SCALE = 1e-3


@dataclass(frozen=True)
class CellLayout:
    """What networks of one supernet have in common.

    Attributes:
        width: Channels of each node of the first cells; every cell that halves the size has twice as many.
        cells: Cells; those at one third and at two thirds of them halve the size.
        nodes: Intermediate nodes of a cell.
        norm: Normalisation layer.
        pool_norm: Whether a norm follows poolings.
    """

    width: int
    cells: int
    nodes: int
    norm: Norm
    pool_norm: bool

    @property
    def reductions(self) -> set[int]:
        """The numbers of the cells that halve the size."""
        return {self.cells // 3, 2 * self.cells // 3}


class MixedNetwork(nn.Module):
    """A stem, cells in a row, and a classifier (Liu et al., 2019, section 3.1).

    Args:
        arch: The genotype of the cells, or the mixture.
        channels: Channels of an image.
        num_classes: Classes.
        layout: Everything else.

    Attributes:
        alphas_normal: Architecture parameters of a mixture's normal cells, ``[edges, candidates]``: an edge adds up the
            outputs of its operators, each weighted by the softmax over its row. ``none`` takes a share and adds zero.
        alphas_reduce: Those of the cells that halve the size.
    """

    def __init__(self, arch: Arch, channels: int, num_classes: int, layout: CellLayout) -> None:
        super().__init__()
        if arch == MIXTURE:
            shape = (len(edges_of(layout.nodes)), len(CANDIDATES))
            self.alphas_normal = nn.Parameter(_INITIAL_SCALE * torch.randn(shape))
            self.alphas_reduce = nn.Parameter(_INITIAL_SCALE * torch.randn(shape))
        operators = operators_of(arch, layout.nodes)
        before = last = _STEM_MULTIPLIER * layout.width
        self.stem = nn.Sequential(convolution(channels, last), layout.norm(last))
        self.cells = nn.ModuleList()
        width, was_halved = layout.width, False
        for number in range(layout.cells):
            halves = number in layout.reductions
            width *= 2 if halves else 1
            preprocess = FactorizedReduce if was_halved else relu_conv_norm
            inputs = [preprocess(before, width, layout.norm), relu_conv_norm(last, width, layout.norm)]
            self.cells.append(MixedCell(inputs, operators["reduce" if halves else "normal"], width, halves, layout))
            before, last, was_halved = last, layout.nodes * width, halves
        self.head = sequential(**pooled_classifier(last, num_classes))

    @property
    def alphas(self) -> list[nn.Parameter]:
        """The architecture parameters of a mixture; none in another network."""
        return [parameter for name, parameter in self.named_parameters(recurse=False) if name.startswith("alphas_")]

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, channels, h, w]`` to logits, ``[batch, num_classes]``."""
        normal, reduce = [alphas.softmax(-1) for alphas in self.alphas] or (None, None)
        before = last = self.stem(x)
        for cell in self.cells:
            before, last = last, cell(before, last, reduce if cell.halves else normal)
        return self.head(last)


class MixedCell(nn.Module):
    """A graph of operators, whose output are all intermediate nodes, side by side.

    Args:
        inputs: What brings its two inputs to its size and width.
        operators: Their names, by edge.
        width: Channels of each node.
        halves: Whether the edges from the inputs halve height and width.
        layout: The norms.
    """

    def __init__(
        self,
        inputs: list[nn.Module],
        operators: Mapping[Edge, tuple[str, ...]],
        width: int,
        halves: bool,
        layout: CellLayout,
    ) -> None:
        super().__init__()
        self.halves = halves
        self.nodes = layout.nodes
        self.operators = dict(operators)
        self.inputs = nn.ModuleList(inputs)
        self.edges = nn.ModuleDict()
        for edge, names in operators.items():
            stride = 2 if halves and edge[0] < INPUTS else 1
            built = {name: operator(name, width, stride, layout.norm, layout.pool_norm) for name in names}
            self.edges[_name(edge)] = nn.ModuleDict(built)

    def forward(self, before: Tensor, last: Tensor, shares: Tensor | None = None) -> Tensor:
        """Runs the cell.

        Args:
            before: The output of the last cell but one.
            last: The output of the last cell.
            shares: What each candidate of each edge counts, ``[edges, candidates]``; all of it if not given.

        Returns:
            ``[batch, nodes * width, h, w]``.
        """
        rows = {} if shares is None else dict(zip(edges_of(self.nodes), shares, strict=True))
        states = [module(x) for module, x in zip(self.inputs, (before, last), strict=True)]
        for target in range(INPUTS, INPUTS + self.nodes):
            sources = [edge for edge in self.operators if edge[1] == target]
            states.append(_total(self._edge(edge, states[edge[0]], rows.get(edge)) for edge in sources))
        return torch.cat(states[INPUTS:], dim=1)

    def _edge(self, edge: Edge, x: Tensor, shares: Tensor | None) -> Tensor:
        operators = self.edges[_name(edge)]
        assert isinstance(operators, nn.ModuleDict)
        outputs = {name: module(x) for name, module in operators.items()}
        if shares is None:
            return _total(outputs.values())
        by_name = dict(zip(CANDIDATES, shares, strict=True))
        return _total(by_name[name] * output for name, output in outputs.items())


def _total(tensors: Iterable[Tensor]) -> Tensor:
    first, *others = tensors
    return sum(others, first)


def _name(edge: Edge) -> str:
    return "{}_{}".format(*edge)
