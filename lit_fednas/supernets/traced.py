"""Any network as a family: which units belong together is found by following them through its graph."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd, prod
from typing import NamedTuple

import torch
from torch import fx, nn
from torch.fx.passes.shape_prop import ShapeProp
from torch.nn.modules import activation, dropout, pooling
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.conv import _ConvNd
from typing_extensions import override

from lit_fednas.costs.counting import meta_copy
from lit_fednas.errors import ConfigError
from lit_fednas.supernets.families import NetworkFamily, Sizes

_MIXING = {"MultiheadAttention", "GLU", "PReLU", "Softmax", "Softmax2d", "Softmin", "LogSoftmax"}
#: Layers and functions after which units are those before; of several inputs, the same units of each.
_ALIKE = {name for kinds in (activation, dropout, pooling) for name in kinds.__all__} - _MIXING
_ALIKE |= {"Identity", "Upsample", "add", "iadd", "sub", "isub", "mul", "imul", "truediv", "div", "relu", "relu_"}
_ALIKE |= {"relu6", "gelu", "silu", "hardswish", "hardsigmoid", "sigmoid", "tanh", "leaky_relu", "elu", "dropout"}
_ALIKE |= {"stochastic_depth", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "interpolate", "contiguous"}
_NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
_TENSORS = ("weight", "bias", "running_mean", "running_var")
_FLAT = {"Flatten", "flatten", "view", "reshape"}


class _Units:
    """Units that are cut together, of which there are ``count``; those that are never cut are one."""

    def __init__(self, count: int) -> None:
        self.name, self.count = "", count
        self.same: _Units | None = None

    def root(self) -> _Units:
        return self if self.same is None else self.same.root()

    def join(self, other: _Units) -> None:
        """Makes two the same; as many entries make a unit as the coarser one has."""
        first, second = self.root(), other.root()
        first.count = gcd(first.count, second.count)
        if second is not first:
            second.same = first

    def divide(self, count: int) -> None:
        """Keeps the entries together that ``count`` groups of a layer have; 1 keeps all."""
        self.root().count = gcd(self.root().count, count)


class _Axis(NamedTuple):
    """The dimension along which a tensor's units lie, and its entries."""

    dim: int
    units: _Units
    size: int


@dataclass
class _Traced:
    """A network whose units have been followed from layer to layer."""

    network: nn.Module  # on the meta device
    outputs: int = 0
    tensors: dict[str, dict[int, tuple[_Units, int]]] = field(default_factory=dict)  # units and entries by dimension
    settings: list[tuple[str, str, _Units, int]] = field(default_factory=list)  # layer, attribute, units, whole value
    made: dict[str, _Units] = field(default_factory=dict)  # outputs of convolutions and linear layers

    def __post_init__(self) -> None:
        every = [*self.network.named_parameters(remove_duplicate=False), *self.network.named_buffers()]
        times = Counter(id(tensor) for _, tensor in every)
        self.own = {path for path, tensor in every if times[id(tensor)] == 1}  # tensors that one layer has

    def has(self, path: str, dim: int, axis: _Axis) -> None:
        """Notes that a tensor has units; those of a tensor that is used twice are the same."""
        if path not in self.own:  # several layers have it, or it is computed from others
            axis.units.divide(1)
            return
        known, _ = self.tensors.setdefault(path, {}).setdefault(dim, (axis.units, axis.size))
        known.join(axis.units)

    def layer_has(self, layer: str, names: Sequence[str], dim: int, axis: _Axis) -> None:
        """Notes those of the tensors that the layer has."""
        module = self.network.get_submodule(layer)
        for name in names:
            if getattr(module, name, None) is not None:
                self.has(f"{layer}.{name}", dim, axis)

    def sized(self, layer: str, **values: _Axis) -> None:
        """Notes attributes of a layer that are numbers of entries."""
        self.settings += [(layer, name, axis.units, axis.size) for name, axis in values.items()]

    def units(self) -> dict[str, int]:
        """Returns all groups that can be cut, in the order of the layers, with their numbers of units."""
        roots = [units.root() for units in self.made.values()]
        return {root.name: root.count for root in roots if root.count > 1}

    def resize(self, network: nn.Module, sizes: Sizes) -> nn.Module:
        """Makes a copy of the network smaller, or larger on the meta device; the first units stay."""

        def resized(units: _Units, size: int) -> int:
            root = units.root()
            return size // root.count * sizes[root.name] if root.count > 1 else size

        for path, dims in self.tensors.items():
            layer, _, name = path.rpartition(".")
            module = network.get_submodule(layer)
            tensor = getattr(module, name)
            shape = [resized(*dims[dim]) if dim in dims else size for dim, size in enumerate(tensor.shape)]
            if tensor.is_meta:
                new = tensor.detach().new_empty(shape)
            else:
                new = tensor.detach()[tuple(map(slice, shape))].clone()
            setattr(module, name, nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new)
        for layer, name, units, size in self.settings:
            value = resized(units, size)
            setattr(network.get_submodule(layer), name, (value,) if name == "normalized_shape" else value)
        return network


