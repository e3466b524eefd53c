"""Any network as a family: which units belong together is found by following them through its graph."""

from __future__ import annotations

import copy
import inspect
import io
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import dataclass, field
from math import gcd, prod, sqrt
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
_ALIKE |= {"stochastic_depth", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "interpolate"}
_ALIKE |= {"mish", "softplus", "selu", "celu", "hardtanh", "add_", "mul_", "clamp", "abs", "exp", "contiguous"}
_NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
_TENSORS = ("weight", "bias", "running_mean", "running_var")
_RESHAPED = {"Flatten", "flatten", "view", "reshape", "squeeze", "unsqueeze"}


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

    def resized(self, entries: int, sizes: Sizes) -> int:
        """Returns how many of the entries are left in a network of these sizes."""
        root = self.root()
        return entries // root.count * sizes[root.name] if root.count > 1 else entries


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
    tensors: dict[tuple[str, int], tuple[_Units, int]] = field(default_factory=dict)  # path, dimension: units, entries
    settings: dict[tuple[str, str], tuple[_Units, int]] = field(default_factory=dict)  # layer, attribute: the same
    made: dict[str, _Units] = field(default_factory=dict)  # outputs of convolutions and linear layers
    followed: set[tuple[fx.Node, fx.Node]] = field(default_factory=set)  # tensors of no layer, and who reads them

    def __post_init__(self) -> None:
        every = [*self.network.named_parameters(remove_duplicate=False), *self.network.named_buffers()]
        times = Counter(id(tensor) for _, tensor in every)
        self.own = {path for path, tensor in every if times[id(tensor)] == 1}  # tensors that one layer has

    def has(self, path: str, dim: int, axis: _Axis) -> None:
        """Notes that a tensor has units; those of a tensor that is used twice are the same."""
        self.tensors.setdefault((path, dim), (axis.units, axis.size))[0].join(axis.units)
        if path not in self.own:  # several layers have it, or it is computed from others
            self.keep_whole(path)

    def layer_has(self, layer: str, names: Sequence[str], dim: int, axis: _Axis) -> None:
        """Notes those of the tensors that the layer has."""
        module = self.network.get_submodule(layer)
        for name in names:
            if getattr(module, name, None) is not None:
                self.has(f"{layer}.{name}", dim, axis)

    def sized(self, layer: str, **values: _Axis) -> None:
        """Notes attributes of a layer that are numbers of entries."""
        for name, axis in values.items():
            self.settings.setdefault((layer, name), (axis.units, axis.size))[0].join(axis.units)

    def keep_whole(self, path: str) -> None:
        """Notes that a tensor is never cut."""
        for (known, _), (units, _) in self.tensors.items():
            if known == path:
                units.divide(1)

    def units(self) -> dict[str, int]:
        """Returns all groups that can be cut, in the order of the layers, with their numbers of units."""
        roots = [units.root() for units in self.made.values()]
        return {root.name: root.count for root in roots if root.count > 1}

    def resize(self, network: nn.Module, sizes: Sizes) -> nn.Module:
        """Makes a copy of the network smaller, or larger on the meta device; the first units stay."""
        shapes: dict[str, dict[int, int]] = {}
        for (path, dim), (units, size) in self.tensors.items():
            shapes.setdefault(path, {})[dim] = units.resized(size, sizes)
        for path, dims in shapes.items():
            layer, _, name = path.rpartition(".")
            module = network.get_submodule(layer)
            tensor = getattr(module, name)
            shape = [dims.get(dim, size) for dim, size in enumerate(tensor.shape)]
            if path not in self.own or shape == list(tensor.shape):
                continue
            data = tensor.detach()
            new = data.new_empty(shape) if data.is_meta else data[tuple(map(slice, shape))].clone()
            setattr(module, name, nn.Parameter(new, tensor.requires_grad) if isinstance(tensor, nn.Parameter) else new)
        for (layer, name), (units, size) in self.settings.items():
            value = units.resized(size, sizes)
            setattr(network.get_submodule(layer), name, (value,) if name == "normalized_shape" else value)
        return network


