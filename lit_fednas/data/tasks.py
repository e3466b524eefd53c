"""Tasks: the form of targets, the loss, and the metrics.

A task's figures are sums with a count: the number of examples, or of tokens if every position has a target. Sums and
counts add up over batches and clients.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn import functional
from typing_extensions import override

from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import NonNegativeInt, PositiveInt, checked

#: More distinct targets are taken for numbers or names instead of classes.
MOST_CLASSES = 100_000


class Task(ABC):
    """The targets of a network's outputs, with their loss and metrics.

    Attributes:
        num_outputs: The width of a network's output.
        metrics: The metrics by name, and whether higher is better; the first one counts most. All are in
            :attr:`averaged` or are added by :meth:`derived`.
        averaged: The names of :meth:`values`.
        has_classes: Whether outputs are logits of classes.
        labelled: Whether each example has one class, by which examples can be dealt out.
        ignored: A class that does not count as a target, if there is one.
    """

    num_outputs: int
    metrics: ClassVar[Mapping[str, bool]]
    averaged: ClassVar[tuple[str, ...]] = ("accuracy", "loss")
    has_classes: ClassVar[bool] = False
    labelled: ClassVar[bool] = False
    ignored: int | None = None

    @property
    def metric(self) -> str:
        """The metric that counts most."""
        return next(iter(self.metrics))

    @abstractmethod
    def values(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Returns each figure's sum over each example, ``[batch]``, by name; arguments are ``[batch, ...]``."""

    def count(self, targets: Tensor) -> Tensor:
        """Returns the count of each example, ``[batch]``: 1, or its number of tokens."""
        return torch.ones(len(targets), dtype=torch.int64, device=targets.device)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Returns the mean loss over a batch's examples or tokens, a scalar; arguments as of :meth:`values`."""
        return self.values(outputs, targets)["loss"].sum() / self.count(targets).sum().clamp_min(1)

    def derived(self, means: Mapping[str, Any]) -> dict[str, Any]:
        """Returns all metrics, given the means of :meth:`values`, as numbers or tensors."""
        return dict(means)

    def strata(self, targets: Tensor) -> Tensor:
        """Returns the classes, which hold-outs keep in proportion, int64 ``[N]``; zeros without classes."""
        return torch.zeros(len(targets), dtype=torch.int64, device=targets.device)

    @abstractmethod
    def check(self, targets: Tensor) -> None:
        """Validates a split's targets ``[N, ...]``; raises DataError with a message to follow the split's name."""

    def example_targets(self, count: int, input_shape: tuple[int, ...], device: torch.device) -> Tensor:
        """Returns placeholder targets for a dry run, ``[count, ...]``; by default, a number per output."""
        return torch.zeros(count, self.num_outputs, device=device)

    def max_count(self, input_shape: tuple[int, ...]) -> int:
        """Returns the highest count of an example."""
        return int(self.count(self.example_targets(1, input_shape, torch.device("cpu"))).sum())


