"""Tensors that lie side by side in one block of memory, so that all of them are zeroed or sent at once."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

_ALIGNMENT = 64  # bytes; what vectorised kernels like


class FlatTensors(Mapping[str, Tensor]):
    """Named tensors of given shapes as views into one buffer per dtype.

    Args:
        like: Tensors whose shapes, strides and device the views have.
        dtypes: The dtype of each view.

    Attributes:
        buffers: The blocks of memory; the padding between views is zero as long as nobody writes there.

    Example:
        >>> like = {"a": torch.ones(2, 3), "b": torch.ones(4)}
        >>> flat = FlatTensors(like, dict.fromkeys(like, torch.float32))
        >>> ones = flat["b"].add_(1)
        >>> [float(buffer.sum()) for buffer in flat.buffers]
        [4.0]
    """

    def __init__(self, like: Mapping[str, Tensor], dtypes: Mapping[str, torch.dtype]) -> None:
        sizes: dict[torch.dtype, int] = {}
        places: dict[str, int] = {}
        for name, tensor in like.items():
            dtype = dtypes[name]
            places[name] = sizes.get(dtype, 0)
            step = _ALIGNMENT // dtype.itemsize
            sizes[dtype] = places[name] + -(-tensor.numel() // step) * step
        device = next(iter(like.values())).device if like else torch.device("cpu")
        blocks = {dtype: torch.zeros(size, dtype=dtype, device=device) for dtype, size in sizes.items()}
        self.buffers: list[Tensor] = list(blocks.values())
        self._views = {
            name: blocks[dtypes[name]].as_strided(tensor.shape, _dense_strides(tensor), places[name])
            for name, tensor in like.items()
        }

    def __getitem__(self, name: str) -> Tensor:
        return self._views[name]

    def __iter__(self):  # type: ignore[no-untyped-def]
        return iter(self._views)

    def __len__(self) -> int:
        return len(self._views)

    def zero_(self) -> None:
        """Sets all to zero."""
        for buffer in self.buffers:
            buffer.zero_()

    def fits(self, like: Mapping[str, Tensor]) -> bool:
        """Whether these views have the names, shapes and device of the tensors."""
        return self._views.keys() == like.keys() and all(
            view.shape == like[name].shape
            and view.stride() == _dense_strides(like[name])
            and view.device == like[name].device
            for name, view in self._views.items()
        )


def _dense_strides(tensor: Tensor) -> tuple[int, ...]:
    """The tensor's strides without gaps: in channels-last order if it is, so that sums run along its memory."""
    return tensor.stride() if tensor.is_contiguous() else torch.empty_like(tensor, device="meta").stride()
