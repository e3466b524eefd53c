"""Stepwise pruning (FedNAS): the models of a run, the candidates of the next step, and their removed filters."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.families import Axes, NetworkFamily, Sizes, entries_of, find_axes, tensors_of
from lit_fednas.supernets.side_by_side import Model, ModelCollection


def remaining(scores: Tensor, removed: int, multiple: int = 1) -> list[int]:
    """Returns the ascending positions of all units except the ``removed`` lowest-scored ones; ties remove the first."""
    # Adjacent units leave together, because a group norm normalises them together.
    blocks = scores.reshape(-1, multiple).sum(1)
    removed_blocks = set(torch.sort(blocks, stable=True).indices[: removed // multiple].tolist())
    return [unit for unit in range(len(scores)) if unit // multiple not in removed_blocks]


def without_filters(
    weights: Mapping[str, Tensor], axes: Mapping[str, Axes], unit: str, positions: Sequence[int]
) -> dict[str, Tensor]:
    """Returns copies of the tensors in which the group ``unit`` keeps only the units at ``positions``."""
    smaller = {}
    for name, tensor in weights.items():
        pruned = tensor.detach()
        for dimension, (group, repeat) in enumerate(axes[name]):
            if group == unit:
                units = torch.tensor(positions, device=tensor.device)
                pruned = pruned.index_select(dimension, entries_of(units, repeat))
        smaller[name] = pruned.clone()
    return smaller


@dataclass(frozen=True)
class Cut:
    """A network after one group has lost filters."""

    unit: str  # the group: a layer, or a residual stream with all layers that write into it
    removed: int  # number of removed filters
    sizes: dict[str, int]  # remaining units of all groups
    resource: float  # cost of the remaining network


def find_cuts(sizes: Sizes, multiple: int, resource: Callable[[Sizes], float], budget: float) -> list[Cut]:
    """Returns for each group the smallest cut, of at least one filter, that meets a budget (FedNAS, section 4.1).

    At least one multiple of a group stays. Groups that cannot meet the budget alone are omitted.

    Args:
        sizes: Units per group.
        multiple: Number of filters that are removed together.
        resource: Returns the cost of a network with given units per group; the cost must not grow when filters leave.
        budget: Largest cost.

    Example:
        >>> find_cuts({"a": 4, "b": 2}, 1, lambda n: 10 * n["a"] + n["b"], 25)
        [Cut(unit='a', removed=2, sizes={'a': 2, 'b': 2}, resource=22)]
    """

    def cut(group: str, step: int) -> Cut:
        remaining_sizes = {**sizes, group: sizes[group] - step * multiple}
        return Cut(group, step * multiple, remaining_sizes, resource(remaining_sizes))

    cuts = []
    for group, size in sizes.items():
        steps = range(1, size // multiple)
        if steps and cut(group, steps[-1]).resource <= budget:
            fewest = bisect_left(steps, True, key=lambda step: cut(group, step).resource <= budget)
            cuts.append(cut(group, steps[fewest]))
    return cuts


@dataclass(frozen=True)
class UnitCounts:
    """A network that has a cost but no weights, described by its units per group."""

    sizes: tuple[tuple[str, int], ...]  # pairs of group and number of units

    @classmethod
    def of(cls, sizes: Sizes) -> UnitCounts:
        """Returns the network with these units per group."""
        return cls(tuple(sizes.items()))


@dataclass(frozen=True)
class PrunedModel:
    """A model without its weights; the initial one has an empty ``unit`` and no ``round`` of selection."""

    number: int
    unit: str
    sizes: dict[str, int]
    round: int | None


class PrunedSequence(ModelCollection):
    """Models side by side, each with fewer filters than the previous one; checkpoints record the cuts.

    A group of units of the family loses filters: a layer, or in a ``SlicedResNet`` the inside of a residual block or a
    stage's stream with all layers that write into it.

    Args:
        input_shape: Shape of one example.
        num_classes: Number of classes.
        family: The family of the initial model, which has the full width.

    Attributes:
        writers: For every group, the weights of convolutions and linear layers with this group's filters as rows. A
            residual stream has several.
        cuts: The cuts of the present candidates.
        candidates: The networks of the present candidates.

    Example:
        >>> from lit_fednas.supernets.sliced import SlicedCNN
        >>> sequence = PrunedSequence((3, 8, 8), 10, SlicedCNN((8, 16)))
        >>> cut = Cut("layer0", 2, {"layer0": 6, "layer1": 16}, resource=0.0)
        >>> sequence.propose([cut])
        [Model(number=1, unit='layer0')]
        >>> str(sequence.select("layer0")), [str(arch) for arch in sequence.space.each()]
        ('model: 1', ['model: 1', 'model: 0'])
    """

    KIND = "sequence"

    def __init__(self, input_shape: Iterable[int], num_classes: int, family: NetworkFamily) -> None:
        super().__init__(input_shape, num_classes)
        self.family = family
        self.input_dtype = family.input_dtype
        sizes = family.units(self.input_shape)
        self.models: list[PrunedModel] = [PrunedModel(0, "", sizes, None)]
        self.networks = nn.ModuleList([self._build(sizes)])
        self._axes = find_axes(self._build, sizes, family.multiple, type(family).__name__)
        self.writers = self._find_writers()
        self.cuts: list[Cut] = []
        self.candidates = nn.ModuleList()
        self._proposed: dict[Model, dict[str, int]] = {}  # all so far, as costs of removed candidates may be needed
        self.update_space(self._candidates(), self._proposed)

    @property
    @override
    def default_eval_archs(self) -> tuple[str, ...]:
        """The initial and the newest model, by number, so that a metric's name always means the same model."""
        return tuple(str(Model(number)) for number in sorted({0, len(self.models) - 1}))

    def sizes(self, arch: Model | UnitCounts) -> dict[str, int]:
        """Returns the units per group of an architecture."""
        if isinstance(arch, UnitCounts):
            return dict(arch.sizes)
        self.space.validate(arch)
        return dict(self._proposed[arch] if arch.unit else self.models[arch.number].sizes)

    @override
    def build_member(self, member: Model | UnitCounts) -> nn.Module:
        return self._build(self.sizes(member))

    @override
    def location(self, member: Model | UnitCounts) -> str:
        if isinstance(member, Model) and not member.unit:
            return super().location(member)
        candidates = self._candidates()
        if member not in candidates:
            raise ConfigError(f"architecture {member}: has no weights; name a model or a present candidate")
        return f"candidates.{candidates.index(member)}"

    @override
    def details(self, model: PrunedModel) -> dict[str, Any]:
        sizes = ", ".join(f"{group} {size}" for group, size in model.sizes.items())
        return {"unit": model.unit or None, "round": model.round, "sizes": sizes}

    def propose(self, cuts: Sequence[Cut]) -> list[Model]:
        """Replaces the candidates: each is a copy of the newest model without its lowest-scored filters."""
        weights = tensors_of(self.networks[-1])
        self.cuts = list(cuts)
        self.candidates = nn.ModuleList()
        for cut in cuts:
            positions = remaining(self._magnitudes(weights, cut.unit), cut.removed, self.family.multiple)
            network = self._unset(self._build, cut.sizes)
            network.load_state_dict(without_filters(weights, self._axes, cut.unit, positions))
            self.candidates.append(network)
        archs = self._candidates()
        self._proposed |= {arch: cut.sizes for arch, cut in zip(archs, cuts, strict=True)}
        self.update_space(self._candidates(), self._proposed)
        return archs

    def select(self, unit: str, round: int | None = None) -> Model:
        """Makes a unit's candidate the newest model and removes the others."""
        index = [cut.unit for cut in self.cuts].index(unit)
        self.networks.append(self.candidates[index])
        self.models.append(PrunedModel(len(self.models), unit, self.cuts[index].sizes, round))
        self.cuts, self.candidates = [], nn.ModuleList()
        self.update_space(self._candidates(), self._proposed)
        return Model(len(self.models) - 1)

    def _build(self, sizes: Sizes) -> nn.Module:
        return self.family.build(sizes, self.input_shape, self.num_classes)

    def _find_writers(self) -> dict[str, tuple[str, ...]]:
        writers: dict[str, tuple[str, ...]] = dict.fromkeys(self.models[0].sizes, ())
        for name, module in self.networks[0].named_modules():
            if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d | nn.Linear):
                group = self._axes[f"{name}.weight"][0][0]
                # the outputs of a depthwise convolution belong to the group of its inputs
                if group is not None and getattr(module, "groups", 1) == 1:
                    writers[group] += (f"{name}.weight",)
        for group, names in writers.items():
            if not names:
                family = type(self.family).__name__
                raise ConfigError(
                    f"supernet.family: no layer of {family} writes the units {group!r}; choose another one"
                )
        return writers

    def _magnitudes(self, weights: Mapping[str, Tensor], group: str) -> Tensor:
        """Returns the squared L2 norm of each unit's weights, ``[units]`` (FedNAS, section 4.1; NetAdapt)."""
        total = torch.zeros(())
        for name in self.writers[group]:
            weight, repeat = weights[name].detach().double(), self._axes[name][0][1]
            total = total + weight.reshape(len(weight) // repeat, -1).square().sum(1)
        return total

    def _candidates(self) -> list[Model]:
        return [Model(len(self.models), cut.unit) for cut in self.cuts]

    @override
    def order(self, model: Model) -> tuple[int, int]:
        return self.macs(model), -model.number

    @override
    def structure(self) -> dict[str, Any]:
        first, *models = self.models
        return {
            "initial": dict(first.sizes),
            "models": [{"unit": model.unit, "sizes": dict(model.sizes), "round": model.round} for model in models],
            "candidates": [asdict(cut) for cut in self.cuts],
            "proposed": [{**asdict(arch), "sizes": dict(sizes)} for arch, sizes in self._proposed.items()],
        }

    @override
    def restore(self, structure: Mapping[str, Any]) -> None:
        first = self.models[0]
        self._validate_initial(structure.get("initial"), first.sizes)
        self.models = [first, *(PrunedModel(number, **row) for number, row in enumerate(structure["models"], 1))]
        pruned = [self._unset(self._build, model.sizes) for model in self.models[1:]]
        self.networks = nn.ModuleList([self.networks[0], *pruned])
        self.cuts = [Cut(**row) for row in structure["candidates"]]
        self.candidates = nn.ModuleList(self._unset(self._build, cut.sizes) for cut in self.cuts)
        self._proposed = {Model(row["number"], row["unit"]): dict(row["sizes"]) for row in structure["proposed"]}
        self.update_space(self._candidates(), self._proposed)
