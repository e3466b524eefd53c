"""Networks side by side in one supernet, each with its own weights.

They are fixed (:class:`SeparateNetworks`, :class:`BaseNetworks`), or added during training (:class:`ModelCollection`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isclose
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.costs.counting import on_meta
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.ranges import PositiveInt, PositiveShare, checked
from lit_fednas.supernets.base import OutputsNetwork, Region, Supernet, materialise
from lit_fednas.supernets.early_exit import EarlyExitResNet
from lit_fednas.supernets.families import NetworkFamily, multiply_units, tensors_of
from lit_fednas.supernets.space import Ladder, Subset, SubsetSpace
from lit_fednas.supernets.widths import WidthSupernet

_MAX_SIZE = 64


@dataclass(frozen=True)
class Members:
    """The architectures of several networks of a collection."""

    members: tuple[Any, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.members))


def members_of(arch: Any) -> tuple[Any, ...]:
    """Returns the single architectures in an architecture of a collection."""
    return arch.members if isinstance(arch, Members) else (arch,)


class SideBySide(OutputsNetwork):
    """Several networks that run on the same input."""

    def __init__(self, networks: Iterable[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the last network's logits, ``[batch, num_classes]``."""
        return self.networks[-1](x)

    @override
    def outputs(self, x: Tensor) -> list[Tensor]:
        return [network(x) for network in self.networks]


class MemberSpace(Ladder[Any]):
    """Single networks as rungs; :meth:`read` also accepts several as :class:`Members`, and removed ones."""

    refusal = "cannot be searched; name one model"

    def __init__(
        self,
        read: Callable[[Any], Any],
        rungs: Sequence[Any],
        members: Sequence[Any] | None = None,
        removed: Iterable[Any] = (),
    ) -> None:
        super().__init__(rungs)
        self._read_member = read
        self.members = self.rungs if members is None else tuple(members)
        self._all_members = tuple(dict.fromkeys([*self.members, *removed]))

    @property
    @override
    def superset(self) -> Any:
        return self.members[0] if len(self.members) == 1 else Members(self.members)

    @override
    def read(self, text: Any) -> Any:
        """Reads one architecture, or several separated by ``|``."""
        parts = [part.strip() for part in text.split("|")] if isinstance(text, str) else members_of(text)
        members = tuple(map(self._read_member, parts))
        return members[0] if len(members) == 1 else Members(members)

    @override
    def validate(self, arch: Any) -> None:
        members = members_of(arch)
        if not members or [member for member in self._all_members if member in members] != list(members):
            networks = "; ".join(map(str, self.members))
            raise ConfigError(f"architecture {arch}: must be distinct networks in this order; choose from {networks}")


class NetworkCollection(Supernet):
    """A supernet of networks that share no weights; an architecture is one network, or several as :class:`Members`.

    A subclass sets :attr:`networks`, which hold the weights, and implements :meth:`build_member` and :meth:`location`.
    """

    networks: nn.ModuleList

    @abstractmethod
    def build_member(self, member: Any) -> nn.Module:
        """Builds the network of one architecture; the values of its weights do not matter."""

    @abstractmethod
    def location(self, member: Any) -> str:
        """Returns the path of the submodule with an architecture's weights; raises ``ConfigError`` without any."""

    @override
    def build(self, arch: Any) -> nn.Module:
        networks = [self.build_member(member) for member in members_of(arch)]
        return SideBySide(networks) if isinstance(arch, Members) else networks[0]

    @override
    def index(self, arch: Any) -> dict[str, Region]:
        regions = {}
        for number, member in enumerate(members_of(arch)):
            location = self.location(member)
            prefix = f"networks.{number}." if isinstance(arch, Members) else ""
            for name in tensors_of(self.get_submodule(location)):
                regions[prefix + name] = Region(f"{location}.{name}")
        return regions


