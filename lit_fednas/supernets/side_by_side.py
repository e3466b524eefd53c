"""Networks side by side in one supernet, each with weights of its own.

They are fixed (:class:`SeparateNetworks`, ``BaseNetworks``), or added during training (:class:`ModelCollection`).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.costs import count_macs
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.supernets.base import OutputsNetwork, Region, Supernet, materialise
from lit_fednas.supernets.early_exit import EarlyExitResNet
from lit_fednas.supernets.families import tensors_of
from lit_fednas.supernets.space import Ladder
from lit_fednas.supernets.widths import WidthSupernet

_MOST = 64


@dataclass(frozen=True)
class Members:
    """Several networks of a collection, by each one's architecture."""

    members: tuple[Any, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.members))


def members_of(arch: Any) -> tuple[Any, ...]:
    """Returns the networks that an architecture of a collection names."""
    return arch.members if isinstance(arch, Members) else (arch,)


class SideBySide(OutputsNetwork):
    """Several networks with the same input."""

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
    """Single networks as the rungs; :meth:`parse` also reads several, and removed ones, as :class:`Members`."""

    refusal = "is not one network that can be searched; name one model"

    def __init__(
        self,
        read: Callable[[Any], Any],
        rungs: Sequence[Any],
        members: Sequence[Any] | None = None,
        removed: Iterable[Any] = (),
    ) -> None:
        super().__init__(rungs)
        self.read = read
        self.members = self.rungs if members is None else tuple(members)
        self._known = tuple(dict.fromkeys([*self.members, *removed]))

    @property
    @override
    def superset(self) -> Any:
        return self.members[0] if len(self.members) == 1 else Members(self.members)

    @override
    def parse(self, text: Any) -> Any:
        """Reads one architecture, or several separated by ``|``."""
        parts = [part.strip() for part in text.split("|")] if isinstance(text, str) else members_of(text)
        members = tuple(map(self.read, parts))
        arch = members[0] if len(members) == 1 else Members(members)
        self.validate(arch)
        return arch

    @override
    def validate(self, arch: Any) -> None:
        members = members_of(arch)
        if not members or [one for one in self._known if one in members] != list(members):
            raise ConfigError(
                f"architecture {arch}: name networks, each once and in this order, out of: "
                f"{'; '.join(map(str, self.members))}"
            )


class NetworkCollection(Supernet):
    """A supernet of networks that share no weights; an architecture is one of them, or several as :class:`Members`.

    A subclass sets :attr:`networks`, the weights, and implements :meth:`build_member` and :meth:`location`.
    """

    networks: nn.ModuleList

    @abstractmethod
    def build_member(self, member: Any) -> nn.Module:
        """Builds the network of one architecture; its weights' values do not matter."""

    @abstractmethod
    def location(self, member: Any) -> str:
        """Returns the submodule that has the weights of one architecture; raises ``ConfigError`` if none has."""

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
    """Architectures of another supernet, without shared weights, as in FedHeN's baseline Decouple (Alg. 3).

    Args:
        input_shape: Shape of one example.
        num_classes: Classes.
        supernet: Makes the other supernet.
        archs: At most 64 architectures as its space writes them, or ``smallest`` or ``largest``; all if not given.

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
        archs: Sequence[str] | None = None,
    ) -> None:
        super().__init__(input_shape, num_classes)
        with torch.device("meta"):  # only its structure
            template = supernet(self.input_shape, self.num_classes)
        self._template = (template,)  # in a tuple, so that it is not a submodule
        self.input_dtype = template.input_dtype
        if archs is None and template.space.size > _MOST:
            raise ConfigError(
                f"supernet.archs: is null, and {type(template).__name__} has {template.space.size} architectures; "
                f"name those to train, at most {_MOST}"
            )
        given = template.space.each() if archs is None else map(template.space.named, archs)
        members = sorted(given, key=template.macs)
        if not members or len(set(members)) < len(members) or len(members) > _MOST:
            raise ConfigError(
                f"supernet.archs: {[str(arch) for arch in members]} must be 1 to {_MOST} architectures, each once"
            )
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

    @override
    def targets(self, arch: Any, classes: Tensor) -> Tensor:
        return self._template[0].targets(members_of(arch)[-1], classes)


class SeparateExits(SeparateNetworks):
    """:class:`SeparateNetworks` of an :class:`EarlyExitResNet`, in whose place configurations name it."""

    def __init__(self, input_shape: Iterable[int], num_classes: int, **settings: Any) -> None:
        super().__init__(input_shape, num_classes, lambda *shape: EarlyExitResNet(*shape, **settings))


class SeparateWidths(SeparateNetworks):
    """:class:`SeparateNetworks` of a :class:`WidthSupernet`, in whose place configurations name it."""

    def __init__(self, input_shape: Iterable[int], num_classes: int, **settings: Any) -> None:
        super().__init__(input_shape, num_classes, lambda *shape: WidthSupernet(*shape, **settings))


@dataclass(frozen=True, order=True)
class Model:
    """A numbered model of a collection, or a candidate for one.

    Attributes:
        number: The model's, from 0 (the initial one); a candidate's is that of the model that it may become.
        unit: The unit of which a candidate has lost filters; empty for a model.

    Example:
        >>> str(Model(3)), str(Model(3, "conv2"))
        ('model: 3', 'candidate: 3 conv2')
    """

    number: int
    unit: str = ""

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
    """Numbered models, to which others are added while they are trained."""

    #: The name of the kind of collection, in metrics and files.
    KIND: ClassVar[str]
    space: MemberSpace
    #: For each model a record with its ``number`` and the ``round`` in which it was added.
    models: list[Any]

    @abstractmethod
    def details(self, model: Any) -> dict[str, Any]:
        """Returns the columns of a table of :attr:`models` besides a model's number and costs."""

    def model_rows(self) -> list[dict[str, Any]]:
        """Returns a table of all models, a row each: number, :meth:`details`, MACs, parameters and bytes."""
        return [
            {"number": model.number, **self.details(model), **vars(self.cost(Model(model.number)))}
            for model in self.models
        ]

    @override
    def location(self, member: Model) -> str:
        return f"networks.{member.number}"

    def _count_macs(self, build: Callable[[], nn.Module]) -> int:
        with torch.device("meta"):
            return count_macs(build(), self.input_shape)

    def _unset(self, build: Callable[[], nn.Module]) -> nn.Module:
        """Builds a network with unset weights, like the initial one in dtype, device and mode; draws nothing."""
        like = next(self.networks[0].parameters())
        with torch.device("meta"):
            network = build().to(like.dtype)
        return materialise(network, like.device).train(self.training)

    def _validate_initial(self, saved: Any, initial: Any) -> None:
        """Raises ``CheckpointError`` if a saved structure began with another initial model."""
        if saved != initial:
            raise CheckpointError(
                f"checkpoint: its {self.KIND} of models began with {saved}, model.supernet.family with {initial}; "
                f"use the settings that the run was started with"
            )
