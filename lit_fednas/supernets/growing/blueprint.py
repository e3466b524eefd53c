"""The structure of a growable network: its cells in order, and how many units each has."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.costs import count_parameters
from lit_fednas.errors import ConfigError
from lit_fednas.supernets.families import NetworkFamily, Sizes
from lit_fednas.supernets.growing.cells import Cell


@dataclass(frozen=True)
class Blueprint:
    """A growable network without its weights; the last cell is the head."""

    cells: tuple[Cell, ...]
    sizes: Sizes  # units by group: ``<cell>.out`` for the stream that it opens, ``<cell>.<group>`` for hidden groups
    channels: int
    num_classes: int
    multiple: int = 1  # a group norm's group size: units are copied in blocks of so many, which normalise as before
    last: Mapping[str, str] = field(default_factory=dict)  # transformation of each cell: "widen" or "deepen"

    def __post_init__(self) -> None:
        names = [cell.name for cell in self.cells]
        groups = {f"{cell.name}.{group}" for cell in self.cells for group in cell.groups}
        if len(set(names)) < len(names) or groups != set(self.sizes):
            raise ConfigError(
                f"supernet.family: sizes of {', '.join(sorted(self.sizes))} do not match the groups of the cells "
                f"{', '.join(names)}; name each cell once, and give one size per group"
            )
        for group, size in self.sizes.items():
            if size < 1 or size % self.multiple:
                raise ConfigError(
                    f"supernet.family: {group} has {size} units, which must be a multiple of {self.multiple}; "
                    f"choose another width, or another group size"
                )

    def cell(self, name: str) -> Cell:
        """Returns a cell by its name; raises ``ConfigError`` if it is unknown."""
        for cell in self.cells:
            if cell.name == name:
                return cell
        raise ConfigError(f"cell {name!r}: is unknown; there are {', '.join(cell.name for cell in self.cells)}")

    def stream(self, name: str) -> str | None:
        """Returns the group of a cell's output units; ``None`` if they are the input's. The head has none."""
        stream = None
        for cell in self.cells[:-1]:
            if cell.opens:
                stream = f"{cell.name}.out"
            if cell.name == name:
                return stream
        raise ConfigError(f"cell {name!r}: has no output stream; the head is not transformed")

    def grown_with(self, name: str) -> tuple[str, ...]:
        """Returns the groups that grow when a cell is widened; none if it cannot be."""
        cell = self.cell(name)
        if not cell.growable:
            return ()
        groups = [f"{name}.{group}" for group in cell.hidden]
        stream = self.stream(name)
        if stream is not None and (cell.opens or not groups) and self.cell(stream.removesuffix(".out")).stream_grows:
            groups.append(stream)
            *_, last, head = self.cells
            if stream == self.stream(last.name):
                groups += [f"{head.name}.{group}" for group in head.hidden]
        return tuple(groups)

    def build(self, sizes: Sizes | None = None) -> CellNetwork:
        """Builds the network, with other numbers of units if they are given."""
        sizes = self.sizes if sizes is None else sizes
        inputs, modules = self.channels, {}
        for cell in self.cells:
            outputs = self.num_classes if cell is self.cells[-1] else sizes.get(f"{cell.name}.out", inputs)
            hidden = {group: sizes[f"{cell.name}.{group}"] for group in cell.hidden}
            modules[cell.name] = cell.build(inputs, outputs, hidden)
            inputs = outputs
        return CellNetwork(modules)

    def parameters(self) -> dict[str, int]:
        """Returns the number of parameters of each cell, by name."""
        with torch.device("meta"):
            network = self.build()
        return {name: count_parameters(module) for name, module in network.cells.items()}

    def __str__(self) -> str:
        """Returns cells and their units, as ``conv1 16, conv2 32, head``."""
        units = ["/".join(str(self.sizes[f"{cell.name}.{group}"]) for group in cell.groups) for cell in self.cells]
        return ", ".join(f"{cell.name} {text}".rstrip() for cell, text in zip(self.cells, units, strict=True))


class CellNetwork(nn.Module):
    """Cells, one after the other."""

    def __init__(self, cells: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.cells = nn.ModuleDict(cells)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, *input_shape]`` to logits, ``[batch, num_classes]``."""
        for cell in self.cells.values():
            x = cell(x)
        return x


class GrowableFamily(NetworkFamily):
    """Where a suite of models begins: the initial model; it can be cut in width as well."""

    @abstractmethod
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        """Returns the structure of the initial model.

        Args:
            input_shape: Shape of one example.
            num_classes: Classes.

        Raises:
            ConfigError: The family cannot take such inputs.
        """

    def assembled(self, cells: Sequence[tuple[Cell, Sizes]], input_shape: Sequence[int], num_classes: int) -> Blueprint:
        """Returns the structure of cells, the head last, each with the units of its groups; others are ignored."""
        sizes = {f"{cell.name}.{group}": units[group] for cell, units in cells for group in cell.groups}
        return Blueprint(tuple(cell for cell, _ in cells), sizes, input_shape[0], num_classes, self.multiple)

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        return dict(self.blueprint(input_shape, num_classes=1).sizes)  # whatever the classes

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        blueprint = self.blueprint(input_shape, num_classes)
        cells = tuple(cell.scaled(scale) for cell in blueprint.cells)
        if scale != 1.0 and cells == blueprint.cells:
            raise ConfigError(
                f"supernet.scaler: true would change nothing, as {type(self).__name__} has no layer that is scaled "
                f"(one that no norm follows); set it to false"
            )
        return replace(blueprint, cells=cells).build(sizes)
