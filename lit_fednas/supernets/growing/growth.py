"""The structure of a growable network, and growth that preserves its function (FedTrans, section 4.1).

A transformation of some cells is a list of steps (:func:`plan`). A step changes the structure (:func:`grow`) and the
weights (:func:`carry_over`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import ceil
from typing import Any, Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.costs import count_parameters
from lit_fednas.costs.counting import on_meta
from lit_fednas.errors import ConfigError
from lit_fednas.supernets.families import ROUNDING, Axes, NetworkFamily, Sizes, entries_of, find_axes, tensors_of
from lit_fednas.supernets.growing.cells import Cell
from lit_fednas.supernets.layers import Scaler

WIDEN, DEEPEN = "widen", "deepen"
#: ``alternate`` widens a cell, then deepens it, then widens it again (compound scaling, Fig. 5).
Order = Literal["alternate", "widen", "deepen"]
#: Weights of a widened cell's new units: newly drawn, or copied from existing units.
NewUnits = Literal["drawn", "copies"]
_MIN_SHARE = 0.1  # smallest noisy share of a copy, relative to an even division


@dataclass(frozen=True)
class Blueprint:
    """A growable network without its weights; the last cell is the head."""

    cells: tuple[Cell, ...]
    sizes: Sizes  # units by group: ``<cell>.out`` for an opened stream, ``<cell>.<group>`` for hidden groups
    channels: int
    num_classes: int
    multiple: int = 1  # a group norm's group size: units are copied in blocks of this size, to keep the norm's groups
    last: Mapping[str, str] = field(default_factory=dict)  # last transformation by cell: "widen" or "deepen"

    def __post_init__(self) -> None:
        for group, size in self.sizes.items():
            if size < 1 or size % self.multiple:
                raise ConfigError(f"supernet.family: {group} has {size} units; choose a multiple of {self.multiple}")

    def cell(self, name: str) -> Cell:
        """Returns a cell by its name; raises ``ConfigError`` if it is unknown."""
        by_name = {cell.name: cell for cell in self.cells}
        if name not in by_name:
            raise ConfigError(f"cell {name!r}: is unknown; choose from {', '.join(by_name)}")
        return by_name[name]

    def stream(self, name: str) -> str | None:
        """Returns the group of a cell's output units, ``None`` for the input's; raises ``ConfigError`` for the head."""
        position = self.cells.index(self.cell(name))
        if position == len(self.cells) - 1:
            raise ConfigError(f"cell {name!r}: is the head, without an output stream; name another cell")
        streams = [f"{cell.name}.out" for cell in self.cells[: position + 1] if cell.opens]
        return streams[-1] if streams else None

    def growing_groups(self, name: str) -> tuple[str, ...]:
        """Returns the groups that grow if a cell is widened; empty if it cannot be widened."""
        cell = self.cell(name)
        if not cell.growable:
            return ()
        groups = [f"{name}.{group}" for group in cell.hidden]
        stream = self.stream(name)
        if stream is not None and (cell.opens or not groups):
            groups.append(stream)
            *_, last, head = self.cells
            if stream == self.stream(last.name):
                groups += [f"{head.name}.{group}" for group in head.hidden]
        return tuple(groups)

    def build(self, sizes: Sizes | None = None, scale: float = 1.0) -> CellNetwork:
        """Builds the network, with ``sizes`` instead of its own units if given; scalers divide by ``scale``."""
        sizes = self.sizes if sizes is None else sizes
        inputs, modules = self.channels, {}
        for cell in self.cells:
            outputs = self.num_classes if cell is self.cells[-1] else sizes.get(f"{cell.name}.out", inputs)
            hidden = {group: sizes[f"{cell.name}.{group}"] for group in cell.hidden}
            modules[cell.name] = cell.build(inputs, outputs, hidden, scale)
            inputs = outputs
        return CellNetwork(modules)

    @cached_property
    def parameters(self) -> dict[str, int]:
        """The number of parameters by cell."""
        return {name: count_parameters(module) for name, module in on_meta(self.build).cells.items()}

    def __str__(self) -> str:
        """Returns the cells and their units, as ``conv1 16, conv2 32, head``."""
        units = ["/".join(str(self.sizes[f"{cell.name}.{group}"]) for group in cell.groups) for cell in self.cells]
        return ", ".join(f"{cell.name} {text}".rstrip() for cell, text in zip(self.cells, units, strict=True))


class CellNetwork(nn.Module):
    """A sequence of cells."""

    def __init__(self, cells: Mapping[str, nn.Module]) -> None:
        super().__init__()
        self.cells = nn.ModuleDict(cells)

    def forward(self, x: Tensor) -> Tensor:
        """Maps ``[batch, *input_shape]`` to logits, ``[batch, num_classes]``."""
        for cell in self.cells.values():
            x = cell(x)
        return x


class GrowableFamily(NetworkFamily):
    """The family of a suite's initial model, which can also be cut in width."""

    @abstractmethod
    def blueprint(self, input_shape: Sequence[int], num_classes: int) -> Blueprint:
        """Returns the structure of the initial model; raises ``ConfigError`` for inputs of an unsuitable shape."""

    def assemble(self, cells: Sequence[tuple[Cell, Sizes]], input_shape: Sequence[int], num_classes: int) -> Blueprint:
        """Returns the structure of a list of cells with the units of their groups; the head must be the last."""
        sizes = {f"{cell.name}.{group}": units[group] for cell, units in cells for group in cell.groups}
        return Blueprint(tuple(cell for cell, _ in cells), sizes, input_shape[0], num_classes, self.multiple)

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        return dict(self.blueprint(input_shape, num_classes=1).sizes)  # classes have no effect

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        network = self.blueprint(input_shape, num_classes).build(sizes, scale)
        if scale != 1 and not any(isinstance(module, Scaler) for module in network.modules()):
            family = type(self).__name__
            raise ConfigError(
                f"supernet.scaler: true has no effect, a norm follows each layer of {family}; set it to false"
            )
        return network