@dataclass(frozen=True)
class TracedNetwork(NetworkFamily):
    """Any network that ``torch.fx`` can trace, of torchvision or of your own, to be cut in width or to lose filters.

    Groups of units are named by the first layer that makes them. Units are followed through convolutions, linear
    layers, norms, activations, pooling, sums and products, so that what is added up is cut alike, and grouped
    convolutions lose whole groups. What enters any other operation is never cut: the stream of a transformer stays
    whole while the hidden units of its blocks can be cut. At its full width the network has the weights that it is
    given with, pretrained or not, and so have its subnets. A narrower one that shares none (a base, a width multiplier)
    draws its own: normal ones with the standard deviation of the tensor that is given, more for fewer inputs. There are
    no scalers.

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
    _traced: dict[tuple[str, tuple[int, ...]], _Traced] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @override
    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        return self._trace(input_shape).units()

    @override
    def build(self, sizes: Sizes, input_shape: Sequence[int], num_classes: int, scale: float = 1.0) -> nn.Module:
        traced = self._trace(input_shape)
        if traced.outputs != num_classes:
            raise ConfigError(
                f"supernet.family.network: {type(self.network).__name__} has {traced.outputs} outputs in one tensor, "
                f"and the data {num_classes} classes; give it as many (num_classes of torchvision's networks)"
            )
        if torch.get_default_device().type == "meta":
            return traced.resize(meta_copy(self.network), sizes)
        network = traced.resize(copy.deepcopy(self.network), sizes)
        if dict(sizes) != traced.units():
            for new, old in zip(network.parameters(), self.network.parameters(), strict=True):
                if new.dim() > 1:
                    fewer = sqrt(old[0].numel() / new[0].numel())
                    nn.init.normal_(new, 0.0, fewer * float(old.detach().std(correction=0)))
        return network

    def _trace(self, input_shape: Sequence[int]) -> _Traced:
        key = repr(self.network), tuple(input_shape)  # as a layer may have been replaced since
        if key not in self._traced:
            self._traced[key] = _trace(self.network, key[1])
        return self._traced[key]


class _Tracer(fx.Tracer):
    """Leaves layers whole that are subclasses of torch's: norms, and what has torch's own way forward."""

    proxy_buffer_attributes = True

    @override
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        inherited = isinstance(m, _ConvNd | nn.Linear) and type(m).forward.__module__.startswith("torch.nn")
        return inherited or isinstance(m, _NORMS) or super().is_leaf_module(m, module_qualified_name)


def _trace(network: nn.Module, input_shape: tuple[int, ...]) -> _Traced:
    """Follows the units of a network from its inputs to its outputs."""
    name = f"supernet.family.network: {type(network).__name__}"
    of_own = "or write a NetworkFamily for it"
    with _refused(f"{name} cannot be traced; give one without branches that depend on its inputs, {of_own}"):
        structure = meta_copy(network).eval()
        options = inspect.signature(network.forward).parameters.items()
        defaults = {key: option.default for key, option in options if option.default is not option.empty}
        graph = _Tracer().trace(structure, defaults)
    with _refused(f"{name} does not run for inputs of {list(input_shape)}; give one that takes them, {of_own}"):
        dtype = next((weight.dtype for weight in structure.parameters() if weight.is_floating_point()), torch.float32)
        inputs = torch.zeros(2, *input_shape, dtype=dtype, device="meta")
        structure.train()(inputs)
        ShapeProp(fx.GraphModule(structure.eval(), graph)).propagate(inputs)
    traced = _Traced(structure)
    axes: dict[fx.Node, _Axis | None] = {}
    for node in graph.nodes:
        if node.op == "output" and isinstance(node.args[0], fx.Node):
            traced.outputs = (_shape(node.args[0]) or (0,))[-1]
        axes[node] = _follow(traced, node, axes)
    for node in graph.nodes:
        if node.op == "get_attr" and any((node, user) not in traced.followed for user in node.users):
            traced.keep_whole(str(node.target))
    for layer, units in reversed(traced.made.items()):
        units.root().name = layer  # in the end the first one's
    if not traced.units():
        raise ConfigError(f"{name} has nothing that can be cut; write a NetworkFamily for it")
    shapes = {node: _shape(node) for node in axes}
    # of different sizes, so that what must be cut alike and is not does not fit
    groups = enumerate(traced.units().items())
    sizes = {group: min(size - 1, 2 + number % max(1, size - 2)) for number, (group, size) in groups}
    with _refused(f"{name} does not run when it is cut; write a NetworkFamily for it"):
        smaller = traced.resize(meta_copy(network), sizes)
        smaller.train()(inputs)
        constants = {key: value for key, value in vars(structure).items() if key.startswith("_tensor_constant")}
        vars(smaller).update(constants)
        ShapeProp(fx.GraphModule(smaller.eval(), graph)).propagate(inputs)
        for node, axis in axes.items():
            if (shape := shapes[node]) is not None and axis is not None:
                shape = (*shape[: axis.dim], axis.units.resized(axis.size, sizes), *shape[axis.dim + 1 :])
            if node.op != "get_attr" and _shape(node) != shape:
                raise ValueError(f"{node} is {_shape(node)}, not {shape}")
    traced.followed.clear()  # the graph is not kept
    return traced


@contextmanager
def _refused(message: str) -> Iterator[None]:
    """Turns whatever a network of somebody's own raises into one line, with the error before the remedy."""
    try:
        with redirect_stderr(io.StringIO()):  # to which ShapeProp prints
            yield
    except Exception as error:
        what, _, remedy = message.partition(";")
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{what} ({type(error).__name__}: {reason});{remedy}") from error


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    """Returns the shape of a node's result; ``None`` if it is not one tensor."""
    return getattr(node.meta.get("tensor_meta"), "shape", None)


