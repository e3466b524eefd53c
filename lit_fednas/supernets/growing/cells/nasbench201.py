"""A cell of NAS-Bench-201 (Dong & Yang, 2020), whose smallest model FedTrans starts from on FEMNIST."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from torch import Tensor, nn

from lit_fednas.supernets.growing.cells.base import Cell
from lit_fednas.supernets.growing.cells.genotype import INPUT, OUTPUT, Edge, Genotype
from lit_fednas.supernets.growing.cells.preactivated import preactivated_conv
from lit_fednas.supernets.growing.cells.silence import check_affine, silence
from lit_fednas.supernets.norms import Norm

_genotype = lru_cache(Genotype)


@dataclass(frozen=True)
class NASBench201Cell(Cell):
    """Four nodes, joined by skips, 3x3 average poolings, and convolutions (ReLU, convolution, norm).

    It keeps the stream. A node that neither skips nor poolings tie to the cell's input or output has units of its
    own (group ``node1`` or ``node2``; two of them that are tied to each other share one).

    Its follower is a cell of the same genotype in which the last convolution of every path is silent, by a norm of
    scale zero, so that the one path of skips is all that is left.

    Args:
        name: Its name.
        norm: Normalisation layer, with a scale.
        genotype: As the benchmark writes it, ``|op~0|+|op~0|op~1|+|op~0|op~1|op~2|``.

    Raises:
        ConfigError: The norm has no scale, the genotype cannot be read, or it has other than one path without
            convolutions, or poolings on it.
    """

    norm: Norm
    genotype: str

    opens: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_affine(self.norm, type(self).__name__)
        _genotype(self.genotype)

    @property
    def hidden(self) -> tuple[str, ...]:  # type: ignore[override]
        """The groups of its inner nodes."""
        groups = _genotype(self.genotype).groups.values()
        return tuple(sorted({group for group in groups if group is not None}))

    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds ``edges``, a convolution for each living edge that is one, named ``edge01`` and so on."""
        genotype = _genotype(self.genotype)
        units = {node: inputs if group is None else hidden[group] for node, group in genotype.groups.items()}
        return _Graph(genotype, units, self.norm)

    def follower(self, name: str) -> NASBench201Cell:
        """A cell of the same genotype."""
        return NASBench201Cell(name, self.norm, self.genotype)

    def fresh_hidden(self, outputs: int) -> dict[str, int]:
        """As many channels in every node, as in the benchmark."""
        return dict.fromkeys(self.hidden, outputs)

    def make_identity(self, module: nn.Module) -> None:
        """Silences the last convolution of every path."""
        for edge in _genotype(self.genotype).last_convolutions:
            silence(module.get_submodule(f"edges.{_name(edge)}.norm"))


class _Graph(nn.Module):
    def __init__(self, genotype: Genotype, units: Mapping[int, int], norm: Norm) -> None:
        super().__init__()
        self.genotype = genotype
        self.edges = nn.ModuleDict(
            {
                _name((source, target)): preactivated_conv(units[source], units[target], kernel, norm)
                for (source, target), kernel in genotype.kernels.items()
            }
        )
        self.pool = nn.AvgPool2d(3, stride=1, padding=1, count_include_pad=False)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape, ``[batch, channels, h, w]``."""
        nodes = {INPUT: x}
        for edge, operation in self.genotype.living.items():
            source, target = edge
            y = nodes[source]
            if edge in self.genotype.kernels:
                y = self.edges[_name(edge)](y)
            elif operation == "avg_pool_3x3":
                y = self.pool(y)
            nodes[target] = nodes[target] + y if target in nodes else y
        return nodes[OUTPUT]


def _name(edge: Edge) -> str:
    return "edge{}{}".format(*edge)
