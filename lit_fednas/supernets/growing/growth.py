"""How a model grows: widening and deepening its cells without changing its function (FedTrans, section 4.1).

A transformation of some cells is a list of steps (:func:`plan`). A step changes the structure (:func:`grown`) and
the weights (:func:`carried_over`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, Literal

import torch
from torch import Tensor

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.supernets.families import ROUNDING, Axes, Sizes, entries_of, find_axes, tensors_of
from lit_fednas.supernets.growing.blueprint import Blueprint, CellNetwork

WIDEN, DEEPEN = "widen", "deepen"
#: ``alternate`` widens a cell, then deepens it, then widens it again (compound scaling, Fig. 5).
Order = Literal["alternate", "widen", "deepen"]
#: What the units of a widened cell are that it did not have: drawn anew, or copies of others.
NewUnits = Literal["drawn", "copies"]
_LEAST_SHARE = 0.1  # of what an even division gives a copy, however large the noise


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
    if not factor > 1 or insert < 1:
        raise ConfigError(f"transformation: factor {factor} must be above 1 and insert {insert} at least 1")
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
        sizes |= {f"{name}.{group}": size for group, size in follower.fresh_hidden(outputs).items()}
        if follower.opens:
            sizes[f"{name}.out"] = outputs
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
    copies: dict[str | None, _Copies] = {}
    axes: dict[str, Axes] = {}
    if isinstance(step, Widen):
        old = {group: blueprint.sizes[group] for group in step.sizes}  # the other groups' axes do not matter
        axes = find_axes(lambda sizes: blueprint.build({**blueprint.sizes, **sizes}), old, blueprint.multiple, "a cell")
        for wider, size in step.sizes.items():
            copies[wider] = _Copies.drawn(old[wider], size, blueprint.multiple, draws, noise)
    new = tensors_of(larger)
    for name, tensor in tensors_of(network).items():
        for dimension, (group, repeat) in enumerate(axes.get(name, ())):
            if group not in copies:
                continue
            if new_units == "copies":
                tensor = copies[group].applied(tensor, dimension, repeat)
            elif dimension == 1:
                new[name][: len(tensor)].zero_()  # old units do not take in new ones
        new[name][tuple(slice(size) for size in tensor.shape)].copy_(tensor)
    if isinstance(step, Deepen):
        for name in step.names:
            after.cell(name).make_identity(larger.cells[name])
    return larger.train(network.training)


@dataclass(frozen=True)
class _Copies:
    """For each unit of a grown group: the old unit that it copies, and the part of its weight that it gets."""

    units: Tensor  # int64
    parts: Tensor  # the parts of all copies of a unit add up to 1

    @classmethod
    def drawn(cls, units: int, larger: int, multiple: int, draws: torch.Generator, noise: float) -> _Copies:
        """Draws copies behind the old units, in whole blocks of ``multiple`` units."""
        old, new = units // multiple, larger // multiple
        blocks = torch.cat([torch.arange(old), torch.randint(old, (new - old,), generator=draws)])
        weight = (1 + noise * torch.randn(new, generator=draws)).clamp_min(_LEAST_SHARE).double()
        parts = weight / torch.zeros(old, dtype=torch.float64).index_add_(0, blocks, weight)[blocks]
        return cls(entries_of(blocks, multiple), parts.repeat_interleave(multiple))

    def applied(self, tensor: Tensor, dimension: int, repeat: int) -> Tensor:
        """Copies along a dimension in which a unit has ``repeat`` entries; divides where units are inputs."""
        copied = tensor.index_select(dimension, entries_of(self.units, repeat).to(tensor.device))
        if dimension == 1:
            parts = self.parts.repeat_interleave(repeat)
            copied = copied * parts.view(1, -1, *[1] * (tensor.dim() - 2)).to(copied)
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
    """Returns the steps of plain values (:func:`to_plain`); raises ``CheckpointError`` if one is not a step."""
    steps: list[Step] = []
    for value in values:
        if WIDEN in value:
            steps.append(Widen(value[WIDEN], dict(value["sizes"])))
        elif DEEPEN in value:
            steps.append(Deepen(value[DEEPEN], tuple(value["names"])))
        else:
            raise CheckpointError(f"suite: {value} is not a step of a transformation; the file is of another version")
    return tuple(steps)


def _larger(blueprint: Blueprint, group: str, factor: float) -> int:
    """Returns the units of a widened group: rounded up to a multiple, and at least one more."""
    blocks = blueprint.sizes[group] // blueprint.multiple
    return blueprint.multiple * max(blocks + 1, ceil(factor * blocks - ROUNDING))