class SeparateNetworks(NetworkCollection):
    """The architectures of another supernet, with separate weights, as in FedHeN's baseline Decouple (Alg. 3).

    Args:
        input_shape: Shape of one example.
        num_classes: Number of classes.
        supernet: Builds the other supernet, with at most 64 architectures.

    Example:
        >>> from lit_fednas.supernets.early_exit import EarlyExitResNet
        >>> net = SeparateNetworks((3, 16, 16), 10, lambda *shape: EarlyExitResNet(*shape, width=8))
        >>> net.cost(net.space.superset).parameters == sum(
        ...     net.cost(arch).parameters for arch in (net.space.smallest, net.space.largest)
        ... )
        True
    """

    def __init__(
        self,
        input_shape: Iterable[int],
        num_classes: int,
        supernet: Callable[[tuple[int, ...], int], Supernet],
    ) -> None:
        super().__init__(input_shape, num_classes)
        template = on_meta(supernet, self.input_shape, self.num_classes)
        self._template = (template,)  # in a tuple, so that it is not a submodule
        self.input_dtype = template.input_dtype
        if template.space.size > _MAX_SIZE:
            raise ConfigError(f"supernet: {template.space.size} architectures exceed {_MAX_SIZE}; give fewer choices")
        members = sorted(template.space.each(), key=template.macs)
        self.space: MemberSpace = MemberSpace(template.space.named, members)
        self.networks = nn.ModuleList(map(template.build, members))
        self.initialise(SideBySide(self.networks))

    @override
    def build_member(self, member: Any) -> nn.Module:
        return self._template[0].build(member)

    @override
    def location(self, member: Any) -> str:
        return f"networks.{self.space.members.index(member)}"

    @override
    def initialise(self, network: nn.Module) -> None:
        for member in network.networks if isinstance(network, SideBySide) else [network]:
            self._template[0].initialise(member)


class SeparateExits(SeparateNetworks):
    """:class:`SeparateNetworks` of an :class:`EarlyExitResNet`, with the same settings."""

    def __init__(self, input_shape: Iterable[int], num_classes: int, **settings: Any) -> None:
        super().__init__(input_shape, num_classes, lambda *shape: EarlyExitResNet(*shape, **settings))


class SeparateWidths(SeparateNetworks):
    """:class:`SeparateNetworks` of a :class:`WidthSupernet`, with the same settings."""

    def __init__(self, input_shape: Iterable[int], num_classes: int, **settings: Any) -> None:
        super().__init__(input_shape, num_classes, lambda *shape: WidthSupernet(*shape, **settings))


class Bases(Subset, Members):
    """The numbers of some base networks. All have the same structure, so a search considers the first ones.

    Example:
        >>> space = SubsetSpace(Bases, range(4))
        >>> space.size, str(space.smallest), str(space.decode([2])), str(space.parse("bases: 1,3"))
        (4, 'bases: 0', 'bases: 0,1,2', 'bases: 1,3')
    """

    word = "bases"


class BaseSpace(SubsetSpace[Bases]):
    """Base networks; :meth:`read` also accepts ``width: 0.5``, the first networks with this share of the width."""

    @override
    def read(self, text: Any) -> Bases:
        word, _, share = str(text).partition(":")
        if word.strip() != "width" or not share.replace(".", "", 1).strip().isdecimal():
            return super().read(text)
        return self.first(_bases_of(float(share), len(self.numbers), "architecture"))


class Mix(SideBySide):
    """Base networks side by side; ``forward`` returns the mean of their logits."""

    @override
    def forward(self, x: Tensor) -> Tensor:
        return torch.stack(self.outputs(x)).mean(0)


