"""Multiply-accumulates, parameters, bytes, activations and layers of a network, and the costs of clients' rounds.

Networks are counted on a copy on the meta device. One multiply-accumulate (MAC) is one multiplication and one addition
in a product of matrices (convolutions, linear and recurrent layers, attention); biases, norms, activations and pooling
are not counted. The papers' "GFLOPs" are 10^9 MACs (the counts equal all digits of SuperFed, Table 5).
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import astuple, dataclass, replace
from functools import cache
from itertools import accumulate
from math import prod
from operator import add
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from lit_fednas.errors import ConfigError
from lit_fednas.messages import AWAY, ClientResult, MacsStatistics, nbytes

T = TypeVar("T")

_aten = torch.ops.aten


def _product_flops(left_shape: tuple[int, ...], right_shape: tuple[int, ...], *_: Any, **__: Any) -> int:
    return 2 * prod(left_shape)


#: Formulas for products with a vector, which PyTorch's counter lacks.
_PRODUCTS = dict.fromkeys((_aten.mv, _aten.dot, _aten.vdot), _product_flops)
#: Operations without parameters that have no formula and cost more than one pass over their inputs.
_UNCOUNTABLE = {_aten._cdist_forward, _aten._fft_r2c, _aten._fft_c2r, _aten._fft_c2c}
#: Parts of the names of operations that may read parameters and are not counted: they move or normalise values.
_FREE = ("norm", "embedding", "prelu", "cat", "stack", "index", "gather", "split", "view", "copy", "clone", "pad",
         "repeat", "roll", "flip", "sum", "mean", "var", "std", "max", "min", "softmax")  # fmt: skip

_POINTWISE = (nn.ReLU, nn.ReLU6, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Hardswish, nn.Hardsigmoid, nn.LeakyReLU)
_CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)
_BATCH_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_NORMS = (*_BATCH_NORMS, nn.GroupNorm, nn.LayerNorm)
_POOLINGS = (nn.AvgPool1d, nn.AvgPool2d, nn.AdaptiveAvgPool1d, nn.AdaptiveAvgPool2d, nn.MaxPool1d, nn.MaxPool2d)
#: Layers that keep shapes and have no multiply-accumulates; their subclasses may have some.
_TRANSPARENT = {*_POINTWISE, *_NORMS, nn.Dropout}
#: Layers for which FedorAS counts one operation per element of the input.
_PER_INPUT = (*_POINTWISE, *_POOLINGS)
#: Recurrent layers: number of gates, and FedorAS' operations per unit and step without matrix products and biases.
_RECURRENT: dict[type[nn.RNNBase], tuple[int, int]] = {nn.RNN: (1, 1), nn.GRU: (3, 7), nn.LSTM: (4, 10)}


@dataclass(frozen=True)
class Cost:
    """The costs of an architecture."""

    macs: int  # multiply-accumulates of one example's forward pass
    parameters: int  # trainable numbers
    bytes: int  # parameters and buffers, sent one way


def count_macs(network: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
    """Returns the multiply-accumulates of one example's forward pass: half of the FLOPs that torch counts.

    Args:
        network: Any module, on any device; it is not changed.
        input_shape: Shape of one example, without the batch dimension.
        dtype: Type of the inputs.

    Raises:
        ConfigError: A module computes something with its parameters that cannot be counted.
    """
    return _count(inference_structure(network), input_shape, dtype)


def count_operations(network: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
    """Returns the operations of one example's forward pass that FedorAS calls FLOPs.

    They are multiply-accumulates, one operation for each bias that a convolution or linear layer adds, two per element
    of a batch norm, and one per input element of an activation or pooling. A recurrent layer adds two biases per gate
    and the pointwise operations of its equations: per unit and step ten for an LSTM, seven for a GRU. Additions of
    residuals are not counted. The largest path for CIFAR then costs 716.0 million, that for Shakespeare 33.8 million
    (Table 8). Arguments and errors are those of :func:`count_macs`.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(1, 2, 1), nn.BatchNorm2d(2), nn.ReLU())
        >>> count_operations(network, (1, 3, 3))  # (9 * 2 MACs + 9 * 2 biases) + 2 * 18 + 18
        90
    """
    extra = 0

    def count(module: nn.Module, inputs: tuple[Tensor, ...], output: Any) -> None:
        nonlocal extra
        if isinstance(module, _BatchNorm):
            extra += 2 * output.numel()
        elif isinstance(module, _PER_INPUT):
            extra += inputs[0].numel()
        elif isinstance(module, nn.RNNBase):
            gates, pointwise_per_unit = next(counts for kind, counts in _RECURRENT.items() if isinstance(module, kind))
            units = module.hidden_size * module.num_layers * (1 + module.bidirectional)
            steps = inputs[0].numel() // module.input_size
            extra += steps * units * (pointwise_per_unit + 2 * gates * module.bias)
        elif getattr(module, "bias", None) is not None:
            extra += output.numel()

    structure = inference_structure(network)
    for module in structure.modules():
        if isinstance(module, (_BatchNorm, *_PER_INPUT, *_CONVOLUTIONS, nn.Linear, nn.RNNBase)):
            module.register_forward_hook(count)
    return _count(structure, input_shape, dtype) + extra


def count_parameters(network: nn.Module) -> int:
    """Returns the number of a network's parameters; shared parameters count once."""
    return sum(parameter.numel() for parameter in network.parameters())


