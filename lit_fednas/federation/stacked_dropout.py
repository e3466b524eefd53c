"""Dropout of several clients at once, each with masks of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class OwnDropout(TorchFunctionMode):
    """Lets dropout, where it is mapped over clients, draw each client's mask from the client's own generator.

    On a CPU these are the masks of ``torch.nn.Dropout`` under ``isolated``, number by number. On a GPU, where
    dropout is one fused operation, they are equally distributed but other masks; there, too, they belong to the
    client alone.

    Args:
        draws: One generator per client.

    Attributes:
        used: Whether there was any dropout.
        failed: The name of the function of torch that raised an error.
    """

    def __init__(self, draws: Sequence[torch.Generator]) -> None:
        super().__init__()
        self.draws = draws
        self.used = False
        self.failed = ""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        try:
            return (self._dropout if func is functional.dropout else func)(*args, **kwargs)
        except Exception:
            self.failed = self.failed or getattr(func, "__name__", str(func))
            raise

    def _dropout(self, input: Tensor, p: float = 0.5, training: bool = True, inplace: bool = False) -> Tensor:
        if not training or not 0 < p < 1:
            return functional.dropout(input, p, training, inplace)  # draws nothing
        self.used = True
        mask = _Masks.apply(input, 1 - p, self.draws)
        return input.mul_(mask) if inplace else input * mask


class _Masks(torch.autograd.Function):
    """Dropout masks that are drawn outside of ``vmap``, which allows no random operation inside."""

    @staticmethod
    def forward(like: Tensor, keep: float, draws: Sequence[torch.Generator]) -> Tensor:
        raise RuntimeError("dropout of what is the same for all clients: a random mask cannot be stacked")

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return None, None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[Any, ...], like: Tensor, keep: float, draws: Sequence[torch.Generator]
    ) -> tuple[Tensor, int]:
        """Masks ``[clients, ...]`` for inputs of that shape, whose clients stand in dimension ``in_dims[0]``."""
        masks = like.new_empty(like.movedim(in_dims[0], 0).shape)
        for mask, own in zip(masks, draws, strict=True):
            mask.bernoulli_(keep, generator=own)
        return masks.div_(keep), 0