def _follow(traced: _Traced, node: fx.Node, axes: Mapping[fx.Node, _Axis | None]) -> _Axis | None:
    """Returns where a node's result has units; what is not known here keeps those of its inputs whole."""
    inputs, shape = node.all_input_nodes, _shape(node)
    axis = next((axes[source] for source in inputs if axes[source]), None)
    name = getattr(node.target, "__name__", str(node.target))
    found = None
    if node.op == "call_module" and shape is not None:
        module = traced.network.get_submodule(str(node.target))
        name = type(module).__name__
        found = _layer(traced, str(node.target), module, axis, len(shape))
    if found is None and axis is not None and shape is not None:
        found = _function(traced, name, node, axis, shape, axes)
    if found is None and ("tensor_meta" in node.meta or node.op == "output"):  # of sizes alone nothing is changed
        for source in inputs:
            if (whole := axes[source]) is not None:
                whole.units.divide(1)
    return found


def _layer(traced: _Traced, layer: str, module: nn.Module, axis: _Axis | None, ndim: int) -> _Axis | None:
    """Returns where a layer's result has units, and notes which of its tensors have them."""
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    if any(name not in (*_TENSORS, "num_batches_tracked") for name, _ in tensors) or module._forward_hooks:
        return None  # a subclass that computes more than torch's layer
    linear = isinstance(module, nn.Linear)
    if (not linear and not isinstance(module, (_ConvNd, *_NORMS))) or getattr(module, "transposed", False):
        return None
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) > 1:
        return None
    dim = ndim - 1 if linear or type(module) is nn.LayerNorm else 1
    if axis is not None and isinstance(module, nn.LayerNorm) and type(module) is not nn.LayerNorm:
        dim = axis.dim  # torchvision's for images has them elsewhere
    if axis is not None and axis.dim != dim:
        axis.units.divide(1)
        axis = None
    norm = isinstance(module, _NORMS)
    names = ("in_features", "in_channels", "num_features", "num_channels", "normalized_shape")
    into = next(name for name in names if hasattr(module, name))
    size = getattr(module, into)[0] if into == "normalized_shape" else getattr(module, into)
    whole = _Axis(dim, _Units(1), size) if axis is None else axis  # without units a layer keeps its own
    traced.sized(layer, **{into: whole})
    if norm:
        if isinstance(module, nn.GroupNorm) and module.num_groups > 1:
            whole.units.divide(module.num_groups)
            traced.sized(layer, num_groups=whole._replace(size=module.num_groups))
        traced.layer_has(layer, _TENSORS, 0, whole)
        return axis
    out = into.replace("in", "out")
    if (groups := getattr(module, "groups", 1)) == 1:
        units = traced.made.setdefault(layer, _Units(getattr(module, out)))
        traced.layer_has(layer, ["weight"], 1, whole)
    else:
        units = whole.units
        units.divide(groups)
        traced.sized(layer, groups=_Axis(dim, units, groups))
    found = _Axis(dim, units, getattr(module, out))
    traced.layer_has(layer, ["weight", "bias"], 0, found)
    traced.sized(layer, **{out: found})
    return found


def _function(
    traced: _Traced, name: str, node: fx.Node, axis: _Axis, shape: tuple[int, ...], axes: Mapping[fx.Node, _Axis | None]
) -> _Axis | None:
    """Returns where the result of an operation has units; ``None`` if it is not known."""
    before = _shape(node.all_input_nodes[0]) or ()
    pooled = re.search(r"pool.*?(\d)d", name, re.IGNORECASE)
    if pooled and (axis.dim, len(shape)) != (1, int(pooled[1]) + 2):
        return None  # it pools units
    if name in _ALIKE:
        return _alike(traced, node, axis, shape, axes)
    parts = node.args[1] if name == "getitem" and isinstance(node.args[1], tuple) else ()
    taken = bool(parts) and all(part in (slice(None), None, Ellipsis) for part in parts)  # everything, reshaped
    if (taken or name in _RESHAPED) and prod(shape) == prod(before):
        if shape[: axis.dim + 1] == before[: axis.dim + 1]:
            return axis
        if axis.dim == 1 and shape == (before[0], prod(before[1:])):
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
    traced: _Traced, node: fx.Node, axis: _Axis, shape: tuple[int, ...], axes: Mapping[fx.Node, _Axis | None]
) -> _Axis | None:
    """Joins the units of all inputs of an operation that treats each unit alike; ``None`` if they do not lie alike."""
    inputs = node.all_input_nodes
    reference = next(source for source in inputs if axes[source] is axis)
    place = axis.dim - len(_shape(reference) or ())  # from the end, as shapes are broadcast
    result = axis._replace(dim=len(shape) + place)
    if result.dim < 0 or shape[place] != axis.size:
        return None
    for source in inputs:
        size, other = _shape(source), axes[source]
        if size is None:
            continue
        spread = len(size) < -place or size[place] == 1
        if other is not None and other.dim - len(size) == place and not spread:
            axis.units.join(other.units)
        elif other is None and source.op == "get_attr":
            if not spread:
                traced.has(str(source.target), len(size) + place, axis)
            traced.followed.add((source, node))
        elif other is not None or not spread:
            return None
    return result