def sent_bytes(network: nn.Module) -> int:
    """Returns the bytes of a network's parameters and buffers."""
    return nbytes([*network.parameters(), *network.buffers()])


def inference_structure(network: nn.Module) -> nn.Module:
    """Returns a copy of a network as deployed (evaluation mode, norms with statistics) on the meta device."""
    structure = meta_copy(network).requires_grad_(False).eval()
    for module in structure.modules():
        if isinstance(module, _BatchNorm) and module.running_mean is None:  # would refuse a batch of one
            module.track_running_stats = True
            module.running_mean = torch.zeros(module.num_features, device="meta")
            module.running_var = torch.ones(module.num_features, device="meta")
    return structure


def on_meta(build: Callable[..., T], *args: Any) -> T:
    """Builds an object on the meta device: tensors have no values, and no random numbers are drawn."""
    with torch.device("meta"):
        return build(*args)


def meta_copy(network: nn.Module) -> nn.Module:
    """Returns a copy of a module on the meta device, without the values of its tensors."""
    memo: dict[int, Any] = {}
    for tensor in network.parameters():
        memo[id(tensor)] = nn.Parameter(torch.empty_like(tensor, device="meta"), tensor.requires_grad)
    for buffer in network.buffers():
        memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(network, memo)


def _count(structure: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Returns the multiply-accumulates of a network on the meta device; changes the network."""
    structure.float()  # the inputs are float32 even if the weights are trained in another type
    for module in structure.modules():
        if type(module) in _TRANSPARENT:  # halves the time of counting
            module.forward = nn.Identity().forward
    counter = FlopCounterMode(display=False, custom_mapping=_PRODUCTS)
    inputs = torch.zeros(1, *input_shape, dtype=dtype, device="meta")
    with torch.no_grad(), _RefuseUncounted(counter, structure), counter:
        structure(inputs)
    return counter.get_total_flops() // 2


class _RefuseUncounted(TorchDispatchMode):
    """Refuses operations that have a cost and no formula in the counter."""

    def __init__(self, counter: FlopCounterMode, structure: nn.Module) -> None:
        super().__init__()
        self.counter = counter
        self.parameters = {parameter.untyped_storage()._cdata for parameter in structure.parameters()}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        packet = func._overloadpacket
        if packet is _aten._local_scalar_dense:
            raise ConfigError(
                "costs: the multiply-accumulates of a network that reads the values of its inputs (Tensor.item, float) "
                "cannot be counted; choose with torch.where instead"
            )
        if packet not in self.counter.flop_registry and self._needs_formula(func, (args, kwargs)):
            module = max(self.counter.mod_tracker.parents - {"Global"}, key=len, default="the network")
            raise ConfigError(
                f"costs: the multiply-accumulates of {func} in {module} cannot be counted; compute with "
                f"convolutions, linear layers or products of matrices, or register a formula for it with "
                f"torch.utils.flop_counter.register_flop_formula"
            )
        return func(*args, **(kwargs or {}))

    def _needs_formula(self, func: Any, inputs: Any) -> bool:
        if func._overloadpacket in _UNCOUNTABLE:
            return True
        if _is_free(func):
            return False
        return any(tensor.untyped_storage()._cdata in self.parameters for tensor in tensors_in(inputs))


def tensors_in(tree: Any) -> list[Tensor]:
    """Returns the tensors in nested arguments or results."""
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]


@cache
def _is_free(func: Any) -> bool:
    name = func._overloadpacket.__name__
    return torch.Tag.pointwise in func.tags or func.is_view or any(word in name for word in _FREE)


def peak_activation_bytes(network: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
    """Returns the greatest number of bytes of activations alive at once in one example's forward pass.

    The input is alive throughout, the output until the end, any other tensor from the operation that creates it to the
    last one that reads it, as in an exported network. Tensors that share memory count once. Not counted are parameters,
    buffers, tensors computed from these alone, and scratch memory of operations. Arguments are those of
    :func:`count_macs`.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1))
        >>> peak_activation_bytes(network, (1, 10, 10)) == 4 * 100 * (1 + 8 + 4)
        True
    """
    inputs = torch.zeros(1, *input_shape, dtype=dtype, device="meta")
    trace, structure = _Trace(inputs), inference_structure(network)
    for module in structure.modules():
        if type(module) in _BATCH_NORMS:  # one operation with one new tensor as well, in a tenth of the time
            module.forward = torch.empty_like
    with torch.no_grad(), trace:
        outputs = structure(inputs)
    trace.time += 1
    trace.read([inputs, outputs])  # the caller reads both
    return trace.peak()


class _Trace(TorchDispatchMode):
    """Records the times of creation and last read of all storages that depend on the input."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        self.time = 0  # number of operations
        # address: [storage, time of creation, time of last read]; a storage that is held keeps its address unique
        self.lives: dict[int, list[Any]] = {}
        self._record_creation(inputs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.time += 1
        if self.read([args, kwargs]):
            for tensor in tensors_in(result):
                self._record_creation(tensor)
        return result

    def read(self, tree: Any) -> bool:
        """Records a read of the tensors now; returns whether any depends on the input."""
        keys = {tensor.untyped_storage()._cdata for tensor in tensors_in(tree)} & self.lives.keys()
        for key in keys:
            self.lives[key][-1] = self.time
        return bool(keys)

    def peak(self) -> int:
        """Returns the maximum of bytes alive at one time; a storage that is never read is not alive."""
        changes: dict[int, int] = defaultdict(int)
        for storage, created_at, last_read_at in self.lives.values():
            if last_read_at > created_at:
                changes[created_at] += storage.nbytes()
                changes[last_read_at + 1] -= storage.nbytes()
        return max(accumulate(changes[time] for time in sorted(changes)), default=0)

    def _record_creation(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        self.lives.setdefault(storage._cdata, [storage, self.time, self.time])


class Layer(NamedTuple):
    """A convolution, or a linear layer as a convolution with a kernel of 1."""

    kernel: int  # positions under the kernel, as 9 of a 3x3 convolution
    fan_in: int  # weights per output channel: input channels of a group times ``kernel``
    channels: int  # output channels
    positions: int  # positions of the output: height times width, or tokens; 1 for a vector

    @property
    def macs(self) -> int:
        """The multiply-accumulates of one example."""
        return self.fan_in * self.channels * self.positions


def read_layers(network: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> list[Layer]:
    """Returns the layers in the order of one example's forward pass; arguments are those of :func:`count_macs`.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.Flatten(), nn.Linear(8 * 16, 5))
        >>> read_layers(network, (3, 4, 4))
        [Layer(kernel=9, fan_in=27, channels=8, positions=16), Layer(kernel=1, fan_in=128, channels=5, positions=1)]
    """
    layers: list[Layer] = []

    def read(module: Any, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        kernel = 1 if isinstance(module, nn.Linear) else module.weight[0, 0].numel()
        channels = len(module.weight)
        layers.append(Layer(kernel, module.weight[0].numel(), channels, output.numel() // channels))

    structure = inference_structure(network)
    for module in structure.modules():
        if isinstance(module, (*_CONVOLUTIONS, nn.Linear)):
            module.register_forward_hook(read)
    structure(torch.zeros(1, *input_shape, dtype=dtype, device="meta"))
    return layers


@dataclass(frozen=True)
class RoundCost:
    """The cost of one client, one round, or a run (SuperFed, App. G); costs can be added.

    Computation is the architecture's multiply-accumulates of a forward pass times the examples of the client's training
    and test. (Backward passes take about twice as much for every method, and are not counted.) Communication is the
    bytes of the subnet, down to each client that receives a task and up from each that answers.
    """

    macs: int = 0  # multiply-accumulates of the forward passes
    bytes_down: int = 0  # bytes from the server
    bytes_up: int = 0  # bytes to the server

    def __add__(self, other: RoundCost) -> RoundCost:
        return RoundCost(*map(add, astuple(self), astuple(other)))

    @property
    def bytes(self) -> int:
        """Bytes of both directions."""
        return self.bytes_down + self.bytes_up


def client_cost(result: ClientResult, cost: Cost, traffic: tuple[int, int] | None = None) -> RoundCost:
    """Returns the cost of one client's part in a round; discarded work is not in ``num_seen``.

    Args:
        result: The client's result. A :class:`MacsStatistics` in it replaces the MACs of ``cost`` in training, because
            batches took different paths.
        cost: Cost of the received architecture. A failed client sends nothing, an absent client receives nothing.
        traffic: Bytes down and up after compression; ``cost.bytes`` each if not given.
    """
    down, up = (cost.bytes, cost.bytes) if traffic is None else traffic
    down = 0 if result.status == AWAY else down
    statistics = result.find(MacsStatistics)
    macs = cost.macs * result.num_seen if statistics is None else statistics.macs
    return RoundCost(int(macs) + cost.macs * result.num_tested, down, up if result.sent else 0)


def independent_cost(results: Sequence[ClientResult], cost: Cost, traffic: tuple[int, int] | None = None) -> RoundCost:
    """Returns the cost of the round if all clients of the cohort trained one architecture: a round of iFedAvg."""
    return sum((client_cost(replace(result, statistics=()), cost, traffic) for result in results), RoundCost())
