"""The transport of weights between the server and its clients, unchanged or in fewer bits.

The server sends weights down. A client sends the *change* up, its trained minus its received weights, so that rounding
is relative to the change. The server adds the change to its own weights, so that rounding on the way down is not
averaged into them. If neither direction packs, clients send their trained weights, equal to the bit. Random draws
belong to (seed, direction, round, client). A search by the clients (``lit_fednas.search``) does not pack weights.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.messages import ClientTask, nbytes
from lit_fednas.rng import generator

Tensors = Mapping[str, Tensor]

#: The name of the scales among packed tensors; names of a module's tensors do not begin with a dot.
SCALES = ".scales"
_LEVELS = 127  # int8 levels on each side of zero


class Packing(ABC):
    """A format of floating tensors with fewer bits; all other tensors are sent unchanged."""

    #: Bytes of an element, and of a tensor's scale, for :meth:`nbytes`.
    element_bytes: ClassVar[int]
    scale_bytes: ClassVar[int] = 0

    @abstractmethod
    def pack(self, tensors: Tensors, draws: torch.Generator) -> dict[str, Tensor]:
        """Returns the packed tensors; ``draws`` is a generator on their device for random rounding."""

    @abstractmethod
    def unpack(self, packed: Tensors, like: Tensors) -> dict[str, Tensor]:
        """Returns the unpacked tensors with names, shapes and types of ``like``; values of ``like`` are not read."""

    def nbytes(self, tensors: Iterable[Tensor]) -> int:
        """Returns the bytes that are sent; values are not read, so tensors may be on the meta device."""
        element, scale = self.element_bytes, self.scale_bytes
        return sum(element * tensor.numel() + scale if _is_packed(tensor) else nbytes([tensor]) for tensor in tensors)


@dataclass(frozen=True)
class Float16(Packing):
    """Half precision, rounded to the nearest: half the bytes.

    Values beyond the range become ±65504, and values below 3e-8 become 0. Values that are not finite do not change.

    Example:
        >>> half, tensors = Float16(), {"weight": torch.tensor([0.1, -1e6])}
        >>> half.unpack(half.pack(tensors, torch.Generator()), tensors)["weight"].tolist()
        [0.0999755859375, -65504.0]
    """

    element_bytes = 2

    @override
    def pack(self, tensors: Tensors, draws: torch.Generator) -> dict[str, Tensor]:
        top = torch.finfo(torch.float16).max
        packed = {name: tensors[name].detach() for name in _packed_names(tensors)}
        halves = {name: torch.where(x.isinf(), x, x.clamp(-top, top)).half() for name, x in packed.items()}
        return {**tensors, **halves}

    @override
    def unpack(self, packed: Tensors, like: Tensors) -> dict[str, Tensor]:
        return {name: packed[name].to(tensor.dtype) for name, tensor in like.items()}


@dataclass(frozen=True)
class Int8(Packing):
    """Multiples of a scale per tensor, rounded at random to keep the expectation: a quarter of the bytes.

    QSGD (Alistarh et al., 2017, 3.1) with 127 levels per tensor, and the greatest magnitude in place of the Euclidean
    norm. The scale, this magnitude / 127, is sent as float32. If an element is not finite, its
    whole tensor arrives not finite.

    Example:
        >>> tensors = {"weight": torch.tensor([-127.0, 3.25])}
        >>> Int8().pack(tensors, torch.Generator().manual_seed(0))
        {'weight': tensor([-127,    3], dtype=torch.int8), '.scales': tensor([1.])}
    """

    element_bytes = 1
    scale_bytes = 4

    @override
    def pack(self, tensors: Tensors, draws: torch.Generator) -> dict[str, Tensor]:
        names = _packed_names(tensors)
        sizes = [tensors[name].numel() for name in names]
        uniform = torch.rand(sum(sizes), generator=draws, device=draws.device).split(sizes)
        packed, scales = dict(tensors), []
        for name, random in zip(names, uniform, strict=True):
            numbers = tensors[name].detach().float()
            scales.append(numbers.abs().max() / _LEVELS)
            numbers = numbers / scales[-1]
            below = numbers.floor()
            up = random.view(numbers.shape) < numbers - below
            # NaN comes from a scale of 0, or from one that is not finite; then no element is finite at any level
            packed[name] = (below + up).clamp(-_LEVELS, _LEVELS).nan_to_num(0.0).to(torch.int8)
        return {**packed, SCALES: torch.stack(scales)}

    @override
    def unpack(self, packed: Tensors, like: Tensors) -> dict[str, Tensor]:
        scales = dict(zip(_packed_names(like), packed[SCALES], strict=True))
        tensors = {name: packed[name].float() * scales[name] if name in scales else packed[name] for name in like}
        return {name: tensors[name].to(tensor.dtype) for name, tensor in like.items()}


@dataclass(frozen=True)
class Transport:
    """The packing of weights down to the clients, and of changes up to the server.

    Args:
        down: Packing of the weights; ``None`` sends them unchanged.
        up: Packing of the changes; ``None`` sends them unchanged.

    Example:
        >>> transport, sent = Transport(up=Int8()), {"weight": torch.zeros(3), "count": torch.tensor(7)}
        >>> transport.nbytes(sent.values())
        (20, 15)
    """

    down: Packing | None = None
    up: Packing | None = None

    @property
    def exact(self) -> bool:
        """True if all tensors are sent unchanged."""
        return self.down is None and self.up is None

    def pack_down(self, weights: Tensors, seed: int, task: ClientTask) -> Tensors:
        """Returns the packed weights of the task's architecture."""
        return weights if self.down is None else self.down.pack(weights, _draws(weights, seed, "down", task))

    def unpack_down(self, packed: Tensors, like: Tensors) -> Tensors:
        """Returns the weights that a client has received; ``like`` has their names, shapes and types."""
        return packed if self.down is None else self.down.unpack(packed, like)

    @torch.no_grad()
    def pack_up(self, trained: Tensors, received: Tensors, seed: int, task: ClientTask) -> Tensors:
        """Returns a client's packed changes, or its trained weights if neither direction packs."""
        if self.exact:
            return trained
        change = {name: new - received[name] if new.is_floating_point() else new for name, new in trained.items()}
        return change if self.up is None else self.up.pack(change, _draws(change, seed, "up", task))

    @torch.no_grad()
    def unpack_up(self, packed: Tensors, weights: Tensors) -> Tensors:
        """Returns a client's trained weights; ``weights`` are the server's, which were packed for the client."""
        if self.exact:
            return packed
        change = packed if self.up is None else self.up.unpack(packed, weights)
        return {name: weights[name] + part if part.is_floating_point() else part for name, part in change.items()}

    def nbytes(self, tensors: Iterable[Tensor]) -> tuple[int, int]:
        """Returns the bytes down and up of an architecture's tensors without reading values."""
        tensors = list(tensors)
        down, up = (nbytes(tensors) if packing is None else packing.nbytes(tensors) for packing in (self.down, self.up))
        return down, up


def _draws(tensors: Tensors, seed: int, direction: str, task: ClientTask) -> torch.Generator:
    device = next(iter(tensors.values())).device
    return generator(seed, f"transport-{direction}", task.round, task.client, device=device)


def _is_packed(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and tensor.numel() > 0


def _packed_names(like: Tensors) -> list[str]:
    """Returns the names of the packed tensors, sorted: mappings of the same tensors may differ in their order."""
    return sorted(name for name, tensor in like.items() if _is_packed(tensor))
