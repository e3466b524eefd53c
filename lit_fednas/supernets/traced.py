"""Any network as a family: its graph shows which units belong together."""

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
#: Layers and functions that keep units as they are; several inputs have the same units.
_ALIKE = {name for kinds in (activation, dropout, pooling) for name in kinds.__all__} - _MIXING
_ALIKE |= {"Identity", "Upsample", "add", "iadd", "sub", "isub", "mul", "imul", "truediv", "div", "relu", "relu_"}
_ALIKE |= {"relu6", "gelu", "silu", "hardswish", "hardsigmoid", "sigmoid", "tanh", "leaky_relu", "elu", "dropout"}
_ALIKE |= {"stochastic_depth", "max_pool2d", "avg_pool2d", "adaptive_avg_pool2d", "adaptive_max_pool2d", "interpolate"}
_ALIKE |= {"mish", "softplus", "selu", "celu", "hardtanh", "add_", "mul_", "clamp", "abs", "exp", "contiguous"}
_NORMS = (_BatchNorm, nn.GroupNorm, nn.LayerNorm)
_TENSORS = ("weight", "bias", "running_mean", "running_var")
_RESHAPED = {"Flatten", "flatten", "view", "reshape", "squeeze", "unsqueeze"}


class _Units:
    """A group of ``count`` units that are cut together; a count of 1 means that they are never cut."""

    def __init__(self, count: int) -> None:
        self.name, self.count = "", count
        self.same: _Units | None = None

    def root(self) -> _Units:
        return self if self.same is None else self.same.root()

    def join(self, other: _Units) -> None:
        """Merges two groups; the coarser one determines the entries per unit."""
        first, second = self.root(), other.root()
        first.count = gcd(first.count, second.count)
        if second is not first:
            second.same = first

    def divide(self, count: int) -> None:
        """Keeps entries within each of ``count`` equal parts together; 1 keeps all together."""
        self.root().count = gcd(self.root().count, count)

    def resized(self, entries: int, sizes: Sizes) -> int:
        """Returns the number of entries that remain in a network of these sizes."""
        root = self.root()
        return entries // root.count * sizes[root.name] if root.count > 1 else entries


class _Axis(NamedTuple):
    """The dimension of a tensor that holds units, and its number of entries."""

    dim: int
    units: _Units
    size: int


