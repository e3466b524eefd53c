"""The contract of the shared weights.

A supernet owns the global weights. For every architecture it builds the network (``build``) and returns the regions of
the shared tensors that the network uses (``index``). All else follows from these two: extraction (SuperFed's
G(W, arch)), super-imposition (M(W, arch, w)), overlap counts, running in place, and cost.
"""

import hashlib
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from operator import gt
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call
from typing_extensions import override

from lit_fednas.costs import Cost, count_macs, count_operations, count_parameters, peak_activation_bytes, sent_bytes
from lit_fednas.costs.counting import Layer, on_meta, read_layers
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.rng import isolated
from lit_fednas.supernets.families import shapes_of, tensors_of
from lit_fednas.supernets.layers import Residual
from lit_fednas.supernets.space import SearchSpace

T = TypeVar("T")

_CACHED_SKELETONS = 64
#: Costs of a module, from the module, the shape of one example and the type of the inputs (by default float32).
COUNTERS: dict[str, Callable[..., int]] = {
    "macs": count_macs,
    "operations": count_operations,
    "parameters": lambda module, *_: count_parameters(module),
    "bytes": lambda module, *_: sent_bytes(module),
    "activation_bytes": peak_activation_bytes,
}


@dataclass(frozen=True)
class Region:
    """The region of a supernet's tensor that a subnet's tensor occupies.

    Attributes:
        name: The supernet's parameter or buffer.
        index: An index per dimension: a slice, or an integer tensor where the elements are not adjacent. Several
            integer tensors must broadcast, as in ``(rows[:, None], columns[None, :])``; ``None`` for the whole tensor.
    """

    name: str
    index: tuple[slice | Tensor, ...] | None = None

    @property
    def is_view(self) -> bool:
        """``True`` if the region is a view: then adding to it in place changes the whole tensor."""
        return self.index is None or all(isinstance(part, slice) for part in self.index)

    def of(self, tensor: Tensor) -> Tensor:
        """Returns the region of a tensor: a view if :attr:`is_view`, else a copy."""
        return tensor if self.index is None else tensor[self.index]

    def add_to(self, tensor: Tensor, value: Tensor | float, scale: float = 1.0) -> None:
        """Adds ``scale * value`` to the region of a tensor, in place."""
        if self.is_view:
            self.of(tensor).add_(value, alpha=scale)
        else:
            tensor[self.index] += scale * value


@dataclass
class _Skeleton:
    """An architecture's network on the meta device, with its cached index, costs and shapes."""

    network: nn.Module
    index: dict[str, Region] | None = None
    costs: dict[str, int] = field(default_factory=dict)

    @cached_property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        return shapes_of(self.network)


