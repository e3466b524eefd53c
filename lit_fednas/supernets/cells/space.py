"""Genotypes: the architectures that DARTS derives from a mixture (Liu et al., 2019, sections 2.1 and 2.4).

A cell is a graph of two inputs (nodes 0 and 1, the outputs of the previous two cells) and some intermediate nodes; each
may read every earlier node. A network has cells of two kinds: ``normal``, and ``reduce``, which halve height and width.
All cells of a kind have the same graph.
"""

import re
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal, TypeAlias

from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.space import SearchSpace

#: The candidates of every edge, except ``none``, the absence of the edge.
OPERATORS = (
    *("max_pool_3x3", "avg_pool_3x3", "skip_connect", "sep_conv_3x3", "sep_conv_5x5"),
    *("dil_conv_3x3", "dil_conv_5x5"),
)
#: The columns of the architecture parameters.
CANDIDATES = ("none", *OPERATORS)
KINDS = ("normal", "reduce")
INPUTS = 2

#: The architecture with all operators of all edges, and their weights.
MIXTURE: Literal["mixture"] = "mixture"

#: An edge of a cell: its start and its end node; nodes 0 and 1 are the inputs.
Edge = tuple[int, int]
#: An intermediate node: its two operators, each with its source node, in ascending order of source nodes.
Node = tuple[tuple[str, int], ...]


@dataclass(frozen=True)
class Genotype:
    """One operator on each of two edges into every intermediate node.

    Attributes:
        normal: Intermediate nodes of the normal cells, in order.
        reduce: Intermediate nodes of the cells that halve height and width, in order.

    Example:
        >>> node = (("sep_conv_3x3", 0), ("skip_connect", 1))
        >>> str(Genotype((node,), (node,)))
        'normal sep_conv_3x3~0+skip_connect~1 reduce sep_conv_3x3~0+skip_connect~1'
    """

    normal: tuple[Node, ...]
    reduce: tuple[Node, ...]

    def __str__(self) -> str:
        words = []
        for kind in KINDS:
            nodes = ("+".join(f"{name}~{source}" for name, source in node) for node in getattr(self, kind))
            words += [kind, *nodes]
        return " ".join(words)


Arch: TypeAlias = Genotype | Literal["mixture"]


def edges_of(nodes: int) -> list[Edge]:
    """Returns all edges of a cell, in the order of the rows of the architecture parameters."""
    return [(source, target) for target in range(INPUTS, INPUTS + nodes) for source in range(target)]


def operators_of(arch: Arch, nodes: int) -> dict[str, dict[Edge, tuple[str, ...]]]:
    """Returns the operators of an architecture, by kind of cell and edge."""
    if not isinstance(arch, Genotype):
        return {kind: dict.fromkeys(edges_of(nodes), OPERATORS) for kind in KINDS}
    return {
        kind: {
            (source, target): (name,)
            for target, node in enumerate(getattr(arch, kind), start=INPUTS)
            for name, source in node
        }
        for kind in KINDS
    }


class GenotypeSpace(SearchSpace[Any]):
    """All genotypes; clients train the :attr:`superset` ``mixture``, which :meth:`read` also accepts."""

    kind = Genotype
    refusal = "contains all operators; name a genotype"
    superset: Arch = MIXTURE

    def __init__(self, nodes: int) -> None:
        self.nodes = nodes
        sources = [tuple(combinations(range(node + INPUTS), 2)) for node in range(nodes)]
        self.choices: list[tuple[Any, ...]] = [gene for pairs in 2 * sources for gene in (pairs, OPERATORS, OPERATORS)]

    @override
    def from_values(self, values: list[Any]) -> Genotype:
        nodes = [tuple(zip(values[i + 1 : i + 3], values[i], strict=True)) for i in range(0, len(values), 3)]
        return Genotype(tuple(nodes[: self.nodes]), tuple(nodes[self.nodes :]))

    @override
    def values_of(self, arch: Arch) -> list[Any] | None:
        if not isinstance(arch, Genotype):
            return None
        nodes = (zip(*node, strict=True) for node in arch.normal + arch.reduce)
        return [value for names, sources in nodes for value in (sources, *names)]

    @property
    @override
    def smallest(self) -> Genotype:
        # Skips, or poolings where a skip would need weights to halve the size.
        pairs = [(target - 2, target - 1) for target in range(INPUTS, INPUTS + self.nodes)]
        return Genotype(
            tuple(tuple(("skip_connect", source) for source in pair) for pair in pairs),
            tuple(tuple((("skip_connect", "max_pool_3x3")[node < INPUTS], node) for node in pair) for pair in pairs),
        )

    @property
    @override
    def largest(self) -> Genotype:
        cell = ((("sep_conv_5x5", 0), ("sep_conv_5x5", 1)),) * self.nodes
        return Genotype(cell, cell)

    @override
    def validate(self, arch: Arch) -> None:
        if arch == MIXTURE:
            return
        for kind in KINDS:
            nodes = getattr(arch, kind, ())
            if len(nodes) != self.nodes:
                raise ConfigError(f"architecture {arch}: has {len(nodes)} {kind} nodes; give {self.nodes}")
            for target, node in enumerate(nodes, start=INPUTS):
                names, sources = [name for name, _ in node], [source for _, source in node]
                if sources not in [list(pair) for pair in combinations(range(target), 2)]:
                    raise ConfigError(
                        f"architecture {arch}: {kind} node {target} reads {sources}; give two nodes below {target}"
                    )
                if unknown := [name for name in names if name not in OPERATORS]:
                    raise ConfigError(
                        f"architecture {arch}: {unknown[0]!r} is not an operator; choose from {', '.join(OPERATORS)}"
                    )

    @override
    def read(self, text: Any) -> Arch:
        """Reads ``normal sep_conv_3x3~0+skip_connect~1 ... reduce ...``, or ``mixture``."""
        return MIXTURE if text == MIXTURE else parse_genotype(str(text))


#: A node in the text of a genotype.
_NODE = r"[^\s~+]+~\d+(?:\+[^\s~+]+~\d+)*"


def parse_genotype(text: str) -> Genotype:
    """Parses a genotype with any number of nodes, without validating them."""
    match = re.fullmatch(rf"\s*normal((?:\s+{_NODE})+)\s+reduce((?:\s+{_NODE})+)\s*", text)
    if not match:
        raise ConfigError(
            f"architecture: {text!r} cannot be read; write 'normal sep_conv_3x3~0+skip_connect~1 ... reduce ...'"
        )
    normal, reduce = (tuple(map(_node, part.split())) for part in match.groups())
    return Genotype(normal, reduce)


def _node(word: str) -> Node:
    pairs = [edge.split("~") for edge in word.split("+")]
    return tuple(sorted(((name, int(source)) for name, source in pairs), key=lambda pair: pair[1]))