@dataclass(frozen=True)
class Widen:
    """A step that sets the numbers of units, ``sizes``, of a cell's growing groups."""

    cell: str
    sizes: Sizes


@dataclass(frozen=True)
class Deepen:
    """A step that inserts cells with these ``names`` after a cell, in this order."""

    cell: str
    names: tuple[str, ...]


Step = Widen | Deepen


def plan(
    blueprint: Blueprint,
    cells: Collection[str],
    number: int,
    factor: float = 2.0,
    insert: int = 1,
    order: Order = "alternate",
) -> tuple[Step, ...]:
    """Returns the steps that transform some cells of a model; ``TransformOnConvergence`` explains the arguments."""
    steps: list[Step] = []
    widened: set[str] = set()
    for cell in blueprint.cells:
        if cell.name not in cells or not cell.growable:
            continue
        groups = blueprint.growing_groups(cell.name)
        transformation: str = order
        if order == "alternate":
            transformation = DEEPEN if blueprint.last.get(cell.name) == WIDEN else WIDEN
        # A cell that cannot be widened is deepened instead, and vice versa.
        if cell.follower("probe") is not None and (transformation == DEEPEN or not groups):
            letters = [""] if insert == 1 else [chr(ord("a") + position) for position in range(insert)]
            steps.append(Deepen(cell.name, tuple(f"{cell.name}_m{number}{letter}" for letter in letters)))
        elif pending := [group for group in groups if group not in widened]:  # cells on one stream widen it once
            widened.update(pending)
            steps.append(Widen(cell.name, {group: _larger_size(blueprint, group, factor) for group in pending}))
    return tuple(steps)


def grow(blueprint: Blueprint, step: Step) -> Blueprint:
    """Returns the structure after a step; raises ``ConfigError`` if the model has no such cell to grow."""
    cell = blueprint.cell(step.cell)
    if isinstance(step, Widen):
        last = {**blueprint.last, step.cell: WIDEN}
        return replace(blueprint, sizes={**blueprint.sizes, **step.sizes}, last=last)
    stream = blueprint.stream(step.cell)
    outputs = blueprint.channels if stream is None else blueprint.sizes[stream]
    sizes, inserted = dict(blueprint.sizes), []
    for name in step.names:
        follower = cell.follower(name)
        if follower is None:
            raise ConfigError(f"cell {step.cell!r}: no cell can be inserted after it; widen it")
        inserted.append(follower)
        sizes |= {f"{name}.{group}": size for group, size in follower.fresh_sizes(outputs).items()}
    position = blueprint.cells.index(cell) + 1
    cells = (*blueprint.cells[:position], *inserted, *blueprint.cells[position:])
    return replace(blueprint, cells=cells, sizes=sizes, last={**blueprint.last, step.cell: DEEPEN})


