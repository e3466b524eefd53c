"""DARTS' networks of cells: the supernet that mixes all operators, and genotype networks (Liu et al., 2019).

A genotype's subnet has the weights of its operators in the mixture. DARTS instead trains the genotype from scratch, in
a network of more cells and channels: :class:`GenotypeNetwork`.

The operators (section 3.1.1) have the order ReLU, convolution, norm. Separable convolutions are applied twice, and the
first one has the stride. Dilated convolutions are separable and applied once. A skip of stride 2 is two 1x1
convolutions at pixels that are shifted by one, each to half of the channels. Deviations: the stem has the same norm as
all layers; there are no auxiliary classifiers and no dropped paths in the evaluation.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial, reduce
from pathlib import Path
from typing import Annotated

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, Range, checked
from lit_fednas.records.files import read_json
from lit_fednas.supernets.base import NestedSupernet
from lit_fednas.supernets.cells.space import (
    CANDIDATES,
    INPUTS,
    MIXTURE,
    Arch,
    Edge,
    Genotype,
    GenotypeSpace,
    Node,
    edges_of,
    operators_of,
    parse_genotype,
)
from lit_fednas.supernets.families import check_image
from lit_fednas.supernets.layers import BatchNorm, Norm, convolution, pooled_classifier, relu_conv_norm, sequential
from lit_fednas.supernets.plain import PlainNetwork

#: Poolings by kernel, stride and padding; average pooling does not count the padding.
_POOLINGS: dict[str, Callable[[int, int, int], nn.Module]] = {
    "max_pool": nn.MaxPool2d,
    "avg_pool": partial(nn.AvgPool2d, count_include_pad=False),
}


class FactorizedReduce(nn.Module):
    """Halves height and width; the number of output channels must be even."""

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
    """The settings that all networks of a supernet share."""

    width: int
    cells: int
    nodes: int
    norm: Norm
    pool_norm: bool  # whether a norm follows poolings


class MixedNetwork(nn.Module):
    """A stem, a row of cells and a classifier, for a genotype or the mixture (Liu et al., 2019, section 3.1)."""

    def __init__(self, arch: Arch, channels: int, num_classes: int, layout: CellLayout) -> None:
        super().__init__()
        if arch == MIXTURE:
            # An edge sums its operators' outputs, weighted by its row's softmax; ``none`` has a weight and adds zero.
            shape = (len(edges_of(layout.nodes)), len(CANDIDATES))
            self.alphas_normal = nn.Parameter(_INITIAL_SCALE * torch.randn(shape))
            self.alphas_reduce = nn.Parameter(_INITIAL_SCALE * torch.randn(shape))
        operators = operators_of(arch, layout.nodes)
        previous = last = _STEM_MULTIPLIER * layout.width
        self.stem = nn.Sequential(convolution(channels, last), layout.norm(last))
        self.cells = nn.ModuleList()
        width, was_halved = layout.width, False
        for number in range(layout.cells):
            halves = number in (layout.cells // 3, 2 * layout.cells // 3)
            width *= 2 if halves else 1
            preprocess = FactorizedReduce if was_halved else relu_conv_norm
            inputs = [preprocess(previous, width, layout.norm), relu_conv_norm(last, width, layout.norm)]
            self.cells.append(MixedCell(inputs, operators["reduce" if halves else "normal"], width, halves, layout))
            previous, last, was_halved = last, layout.nodes * width, halves
        self.head = sequential(**pooled_classifier(last, num_classes))

    @property
    def alphas(self) -> list[nn.Parameter]:
        """The architecture parameters of a mixture; empty for a genotype."""
        return [parameter for name, parameter in self.named_parameters(recurse=False) if name.startswith("alphas_")]

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, channels, h, w]`` to logits, ``[batch, num_classes]``."""
        normal, reduce = [alphas.softmax(-1) for alphas in self.alphas] or (None, None)
        previous = last = self.stem(x)
        for cell in self.cells:
            previous, last = last, cell(previous, last, reduce if cell.halves else normal)
        return self.head(last)


class MixedCell(nn.Module):
    """A graph with operators on its edges; the output is the concatenation of all intermediate nodes."""

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
            modules = {name: operator(name, width, stride, layout.norm, layout.pool_norm) for name in names}
            self.edges[_name(edge)] = nn.ModuleDict(modules)

    def forward(self, previous: Tensor, last: Tensor, shares: Tensor | None = None) -> Tensor:
        """Runs the cell on the last two outputs; ``shares``, ``[edges, candidates]``, weight each edge's candidates."""
        rows = {} if shares is None else dict(zip(edges_of(self.nodes), shares, strict=True))
        states = [module(x) for module, x in zip(self.inputs, (previous, last), strict=True)]
        for target in range(INPUTS, INPUTS + self.nodes):
            sources = [edge for edge in self.operators if edge[1] == target]
            states.append(reduce(torch.add, (self._edge(edge, states[edge[0]], rows.get(edge)) for edge in sources)))
        return torch.cat(states[INPUTS:], dim=1)

    def _edge(self, edge: Edge, x: Tensor, shares: Tensor | None) -> Tensor:
        outputs = [module(x) for module in self.edges[_name(edge)].children()]
        if shares is None:
            return reduce(torch.add, outputs)
        # The first candidate, none, has no output. A list of all products would take more memory.
        return reduce(torch.add, (share * output for share, output in zip(shares[1:], outputs, strict=True)))


def _name(edge: Edge) -> str:
    return "{}_{}".format(*edge)


