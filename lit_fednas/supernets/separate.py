"""Architectures that share nothing: each has weights of its own, side by side in one supernet.

FedHeN's baseline Decouple (Alg. 3) trains a simple and a complex model this way, and so does any comparison of
shared with independent weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from lit_fednas.errors import ConfigError
from lit_fednas.supernets.base import OutputsNetwork, Region, Supernet
from lit_fednas.supernets.space import Ladder, SearchSpace

_MOST = 64


@dataclass(frozen=True)
class Separate:
    """One of the networks, or several of them side by side.

    Attributes:
        members: Architectures, as the space of the shared weights has them.

    Example:
        >>> str(Separate(("exits: 2", "exits: 4")))
        'exits: 2 | exits: 4'
    """

    members: tuple[Any, ...]

    def __str__(self) -> str:
        return " | ".join(map(str, self.members))


class SeparateSpace(Ladder[Separate]):
    """The networks one by one; :meth:`parse` also knows several side by side.

    Args:
        space: Where the architectures are from.
        archs: The architectures, from the cheapest to the dearest.
    """

    refusal = "is several networks; name one"

    def __init__(self, space: SearchSpace[Any], archs: Sequence[Any]) -> None:
        self.space = space
        self.archs = tuple(archs)
        super().__init__([Separate((arch,)) for arch in self.archs])

    @property
    def superset(self) -> Separate:
        """All of them."""
        return Separate(self.archs)

    def parse(self, text: Any) -> Separate:
        """Reads architectures as their own space writes them, apart by ``|``, or a ``Separate``."""
        if isinstance(text, Separate):
            arch = text
        else:
            arch = Separate(tuple(self.space.named(word.strip()) for word in str(text).split("|")))
        self.validate(arch)
        return arch

    def validate(self, arch: Separate) -> None:
        """Raises ``ConfigError`` if a network is not there, stands twice, or they are out of order."""
        if not arch.members or [one for one in self.archs if one in arch.members] != list(arch.members):
            known = "; ".join(map(str, self.archs))
            raise ConfigError(f"architecture {arch}: give networks, each once and in this order, out of: {known}")


class SeparateNetworks(Supernet):
    """A supernet whose architectures do not share their weights.

    Args:
        input_shape: Shape of one example.
        num_classes: Classes.
        supernet: Makes the supernet whose architectures these are.
        archs: Architectures as its space writes them, or ``smallest`` or ``largest``; all of them if not given.

    Raises:
        ConfigError: An architecture stands twice, or there are too many.

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
        with torch.device("meta"):
            # only its structure; it is no submodule, for its weights are nobody's
            self._of = (supernet(self.input_shape, self.num_classes),)
        of = self._of[0]
        if archs is None:
            if of.space.size > _MOST:
                raise ConfigError(
                    f"supernet.archs: is null, and {type(of).__name__} has {of.space.size} architectures; name "
                    f"those that shall be trained, at most {_MOST}"
                )
            found = list(of.space.each())
        else:
            found = [of.space.named(arch) for arch in archs]
        if not found or len(set(found)) < len(found) or len(found) > _MOST:
            raise ConfigError(
                f"supernet.archs: {[str(arch) for arch in found]} must be 1 to {_MOST} architectures, each once"
            )
        self._space = SeparateSpace(of.space, sorted(found, key=of.macs))
        self.networks = nn.ModuleList(of.build(arch) for arch in self._space.archs)
        self.initialise(SideBySide(list(self.networks)))

    @property
    def space(self) -> SeparateSpace:
        """The networks."""
        return self._space

    def build(self, arch: Separate) -> nn.Module:
        """The network alone; several stand in a ``SideBySide``."""
        networks = [self._of[0].build(member) for member in arch.members]
        return networks[0] if len(networks) == 1 else SideBySide(networks)

    def index(self, arch: Separate) -> dict[str, Region]:
        """Each tensor is a whole tensor of its own network."""
        found = {}
        for turn, member in enumerate(arch.members):
            place = self._space.archs.index(member)
            network = self.networks[place]
            before = f"networks.{turn}." if len(arch.members) > 1 else ""
            for name, _ in [*network.named_parameters(), *network.named_buffers()]:
                found[before + name] = Region(f"networks.{place}.{name}")
        return found

    def initialise(self, network: nn.Module) -> None:
        """As the supernet whose architectures these are."""
        for one in network.networks if isinstance(network, SideBySide) else [network]:
            self._of[0].initialise(one)


class SideBySide(OutputsNetwork):
    """Several networks; its answer is that of the last."""

    def __init__(self, networks: Sequence[nn.Module]) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)

    def forward(self, x: Tensor) -> Tensor:
        """The last network's logits."""
        return self.networks[-1](x)

    def outputs(self, x: Tensor) -> list[Tensor]:
        """The logits of all, each ``[batch, num_classes]``."""
        return [network(x) for network in self.networks]
