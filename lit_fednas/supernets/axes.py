"""Where groups of units lie in a network's tensors: found by letting one group grow at a time."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import nn

from lit_fednas.errors import ConfigError

#: For every dimension of a tensor: the group whose units it has, and how many adjacent entries one unit takes.
Axes = tuple[tuple[str | None, int], ...]


def find_axes(
    build: Callable[[Mapping[str, int]], nn.Module], units: Mapping[str, int], multiple: int, name: str
) -> dict[str, Axes]:
    """Lets one group grow at a time, and looks which dimensions grow with it and by how much.

    Args:
        build: Makes the network of given numbers of units; it is called on the meta device.
        units: The groups and their numbers of units.
        multiple: By how many units a group is let grow.
        name: Of what is built, for the error.

    Returns:
        For every tensor, by name, what each dimension has: ``(None, 1)`` where it belongs to no group.

    Raises:
        ConfigError: A dimension grows with two groups, or has entries that do not.
    """
    with torch.device("meta"):
        shapes = shapes_of(build(units))
    found: dict[str, list[tuple[str | None, int]]] = {
        tensor: [(None, 1)] * len(shape) for tensor, shape in shapes.items()
    }
    for group, full in units.items():
        with torch.device("meta"):
            grown = shapes_of(build({**units, group: full + multiple}))
        for tensor, shape in shapes.items():
            for place, (before, after) in enumerate(zip(shape, grown[tensor], strict=True)):
                if after == before:
                    continue
                other, repeat = found[tensor][place][0], (after - before) // multiple
                if other is not None or before != full * repeat:
                    raise ConfigError(
                        f"supernet.family: dimension {place} of {tensor} in {name} has "
                        f"{before} entries and grows with {group} by {after - before}"
                        + (f", but with {other} as well" if other else "")
                        + "; every dimension must belong to one group as a whole"
                    )
                found[tensor][place] = (group, repeat)
    return {tensor: tuple(axes) for tensor, axes in found.items()}


def shapes_of(network: nn.Module) -> dict[str, tuple[int, ...]]:
    """The shapes of all tensors, parameters first."""
    return {name: tuple(tensor.shape) for name, tensor in [*network.named_parameters(), *network.named_buffers()]}