@dataclass
class _Traced:
    """A network and its units, which are followed from layer to layer."""

    network: nn.Module  # on the meta device
    outputs: int = 0
    tensors: dict[tuple[str, int], tuple[_Units, int]] = field(default_factory=dict)  # path, dimension: units, entries
    settings: dict[tuple[str, str], tuple[_Units, int]] = field(
        default_factory=dict
    )  # layer, attribute: units, entries
    outputs_of: dict[str, _Units] = field(default_factory=dict)  # convolution or linear layer: units
    followed: set[tuple[fx.Node, fx.Node]] = field(default_factory=set)  # tensor outside layers, its reader

    def __post_init__(self) -> None:
        tensors = [*self.network.named_parameters(remove_duplicate=False), *self.network.named_buffers()]
        times = Counter(id(tensor) for _, tensor in tensors)
        self.unshared = {path for path, tensor in tensors if times[id(tensor)] == 1}

    def add(self, path: str, dim: int, axis: _Axis) -> None:
        """Records the units of a tensor's dimension; a tensor that is used twice joins both groups."""
        self.tensors.setdefault((path, dim), (axis.units, axis.size))[0].join(axis.units)
        if path not in self.unshared:  # several layers share it, or it is computed from other tensors
            self.keep_whole(path)

    def add_layer(self, layer: str, names: Sequence[str], dim: int, axis: _Axis) -> None:
        """Records the units of a layer's tensors, if it has them."""
        module = self.network.get_submodule(layer)
        for name in names:
            if getattr(module, name, None) is not None:
                self.add(f"{layer}.{name}", dim, axis)

    def add_settings(self, layer: str, **values: _Axis) -> None:
        """Records attributes of a layer that are numbers of entries."""
        for name, axis in values.items():
            self.settings.setdefault((layer, name), (axis.units, axis.size))[0].join(axis.units)

    def keep_whole(self, path: str) -> None:
        """Records that a tensor is never cut."""
        for (recorded_path, _), (units, _) in self.tensors.items():
            if recorded_path == path:
                units.divide(1)

    def units(self) -> dict[str, int]:
        """Returns the number of units of all groups that can be cut, in the order of the layers."""
        roots = [units.root() for units in self.outputs_of.values()]
        return {root.name: root.count for root in roots if root.count > 1}

    def resize(self, network: nn.Module, sizes: Sizes) -> nn.Module:
        """Resizes a copy of the network in place and keeps the first units; only meta tensors can grow."""
        shapes: dict[str, dict[int, int]] = {}
        for (path, dim), (units, size) in self.tensors.items():
            shapes.setdefault(path, {})[dim] = units.resized(size, sizes)
        for path, dims in shapes.items():
            layer, _, name = path.rpartition(".")
            module = network.get_submodule(layer)
            tensor = getattr(module, name)
            shape = [dims.get(dim, size) for dim, size in enumerate(tensor.shape)]
            if path not in self.unshared or shape == list(tensor.shape):
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
    """Any network that ``torch.fx`` can trace, of torchvision or of your own, to be cut in width or pruned.

    A group has the name of the first layer with these units as output. Units are followed through convolutions, linear
    layers, norms, activations, pooling, sums and products: summed tensors are cut alike, and grouped convolutions lose
    whole groups. Inputs of any other operation are never cut: a transformer's stream stays whole, but the hidden units
    of its blocks can be cut. At full width the network keeps its weights, pretrained or not, and its subnets
    share them. A narrower network with separate weights (a base network, a width multiplier) draws normal ones with the
    original tensor's standard deviation, larger for fewer inputs. There are no scalers.

    Args:
        network: The network at its full width; something in it must be able to lose units.

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
                f"and the data have {num_classes} classes; give it as many outputs (torchvision: num_classes)"
            )
        if torch.get_default_device().type == "meta":
            return traced.resize(meta_copy(self.network), sizes)
        network = traced.resize(copy.deepcopy(self.network), sizes)
        if dict(sizes) != traced.units():
            for new, old in zip(network.parameters(), self.network.parameters(), strict=True):
                if new.dim() > 1:
                    fan_in_factor = sqrt(old[0].numel() / new[0].numel())
                    nn.init.normal_(new, 0.0, fan_in_factor * float(old.detach().std(correction=0)))
        return network

    def _trace(self, input_shape: Sequence[int]) -> _Traced:
        key = repr(self.network), tuple(input_shape)  # a layer may have been replaced meanwhile
        if key not in self._traced:
            self._traced[key] = _trace(self.network, key[1])
        return self._traced[key]


class _Tracer(fx.Tracer):
    """Treats subclasses of torch's layers as leaves if they are norms or inherit torch's ``forward``."""

    proxy_buffer_attributes = True

    @override
    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        inherited = isinstance(m, _ConvNd | nn.Linear) and type(m).forward.__module__.startswith("torch.nn")
        return inherited or isinstance(m, _NORMS) or super().is_leaf_module(m, module_qualified_name)


def _trace(network: nn.Module, input_shape: tuple[int, ...]) -> _Traced:
    """Follows the units of a network from its inputs to its outputs."""
    name = f"supernet.family.network: {type(network).__name__}"
    alternative = "or write a NetworkFamily for it"
    with _config_error(f"{name} cannot be traced; give one without branches that depend on its inputs, {alternative}"):
        structure = meta_copy(network).eval()
        options = inspect.signature(network.forward).parameters.items()
        defaults = {key: option.default for key, option in options if option.default is not option.empty}
        graph = _Tracer().trace(structure, defaults)
    with _config_error(f"{name} does not run for inputs of {list(input_shape)}; give another, {alternative}"):
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
    for layer, units in reversed(traced.outputs_of.items()):
        units.root().name = layer  # in reverse, so that the first layer gives the name
    if not traced.units():
        raise ConfigError(f"{name} has no units that can be cut; write a NetworkFamily for it")
    shapes = {node: _shape(node) for node in axes}
    # Each group gets another size: tensors that should be cut alike but are not then fail to fit.
    groups = enumerate(traced.units().items())
    sizes = {group: min(size - 1, 2 + number % max(1, size - 2)) for number, (group, size) in groups}
    with _config_error(f"{name} does not run when it is cut; write a NetworkFamily for it"):
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
    traced.followed.clear()  # frees the graph
    return traced


@contextmanager
def _config_error(message: str) -> Iterator[None]:
    """Turns any exception of a user's network into one line, with the reason before the remedy."""
    try:
        with redirect_stderr(io.StringIO()):  # ShapeProp prints errors there
            yield
    except Exception as error:
        problem, _, remedy = message.partition(";")
        reason = str(error).strip().partition("\n")[0]
        raise ConfigError(f"{problem} ({type(error).__name__}: {reason});{remedy}") from error


