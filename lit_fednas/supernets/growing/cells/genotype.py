"""A cell of NAS-Bench-201 as a graph (Dong & Yang, 2020, section 2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from lit_fednas.errors import ConfigError

INPUT, OUTPUT = 0, 3
KERNELS = {"nor_conv_1x1": 1, "nor_conv_3x3": 3}
PLAIN = ("skip_connect", "avg_pool_3x3")
_OPERATIONS = ("none", *PLAIN, *KERNELS)

#: An edge of the graph: the node that it begins at, and the one that it ends at.
Edge = tuple[int, int]


@dataclass(frozen=True)
class Genotype:
    """Four nodes, and an operation on the edge from every node to every later one; a node adds up what it gets.

    An edge is *living* if it carries something from the input to the output. Those that are not have no weights
    here; in the benchmark they keep theirs, which get no gradient.

    Args:
        text: As the benchmark writes it: for the nodes 1, 2 and 3, apart by ``+``, their operations with the nodes
            that they come from.

    Raises:
        ConfigError: The text is no genotype, or no cell of it could be inserted as the identity.

    Example:
        >>> cell = Genotype("|nor_conv_3x3~0|+|none~0|none~1|+|skip_connect~0|nor_conv_1x1~1|none~2|")
        >>> cell.living
        {(0, 1): 'nor_conv_3x3', (0, 3): 'skip_connect', (1, 3): 'nor_conv_1x1'}
        >>> cell.groups
        {0: None, 1: 'node1', 3: None}
    """

    text: str

    def __post_init__(self) -> None:
        plain = self._plain_paths
        if len(plain) != 1 or any(self.operations[edge] != "skip_connect" for edge in plain[0]):
            raise ConfigError(
                f"genotype: {self.text} has {len(plain)} paths from node 0 to node 3 without convolutions, and "
                f"needs exactly one, of skips alone: only then is there an identity to insert; start with "
                f"|skip_connect~0|... for node 3 and put convolutions or none on the others"
            )
        if not self.kernels:
            raise ConfigError(f"genotype: {self.text} has no convolution between input and output; add one")

    @cached_property
    def operations(self) -> dict[Edge, str]:
        """The operation of every edge, by where it begins and ends."""
        found = {}
        nodes = self.text.split("+")
        for target, words in enumerate(nodes, start=1):
            for source, word in enumerate(words.removeprefix("|").removesuffix("|").split("|")):
                operation, _, begin = word.partition("~")
                if operation not in _OPERATIONS or begin != str(source):
                    raise self._unreadable(word)
                found[source, target] = operation
            if (target - 1, target) not in found or (target, target) in found:
                raise self._unreadable(words)
        if len(nodes) != OUTPUT:
            raise self._unreadable(self.text)
        return found

    @cached_property
    def living(self) -> dict[Edge, str]:
        """The operations of the edges that lie on a path from input to output, in the order of their ends."""
        paths = self._paths([edge for edge, operation in self.operations.items() if operation != "none"])
        on_path = {edge for path in paths for edge in path}
        return {edge: self.operations[edge] for edge in sorted(on_path, key=lambda edge: (edge[1], edge[0]))}

    @cached_property
    def kernels(self) -> dict[Edge, int]:
        """The kernels of the living convolutions."""
        return {edge: KERNELS[operation] for edge, operation in self.living.items() if operation in KERNELS}

    @cached_property
    def groups(self) -> dict[int, str | None]:
        """The group of units that each living node has: the stream (``None``), or one of its own.

        Skips and poolings tie nodes together; nodes that are tied among themselves share a group.
        """
        nodes = sorted({node for edge in self.living for node in edge})
        tied = {node: node for node in nodes}
        for (source, target), operation in self.living.items():
            if operation in PLAIN:
                one, other = sorted((tied[source], tied[target]))
                tied = {node: one if root == other else root for node, root in tied.items()}
        return {node: None if tied[node] == INPUT else f"node{tied[node]}" for node in nodes}

    @cached_property
    def last_convolutions(self) -> tuple[Edge, ...]:
        """The living convolutions with a way to the output that leads through no other.

        Every path with convolutions has one of these as its last. So the cell is the identity as soon as these are
        silent; if the others were silent, too, no gradient would reach any of them.
        """
        plain = [edge for edge, operation in self.living.items() if operation in PLAIN]
        return tuple(edge for edge in self.kernels if self._paths(plain, edge[1]))

    @property
    def _plain_paths(self) -> list[tuple[Edge, ...]]:
        return self._paths([edge for edge, operation in self.operations.items() if operation in PLAIN])

    def _paths(self, edges: list[Edge], begin: int = INPUT) -> list[tuple[Edge, ...]]:
        """All ways from a node to the output along these edges."""
        if begin == OUTPUT:
            return [()]
        return [(edge, *rest) for edge in edges if edge[0] == begin for rest in self._paths(edges, edge[1])]

    def _unreadable(self, word: str) -> ConfigError:
        return ConfigError(
            f"genotype: {word!r} of {self.text!r} cannot be read; write |op~0|+|op~0|op~1|+|op~0|op~1|op~2| with "
            f"operations out of {', '.join(_OPERATIONS)}"
        )