@dataclass(frozen=True)
class TracedNetwork(NetworkFamily):
    """Any network that ``torch.fx`` can trace, of torchvision or of your own, to be cut in width or to lose filters.

    Groups of units are named by the first layer that makes them. Units are followed through convolutions, linear
    layers, norms, activations, pooling, sums and products, so that what is added up is cut alike, and grouped
    convolutions lose whole groups. What enters any other operation is never cut: the stream of a transformer stays
    whole while the hidden units of its blocks can be cut. A smaller network begins with the first units of the one that
    is given, pretrained or not. There are no scalers.

    Args:
        network: The network at its full width.

    Raises:
        ConfigError: The network cannot be traced, or nothing in it can be cut (when it is built).

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 10))
        >>> TracedNetwork(network).units((3, 8, 8))
        {'0': 8}
    """

    network: nn.Module

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        return _traced(self.network, tuple(input_shape)).units()

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        traced = _traced(self.network, tuple(input_shape))
        if traced.outputs != num_classes:
            raise ConfigError(
                f"supernet.family.network: {type(self.network).__name__} has {traced.outputs} outputs, and the data "
                f"{num_classes} classes; give it as many (num_classes of torchvision's networks)"
            )
        on_meta = torch.get_default_device().type == "meta"
        return traced.resize(meta_copy(self.network) if on_meta else copy.deepcopy(self.network), sizes)


@dataclass(frozen=True)
class UngroupedFamily(NetworkFamily):
    """A family with ordinary convolutions for grouped ones (FedTrans, App. A.1, for HeteroFL and SplitMix).

    Args:
        family: The networks.

    Example:
        >>> layers = nn.Conv2d(3, 8, 1), nn.Conv2d(8, 8, 3, groups=8), nn.Flatten(), nn.Linear(8, 10)
        >>> UngroupedFamily(TracedNetwork(nn.Sequential(*layers))).build({"0": 4}, (3, 3, 3), 10)[1]
        Conv2d(4, 4, kernel_size=(3, 3), stride=(1, 1))
    """

    family: NetworkFamily

    def __post_init__(self) -> None:
        object.__setattr__(self, "norm", self.family.norm)
        object.__setattr__(self, "input_dtype", self.family.input_dtype)

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        return self.family.units(input_shape)

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        network = self.family.build(sizes, input_shape, num_classes, scale)
        for module in network.modules():
            if isinstance(module, _ConvNd) and module.groups > 1:
                shape = (module.out_channels, module.in_channels, *module.kernel_size)
                module.groups, module.weight = 1, nn.Parameter(module.weight.new_empty(shape))
                module.reset_parameters()
        return network


class _Tracer(fx.Tracer):
    """Leaves layers whole that are subclasses of torch's, such as a norm with its activation."""

    @override
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, (_ConvNd, nn.Linear, *_NORMS)) or super().is_leaf_module(m, module_qualified_name)


@lru_cache(maxsize=4)
def _traced(network: nn.Module, input_shape: tuple[int, ...]) -> _Traced:
    """Follows the units of a network from its inputs to its outputs."""
    structure = meta_copy(network).eval()
    inputs = torch.zeros(2, *input_shape, device="meta")
    name = type(network).__name__
    try:
        structure(inputs)  # whose error says more, and prints nothing
        graph = _Tracer().trace(structure)
        ShapeProp(fx.GraphModule(structure, graph)).propagate(inputs)
    except Exception as error:  # whatever a network of somebody's own raises
        raise ConfigError(
            f"supernet.family.network: {name} cannot be traced for inputs of {list(input_shape)} "
            f"({type(error).__name__}: {str(error).partition(chr(10))[0]}); give one without branches that depend on "
            f"its inputs, or write a NetworkFamily for it"
        ) from error
    traced = _Traced(structure)
    axes: dict[fx.Node, _Axis | None] = {}
    for node in graph.nodes:
        if node.op == "output" and isinstance(node.args[0], fx.Node):
            traced.outputs = (_shape(node.args[0]) or (0,))[-1]
        axes[node] = _follow(traced, node, axes)
    for layer, units in reversed(traced.made.items()):
        units.root().name = layer  # in the end the first one's
    if not traced.units():
        raise ConfigError(f"supernet.family.network: nothing in {name} can be cut; write a NetworkFamily for it")
    try:
        traced.resize(meta_copy(network), dict.fromkeys(traced.units(), 1))(inputs)
    except Exception as error:
        raise ConfigError(
            f"supernet.family.network: {name} does not run when it is cut ({type(error).__name__}: "
            f"{str(error).partition(chr(10))[0]}); write a NetworkFamily for it"
        ) from error
    return traced


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    """Returns the shape of a node's result; ``None`` if it is not one tensor."""
    return getattr(node.meta.get("tensor_meta"), "shape", None)


