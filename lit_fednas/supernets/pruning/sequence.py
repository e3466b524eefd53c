"""The models of a run that makes one smaller step by step, and the candidates of the next step (FedNAS)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import chain
from typing import Any

from torch import nn
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.families import NetworkFamily, Sizes, tensors_of
from lit_fednas.supernets.pruning.filters import Cut, FilterCriterion, L2Norm, Prunable, remaining, without_filters
from lit_fednas.supernets.side_by_side import MemberSpace, Model, ModelCollection


@dataclass(frozen=True)
class UnitCounts:
    """A network of given numbers of units, which has a cost but no weights.

    Attributes:
        sizes: The numbers of units of all groups.
    """

    sizes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, sizes: Sizes) -> UnitCounts:
        """Returns the network of these numbers of units, by group."""
        return cls(tuple(sizes.items()))


@dataclass(frozen=True)
class PrunedModel:
    """A model besides its weights; ``unit`` is empty and ``round`` (of its selection) ``None`` for the initial one."""

    number: int
    unit: str
    sizes: dict[str, int]
    round: int | None


class PrunedSequence(ModelCollection):
    """Models side by side, each of which has lost filters of the one before; checkpoints record which.

    Args:
        input_shape: Shape of one example.
        num_classes: Classes.
        family: The initial model, at its full width.
        units: The groups of units of the family that lose filters together, by a name. If not given, each group by
            itself: a layer; of a ``SlicedResNet`` the inside of each residual block, and each stage's stream with
            all that writes into it.
        criterion: By what a unit's filters are ranked; those with the smallest scores leave first.

    Attributes:
        prunable: Where the filters are.
        cuts: How the present candidates were made.
        candidates: Their weights.

    Raises:
        ConfigError: A unit names an unknown group, or one of another unit, or the criterion cannot score a unit.

    Example:
        >>> from lit_fednas.supernets.sliced import SlicedCNN
        >>> sequence = PrunedSequence((3, 8, 8), 10, SlicedCNN((8, 16)))
        >>> cut = Cut("layer0", {"layer0": 2}, {"layer0": 6, "layer1": 16}, resource=0.0)
        >>> sequence.propose([cut])
        [Model(number=1, unit='layer0')]
        >>> str(sequence.select("layer0")), [str(arch) for arch in sequence.space.each()]
        ('model: 1', ['model: 1', 'model: 0'])
    """

    KIND = "sequence"

    def __init__(
        self,
        input_shape: Iterable[int],
        num_classes: int,
        family: NetworkFamily,
        units: Mapping[str, Sequence[str]] | None = None,
        criterion: FilterCriterion = L2Norm(),
    ) -> None:
        super().__init__(input_shape, num_classes)
        self.family = family
        self.prunable = Prunable(family, self.input_shape, self.num_classes)
        self.units = self._checked_units(units)
        self.criterion = criterion
        sizes = dict(self.prunable.sizes)
        self.models: list[PrunedModel] = [PrunedModel(0, "", sizes, None)]
        self.networks = nn.ModuleList([self.prunable.build(sizes)])
        self.cuts: list[Cut] = []
        self.candidates = nn.ModuleList()
        self._proposed: dict[Model, dict[str, int]] = {}  # all so far: the costs of removed ones may be asked for
        self._update_space()
        for group in chain(*self.units.values()):
            criterion.scores(self.prunable, tensors_of(self.networks[0]), group)

    def _checked_units(self, units: Mapping[str, Sequence[str]] | None) -> dict[str, tuple[str, ...]]:
        known = self.prunable.sizes
        if units is None:
            return {group: (group,) for group in known}
        seen: set[str] = set()
        for unit, groups in units.items():
            if not groups or not set(groups) <= set(known) or not unit or " " in unit:
                raise ConfigError(
                    f"supernet.units.{unit}: {list(groups)} must be groups of {type(self.family).__name__}, with "
                    f"a name without spaces; choose from {', '.join(known)}"
                )
            if len(set(groups)) < len(groups) or seen & set(groups):
                raise ConfigError(f"supernet.units.{unit}: a group of {list(groups)} is duplicated; name each once")
            seen |= set(groups)
        if not units:
            raise ConfigError("supernet.units: is empty; name at least one unit, or give null for all layers")
        return {unit: tuple(groups) for unit, groups in units.items()}

    @property
    @override
    def default_eval_archs(self) -> tuple[str, ...]:
        """The initial model and the newest, by number, so that a metric's name always means the same model."""
        return tuple(str(Model(number)) for number in sorted({0, len(self.models) - 1}))

    def sizes(self, arch: Model | UnitCounts) -> dict[str, int]:
        """Returns the numbers of units of an architecture, by group."""
        if isinstance(arch, UnitCounts):
            return dict(arch.sizes)
        self.space.validate(arch)
        return dict(self._proposed[arch] if arch.unit else self.models[arch.number].sizes)

    @override
    def build_member(self, member: Model | UnitCounts) -> nn.Module:
        return self.prunable.build(self.sizes(member))

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
        """Replaces the candidates by new ones: copies of the newest model without the filters of smallest scores.

        Args:
            cuts: One per candidate.

        Returns:
            The candidates.
        """
        weights = tensors_of(self.networks[-1])
        self.cuts = list(cuts)
        self.candidates = nn.ModuleList()
        for cut in cuts:
            kept = {
                group: remaining(self.criterion.scores(self.prunable, weights, group), count, self.prunable.multiple)
                for group, count in cut.removed.items()
            }
            network = self._unset(partial(self.prunable.build, cut.sizes))
            network.load_state_dict(without_filters(weights, self.prunable.axes, kept))
            self.candidates.append(network)
        archs = self._candidates()
        self._proposed |= {arch: cut.sizes for arch, cut in zip(archs, cuts, strict=True)}
        self._update_space()
        return archs

    def select(self, unit: str, round: int | None = None) -> Model:
        """Makes a candidate the newest model and removes the others.

        Args:
            unit: The candidate's unit.
            round: The present round.

        Returns:
            The model.

        Raises:
            ConfigError: The candidate is unknown.
        """
        units = [cut.unit for cut in self.cuts]
        if unit not in units:
            raise ConfigError(f"architecture: {unit!r} is not a candidate; choose from {', '.join(units) or 'none'}")
        chosen = units.index(unit)
        self.networks.append(self.candidates[chosen])
        self.models.append(PrunedModel(len(self.models), unit, self.cuts[chosen].sizes, round))
        self.cuts, self.candidates = [], nn.ModuleList()
        self._update_space()
        return Model(len(self.models) - 1)

    def _candidates(self) -> list[Model]:
        return [Model(len(self.models), cut.unit) for cut in self.cuts]

    def _update_space(self) -> None:
        self._skeletons.clear()
        models = [Model(model.number) for model in self.models]
        macs = [self._count_macs(partial(self.prunable.build, model.sizes)) for model in self.models]
        rungs = sorted(models, key=lambda model: (macs[model.number], -model.number))
        self.space = MemberSpace(Model.read, rungs, [*models, *self._candidates()], self._proposed)

    @override
    def structure(self) -> dict[str, Any]:
        models = [asdict(model) for model in self.models[1:]]
        return {
            "initial": dict(self.models[0].sizes),
            "models": [{key: row[key] for key in ("unit", "sizes", "round")} for row in models],
            "candidates": [asdict(cut) for cut in self.cuts],
            "proposed": [{**asdict(arch), "sizes": dict(sizes)} for arch, sizes in self._proposed.items()],
        }

    @override
    def restore(self, structure: Mapping[str, Any]) -> None:
        first = self.models[0]
        self._validate_initial(structure.get("initial"), first.sizes)
        self.models = [first, *(PrunedModel(number, **row) for number, row in enumerate(structure["models"], 1))]
        others = [self._unset(partial(self.prunable.build, model.sizes)) for model in self.models[1:]]
        self.networks = nn.ModuleList([self.networks[0], *others])
        self.cuts = [Cut(**row) for row in structure["candidates"]]
        self.candidates = nn.ModuleList(self._unset(partial(self.prunable.build, cut.sizes)) for cut in self.cuts)
        self._proposed = {Model(row["number"], row["unit"]): dict(row["sizes"]) for row in structure["proposed"]}
        self._update_space()
