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
from lit_fednas.supernets.base import Region, Supernet, materialise
from lit_fednas.supernets.families import NetworkFamily
from lit_fednas.supernets.pruning.filters import Cut, Prunable, filter_norms, remaining, without_filters
from lit_fednas.supernets.separate import SideBySide
from lit_fednas.supernets.space import Ladder


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
class Beside:
    """Several models and candidates side by side: all that the supernet holds, for instance.

    Attributes:
        members: Each once.

    Example:
        >>> str(Beside((Pruned(0), Pruned(1, "conv2"))))
        'model: 0 | candidate: 1 conv2'
    """

    members: tuple[Pruned, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.members))


@dataclass(frozen=True)
class UnitCounts:
    """A network of given numbers of units, which has a cost but no weights.

    Attributes:
        sizes: The numbers of units of all groups.
    """

    sizes: tuple[tuple[str, int], ...]

    @classmethod
    def of(cls, sizes: Mapping[str, int]) -> UnitCounts:
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
        candidates: Those that there are now.
        gone: Those that there were before.
    """

    refusal = "is no result of a search; name one model"

    def __init__(self, macs: Sequence[int], candidates: Sequence[Pruned], gone: Iterable[Pruned]) -> None:
        self.count = len(macs)
        self.candidates = tuple(candidates)
        self.proposed = frozenset([*candidates, *gone])
        super().__init__([Pruned(number) for number in sorted(range(self.count), key=lambda n: (macs[n], -n))])

    @property
    def superset(self) -> Any:
        """All models and candidates; the model itself where there is one."""
        members = (*(Pruned(number) for number in range(self.count)), *self.candidates)
        return Beside(members) if len(members) > 1 else members[0]

    def parse(self, text: Any) -> Any:
        """Reads ``model: 3``, a number, ``candidate: 3 conv2``, several apart by ``|``, or an architecture."""
        if isinstance(text, Pruned | Beside):
            arch: Pruned | Beside = text
        else:
            words = str(text).split("|")
            read = tuple(self._read(word, text) for word in words)
            arch = read[0] if len(read) == 1 else Beside(read)
        self.validate(arch)
        return arch

    @staticmethod
    def _read(word: str, text: Any) -> Pruned:
        kind, colon, rest = word.strip().partition(":")
        number, _, unit = (rest if colon else kind).strip().partition(" ")
        if not number.isdecimal() or (colon and kind != ("candidate" if unit else "model")):
            raise ConfigError(f"architecture: {text!r} cannot be read; write it as 'model: 0'")
        return Pruned(int(number), unit)

    def validate(self, arch: Pruned | Beside) -> None:
        """Raises ``ConfigError`` if there is no such model or candidate, or one stands twice."""
        members = arch.members if isinstance(arch, Beside) else (arch,)
        if not members or len(set(members)) < len(members):
            raise ConfigError(f"architecture {arch}: name models and candidates each once")
        for member in members:
            if member.unit and member not in self.proposed:
                raise ConfigError(f"architecture {member}: has not been proposed")
            if not member.unit and member.number >= self.count:
                raise ConfigError(
                    f"architecture {member}: the sequence has the models 0 to {self.count - 1} as yet"
                )


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
        >>> from lit_fednas.supernets.width.cnn import SlicedCNN
        >>> sequence = PrunedSequence((3, 8, 8), 10, SlicedCNN((8, 16)))
        >>> cut = Cut("layer0", {"layer0": 2}, {"layer0": 6, "layer1": 16}, resource=0.0)
        >>> sequence.propose([cut])
        [Pruned(number=1, unit='layer0')]
        >>> str(sequence.select("layer0")), [str(arch) for arch in sequence.space.each()]
        ('model: 1', ['model: 1', 'model: 0'])
    """

    def __init__(
        self,
        input_shape: Iterable[int],
        num_classes: int,
        family: NetworkFamily,
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

    @property
    def default_eval_archs(self) -> tuple[str, ...]:
        """The initial model and the newest, by their numbers: a figure belongs to one model for ever."""
        return tuple(str(Pruned(number)) for number in sorted({0, len(self.models) - 1}))

    def sizes(self, arch: Pruned | UnitCounts) -> dict[str, int]:
        """The numbers of units of an architecture."""
        if isinstance(arch, UnitCounts):
            return dict(arch.sizes)
        self._space.validate(arch)
        return dict(self._proposed[arch] if arch.unit else self.models[arch.number].sizes)

    def build(self, arch: Pruned | UnitCounts | Beside) -> nn.Module:
        """The network of the architecture's numbers of units; several stand in a ``SideBySide``."""
        if isinstance(arch, Beside):
            return SideBySide([self.build(member) for member in arch.members])
        return self.prunable.build(self.sizes(arch))

    def index(self, arch: Pruned | UnitCounts | Beside) -> dict[str, Region]:
        """Each tensor is a whole tensor of its own network.

        Raises:
            ConfigError: It has no weights: it is a candidate that is gone, or one by its size alone.
        """
        if isinstance(arch, Beside):
            return {
                f"networks.{turn}.{name}": region
                for turn, member in enumerate(arch.members)
                for name, region in self.index(member).items()
            }
        where = self._where(arch)
        if where is None:
            raise ConfigError(f"architecture {arch}: has no weights, or none any more")
        network = self.get_submodule(where)
        names = [name for name, _ in [*network.named_parameters(), *network.named_buffers()]]
        return {name: Region(f"{where}.{name}") for name in names}

    def _index_of(self, arch: Pruned | UnitCounts | Beside, network: nn.Module) -> dict[str, Region]:
        without = not isinstance(arch, Beside) and self._where(arch) is None
        return {} if without else self.index(arch)

    def _where(self, arch: Pruned | UnitCounts) -> str | None:
        """The module that has an architecture's weights, if any."""
        if isinstance(arch, UnitCounts):
            return None
        if not arch.unit:
            self._space.validate(arch)
            return f"networks.{arch.number}"
        units = [cut.unit for cut in self.cuts]
        there = arch.number == len(self.models) and arch.unit in units
        return f"candidates.{units.index(arch.unit)}" if there else None

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
            network = self._unset(cut.sizes)
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

    def _unset(self, sizes: Mapping[str, int]) -> nn.Module:
        """A network with unset weights, like the initial one in dtype and device; draws no random numbers."""
        like = next(self.networks[0].parameters())
        with torch.device("meta"):
            network = self.prunable.build(sizes).to(like.dtype)
        return materialise(network, like.device)

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
        self._space = SequenceSpace(macs, self._archs_of_candidates(), self._proposed)

    def _macs_of(self, sizes: Mapping[str, int]) -> int:
        with torch.device("meta"):
            network = self.prunable.build(sizes)
        return count_macs(network, self.input_shape)

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
        self.models, self.networks = [first], nn.ModuleList([self.networks[0]])
        for row in structure["models"]:
            model = PrunedModel(len(self.models), row["unit"], dict(row["sizes"]), row["round"])
            self.models.append(model)
            self.networks.append(self._unset(model.sizes).train(self.training))
        self.cuts = [
            Cut(row["unit"], dict(row["removed"]), dict(row["sizes"]), row["resource"])
            for row in structure["candidates"]
        ]
        self.candidates = nn.ModuleList(self._unset(cut.sizes).train(self.training) for cut in self.cuts)
        self._proposed = {Pruned(row["number"], row["unit"]): dict(row["sizes"]) for row in structure["proposed"]}
        self._note_space()