class Supernet(nn.Module, ABC):
    """One network with weights that many architectures share.

    A subclass keeps the shared tensors as its parameters and buffers, sets :attr:`space` in its constructor, and
    implements :meth:`build` and :meth:`index`.

    Args:
        input_shape: Shape of one example, without the batch dimension.
        num_classes: Width of the output.

    Attributes:
        space: The architectures.
        input_dtype: Type of the inputs: float32, or int64 where they are tokens.
    """

    space: SearchSpace[Any]
    input_dtype: torch.dtype = torch.float32

    def __init__(self, input_shape: Iterable[int], num_classes: int) -> None:
        super().__init__()
        self.input_shape = tuple(int(size) for size in input_shape)
        self.num_classes = int(num_classes)
        if not self.input_shape or min(self.input_shape) < 1 or self.num_classes < 1:
            raise ConfigError(
                f"supernet: input_shape {list(self.input_shape)} and num_classes {num_classes} must be positive"
            )
        self._skeletons: OrderedDict[Any, _Skeleton] = OrderedDict()

    @abstractmethod
    def build(self, arch: Any) -> nn.Module:
        """Builds the architecture's network; the values of its weights do not matter (the device may be meta)."""

    @abstractmethod
    def index(self, arch: Any) -> dict[str, Region]:
        """Returns the region of each parameter and buffer of ``build(arch)`` in the supernet, by name."""

    def initialise(self, network: nn.Module) -> None:
        """Draws those initial weights of a built network that its layers do not draw themselves."""

    @property
    def fingerprint(self) -> dict[str, Any]:
        """The class, all tensors' shapes and the types of layers without tensors; a checkpoint must match them."""
        shapes = {name: list(shape) for name, shape in shapes_of(self).items()}
        leaves = [module for module in self.modules() if not any(True for _ in module.children())]
        kinds = {type(leaf).__name__ for leaf in leaves if not leaf.state_dict()}
        return {"class": type(self).__qualname__, "shapes": shapes, "layers": sorted(kinds)}

    def structure(self) -> dict[str, Any]:
        """Returns the changes of structure in training; a checkpoint needs them to rebuild the supernet."""
        return {}

    def restore(self, structure: Mapping[str, Any]) -> None:
        """Restores a :meth:`structure`, without weights; raises ``CheckpointError`` if another supernet wrote it."""
        if structure:
            raise CheckpointError(
                f"checkpoint: its supernet changed in training, and a {type(self).__name__} cannot; use the "
                f"model.supernet that the run was started with"
            )

    def digest(self) -> str:
        """Returns a hash of the values of all shared tensors, sixteen hexadecimal digits."""
        total = hashlib.blake2b(digest_size=8)
        for name, tensor in self.shared_tensors().items():
            total.update(name.encode())
            total.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
        return total.hexdigest()

    @property
    def default_eval_archs(self) -> tuple[str, ...]:
        """The architectures that are evaluated by default, as the space writes them."""
        return ("smallest", "largest") if self.space.size > 1 else ("largest",)

    def shared_tensors(self) -> dict[str, Tensor]:
        """Returns the global weights by name, parameters first, then buffers; they are not copied."""
        return tensors_of(self)

    def skeleton(self, arch: Any) -> nn.Module:
        """Returns the architecture's network on the meta device (shared between calls: do not change it)."""
        return self._skeleton(arch).network

    def regions(self, arch: Any) -> dict[str, Region]:
        """Like :meth:`index`, cached for recently used architectures."""
        skeleton = self._skeleton(arch)
        if skeleton.index is None:
            skeleton.index = self.index(arch)
        return skeleton.index

    def cost(self, arch: Any) -> Cost:
        """Returns the MACs per example, parameters, and bytes of the architecture."""
        return Cost(*(self.counted(name, arch) for name in ("macs", "parameters", "bytes")))

    def macs(self, arch: Any) -> int:
        """Returns the multiply-accumulates of one example."""
        return self.counted("macs", arch)

    def operations(self, arch: Any) -> int:
        """Returns FedorAS' count of one example's operations (``lit_fednas.costs.count_operations``)."""
        return self.counted("operations", arch)

    def counted(self, name: str, arch: Any) -> int:
        """Returns a cost for one example, by its name in :data:`COUNTERS`; a subclass may omit the dry run."""
        skeleton = self._skeleton(arch)
        if name not in skeleton.costs:
            skeleton.costs[name] = COUNTERS[name](skeleton.network, self.input_shape, self.input_dtype)
        return skeleton.costs[name]

    def layers(self, arch: Any) -> list[Layer]:
        """Returns the convolutions and linear layers, in the order in which they run."""
        return read_layers(self.skeleton(arch), self.input_shape, self.input_dtype)

    def views(self, arch: Any, shared: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Returns the architecture's tensors by their names in the subnet: views if regions allow it, else copies."""
        # Collecting the shared tensors takes longer than the views, so a caller may pass them.
        shared = self.shared_tensors() if shared is None else shared
        return {name: region.of(shared[region.name]) for name, region in self.regions(arch).items()}

    @torch.no_grad()
    def subnet(self, arch: Any) -> nn.Module:
        """Extracts the architecture as a standalone module with a copy of its weights: G(W, arch)."""
        network, views = self.empty_subnet(arch), self.views(arch)
        for name, tensor in tensors_of(network).items():
            tensor.copy_(views[name])
        return network.train(self.training)

    def empty_subnet(self, arch: Any) -> nn.Module:
        """Builds the architecture's network with unset weights, on the supernet's device."""
        device = next(iter(self.shared_tensors().values())).device
        return materialise(on_meta(self.build, arch), device)

    @torch.no_grad()
    def shrink_and_perturb(self, factor: float, seed: int) -> None:
        """Multiplies all parameters by a factor, and adds one minus the factor times fresh initial ones.

        Args:
            factor: The share of the present weights, from 0 to 1 (Ash and Adams, 2020, section 4: lambda).
            seed: The seed of the fresh weights, which are those of a new network with this seed.
        """
        superset = self.space.superset
        with isolated(seed, "shrink-and-perturb"):
            fresh = self.build(superset)
            self.initialise(fresh)
        regions, shared = self.regions(superset), self.shared_tensors()
        for name, value in fresh.named_parameters():
            whole, index = shared[regions[name].name], regions[name].index
            if whole.requires_grad:  # frozen weights stay
                whole[... if index is None else index] = regions[name].of(whole).lerp(value.to(whole), 1 - factor)

    @torch.no_grad()
    def keep_function(self, arch: Any) -> None:
        """Makes all larger architectures compute this one's outputs, except for dropout and scalers in training.

        Weights from new inputs to old outputs become zero, and so do all parameters of the last layer in a new
        residual block. A norm over a width that grows (layer norm) still changes the outputs.
        """
        regions, shared = self.regions(arch).values(), self.shared_tensors()
        for name, index in ((region.name, region.index) for region in regions):
            if index is not None and shared[name].requires_grad:
                old = shared[name][index].clone()
                shared[name][index[0]] = 0  # dimension 0 holds a layer's outputs; embeddings lose all new columns
                shared[name][index] = old
        for path, block in self.named_modules():
            if isinstance(block, Residual) and not any(region.name.startswith(f"{path}.") for region in regions):
                last = [layer for layer in block.block.modules() if [*layer.parameters(recurse=False)]][-1]
                for weight in last.parameters(recurse=False):
                    weight.zero_()

    def forward(self, x: Tensor, arch: Any = None) -> Tensor:
        """Runs an architecture (by default the largest) in place: its weights are views of the shared tensors.

        Returns:
            Logits, ``[batch, num_classes]``, of a batch, ``[batch, *input_shape]``.
        """
        arch = self.space.largest if arch is None else arch
        return self.run(arch, self.views(arch), x, self.training)

    def run(self, arch: Any, weights: Mapping[str, Tensor], x: Tensor, training: bool = False) -> Tensor:
        """Runs an architecture, as :meth:`forward` does, with the given tensors by their names in the subnet."""
        skeleton = self._skeleton(arch)
        if skeleton.network.training != training:
            skeleton.network.train(training)
        return functional_call(skeleton.network, dict(weights), (x,), tie_weights=True)

    def run_inside(self, network: nn.Module, arch: Any, x: Tensor) -> Tensor:
        """Runs an architecture with the first units of a client's network, in that network's mode.

        Gradients flow into the network's tensors, and running statistics change in place. Before a call under
        ``torch.func.vmap``, compute the architecture's cost once: building its network draws random numbers.

        Args:
            network: A subnet, as a client trains it.
            arch: The architecture to run.
            x: Inputs, ``[batch, *input_shape]``.

        Returns:
            Logits, ``[batch, num_classes]``.

        Raises:
            ConfigError: The network does not contain the architecture.
        """
        tensors, inner = tensors_of(network), {}
        for name, shape in self._skeleton(arch).shapes.items():
            client_shape = tensors[name].shape if name in tensors else None
            if client_shape is None or len(client_shape) != len(shape) or any(map(gt, shape, client_shape)):
                size = "none" if client_shape is None else list(client_shape)
                raise ConfigError(
                    f"architecture {arch}: needs {name} of {list(shape)}, and the client's network has {size}; "
                    f"run an architecture that the network contains"
                )
            inner[name] = tensors[name][tuple(map(slice, shape))]
        return self.run(arch, inner, x, network.training)

    def _skeleton(self, arch: Any) -> _Skeleton:
        def make() -> _Skeleton:
            return _Skeleton(on_meta(self.build, arch))

        return recent(self._skeletons, arch, _CACHED_SKELETONS, make)


def recent(cache: OrderedDict[Any, T], key: Any, capacity: int, make: Callable[[], T]) -> T:
    """Returns the cached value of a key, or makes it; a full cache drops the least recently used value."""
    if key not in cache:
        while len(cache) >= capacity:
            cache.popitem(last=False)
        cache[key] = make()
    cache.move_to_end(key)
    return cache[key]


class OutputsNetwork(nn.Module, ABC):
    """A network with several outputs (early exits, or networks side by side); ``forward`` returns the last one."""

    @abstractmethod
    def outputs(self, x: Tensor) -> list[Tensor]:
        """Returns all outputs of one pass that an objective may train, each ``[batch, num_classes]``."""


class NestedSupernet(Supernet):
    """A supernet in which each architecture keeps the *first* channels and *first* blocks of the largest one.

    A subclass sets :attr:`space` and :attr:`network` in its constructor and implements :meth:`build`. A subnet's
    tensor is the corner of the tensor of the same name.

    Attributes:
        network: The shared weights: the network of the space's superset.

    Example:
        >>> from lit_fednas.supernets import Ladder
        >>> class WideOrNarrow(NestedSupernet):
        ...     def __init__(self, input_shape, num_classes):
        ...         super().__init__(input_shape, num_classes)
        ...         self.space = Ladder([8, 16])  # hidden units
        ...         self.network = self.build(self.space.superset)
        ...
        ...     def build(self, arch):
        ...         return nn.Sequential(nn.Flatten(), nn.Linear(64, arch), nn.Linear(arch, self.num_classes))
        >>> WideOrNarrow((1, 8, 8), 10).cost(8).parameters
        610
    """

    network: nn.Module

    @override
    def index(self, arch: Any) -> dict[str, Region]:
        shared, regions = self.shared_tensors(), {}
        for name, shape in self._skeleton(arch).shapes.items():
            whole = shared[f"network.{name}"].shape == shape
            regions[name] = Region(f"network.{name}", None if whole else tuple(slice(0, size) for size in shape))
        return regions


def he_normal(network: nn.Module) -> None:
    """Draws the weights of all convolutions as He et al. (2015) do, scaled by the number of outputs."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")


def materialise(network: nn.Module, device: torch.device) -> nn.Module:
    """Allocates unset memory for a network on the meta device, in place, ten times as fast as ``to_empty``."""
    copies: dict[int, Any] = {}  # new tensors by the old ones' ids, because modules may share a tensor
    for module in network.modules():
        for tensors in (module._parameters, module._buffers):
            for name, tensor in tensors.items():
                if tensor is not None:
                    unset = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=device)
                    if isinstance(tensor, nn.Parameter):
                        unset = nn.Parameter(unset, tensor.requires_grad)
                    tensors[name] = copies.setdefault(id(tensor), unset)
    return network
