"""Which filters leave a network, and the criteria that rank them (FedNAS, section 4.1)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.families import Axes, NetworkFamily, Sizes, entries_of, find_axes


class Prunable:
    """Where the filters of a family's network are.

    A filter is a row of a convolution's or a linear layer's weight. The rows of a group of units may lie in
    several layers: all that write into a residual stream. Those of a depthwise convolution do not count, as its
    output channels follow its input.

    Attributes:
        sizes: The groups of units and their full numbers.
        axes: For every tensor and each of its dimensions, the group of units that lies there.
        writers: For every group, the weights whose rows are its filters.
        scales: For every group, the scales of the norms that its units go through, one per unit.

    Example:
        >>> from lit_fednas.supernets.sliced import SlicedCNN
        >>> prunable = Prunable(SlicedCNN((8, 16)), (3, 8, 8), 10)
        >>> prunable.sizes, prunable.writers["layer1"]
        ({'layer0': 8, 'layer1': 16}, ('layer1.conv.weight',))
    """

    def __init__(self, family: NetworkFamily, input_shape: Sequence[int], num_classes: int) -> None:
        self.family = family
        self.input_shape = tuple(input_shape)
        self.num_classes = num_classes
        self.multiple = family.multiple
        self.sizes = family.units(self.input_shape)
        self.axes = find_axes(self.build, self.sizes, self.multiple, type(family).__name__)
        self.writers: dict[str, tuple[str, ...]] = dict.fromkeys(self.sizes, ())
        self.scales: dict[str, tuple[str, ...]] = dict.fromkeys(self.sizes, ())
        with torch.device("meta"):
            network = self.build(self.sizes)
        for name, module in network.named_modules():
            if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
                group = self.axes[f"{name}.weight"][0][0]
                if group is not None and getattr(module, "groups", 1) == 1:
                    self.writers[group] += (f"{name}.weight",)
            elif isinstance(module, _BatchNorm | nn.GroupNorm) and module.affine:
                group, repeat = self.axes[f"{name}.weight"][0]
                if group is not None and repeat == 1:
                    self.scales[group] += (f"{name}.weight",)
        for group, names in self.writers.items():
            if not names:
                raise ConfigError(
                    f"supernet.family: no convolution or linear layer of {type(family).__name__} writes the units "
                    f"{group!r}; such networks cannot lose filters by their norms"
                )

    def build(self, sizes: Sizes) -> nn.Module:
        """Returns the network with these numbers of units."""
        return self.family.build(sizes, self.input_shape, self.num_classes)


def sums_of_powers(prunable: Prunable, weights: Mapping[str, Tensor], group: str, power: int) -> Tensor:
    """Returns the sum of a power of each filter's absolute weights, over all layers that write it: ``[units]``."""
    total = torch.zeros(())
    for name in prunable.writers[group]:
        weight, repeat = weights[name].detach().double(), prunable.axes[name][0][1]
        total = total + weight.reshape(len(weight) // repeat, -1).abs().pow(power).sum(1)
    return total


class FilterCriterion(ABC):
    """Scores the filters of a group of units; those with the smallest scores leave first.

    Scores of filters that leave together, as a group norm has it, are added.

    The paper's is :class:`L2Norm`: "More advanced methods can be adopted to replace the magnitude-based method".
    """

    @abstractmethod
    def scores(self, prunable: Prunable, weights: Mapping[str, Tensor], group: str) -> Tensor:
        """Returns the score of each unit, ``[units]``, not negative.

        Args:
            prunable: Where the filters are.
            weights: The network's tensors, by name.
            group: The group of units.

        Raises:
            ConfigError: The group has nothing to be scored by.
        """


@dataclass(frozen=True)
class L2Norm(FilterCriterion):
    """The L2 norm of all weights that make a unit, squared (FedNAS, section 4.1; NetAdapt)."""

    @override
    def scores(self, prunable: Prunable, weights: Mapping[str, Tensor], group: str) -> Tensor:
        return sums_of_powers(prunable, weights, group, 2)


@dataclass(frozen=True)
class L1Norm(FilterCriterion):
    """The sum of the absolute weights that make a unit (Li et al., 2017, section 3.1)."""

    @override
    def scores(self, prunable: Prunable, weights: Mapping[str, Tensor], group: str) -> Tensor:
        return sums_of_powers(prunable, weights, group, 1)


@dataclass(frozen=True)
class NormScale(FilterCriterion):
    """The sum of a unit's absolute scales in the norms that it goes through (Liu et al., 2017, section 3: "gamma").

    Their training adds an L1 penalty on the scales, which this does not.
    """

    @override
    def scores(self, prunable: Prunable, weights: Mapping[str, Tensor], group: str) -> Tensor:
        names = prunable.scales[group]
        if not names:
            raise ConfigError(
                f"supernet.criterion: NormScale finds no norm with a scale behind the units {group!r}; set family.norm "
                f"to one with affine: true, name those groups in supernet.units that a norm follows, or use L2Norm"
            )
        return torch.stack([weights[name].detach().double().abs() for name in names]).sum(0)


def remaining(scores: Tensor, removed: int, multiple: int = 1) -> list[int]:
    """Returns the units that stay, in order, when those with the smallest scores leave; of equal ones the first.

    So many adjacent units as ``multiple`` leave together, as a group norm normalises them together.

    Example:
        >>> remaining(torch.tensor([3.0, 1.0, 2.0, 9.0]), 2)
        [0, 3]
        >>> remaining(torch.tensor([3.0, 2.0, 0.0, 4.0]), 2, multiple=2)
        [0, 1]
    """
    blocks = scores.reshape(-1, multiple).sum(1)
    leaving = set(torch.sort(blocks, stable=True).indices[: removed // multiple].tolist())
    return [unit for unit in range(len(scores)) if unit // multiple not in leaving]


def without_filters(
    weights: Mapping[str, Tensor], axes: Mapping[str, Axes], kept: Mapping[str, Sequence[int]]
) -> dict[str, Tensor]:
    """Returns copies of the tensors in which groups that lose units have those in ``kept``."""
    smaller = {}
    for name, tensor in weights.items():
        rest = tensor.detach()
        for dimension, (group, repeat) in enumerate(axes[name]):
            if group is not None and group in kept:
                units = torch.tensor(kept[group], device=tensor.device)
                rest = rest.index_select(dimension, entries_of(units, repeat))
        smaller[name] = rest.clone()
    return smaller


@dataclass(frozen=True)
class Cut:
    """A network after a unit has lost filters.

    Attributes:
        unit: The unit: a layer, or several that lose filters together.
        removed: How many units each of its groups has lost.
        sizes: The remaining numbers of units of all groups.
        resource: What the remaining network costs.
    """

    unit: str
    removed: dict[str, int]
    sizes: dict[str, int]
    resource: float


def find_cuts(
    units: Mapping[str, Sequence[str]],
    sizes: Sizes,
    multiple: int,
    resource: Callable[[Sizes], float],
    budget: float,
) -> list[Cut]:
    """Returns for each unit the fewest filters, at least one, whose removal meets a budget (FedNAS, section 4.1).

    A unit of several groups loses the same share of each, rounded down. At least one multiple of each group stays.
    A unit that cannot meet the budget by itself is left out.

    Args:
        units: The groups of units of each unit.
        sizes: The numbers of units of all groups.
        multiple: The number of filters that are removed together.
        resource: The cost of a network of given numbers of units, which must not grow when filters leave. A
            measured latency may, a little: the cut meets the budget as measured, but a smaller one might as well.
        budget: The cost at most.

    Example:
        >>> find_cuts({"a": ["a"], "b": ["b"]}, {"a": 4, "b": 2}, 1, lambda n: 10 * n["a"] + n["b"], 25)
        [Cut(unit='a', removed={'a': 2}, sizes={'a': 2, 'b': 2}, resource=22)]
    """

    def cut(unit: str, step: int) -> Cut:
        blocks = {group: sizes[group] // multiple for group in units[unit]}
        removed = {group: step * count // max(blocks.values()) * multiple for group, count in blocks.items()}
        left = {group: size - removed.get(group, 0) for group, size in sizes.items()}
        return Cut(unit, removed, left, resource(left))

    cuts = []
    for unit, groups in units.items():
        steps = range(1, max(sizes[group] for group in groups) // multiple)
        if steps and cut(unit, steps[-1]).resource <= budget:
            fewest = bisect_left(steps, True, key=lambda step: cut(unit, step).resource <= budget)
            cuts.append(cut(unit, steps[fewest]))
    return cuts