@checked("supernet")
class BaseNetworks(NetworkCollection):
    """A wide network as independent narrow ones, each with one ``count``-th of a family's units (SplitMix).

    After Hong, Wang, Wang and Zhou (2022, "Efficient Split-Mix Federated Learning for On-Demand and In-Situ
    Customization", ICLR): base networks share neither weights nor norms, and a network of any width is an ensemble of
    them, with averaged logits. Units per base network are rounded up to the family's multiple. The publication's dual
    batch norms, against adversarial examples, are left out.

    Args:
        input_shape: Shape of one example.
        num_classes: Number of classes.
        family: The family of the wide network, which also builds the narrow ones.
        count: Number of base networks, up to the units of the widest group; by default 1 over the narrowest width.
        widths: Shares of the whole width that are evaluated by default, as in a ``WidthSupernet``; multiples of
            ``1 / count``.

    Example:
        >>> from lit_fednas.supernets.sliced import SlicedCNN
        >>> net = BaseNetworks((3, 8, 8), 10, SlicedCNN((8, 16)), count=4)
        >>> net(torch.zeros(2, 3, 8, 8), Bases((1, 3))).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        input_shape: Iterable[int],
        num_classes: int,
        family: NetworkFamily,
        count: PositiveInt | None = None,
        widths: Sequence[PositiveShare] | None = None,
    ) -> None:
        super().__init__(input_shape, num_classes)
        if count is None and not widths:
            raise ConfigError("supernet.count: is null without widths; give the number of base networks")
        self.family = family
        self.input_dtype = family.input_dtype
        self.widths = sorted(widths or ())
        self.count = round(1 / self.widths[0]) if count is None else int(count)
        units = family.units(self.input_shape)
        widest = max(units.values())
        if self.count > widest:
            raise ConfigError(
                f"supernet.count: {self.count} base networks are more than the units of the widest layer, {widest}; "
                f"lower it, or raise the smallest of supernet.widths"
            )
        self._sizes = multiply_units(units, 1 / self.count, family.multiple)
        self.space = BaseSpace(Bases, range(self.count))
        for width in self.widths:
            _bases_of(width, self.count, "supernet.widths")
        self.networks = nn.ModuleList(map(self.build_member, range(self.count)))

    @property
    @override
    def default_eval_archs(self) -> tuple[str, ...]:
        return tuple(f"width: {width:g}" for width in self.widths) or super().default_eval_archs

    @override
    def build_member(self, member: int) -> nn.Module:
        return self.family.build(self._sizes, self.input_shape, self.num_classes)

    @override
    def location(self, member: int) -> str:
        return f"networks.{member}"

    @override
    def build(self, arch: Bases) -> Mix:
        return Mix(map(self.build_member, arch.members))


def _bases_of(width: float, count: int, field: str) -> int:
    """Returns the number of base networks that together have a share of the whole width."""
    bases = round(width * count)
    if not 1 <= bases <= count or not isclose(bases, width * count, rel_tol=1e-4):
        raise ConfigError(
            f"{field}: {width:g} is not a share of whole base networks; give a multiple of 1/{count} up to 1"
        )
    return bases


@dataclass(frozen=True, order=True)
class Model:
    """A numbered model of a collection, or a candidate for one.

    Example:
        >>> str(Model(3)), str(Model(3, "conv2"))
        ('model: 3', 'candidate: 3 conv2')
    """

    number: int  # 0 is the initial model; a candidate has the number of the model that it may become
    unit: str = ""  # a candidate's group that has lost filters; empty for a model

    def __str__(self) -> str:
        return f"candidate: {self.number} {self.unit}" if self.unit else f"model: {self.number}"

    @classmethod
    def read(cls, text: Any) -> Model:
        """Reads ``model: 3``, a number, ``candidate: 3 conv2``, or a ``Model``."""
        if isinstance(text, cls):
            return text
        kind, colon, rest = str(text).partition(":")
        number, _, unit = (rest if colon else kind).strip().partition(" ")
        if not number.isdecimal() or (colon and kind != ("candidate" if unit else "model")):
            raise ConfigError(f"architecture: {text!r} cannot be read; write it as 'model: 0'")
        return Model(int(number), unit)


class ModelCollection(NetworkCollection):
    """Numbered models; more are added during training."""

    #: The kind of collection, in metrics and files.
    KIND: ClassVar[str]
    space: MemberSpace
    #: A record for each model, with its ``number`` and the ``round`` in which it was added.
    models: list[Any]

    @abstractmethod
    def details(self, model: Any) -> dict[str, Any]:
        """Returns a model's columns in :meth:`model_rows`, except its number and costs."""

    def model_rows(self) -> list[dict[str, Any]]:
        """Returns a row per model: number, :meth:`details`, MACs, parameters and bytes."""
        return [
            {"number": model.number, **self.details(model), **vars(self.cost(Model(model.number)))}
            for model in self.models
        ]

    @override
    def location(self, member: Model) -> str:
        return f"networks.{member.number}"

    def update_space(self, candidates: Sequence[Model] = (), removed: Iterable[Model] = ()) -> None:
        """Sets the space to all models by MACs, plus candidates and removed networks for clients' results."""
        self._skeletons.clear()
        models = [Model(model.number) for model in self.models]
        space = partial(MemberSpace, Model.read, members=[*models, *candidates], removed=removed)
        self.space = space(models)  # needed to build the models and count their MACs
        self.space = space(sorted(models, key=self.order))

    def order(self, model: Model) -> tuple[int, int]:
        """Returns the sort key of a model: MACs, then number."""
        return self.macs(model), model.number

    def _unset(self, build: Callable[..., nn.Module], *args: Any) -> nn.Module:
        """Builds a network with unset weights and the initial one's dtype, device and mode; draws nothing."""
        reference = next(self.networks[0].parameters())
        return materialise(on_meta(build, *args).to(reference.dtype), reference.device).train(self.training)

    def _validate_initial(self, saved: Any, initial: Any) -> None:
        """Raises ``CheckpointError`` if the saved initial model is not this one."""
        if saved != initial:
            raise CheckpointError(
                f"checkpoint: its {self.KIND} of models began with {saved}, model.supernet.family with {initial}; "
                f"use the settings that the run was started with"
            )