#: A number of cells; fewer than three would include no normal cell.
AtLeastThree = Annotated[int, Range(at_least=3)]


@checked("supernet")
class CellSupernet(NestedSupernet):
    """Cells in which every edge mixes all of DARTS' operators, weighted by architecture parameters.

    Its architectures are the ``mixture``, for training (``FixedArchitecture(arch="mixture")`` with
    :class:`~lit_fednas.objectives.DifferentiableSearch`), and genotypes, which a search derives from it
    (:class:`~lit_fednas.search.DeriveGenotype`) or draws.

    Args:
        input_shape: Channels, height and width of an image; height and width are multiples of 4.
        num_classes: Number of classes.
        width: Channels of each node of the first cells, an even number.
        cells: Number of cells. Those at one and two thirds halve height and width and double the channels.
        nodes: Intermediate nodes per cell.
        norm: Normalisation layer; without scale and shift, which would rescale operators against each other.

    Example:
        >>> net = CellSupernet((3, 8, 8), 5, width=4, cells=3, nodes=2)
        >>> net(torch.zeros(2, 3, 8, 8), "mixture").shape, net.network.alphas_normal.shape
        (torch.Size([2, 5]), torch.Size([5, 8]))
    """

    network: MixedNetwork
    space: GenotypeSpace
    default_eval_archs = (MIXTURE,)

    def __init__(
        self,
        input_shape: Iterable[int] = (3, 32, 32),
        num_classes: int = 10,
        width: PositiveInt = 16,
        cells: AtLeastThree = 8,
        nodes: PositiveInt = 4,
        norm: Norm = BatchNorm(affine=False),
    ) -> None:
        super().__init__(input_shape, num_classes)
        _check_sizes(self, self.input_shape, width)
        self.layout = CellLayout(width, cells, nodes, norm, pool_norm=True)
        self.space = GenotypeSpace(nodes)
        self.network = self.build(self.space.superset)

    @override
    def build(self, arch: Arch) -> MixedNetwork:
        return MixedNetwork(arch, self.input_shape[0], self.num_classes, self.layout)

    @torch.no_grad()
    def derive_genotype(self) -> Genotype:
        """Returns the genotype of the present architecture parameters (Liu et al., 2019, section 2.4).

        An edge keeps the operator with the largest softmax weight, except ``none``; this weight is the edge's strength.
        Every node keeps its two strongest edges; ties keep the first.
        """
        return Genotype(*(self._strongest(alphas.softmax(-1)) for alphas in self.network.alphas))

    def _strongest(self, shares: Tensor) -> tuple[Node, ...]:
        edges_by_target: dict[int, list[tuple[float, str, int]]] = {}
        for (source, target), row in zip(edges_of(self.layout.nodes), shares.tolist(), strict=True):
            share, name = max(zip(row[1:], CANDIDATES[1:], strict=True), key=lambda pair: pair[0])
            edges_by_target.setdefault(target, []).append((share, name, source))
        nodes = []
        for edges in edges_by_target.values():
            strongest = sorted(edges, key=lambda edge: -edge[0])[:INPUTS]
            nodes.append(tuple((name, source) for _, name, source in sorted(strongest, key=lambda edge: edge[2])))
        return tuple(nodes)


@checked("supernet")
class GenotypeNetwork(PlainNetwork):
    """The network of a genotype as a supernet of one architecture: DARTS' evaluation, by federated averaging.

    Args:
        input_shape: Channels, height and width of an image; height and width are multiples of 4.
        num_classes: Number of classes.
        genotype: The genotype as text, or the path of a searched tier's ``architecture.json``.
        width: Channels of each node of the first cells, an even number.
        cells: Number of cells.
        norm: Normalisation layer.

    Example:
        >>> edges = "sep_conv_3x3~0+skip_connect~1"
        >>> net = GenotypeNetwork((3, 8, 8), 5, f"normal {edges} reduce {edges}", width=4, cells=3)
        >>> len(net.network.cells), net.network.alphas
        (3, [])
    """

    def __init__(
        self,
        input_shape: Iterable[int],
        num_classes: int,
        genotype: str,
        width: PositiveInt = 36,
        cells: AtLeastThree = 20,
        norm: Norm = BatchNorm(),
    ) -> None:
        shape = tuple(input_shape)
        _check_sizes(self, shape, width)
        arch = _genotype(genotype)
        layout = CellLayout(width, cells, len(arch.normal), norm, pool_norm=False)
        super().__init__(MixedNetwork(arch, shape[0], num_classes, layout), shape, num_classes)


def _check_sizes(network: nn.Module, input_shape: tuple[int, ...], width: int) -> None:
    check_image(network, input_shape, min_side=4)
    if any(side % 4 for side in input_shape[1:]):
        raise ConfigError(
            f"supernet.input_shape: {input_shape[1]}x{input_shape[2]} pixels cannot be halved twice; "
            f"set data.source.image_size to a multiple of 4"
        )
    if width % 2:
        raise ConfigError(f"supernet.width: {width} is odd, but FactorizedReduce halves it; add 1")


def _genotype(text: str) -> Genotype:
    """Reads a genotype from text or from a searched tier's ``architecture.json``."""
    if text.endswith(".json"):
        arch = read_json(Path(text)).get("arch")
        if arch is None:
            raise ConfigError(f"supernet.genotype: {text} has no architecture; run lit-fednas search first")
        text = arch
    genotype = parse_genotype(text)
    GenotypeSpace(len(genotype.normal)).validate(genotype)
    return genotype
