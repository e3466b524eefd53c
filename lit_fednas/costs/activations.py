"""Memory that a network's activations take while one example runs, as for an exported network on a device.

The input lives throughout, the output up to the end, any other tensor from the operation that makes it to the last
one that reads it; tensors that share memory count once. An operation's own scratch memory is not counted.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lit_fednas.costs.counting import dry

_BATCH_NORMS = {nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d}


def peak_activation_bytes(network: nn.Module, input_shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> int:
    """Returns the greatest number of bytes of activations alive at once in one example's forward pass.

    In evaluation mode; the input is included, parameters, buffers and what is computed from them alone are not.

    Args:
        network: Any network, on any device; it is not changed.
        input_shape: Shape of one example, without the batch dimension.
        dtype: Type of the inputs.

    Example:
        >>> network = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1), nn.ReLU(inplace=True), nn.Conv2d(8, 4, 1))
        >>> peak_activation_bytes(network, (1, 10, 10)) == 4 * 100 * (1 + 8 + 4)
        True
    """
    inputs = torch.zeros(1, *input_shape, dtype=dtype, device="meta")
    trace = _Trace(inputs)
    with dry(network) as structure:
        for module in structure.modules():
            if type(module) in _BATCH_NORMS:  # one operation of one new tensor either way; in a tenth of the time
                module.forward = torch.empty_like
        with torch.no_grad(), trace:
            outputs = structure(inputs)
    trace.time += 1
    trace.read([inputs, outputs])  # by the caller
    return trace.peak()


class _Trace(TorchDispatchMode):
    """Follows the storages that depend on the input: when each was made, and when it was last read."""

    def __init__(self, inputs: Tensor) -> None:
        super().__init__()
        self.time = 0  # operations so far
        self.storages: dict[int, torch.UntypedStorage] = {}  # kept, so that no two have the same address
        self.lives: dict[int, list[int]] = {}
        self._made(inputs)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.time += 1
        if self.read([args, kwargs]):
            for tensor in _tensors(result):
                self._made(tensor)
        return result

    def read(self, tree: Any) -> bool:
        """Records that the tensors are read now; returns whether any depends on the input."""
        known = {tensor.untyped_storage()._cdata for tensor in _tensors(tree)} & self.lives.keys()
        for key in known:
            self.lives[key][1] = self.time
        return bool(known)

    def peak(self) -> int:
        """Returns the greatest sum of bytes alive at one time; a storage that was never read is not alive."""
        change: dict[int, int] = defaultdict(int)
        for key, (made, last) in self.lives.items():
            if last > made:
                change[made] += self.storages[key].nbytes()
                change[last + 1] -= self.storages[key].nbytes()
        return max(accumulate(change[time] for time in sorted(change)), default=0)

    def _made(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.lives:
            self.storages[storage._cdata] = storage
            self.lives[storage._cdata] = [self.time, self.time]


def _tensors(tree: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Tensor)]
