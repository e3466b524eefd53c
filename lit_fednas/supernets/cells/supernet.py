"""DARTS' supernet of cells (Liu et al., 2019), and networks of a genotype for its evaluation.

A genotype's subnet has the weights that its operators have in the mixture. DARTS trains the genotype from scratch
instead, in a network of more cells and channels: :class:`GenotypeNetwork`.

Deviations: the stem has the same norm as all layers (DARTS: with scale and shift in the search, too); DARTS'
evaluation has auxiliary classifiers and drops paths, which are left out here.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import torch
from torch import nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, Range, checked
from lit_fednas.records.files import read_json
from lit_fednas.supernets.base import NestedSupernet
from lit_fednas.supernets.cells.network import CellLayout, MixedNetwork
from lit_fednas.supernets.cells.space import (
    CANDIDATES,
    INPUTS,
    Arch,
    Genotype,
    GenotypeSpace,
    Node,
    edges_of,
    parse_genotype,
)
from lit_fednas.supernets.families import check_image
from lit_fednas.supernets.norms import BatchNorm, Norm
from lit_fednas.supernets.plain import PlainNetwork

#: Fewer would have no normal cell.
AtLeastThree = Annotated[int, Range(at_least=3)]


@checked("supernet")
class CellSupernet(NestedSupernet):
    """Cells whose every edge mixes all of DARTS' operators by architecture parameters.

    Its architectures are ``mixture``, which clients train (``FixedArchitecture(arch="mixture")`` with
    :class:`~lit_fednas.objectives.DifferentiableSearch`), and genotypes, which are derived from it
    (:class:`~lit_fednas.search.DeriveGenotype`) or drawn.

    Args:
        input_shape: Channels, height and width of an image; height and width are multiples of 4.
        num_classes: Classes.
        width: Channels of each node of the first cells, an even number.
        cells: Cells; those at one third and two thirds of them halve height and width and double the channels.
        nodes: Intermediate nodes of a cell.
        norm: Normalisation layer. A scale and a shift would rescale the operators against each other.

    Raises:
        ConfigError: A number is out of range.

    Example:
        >>> net = CellSupernet((3, 8, 8), 5, width=4, cells=3, nodes=2)
        >>> net(torch.zeros(2, 3, 8, 8), "mixture").shape, net.network.alphas_normal.shape
        (torch.Size([2, 5]), torch.Size([5, 8]))
    """

    network: MixedNetwork
    space: GenotypeSpace

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

    @property
    @override
    def default_eval_archs(self) -> tuple[str, ...]:
        return (str(self.space.superset),)

    @override
    def build(self, arch: Arch) -> MixedNetwork:
        return MixedNetwork(arch, self.input_shape[0], self.num_classes, self.layout)

    @torch.no_grad()
    def derived(self) -> Genotype:
        """Returns the genotype of the present architecture parameters (Liu et al., 2019, section 2.4).

        An edge is as strong as the largest softmax weight among its operators other than ``none``, and keeps
        that operator. Every node keeps its two strongest edges; of equal ones, the first.
        """
        alphas = (self.network.alphas_normal, self.network.alphas_reduce)
        return Genotype(*(self._strongest(one.softmax(-1)) for one in alphas))

    def _strongest(self, shares: torch.Tensor) -> tuple[Node, ...]:
        into: dict[int, list[tuple[float, str, int]]] = {}
        for (source, target), row in zip(edges_of(self.layout.nodes), shares.tolist(), strict=True):
            share, name = max(zip(row[1:], CANDIDATES[1:], strict=True), key=lambda pair: pair[0])
            into.setdefault(target, []).append((share, name, source))
        nodes = []
        for edges in into.values():
            kept = sorted(edges, key=lambda edge: -edge[0])[:INPUTS]
            nodes.append(tuple((name, source) for _, name, source in sorted(kept, key=lambda edge: edge[2])))
        return tuple(nodes)


@checked("supernet")
class GenotypeNetwork(PlainNetwork):
    """The network of a genotype as a supernet of one architecture: DARTS' evaluation, by federated averaging.

    Args:
        input_shape: Channels, height and width of an image; height and width are multiples of 4.
        num_classes: Classes.
        genotype: As :class:`CellSupernet` writes it; or the ``architecture.json`` of a tier that a search has written.
        width: Channels of each node of the first cells, an even number.
        cells: Cells.
        norm: Normalisation layer.

    Raises:
        ConfigError: The genotype cannot be read, or a number is out of range.

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
    check_image(network, input_shape, least=4)
    if any(side % 4 for side in input_shape[1:]):
        raise ConfigError(
            f"supernet.input_shape: {input_shape[1]}x{input_shape[2]} pixels cannot be halved twice; set "
            f"data.source.image_size to a multiple of 4"
        )
    if width % 2:
        raise ConfigError(f"supernet.width: {width} is odd, and cells that halve the size need halves of it; add 1")


def _genotype(text: str) -> Genotype:
    """Reads a genotype, or a searched tier's ``architecture.json``."""
    if text.endswith(".json"):
        found = read_json(Path(text)).get("arch")
        if found is None:
            raise ConfigError(
                f"supernet.genotype: {text} has no architecture; run lit-fednas search first, or write the genotype "
                f"itself, 'normal ... reduce ...'"
            )
        text = found
    genotype = parse_genotype(text)
    GenotypeSpace(len(genotype.normal)).validate(genotype)
    return genotype