def _follow(traced: _Traced, node: fx.Node, axes: Mapping[fx.Node, _Axis | None]) -> _Axis | None:
    """Returns where a node's result has units; what is not known here keeps those of its inputs whole."""
    inputs, shape = node.all_input_nodes, _shape(node)
    axis = next((axes[one] for one in inputs if axes[one]), None)
    name = getattr(node.target, "__name__", str(node.target))
    found = None
    if node.op == "call_module" and shape is not None:
        module = traced.network.get_submodule(str(node.target))
        name = type(module).__name__
        found = _layer(traced, str(node.target), module, axis, len(shape))
    if found is None and axis is not None and shape is not None:
        found = _function(traced, name, node, axis, shape, axes)
    if found is None and ("tensor_meta" in node.meta or node.op == "output"):  # of sizes alone nothing is changed
        for one in inputs:
            if (whole := axes[one]) is not None:
                whole.units.divide(1)
    return found


def _layer(traced: _Traced, layer: str, module: nn.Module, axis: _Axis | None, ndim: int) -> _Axis | None:
    """Returns where a layer's result has units, and notes which of its tensors have them."""
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    if any(name not in (*_TENSORS, "num_batches_tracked") for name, _ in tensors):
        return None  # a subclass that computes more than torch's layer
    if isinstance(module, _ConvNd | nn.Linear) and not getattr(module, "transposed", False):
        linear = isinstance(module, nn.Linear)
        dim = ndim - 1 if linear else 1
        into, out = ("in_features", "out_features") if linear else ("in_channels", "out_channels")
        if axis is not None and axis.dim != dim:
            axis.units.divide(1)
        groups = getattr(module, "groups", 1)
        if groups == 1:
            units = traced.made.setdefault(layer, _Units(getattr(module, out)))
            if axis is not None:
                traced.layer_has(layer, ["weight"], 1, axis)
        else:
            units = _Units(1) if axis is None else axis.units
            units.divide(groups)
            traced.sized(layer, groups=_Axis(dim, units, groups))
        found = _Axis(dim, units, getattr(module, out))
        traced.layer_has(layer, ["weight", "bias"], 0, found)
        traced.sized(layer, **{out: found}, **({into: axis} if axis is not None else {}))
        return found
    if axis is None or not isinstance(module, _NORMS):
        return None
    if not isinstance(module, nn.LayerNorm):
        dim = 1
    elif tuple(module.normalized_shape) != (axis.size,):
        return None
    else:  # a subclass, as torchvision's for images, may have them elsewhere
        dim = ndim - 1 if type(module) is nn.LayerNorm else axis.dim
    if axis.dim != dim:
        return None
    if isinstance(module, nn.GroupNorm) and module.num_groups > 1:
        axis.units.divide(module.num_groups)
        traced.sized(layer, num_groups=axis._replace(size=module.num_groups))
    traced.layer_has(layer, _TENSORS, 0, axis)
    counted = next(name for name in ("num_features", "num_channels", "normalized_shape") if hasattr(module, name))
    traced.sized(layer, **{counted: axis})
    return axis


def _function(
    traced: _Traced, name: str, node: fx.Node, axis: _Axis, shape: tuple[int, ...], axes: Mapping[fx.Node, _Axis | None]
) -> _Axis | None:
    """Returns where the result of an operation has units; ``None`` if it is not known."""
    before = _shape(node.all_input_nodes[0]) or ()
    if name in _ALIKE:
        return _alike(traced, node.all_input_nodes, axis, shape, axes)
    if name in _FLAT and axis.dim == 1 and shape == (before[0], prod(before[1:])):
        return axis._replace(size=shape[1])
    if name not in ("permute", "mean"):
        return None
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dims" if name == "permute" else "dim", ())
    several = given if isinstance(given, Sequence) else node.args[1:] if name == "permute" else [given]
    dims = [dim % len(before) for dim in several if isinstance(dim, int)]
    if name == "permute":
        return axis._replace(dim=dims.index(axis.dim))
    lost = dims if len(shape) < len(before) else []
    return None if axis.dim in dims or not dims else axis._replace(dim=axis.dim - sum(dim < axis.dim for dim in lost))


def _alike(
    traced: _Traced,
    inputs: Sequence[fx.Node],
    axis: _Axis,
    shape: tuple[int, ...],
    axes: Mapping[fx.Node, _Axis | None],
) -> _Axis | None:
    """Joins the units of all inputs of an operation that treats each unit alike; ``None`` if they do not lie alike."""
    reference = next(one for one in inputs if axes[one] is axis)
    place = axis.dim - len(_shape(reference) or ())  # from the end, as shapes are broadcast
    result = axis._replace(dim=len(shape) + place)
    if result.dim < 0 or shape[place] != axis.size:
        return None
    for one in inputs:
        size, other = _shape(one), axes[one]
        if size is None:
            continue
        spread = len(size) < -place or size[place] == 1
        if other is not None and other.dim - len(size) == place and not spread:
            axis.units.join(other.units)
        elif other is None and not spread and one.op == "get_attr":
            traced.has(str(one.target), len(size) + place, axis)
        elif other is not None or not spread:
            return None
    return result
