"""Which filters leave a network, and what remains of it (FedNAS, section 4.1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from lit_fednas.supernets.axes import Axes
from lit_fednas.supernets.pruning.prunable import Prunable


def filter_norms(prunable: Prunable, weights: Mapping[str, Tensor], group: str) -> Tensor:
    """The L2 norm of each filter of a group of units.

    Where a unit is written by several layers, as in a residual stream, its filters there count as one.

    Args:
        prunable: Where the filters are.
        weights: The network's tensors, by name.
        group: The group of units.

    Returns:
        One norm per unit, ``[units]``, float64.
    """
    total: Tensor | float = 0.0
    for name in prunable.writers[group]:
        weight, repeat = weights[name].detach().double(), prunable.axes[name][0][1]
        total = total + weight.reshape(len(weight) // repeat, -1).square().sum(1)
    assert isinstance(total, Tensor)
    return total.sqrt()


def remaining(norms: Tensor, removed: int, multiple: int = 1) -> list[int]:
    """The units that stay, in their order, when those with the smallest norms leave; ties go from the first on.

    Args:
        norms: One per unit, ``[units]``.
        removed: How many leave; a multiple of ``multiple``.
        multiple: How many adjacent units leave together, by the norm of all of them: those that a group norm
            normalises together.

    Example:
        >>> remaining(torch.tensor([3.0, 1.0, 2.0, 9.0]), 2)
        [0, 3]
        >>> remaining(torch.tensor([3.0, 1.0, 2.0, 2.0]), 2, multiple=2)
        [0, 1]
    """
    blocks = norms.reshape(-1, multiple).square().sum(1)
    leaving = set(torch.sort(blocks, stable=True).indices[: removed // multiple].tolist())
    return [unit for unit in range(len(norms)) if unit // multiple not in leaving]


def without_filters(
    weights: Mapping[str, Tensor], axes: Mapping[str, Axes], kept: Mapping[str, Sequence[int]]
) -> dict[str, Tensor]:
    """The tensors of the network that is left; copies.

    Args:
        weights: The network's tensors, by name.
        axes: Which group of units lies in which of their dimensions.
        kept: For groups that lose units, those that stay.
    """
    found = {}
    for name, tensor in weights.items():
        rest = tensor.detach()
        for dimension, (group, repeat) in enumerate(axes[name]):
            if group is not None and group in kept:
                places = torch.tensor(kept[group], device=tensor.device)[:, None] * repeat
                entries = (places + torch.arange(repeat, device=tensor.device)).flatten()
                rest = rest.index_select(dimension, entries)
        found[name] = rest.clone()
    return found