@torch.no_grad()
def carry_over(
    network: CellNetwork,
    blueprint: Blueprint,
    step: Step,
    draws: torch.Generator,
    noise: float = 0.0,
    new_units: NewUnits = "drawn",
) -> CellNetwork:
    """Returns a network of the structure after a step, with weights that compute the same function."""
    next_blueprint = grow(blueprint, step)
    larger = next_blueprint.build()
    reference = next(network.parameters())
    larger.to(device=reference.device, dtype=reference.dtype)
    copies: dict[str | None, Callable[[Tensor, int, int], Tensor]] = {}
    axes: dict[str, Axes] = {}
    if isinstance(step, Widen):
        units = {group: blueprint.sizes[group] for group in step.sizes}  # only the growing groups' axes are needed
        axes = find_axes(
            lambda sizes: blueprint.build({**blueprint.sizes, **sizes}), units, blueprint.multiple, "a cell"
        )
        for wider, size in step.sizes.items():
            copies[wider] = _draw_copies(units[wider], size, blueprint.multiple, draws, noise)
    larger_tensors = tensors_of(larger)
    for name, tensor in tensors_of(network).items():
        for dimension, (group, repeat) in enumerate(axes.get(name, ())):
            if group not in copies:
                continue
            if new_units == "copies":
                tensor = copies[group](tensor, dimension, repeat)
            elif dimension == 1:
                larger_tensors[name][: len(tensor)].zero_()  # old units ignore new units
        larger_tensors[name][tuple(slice(size) for size in tensor.shape)].copy_(tensor)
    if isinstance(step, Deepen):
        for name in step.names:
            next_blueprint.cell(name).make_identity(larger.cells[name])
    return larger.train(network.training)


def _draw_copies(
    units: int, larger: int, multiple: int, draws: torch.Generator, noise: float
) -> Callable[[Tensor, int, int], Tensor]:
    """Draws the old blocks of ``multiple`` units that new blocks copy; returns a function that copies a tensor."""
    old, new = units // multiple, larger // multiple
    blocks = torch.cat([torch.arange(old), torch.randint(old, (new - old,), generator=draws)])
    weight = (1 + noise * torch.randn(new, generator=draws)).clamp_min(_MIN_SHARE).double()
    totals = torch.zeros(old, dtype=torch.float64).index_add_(0, blocks, weight)
    parts = weight / totals[blocks]  # the parts of all copies of a unit sum to 1

    def copy(tensor: Tensor, dimension: int, repeat: int) -> Tensor:
        """Copies units of ``repeat`` entries along a dimension; copies of input units share the weight."""
        entries = multiple * repeat  # entries of a block
        result = tensor.index_select(dimension, entries_of(blocks, entries).to(tensor.device))
        if dimension == 1:
            shares = parts.repeat_interleave(entries)
            result = result * shares.view(1, -1, *[1] * (tensor.dim() - 2)).to(result)
        return result

    return copy


def to_plain(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """Converts steps to plain values, for checkpoints and records."""
    return [
        {WIDEN: step.cell, "sizes": dict(step.sizes)}
        if isinstance(step, Widen)
        else {DEEPEN: step.cell, "names": list(step.names)}
        for step in steps
    ]


def from_plain(values: Iterable[Mapping[str, Any]]) -> tuple[Step, ...]:
    """Converts the values of :func:`to_plain` to steps; raises ``KeyError`` for other values."""
    return tuple(
        Widen(value[WIDEN], dict(value["sizes"])) if WIDEN in value else Deepen(value[DEEPEN], tuple(value["names"]))
        for value in values
    )


def _larger_size(blueprint: Blueprint, group: str, factor: float) -> int:
    """Returns the units of a widened group, rounded up to a multiple; at least one multiple is added."""
    blocks = blueprint.sizes[group] // blueprint.multiple
    return blueprint.multiple * max(blocks + 1, ceil(factor * blocks - ROUNDING))
