"""Networks of cells: a mixture, or a genotype's.

DARTS' operators (Liu et al., 2019, section 3.1.1) have the order ReLU, convolution, norm. Separable convolutions are
applied twice; the stride is the first one's. Dilated ones, whose kernels have gaps of one, are separable and applied
once. A skip of stride 2 is two 1x1 convolutions at pixels that are shifted by one, each to half of the channels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from lit_fednas.supernets.cells.space import CANDIDATES, INPUTS, MIXTURE, Arch, Edge, edges_of, operators_of
from lit_fednas.supernets.layers import convolution, pooled_classifier, sequential
from lit_fednas.supernets.norms import Norm

#: Given the kernel, the stride and the padding, which average pooling does not count.
_POOLINGS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "max_pool": nn.MaxPool2d,
    "avg_pool": partial(nn.AvgPool2d, count_include_pad=False),
}


def relu_conv_norm(inputs: int, outputs: int, norm: Norm) -> nn.Module:
    """Returns ReLU, a 1x1 convolution, and a norm."""
    return nn.Sequential(nn.ReLU(), convolution(inputs, outputs, 1), norm(outputs))


class FactorizedReduce(nn.Module):
    """Halves height and width; the number of output channels is even."""

    def __init__(self, inputs: int, outputs: int, norm: Norm) -> None:
        super().__init__()
        self.relu = nn.ReLU()
        self.even = convolution(inputs, outputs // 2, 1, stride=2)
        self.odd = convolution(inputs, outputs // 2, 1, stride=2)
        self.norm = norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, inputs, h, w]``, with h and w even, to ``[batch, outputs, h / 2, w / 2]``."""
        x = self.relu(x)
        return self.norm(torch.cat([self.even(x), self.odd(x[:, :, 1:, 1:])], dim=1))


def operator(name: str, channels: int, stride: int, norm: Norm, pool_norm: bool) -> nn.Module:
    """Returns an operator of ``OPERATORS`` that keeps the number of channels."""
    if name == "skip_connect":
        return nn.Identity() if stride == 1 else FactorizedReduce(channels, channels, norm)
    kind, _, size = name.rpartition("_")
    kernel = int(size[0])
    if kind in _POOLINGS:
        pool = _POOLINGS[kind](kernel, stride, kernel // 2)
        return nn.Sequential(pool, norm(channels)) if pool_norm else pool
    if kind == "dil_conv":
        return nn.Sequential(*_separable(channels, kernel, stride, norm, dilation=2))
    return nn.Sequential(*_separable(channels, kernel, stride, norm), *_separable(channels, kernel, 1, norm))


def _separable(channels: int, kernel: int, stride: int, norm: Norm, dilation: int = 1) -> list[nn.Module]:
    padding = dilation * (kernel // 2)
    depthwise = nn.Conv2d(channels, channels, kernel, stride, padding, dilation, groups=channels, bias=False)
    return [nn.ReLU(), depthwise, convolution(channels, channels, 1), norm(channels)]


_STEM_MULTIPLIER = 3
_INITIAL_SCALE = 1e-3


@dataclass(frozen=True)
class CellLayout:
    """What networks of one supernet have in common; ``pool_norm``: whether a norm follows poolings."""

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
    """A graph of operators, given by edge, whose output are all intermediate nodes, side by side."""

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
        """Runs the cell on the last two outputs; ``shares``, ``[edges, candidates]``, weigh the candidates of edges."""
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