def _shape(node: fx.Node) -> tuple[int, ...] | None:
    """Returns the shape of a node's result; ``None`` if it is not one tensor."""
    return getattr(node.meta.get("tensor_meta"), "shape", None)


def _follow(traced: _Traced, node: fx.Node, axes: Mapping[fx.Node, _Axis | None]) -> _Axis | None:
    """Returns the axis of units in a node's result; an unknown operation keeps its inputs' units whole."""
    inputs, shape = node.all_input_nodes, _shape(node)
    axis = next((axes[source] for source in inputs if axes[source]), None)
    name = getattr(node.target, "__name__", str(node.target))
    result = None
    if node.op == "call_module" and shape is not None:
        module = traced.network.get_submodule(str(node.target))
        name = type(module).__name__
        result = _layer(traced, str(node.target), module, axis, len(shape))
    if result is None and axis is not None and shape is not None:
        result = _function(traced, name, node, axis, shape, axes)
    if result is None and ("tensor_meta" in node.meta or node.op == "output"):  # reading only sizes has no effect
        for source in inputs:
            if (input_axis := axes[source]) is not None:
                input_axis.units.divide(1)
    return result


def _layer(traced: _Traced, layer: str, module: nn.Module, axis: _Axis | None, ndim: int) -> _Axis | None:
    """Returns the axis of units in a layer's result, and records the units of its tensors."""
    tensors = [*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)]
    if any(name not in (*_TENSORS, "num_batches_tracked") for name, _ in tensors) or module._forward_hooks:
        return None  # the subclass computes more than torch's layer
    linear = isinstance(module, nn.Linear)
    if (not linear and not isinstance(module, (_ConvNd, *_NORMS))) or getattr(module, "transposed", False):
        return None
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) > 1:
        return None
    dim = ndim - 1 if linear or type(module) is nn.LayerNorm else 1
    if axis is not None and isinstance(module, nn.LayerNorm) and type(module) is not nn.LayerNorm:
        dim = axis.dim  # torchvision's LayerNorm2d has channels in dimension 1
    if axis is not None and axis.dim != dim:
        axis.units.divide(1)
        axis = None
    norm = isinstance(module, _NORMS)
    names = ("in_features", "in_channels", "num_features", "num_channels", "normalized_shape")
    inputs = next(name for name in names if hasattr(module, name))
    size = getattr(module, inputs)[0] if inputs == "normalized_shape" else getattr(module, inputs)
    input_axis = _Axis(dim, _Units(1), size) if axis is None else axis
    traced.add_settings(layer, **{inputs: input_axis})
    if norm:
        if isinstance(module, nn.GroupNorm) and module.num_groups > 1:
            input_axis.units.divide(module.num_groups)
            traced.add_settings(layer, num_groups=input_axis._replace(size=module.num_groups))
        traced.add_layer(layer, _TENSORS, 0, input_axis)
        return axis
    outputs = inputs.replace("in", "out")
    if (groups := getattr(module, "groups", 1)) == 1:
        units = traced.outputs_of.setdefault(layer, _Units(getattr(module, outputs)))
        traced.add_layer(layer, ["weight"], 1, input_axis)
    else:
        units = input_axis.units
        units.divide(groups)
        traced.add_settings(layer, groups=_Axis(dim, units, groups))
    output_axis = _Axis(dim, units, getattr(module, outputs))
    traced.add_layer(layer, ["weight", "bias"], 0, output_axis)
    traced.add_settings(layer, **{outputs: output_axis})
    return output_axis


