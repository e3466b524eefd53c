"""The models of a run that makes one smaller step by step, and the candidates of the next step (FedNAS).

All of them lie side by side in one supernet, each with weights of its own. Which filters they have lost is part of
every checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from lit_fednas.costs import count_macs
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.supernets.base import Region, Supernet
from lit_fednas.supernets.pruning.cuts import Cut
from lit_fednas.supernets.pruning.filters import filter_norms, remaining, without_filters
from lit_fednas.supernets.pruning.prunable import Prunable
from lit_fednas.supernets.sliced_cnn import SlicedCNN
from lit_fednas.supernets.space import Ladder
from lit_fednas.supernets.width_families import WidthFamily


@dataclass(frozen=True)
class Pruned:
    """A model of the sequence, or a candidate for one.

    Attributes:
        number: The model's, from 0 (the initial one); a candidate's is that of the model that it may become.
        unit: The unit that a candidate has lost filters of; empty for a model.

    Example:
        >>> str(Pruned(3)), str(Pruned(3, "conv2"))
        ('model: 3', 'candidate: 3 conv2')
    """

    number: int
    unit: str = ""

    def __str__(self) -> str:
        return f"candidate: {self.number} {self.unit}" if self.unit else f"model: {self.number}"


@dataclass(frozen=True)
class Sized:
    """A network of given numbers of units, which has a cost but no weights.

    Attributes:
        sizes: The numbers of units of all groups.
    """

    sizes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> Sized:
        """The network of these numbers."""
        return cls(tuple(sizes.items()))


@dataclass(frozen=True)
class PrunedModel:
    """What is known of a model besides its weights.

    Attributes:
        number: Its number, from 0.
        unit: The unit that lost filters in its iteration; empty for the initial one.
        sizes: Its numbers of units.
        round: After whose server step it was chosen; ``None`` for the initial one.
    """

    number: int
    unit: str
    sizes: dict[str, int]
    round: int | None


class SequenceSpace(Ladder[Pruned]):
    """The models so far, from the cheapest to the dearest; candidates are known, but are no results.

    Args:
        macs: Multiply-accumulates of each model, by its number.
        candidates: Those that have been proposed, now or before.
    """

    refusal = "is a candidate, which is no result of a search; name a model"

    def __init__(self, macs: Sequence[int], candidates: Iterable[Pruned]) -> None:
        self.count = len(macs)
        self.candidates = frozenset(candidates)
        super().__init__([Pruned(number) for number in sorted(range(self.count), key=lambda n: (macs[n], -n))])

    def parse(self, text: Any) -> Pruned:
        """Reads ``model: 3``, a number, ``candidate: 3 conv2``, or a ``Pruned``."""
        if isinstance(text, Pruned):
            arch = text
        else:
            kind, colon, rest = str(text).partition(":")
            number, _, unit = (rest if colon else kind).strip().partition(" ")
            if not number.isdigit() or (colon and kind != ("candidate" if unit else "model")):
                raise ConfigError(f"architecture: {text!r} cannot be read; write it as 'model: 0'")
            arch = Pruned(int(number), unit)
        self.validate(arch)
        return arch

    def validate(self, arch: Pruned) -> None:
        """Raises ``ConfigError`` if there is no such model or candidate."""
        if arch.unit and arch not in self.candidates:
            raise ConfigError(f"architecture {arch}: has not been proposed")
        if not arch.unit and arch.number >= self.count:
            raise ConfigError(f"architecture {arch}: the sequence has the models 0 to {self.count - 1} as yet")


class PrunedSequence(Supernet):
    """Models each of which has lost filters of the one before, each with weights of its own.

    Args:
        input_shape: Shape of one example.
        num_classes: Classes.
        family: The initial model, at its full width.
        units: What loses filters at a time: names, with the groups of units of each, as the family has them. If
            not given, each group by itself: a layer; of a ``SlicedResNet`` the inside of each residual block, and
            each stage's stream with all that writes into it.

    Attributes:
        prunable: Where the filters are.
        models: What is known of each.
        networks: Their weights.
        cuts: How the present candidates came about.
        candidates: Their weights.

    Raises:
        ConfigError: A unit names a group that there is not, or one that another unit has.

    Example:
        >>> sequence = PrunedSequence((3, 8, 8), 10, SlicedCNN((8, 16)))
        >>> cut = Cut("layer0", {"layer0": 2}, {"layer0": 6, "layer1": 16}, resource=0.0)
        >>> sequence.propose([cut])
        [Pruned(number=1, unit='layer0')]
        >>> str(sequence.select("layer0")), [str(arch) for arch in sequence.space.each()]
        ('model: 1', ['model: 1', 'model: 0'])
    """

    def __init__(
        self,
        input_shape: Iterable[int] = (3, 32, 32),
        num_classes: int = 10,
        family: WidthFamily = SlicedCNN(),
        units: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        super().__init__(input_shape, num_classes)
        self.family = family
        self.prunable = Prunable(family, self.input_shape, self.num_classes)
        self.units = self._checked_units(units)
        sizes = dict(self.prunable.sizes)
        self.models = [PrunedModel(0, "", sizes, None)]
        self.networks = nn.ModuleList([self.prunable.build(sizes)])
        self.cuts: list[Cut] = []
        self.candidates = nn.ModuleList()
        self._proposed: dict[Pruned, dict[str, int]] = {}  # all, for costs may be asked for when they are gone
        self._note_space()

    def _checked_units(self, units: Mapping[str, Sequence[str]] | None) -> dict[str, tuple[str, ...]]:
        known = self.prunable.sizes
        if units is None:
            return {group: (group,) for group in known}
        seen: set[str] = set()
        for unit, groups in units.items():
            unknown = [group for group in groups if group not in known]
            if unknown or not groups or not unit or " " in unit:
                raise ConfigError(
                    f"supernet.units.{unit}: {list(groups)} must be groups of {type(self.family).__name__} (there "
                    f"are {', '.join(known)}), under a name without spaces"
                )
            if len(set(groups)) < len(groups) or seen & set(groups):
                raise ConfigError(f"supernet.units.{unit}: a group of {list(groups)} stands twice; name each once")
            seen |= set(groups)
        if not units:
            raise ConfigError("supernet.units: is empty; name at least one unit, or give null for all layers")
        return {unit: tuple(groups) for unit, groups in units.items()}

    # ---- the supernet's contract ----------------------------------------------------------------------

    @property
    def space(self) -> SequenceSpace:
        """The models so far."""
        return self._space

    def sizes(self, arch: Pruned | Sized) -> dict[str, int]:
        """The numbers of units of an architecture."""
        if isinstance(arch, Sized):
            return dict(arch.sizes)
        self._space.validate(arch)
        return dict(self._proposed[arch] if arch.unit else self.models[arch.number].sizes)

    def build(self, arch: Pruned | Sized) -> nn.Module:
        """The network of the architecture's numbers of units."""
        return self.prunable.build(self.sizes(arch))

    def index(self, arch: Pruned | Sized) -> dict[str, Region]:
        """Each tensor is a whole tensor of its own network.

        Raises:
            ConfigError: It has no weights: it is a candidate that is gone, or one by its size alone.
        """
        where = self._where(arch)
        if where is None:
            raise ConfigError(f"architecture {arch}: has no weights, or none any more")
        network = self.get_submodule(where)
        names = [name for name, _ in [*network.named_parameters(), *network.named_buffers()]]
        return {name: Region(f"{where}.{name}") for name in names}

    def _index_of(self, arch: Pruned | Sized, network: nn.Module) -> dict[str, Region]:
        return {} if self._where(arch) is None else self.index(arch)

    def _where(self, arch: Pruned | Sized) -> str | None:
        """The module that has an architecture's weights, if any."""
        if isinstance(arch, Sized):
            return None
        if not arch.unit:
            self._space.validate(arch)
            return f"networks.{arch.number}"
        units = [cut.unit for cut in self.cuts]
        there = arch.number == len(self.models) and arch.unit in units
        return f"candidates.{units.index(arch.unit)}" if there else None

    def macs(self, arch: Pruned | Sized) -> int:
        """Multiply-accumulates of one example, with those that the family adds."""
        return super().macs(arch) + self.prunable.extra_macs(self.sizes(arch))

    def operations(self, arch: Pruned | Sized) -> int:
        """FedorAS' count of one example's operations, with the multiply-accumulates that the family adds."""
        return super().operations(arch) + self.prunable.extra_macs(self.sizes(arch))

    # ---- a step ---------------------------------------------------------------------------------------

    def propose(self, cuts: Sequence[Cut]) -> list[Pruned]:
        """Makes candidates out of the newest model, in place of those before: filters of small norm leave.

        Args:
            cuts: One per candidate.

        Returns:
            The candidates.
        """
        newest = self.networks[-1]
        weights = {**dict(newest.named_parameters()), **dict(newest.named_buffers())}
        self.cuts = list(cuts)
        self.candidates = nn.ModuleList()
        for cut in cuts:
            kept = {
                group: remaining(filter_norms(self.prunable, weights, group), count, self.prunable.multiple)
                for group, count in cut.removed.items()
            }
            with torch.device(next(newest.parameters()).device):
                network = self.prunable.build(cut.sizes)
            network.load_state_dict(without_filters(weights, self.prunable.axes, kept))
            self.candidates.append(network.train(self.training))
        archs = self._archs_of_candidates()
        self._proposed |= {arch: cut.sizes for arch, cut in zip(archs, cuts, strict=True)}
        self._note_space()
        return archs

    def select(self, unit: str, round: int | None = None) -> Pruned:
        """Makes a candidate the newest model; the others are gone.

        Args:
            unit: The candidate's.
            round: In which it happens.

        Returns:
            The model.

        Raises:
            ConfigError: There is no such candidate.
        """
        places = {cut.unit: place for place, cut in enumerate(self.cuts)}
        if unit not in places:
            raise ConfigError(f"architecture: {unit!r} is no candidate; there are: {', '.join(places) or 'none'}")
        chosen = self.cuts[places[unit]]
        network = self.candidates[places[unit]]
        self.cuts, self.candidates = [], nn.ModuleList()
        self._append(PrunedModel(len(self.models), unit, chosen.sizes, round), network)
        return Pruned(len(self.models) - 1)

    def _append(self, model: PrunedModel, network: nn.Module) -> None:
        self.models.append(model)
        self.networks.append(network)
        self._note_space()

    def _archs_of_candidates(self) -> list[Pruned]:
        return [Pruned(len(self.models), cut.unit) for cut in self.cuts]

    def _note_space(self) -> None:
        """Knows the models and candidates that there are now."""
        self._skeletons.clear()
        macs = [self._macs_of(model.sizes) for model in self.models]
        self._space = SequenceSpace(macs, self._proposed)

    def _macs_of(self, sizes: Mapping[str, int]) -> int:
        with torch.device("meta"):
            network = self.prunable.build(sizes)
        return count_macs(network, self.input_shape) + self.prunable.extra_macs(sizes)

    # ---- checkpoints ----------------------------------------------------------------------------------

    def structure(self) -> dict[str, Any]:
        """The numbers of units of all models and candidates; plain values."""
        return {
            "initial": dict(self.models[0].sizes),
            "models": [
                {"unit": model.unit, "sizes": dict(model.sizes), "round": model.round} for model in self.models[1:]
            ],
            "candidates": [
                {
                    "unit": cut.unit,
                    "removed": dict(cut.removed),
                    "sizes": dict(cut.sizes),
                    "resource": cut.resource,
                }
                for cut in self.cuts
            ],
            "proposed": [
                {"number": arch.number, "unit": arch.unit, "sizes": dict(sizes)}
                for arch, sizes in self._proposed.items()
            ],
        }

    def restore(self, structure: Mapping[str, Any]) -> None:
        """Rebuilds all models and candidates; their weights are not set.

        Raises:
            CheckpointError: The sequence begins with another initial model.
        """
        first = self.models[0]
        if structure.get("initial") != first.sizes:
            raise CheckpointError(
                f"checkpoint: its sequence began with the units {structure.get('initial')}, model.supernet.family "
                f"with {first.sizes}; use the settings that the run was started with"
            )
        device = next(self.networks[0].parameters()).device
        self.models, self.networks = [first], nn.ModuleList([self.networks[0]])
        with torch.device(device):
            for row in structure["models"]:
                model = PrunedModel(len(self.models), row["unit"], dict(row["sizes"]), row["round"])
                self.models.append(model)
                self.networks.append(self.prunable.build(model.sizes).train(self.training))
            self.cuts = [
                Cut(row["unit"], dict(row["removed"]), dict(row["sizes"]), row["resource"])
                for row in structure["candidates"]
            ]
            self.candidates = nn.ModuleList(
                self.prunable.build(cut.sizes).train(self.training) for cut in self.cuts
            )
        self._proposed = {Pruned(row["number"], row["unit"]): dict(row["sizes"]) for row in structure["proposed"]}
        self._note_space()
