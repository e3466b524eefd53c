"""The structure of a growable network, and how it grows without changing its function (FedTrans, section 4.1).

A transformation of some cells is a list of steps (:func:`plan`). A step changes the structure (:func:`grown`) and
the weights (:func:`carried_over`).
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
#: What the units of a widened cell are that it did not have: drawn anew, or copies of others.
NewUnits = Literal["drawn", "copies"]
_LEAST_SHARE = 0.1  # of what an even division gives a copy, however large the noise


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
        for group, size in self.sizes.items():
            if size < 1 or size % self.multiple:
                raise ConfigError(
                    f"supernet.family: {group} has {size} units, which must be a multiple of {self.multiple}; "
                    f"choose another width, or another group size"
                )

    def cell(self, name: str) -> Cell:
        """Returns a cell by its name; raises ``ConfigError`` if it is unknown."""
        by_name = {cell.name: cell for cell in self.cells}
        if name not in by_name:
            raise ConfigError(f"cell {name!r}: is unknown; there are {', '.join(by_name)}")
        return by_name[name]

    def stream(self, name: str) -> str | None:
        """Returns the group of a cell's output units; ``None`` if they are the input's. The head has none."""
        position = self.cells.index(self.cell(name))
        if position == len(self.cells) - 1:
            raise ConfigError(f"cell {name!r}: has no output stream; the head is not transformed")
        opened = [f"{cell.name}.out" for cell in self.cells[: position + 1] if cell.opens]
        return opened[-1] if opened else None

    def grown_with(self, name: str) -> tuple[str, ...]:
        """Returns the groups that grow when a cell is widened; none if it cannot be."""
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
        """Builds the network, with other numbers of units if they are given, and what its scalers divide by."""
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
        """The number of parameters of each cell, by name."""
        return {name: count_parameters(module) for name, module in on_meta(self.build).cells.items()}

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
        """Returns the structure of the initial model; raises ``ConfigError`` if the family cannot take such inputs."""

    def assembled(self, cells: Sequence[tuple[Cell, Sizes]], input_shape: Sequence[int], num_classes: int) -> Blueprint:
        """Returns the structure of cells, the head last, each with the units of its groups; others are ignored."""
        sizes = {f"{cell.name}.{group}": units[group] for cell, units in cells for group in cell.groups}
        return Blueprint(tuple(cell for cell, _ in cells), sizes, input_shape[0], num_classes, self.multiple)

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        return dict(self.blueprint(input_shape, num_classes=1).sizes)  # whatever the classes

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        network = self.blueprint(input_shape, num_classes).build(sizes, scale)
        if scale != 1 and not any(isinstance(module, Scaler) for module in network.modules()):
            raise ConfigError(
                f"supernet.scaler: true would change nothing, as {type(self).__name__} has no layer that is scaled "
                f"(one that no norm follows); set it to false"
            )
        return network


@dataclass(frozen=True)
class Widen:
    """A cell gets new numbers of units, ``sizes``, in the groups that grow."""

    cell: str
    sizes: Sizes


@dataclass(frozen=True)
class Deepen:
    """Cells with these ``names`` are inserted behind a cell, in this order."""

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
    """Returns the steps that transform some cells of a model, as ``TransformOnConvergence`` has its arguments."""
    steps: list[Step] = []
    widened: set[str] = set()
    for cell in blueprint.cells:
        if cell.name not in cells or not cell.growable:
            continue
        groups = blueprint.grown_with(cell.name)
        turn: str = order
        if order == "alternate":
            turn = DEEPEN if blueprint.last.get(cell.name) == WIDEN else WIDEN
        # a cell that cannot be widened is deepened in its turn, and the other way round
        if cell.follower("probe") is not None and (turn == DEEPEN or not groups):
            letters = [""] if insert == 1 else [chr(ord("a") + position) for position in range(insert)]
            steps.append(Deepen(cell.name, tuple(f"{cell.name}_m{number}{letter}" for letter in letters)))
        elif new := [group for group in groups if group not in widened]:  # cells on one stream widen it once
            widened.update(new)
            steps.append(Widen(cell.name, {group: _larger(blueprint, group, factor) for group in new}))
    return tuple(steps)


def grown(blueprint: Blueprint, step: Step) -> Blueprint:
    """Returns the structure after a step; raises ``ConfigError`` if the model has no such cell to grow."""
    cell = blueprint.cell(step.cell)
    if isinstance(step, Widen):
        last = {**blueprint.last, step.cell: WIDEN}
        return replace(blueprint, sizes={**blueprint.sizes, **step.sizes}, last=last)
    stream = blueprint.stream(step.cell)
    outputs = blueprint.channels if stream is None else blueprint.sizes[stream]
    sizes, new = dict(blueprint.sizes), []
    for name in step.names:
        follower = cell.follower(name)
        if follower is None:
            raise ConfigError(f"cell {step.cell!r}: no cell can be inserted behind it; widen it")
        new.append(follower)
        sizes |= {f"{name}.{group}": size for group, size in follower.fresh_sizes(outputs).items()}
    behind = blueprint.cells.index(cell) + 1
    cells = (*blueprint.cells[:behind], *new, *blueprint.cells[behind:])
    return replace(blueprint, cells=cells, sizes=sizes, last={**blueprint.last, step.cell: DEEPEN})


@torch.no_grad()
def carried_over(
    network: CellNetwork,
    blueprint: Blueprint,
    step: Step,
    draws: torch.Generator,
    noise: float = 0.0,
    new_units: NewUnits = "drawn",
) -> CellNetwork:
    """Returns a network of the structure after a step, with weights that compute the same."""
    after = grown(blueprint, step)
    larger = after.build()
    reference = next(network.parameters())
    larger.to(device=reference.device, dtype=reference.dtype)
    copies: dict[str | None, Callable[[Tensor, int, int], Tensor]] = {}
    axes: dict[str, Axes] = {}
    if isinstance(step, Widen):
        old = {group: blueprint.sizes[group] for group in step.sizes}  # the other groups' axes do not matter
        axes = find_axes(lambda sizes: blueprint.build({**blueprint.sizes, **sizes}), old, blueprint.multiple, "a cell")
        for wider, size in step.sizes.items():
            copies[wider] = _copying(old[wider], size, blueprint.multiple, draws, noise)
    new = tensors_of(larger)
    for name, tensor in tensors_of(network).items():
        for dimension, (group, repeat) in enumerate(axes.get(name, ())):
            if group not in copies:
                continue
            if new_units == "copies":
                tensor = copies[group](tensor, dimension, repeat)
            elif dimension == 1:
                new[name][: len(tensor)].zero_()  # old units do not take in new ones
        new[name][tuple(slice(size) for size in tensor.shape)].copy_(tensor)
    if isinstance(step, Deepen):
        for name in step.names:
            after.cell(name).make_identity(larger.cells[name])
    return larger.train(network.training)


def _copying(
    units: int, larger: int, multiple: int, draws: torch.Generator, noise: float
) -> Callable[[Tensor, int, int], Tensor]:
    """Draws which old units a grown group's new ones copy, in blocks of ``multiple``; returns what copies a tensor."""
    old, new = units // multiple, larger // multiple
    blocks = torch.cat([torch.arange(old), torch.randint(old, (new - old,), generator=draws)])
    weight = (1 + noise * torch.randn(new, generator=draws)).clamp_min(_LEAST_SHARE).double()
    parts = weight / torch.zeros(old, dtype=torch.float64).index_add_(0, blocks, weight)[blocks]  # of a unit: 1 in all

    def copied(tensor: Tensor, dimension: int, repeat: int) -> Tensor:
        """Copies along a dimension in which a unit has ``repeat`` entries; divides where units are inputs."""
        entries = multiple * repeat  # of a block
        result = tensor.index_select(dimension, entries_of(blocks, entries).to(tensor.device))
        if dimension == 1:
            shares = parts.repeat_interleave(entries)
            result = result * shares.view(1, -1, *[1] * (tensor.dim() - 2)).to(result)
        return result

    return copied


def to_plain(steps: Iterable[Step]) -> list[dict[str, Any]]:
    """Returns steps as plain values, for checkpoints and records."""
    return [
        {WIDEN: step.cell, "sizes": dict(step.sizes)}
        if isinstance(step, Widen)
        else {DEEPEN: step.cell, "names": list(step.names)}
        for step in steps
    ]


def from_plain(values: Iterable[Mapping[str, Any]]) -> tuple[Step, ...]:
    """Returns the steps of plain values (:func:`to_plain`); raises ``KeyError`` if one is not a step."""
    return tuple(
        Widen(value[WIDEN], dict(value["sizes"])) if WIDEN in value else Deepen(value[DEEPEN], tuple(value["names"]))
        for value in values
    )


def _larger(blueprint: Blueprint, group: str, factor: float) -> int:
    """Returns the units of a widened group: rounded up to a multiple, and at least one more."""
    blocks = blueprint.sizes[group] // blueprint.multiple
    return blueprint.multiple * max(blocks + 1, ceil(factor * blocks - ROUNDING))