@checked("data.task")
class Classification(Task):
    """One class per example, by cross-entropy.

    Args:
        num_classes: The number of classes.
    """

    metrics: ClassVar[Mapping[str, bool]] = {"accuracy": True, "loss": False}
    has_classes = True
    labelled = True

    def __init__(self, num_classes: PositiveInt) -> None:
        if self.labelled and num_classes > MOST_CLASSES:
            fault = f"{num_classes:,} is more than {MOST_CLASSES:,}"
            raise ConfigError(f"data.task.num_classes: {fault}; number classes from 0, or use Regression for numbers")
        self.num_outputs = num_classes

    @override
    def values(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        losses = functional.cross_entropy(outputs, targets, reduction="none")
        return {"accuracy": (outputs.argmax(-1) == targets).to(losses.dtype), "loss": losses}

    @override
    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        return functional.cross_entropy(outputs, targets, label_smoothing=label_smoothing)

    @override
    def strata(self, targets: Tensor) -> Tensor:
        return targets if self.labelled else super().strata(targets)

    @override
    def check(self, targets: Tensor) -> None:
        _check_integers(targets, 1, self.num_outputs, "classes; give an int64 tensor of shape [N]")

    @override
    def example_targets(self, count: int, input_shape: tuple[int, ...], device: torch.device) -> Tensor:
        return torch.zeros(count, dtype=torch.int64, device=device)


@checked("data.task")
class NextToken(Classification):
    """A token at every position, by cross-entropy; losses and metrics are means over tokens.

    The outputs are ``[batch, length, num_classes]``, the targets ``[batch, length]``: the next token of each input.

    Args:
        num_classes: The size of the vocabulary.
        ignored: A token that does not count as a target, such as padding.

    Example:
        >>> task = NextToken(2, ignored=0)
        >>> targets = torch.tensor([[1, 1, 0]])
        >>> task.count(targets).tolist(), round(float(task.loss(torch.zeros(1, 3, 2), targets)), 4)
        ([2], 0.6931)
    """

    metrics: ClassVar[Mapping[str, bool]] = {"perplexity": False, "accuracy": True, "loss": False}
    labelled = False

    def __init__(self, num_classes: PositiveInt, ignored: NonNegativeInt | None = None) -> None:
        super().__init__(num_classes)
        if ignored is not None and ignored >= num_classes:
            raise ConfigError(f"data.task.ignored: {ignored} is not a token; give one from 0 to {num_classes - 1}")
        self.ignored = ignored
        self._index = -100 if ignored is None else ignored  # torch's default, which is not a token

    @override
    def values(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        losses = functional.cross_entropy(outputs.mT, targets, reduction="none", ignore_index=self._index)
        correct = (outputs.argmax(-1) == targets) & self._counted(targets)
        return {"accuracy": correct.sum(1).to(losses.dtype), "loss": losses.sum(1)}

    @override
    def count(self, targets: Tensor) -> Tensor:
        return self._counted(targets).sum(1)

    @override
    def loss(self, outputs: Tensor, targets: Tensor, label_smoothing: float = 0.0) -> Tensor:
        logits, tokens = outputs.flatten(0, 1), targets.flatten()
        total = functional.cross_entropy(
            logits, tokens, ignore_index=self._index, label_smoothing=label_smoothing, reduction="sum"
        )
        return total / self.count(targets).sum().clamp_min(1)  # a batch may be all padding

    @override
    def derived(self, means: Mapping[str, Any]) -> dict[str, Any]:
        loss = means["loss"]
        exp = loss.exp() if isinstance(loss, Tensor) else float(torch.tensor(loss, dtype=torch.float64).exp())
        return {"perplexity": exp, **means}

    @override
    def check(self, targets: Tensor) -> None:
        _check_integers(targets, 2, self.num_outputs, "tokens; give an int64 tensor of shape [N, length]")
        if empty := int((self.count(targets) == 0).sum()):
            raise DataError(f"targets: {empty} examples hold only padding; remove them")

    @override
    def example_targets(self, count: int, input_shape: tuple[int, ...], device: torch.device) -> Tensor:
        token = 1 if self.ignored == 0 else 0
        return torch.full((count, input_shape[0]), token, dtype=torch.int64, device=device)

    def _counted(self, targets: Tensor) -> Tensor:
        return targets != self._index


@checked("data.task")
class MultiLabel(Task):
    """Any number of labels per example, each by binary cross-entropy; ``accuracy`` is the share of correct labels.

    The outputs and the targets are ``[batch, num_classes]``; targets are float32, 0 or 1. The loss of an example is the
    mean over its labels.

    Args:
        num_classes: The number of labels.
    """

    metrics: ClassVar[Mapping[str, bool]] = {"accuracy": True, "loss": False}

    def __init__(self, num_classes: PositiveInt) -> None:
        self.num_outputs = num_classes

    @override
    def values(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        losses = functional.binary_cross_entropy_with_logits(outputs, targets, reduction="none")
        correct = (outputs > 0) == (targets > 0.5)
        return {"accuracy": correct.to(losses.dtype).mean(1), "loss": losses.mean(1)}

    @override
    def check(self, targets: Tensor) -> None:
        _check_floats(targets, self.num_outputs, "labels")
        if not bool(((targets == 0) | (targets == 1)).all()):
            raise DataError("targets: have values other than 0 and 1; give 0 or 1 for each label")


@checked("data.task")
class Regression(Task):
    """One or more numbers per example, by squared error; ``mae`` is the mean absolute error, ``rmse`` the loss's root.

    Outputs and targets are float32 ``[batch, num_outputs]``. The loss of an example is the mean over its numbers.

    Args:
        num_outputs: The number of predicted numbers.
    """

    metrics: ClassVar[Mapping[str, bool]] = {"rmse": False, "mae": False, "loss": False}
    averaged = ("mae", "loss")

    def __init__(self, num_outputs: PositiveInt = 1) -> None:
        self.num_outputs = num_outputs

    @override
    def values(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        errors = outputs - targets
        return {"mae": errors.abs().mean(1), "loss": errors.square().mean(1)}

    @override
    def derived(self, means: Mapping[str, Any]) -> dict[str, Any]:
        return {"rmse": means["loss"] ** 0.5, **means}

    @override
    def check(self, targets: Tensor) -> None:
        _check_floats(targets, self.num_outputs, "numbers")
        if not bool(targets.isfinite().all()):
            raise DataError("targets: hold NaN or infinity; correct or remove these examples")


def require_few(num_classes: int, num_examples: int, origin: str) -> None:
    """Validates the number of classes that was counted in data, not stated; ``origin`` begins the error.

    Raises:
        DataError: There are more than 100,000 classes, or more than 100 and than a tenth of the examples.
    """
    if num_classes > min(MOST_CLASSES, max(100, num_examples // 10)):
        remedy = "number classes from 0, list them (task, classes, or folders), or use Regression for numbers"
        raise DataError(f"{origin} would be {num_classes:,} classes of {num_examples:,} examples; {remedy}")


def _check_integers(targets: Tensor, ndim: int, count: int, form: str) -> None:
    if targets.ndim != ndim or targets.dtype != torch.int64:
        raise DataError(f"targets: {targets.dtype} {tuple(targets.shape)} are not {form}")
    if targets.numel() and not 0 <= int(targets.min()) <= int(targets.max()) < count:
        low, high = int(targets.min()), int(targets.max())
        raise DataError(f"has targets {low}..{high}; give targets from 0 to {count - 1}")


def _check_floats(targets: Tensor, count: int, kind: str) -> None:
    if targets.dtype != torch.float32 or targets.shape[1:] != (count,):
        shape, dtype = tuple(targets.shape), targets.dtype
        raise DataError(f"targets: {dtype} {shape} are not {kind}; give a float32 tensor of shape [N, {count}]")
