"""Dropout for several clients at once, each with its own masks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


class OwnDropout(TorchFunctionMode):
    """Draws each client's dropout mask from the client's own generator where dropout is mapped over clients.

    On a CPU these are the masks of ``torch.nn.Dropout`` under ``isolated``, number by number. On a GPU, where
    dropout is one fused operation, they are other masks of the same distribution; they depend on the client alone
    there as well.

    Args:
        draws: One generator per client.

    Attributes:
        used: Whether any dropout ran.
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
    """Dropout masks that are drawn outside of ``vmap``, inside which no random operation is allowed."""

    @staticmethod
    def forward(like: Tensor, keep: float, draws: Sequence[torch.Generator]) -> Tensor:
        raise RuntimeError("dropout of a tensor that all clients share: its random mask cannot be stacked")

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
        """Masks ``[clients, ...]`` for inputs of that shape, whose clients are in dimension ``in_dims[0]``."""
        inputs = like.movedim(in_dims[0], 0)
        # each in the layout that it has for a client alone, on which the order of the numbers depends
        masks = [torch.empty_like(one).bernoulli_(keep, generator=own) for one, own in zip(inputs, draws, strict=True)]
        return torch.stack(masks).div_(keep), 0