def _function(
    traced: _Traced, name: str, node: fx.Node, axis: _Axis, shape: tuple[int, ...], axes: Mapping[fx.Node, _Axis | None]
) -> _Axis | None:
    """Returns the axis of units in an operation's result; ``None`` if it is unknown."""
    input_shape = _shape(node.all_input_nodes[0]) or ()
    pooled = re.search(r"pool.*?(\d)d", name, re.IGNORECASE)
    if pooled and (axis.dim, len(shape)) != (1, int(pooled[1]) + 2):
        return None  # pools over units
    if name in _ALIKE:
        return _alike(traced, node, axis, shape, axes)
    parts = node.args[1] if name == "getitem" and isinstance(node.args[1], tuple) else ()
    takes_all = bool(parts) and all(part in (slice(None), None, Ellipsis) for part in parts)  # only a new shape
    if (takes_all or name in _RESHAPED) and prod(shape) == prod(input_shape):
        if shape[: axis.dim + 1] == input_shape[: axis.dim + 1]:
            return axis
        if axis.dim == 1 and shape == (input_shape[0], prod(input_shape[1:])):
            return axis._replace(size=shape[1])
    if name not in ("permute", "mean"):
        return None
    argument = node.args[1] if len(node.args) > 1 else node.kwargs.get("dims" if name == "permute" else "dim", ())
    values = argument if isinstance(argument, Sequence) else node.args[1:] if name == "permute" else [argument]
    dims = [dim % len(input_shape) for dim in values if isinstance(dim, int)]
    if name == "permute":
        return axis._replace(dim=dims.index(axis.dim))
    removed = dims if len(shape) < len(input_shape) else []
    if axis.dim in dims or not dims:
        return None
    return axis._replace(dim=axis.dim - sum(dim < axis.dim for dim in removed))


def _alike(
    traced: _Traced, node: fx.Node, axis: _Axis, shape: tuple[int, ...], axes: Mapping[fx.Node, _Axis | None]
) -> _Axis | None:
    """Joins the units of all inputs of an elementwise operation; ``None`` if their dimensions differ."""
    inputs = node.all_input_nodes
    reference = next(source for source in inputs if axes[source] is axis)
    offset = axis.dim - len(_shape(reference) or ())  # counted from the end, because shapes are broadcast
    result = axis._replace(dim=len(shape) + offset)
    if result.dim < 0 or shape[offset] != axis.size:
        return None
    for source in inputs:
        size, other = _shape(source), axes[source]
        if size is None:
            continue
        is_broadcast = len(size) < -offset or size[offset] == 1
        if other is not None and other.dim - len(size) == offset and not is_broadcast:
            axis.units.join(other.units)
        elif other is None and source.op == "get_attr":
            if not is_broadcast:
                traced.add(str(source.target), len(size) + offset, axis)
            traced.followed.add((source, node))
        elif other is not None or not is_broadcast:
            return None
    return result
