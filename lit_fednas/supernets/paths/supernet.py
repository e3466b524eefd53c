"""Networks that hold several operators per layer and run one of each, and their supernets."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.supernets.base import NestedSupernet
from lit_fednas.supernets.paths.space import Operators, PathCosts, PathSpace


class PathNetwork(nn.Module):
    """The network of a path or of a subspace; of the operators that it holds, those of one path run.

    Args:
        stem: The fixed part before the layers.
        layers: The searchable layers, each with its operators by name.
        reductions: The fixed parts behind layers, by the layers' numbers.
        heads: The fixed part at the end, by label set; several only if all weights are held.

    Attributes:
        path: The path to run, one operator's name per layer; a client sets it for every batch.
    """

    def __init__(
        self,
        stem: nn.Module,
        layers: Iterable[nn.ModuleDict],
        reductions: Mapping[int, nn.Module],
        heads: Mapping[str, nn.Module],
    ) -> None:
        super().__init__()
        self.stem = stem
        self.layers = nn.ModuleList(layers)
        self.reductions = nn.ModuleDict({str(number): module for number, module in reductions.items()})
        self.heads = nn.ModuleDict(heads)
        self.path: Sequence[str] | None = None  # runs where forward is not given one

    def forward(self, x: Tensor, path: Sequence[str] | None = None) -> Tensor:
        """Runs a path.

        Args:
            x: ``[batch, channels, height, width]``.
            path: One operator's name per layer; by default :attr:`path`, or the only possible one.

        Returns:
            Logits, ``[batch, num_classes]`` (of the first label set that the network has).

        Raises:
            ValueError: The network holds a subspace and no path is given.
        """
        names: Sequence[str | None] = path or self.path or [None] * len(self.layers)
        x = self.stem(x)
        for number, (layer, name) in enumerate(zip(self.layers, names, strict=True)):
            assert isinstance(layer, nn.ModuleDict)
            if name is None and len(layer) > 1:
                raise ValueError("the network holds a subspace of several paths; name the one to run")
            x = layer[name or next(iter(layer))](x)
            if str(number) in self.reductions:
                x = self.reductions[str(number)](x)
        return next(iter(self.heads.values()))(x)


class PathSupernet(NestedSupernet):
    """A supernet whose architectures are paths and subspaces of operators, and whose costs are sums over them.

    Its networks are :class:`PathNetwork`; a subclass implements :meth:`build` and :meth:`path_costs`.
    """

    space: PathSpace

    #: The arguments of :meth:`path_costs`.
    ADDITIVE_COSTS = ("macs", "operations", "parameters", "bytes")

    @abstractmethod
    def path_costs(self, cost: str) -> PathCosts:
        """Returns a cost by operators."""

    @override
    def computation(self, unit: Literal["macs", "operations"], arch: Operators) -> int:
        """Returns the computation of a path, or of the most expensive path of a subspace."""
        return self.path_costs(unit).of(arch)
