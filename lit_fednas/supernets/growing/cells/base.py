"""Cells: what a growable network is a list of (FedTrans, section 3, "Cell", and section 4.1).

A cell says how its module is built for any numbers of units, and which cell deepening puts behind it. How its
weights are carried over when it is widened is found from that (``lit_fednas.supernets.growing.growth``). So a new
kind of cell is one class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import nn


@dataclass(frozen=True)
class Cell(ABC):
    """A place in a growable network.

    A cell's output is either a *stream* of units of its own, or it keeps the units of the stream that it gets, as
    a residual block does whose input is added to its output. A stream goes through all cells that keep it, to the
    next that opens one.

    In every tensor of the module, the units that are put out lie in dimension 0 and those that are taken in lie in
    dimension 1; a unit's entries are adjacent. Nothing may mix a group's units in a way that copies of some of
    them would change (as a layer norm does), unless the group does not grow.

    Args:
        name: Its name; the cells of later models that come from it keep it.

    Attributes:
        opens: Whether its output is a stream of its own.
        stream_grows: Whether the stream that it opens may be widened.
        growable: Whether it may be transformed at all.
        hidden: Its own groups of units besides the stream.
    """

    name: str

    opens: ClassVar[bool] = True
    stream_grows: ClassVar[bool] = True
    growable: ClassVar[bool] = True
    hidden: ClassVar[tuple[str, ...]] = ()

    @abstractmethod
    def build(self, inputs: int, outputs: int, hidden: Mapping[str, int]) -> nn.Module:
        """Builds its module.

        Args:
            inputs: Units of the stream that it gets.
            outputs: Units of the stream that it puts out; ``inputs`` where it keeps it.
            hidden: Units of its hidden groups.
        """

    def follower(self, name: str) -> Cell | None:
        """The cell that deepening inserts behind it; ``None`` if it cannot be deepened."""
        return None

    def fresh_hidden(self, outputs: int) -> dict[str, int]:
        """With how many hidden units it starts when it is inserted into a stream of so many units."""
        return {}

    def make_identity(self, module: nn.Module) -> None:
        """Sets the weights of a freshly built follower such that it passes on what it gets.

        In training mode, too: so no norm may stand in the way, whose answer depends on the batch.
        """
        raise NotImplementedError(f"{type(self).__name__} is no cell that is inserted")
