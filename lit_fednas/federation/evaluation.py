"""Evaluation of subnets of the global weights.

The global weights are evaluated on data that the server holds, without any local training. A subnet runs in
place: nothing is copied, except where batch-norm statistics are recalibrated, which happens on a copy.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm
from torchmetrics import Accuracy, MeanMetric, Metric

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import NonNegativeInt, PositiveInt, checked
from lit_fednas.supernets import Supernet

#: The name of the mean over sampled architectures among the subnets.
SAMPLED = "sampled"


@checked("evaluation")
@dataclass(frozen=True)
class EvaluationSettings:
    """Which subnets are evaluated, and how.

    Args:
        subnets: Architectures, each as the space writes it, or ``smallest`` or ``largest``. A name may
            stand before it: ``tiny = d: [0,0,0,0], e: 0.1``; otherwise metrics are named after the architecture.
            If not given, those of the supernet (for SuperFed's those of Table 4).
        top_k: The accuracy counts a class among the k most likely as correct.
        recalibrate_batches: Batches of the clients' training data on which batch-norm statistics are gathered
            anew, on a copy, before a subnet is evaluated; 0 for none.
        precision: ``bf16-mixed`` or ``16-mixed`` run the subnets under autocast; metrics are float32 always.
        channels_last: Whether images keep the channels innermost in memory, which is often faster.
        sampled: Architectures that are drawn from the space for every validation and test; their mean is
            ``val/sampled/accuracy``, the quality of the supernet over architectures (FedorAS, Fig. 5 and 10). 0
            for none.
        predicted: The architecture that ``trainer.predict`` runs, as in ``subnets`` but without a name.

    Raises:
        ConfigError: A number is out of range, or no subnet is given.
    """

    subnets: Sequence[str] | None = None
    top_k: PositiveInt = 1
    recalibrate_batches: NonNegativeInt = 0
    precision: Literal["32-true", "bf16-mixed", "16-mixed"] = "32-true"
    channels_last: bool = False
    sampled: NonNegativeInt = 0
    predicted: str = "largest"

    def __post_init__(self) -> None:
        if self.subnets is not None and not self.subnets:
            raise ConfigError("evaluation.subnets: is empty; give at least one, for instance [largest]")

    def logits(self, network: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """Runs a network on a batch in the precision and layout of the settings.

        Weights stay as they are: it is enough that the images are channels-last, for a convolution's output has
        the layout of its input.

        Args:
            network: A subnet in place, or a copy.
            inputs: ``[batch, ...]``.

        Returns:
            float32 logits, ``[batch, num_classes]``.
        """
        if self.channels_last and inputs.ndim == 4:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        if self.precision == "32-true":
            return network(inputs).float()
        dtype = torch.bfloat16 if self.precision == "bf16-mixed" else torch.float16
        with torch.autocast(inputs.device.type, dtype):
            return network(inputs).float()

    def named(self, supernet: Supernet) -> dict[str, Any]:
        """Reads the architectures.

        Returns:
            Architectures by the names that their metrics bear.

        Raises:
            ConfigError: One cannot be read, is not in the space, or a name is duplicated.
        """
        archs: dict[str, Any] = {}
        for text in supernet.default_eval_archs if self.subnets is None else self.subnets:
            name, equals, description = str(text).partition("=")
            description = description.strip() if equals else str(text)
            arch = supernet.space.named(description)
            name = name.strip() if equals else _label(description)
            if name in ("", "mean", SAMPLED):
                raise ConfigError(f"evaluation.subnets: {text!r} names a subnet {name!r}; choose another name")
            if name in archs:
                raise ConfigError(f"evaluation.subnets: two are named {name!r}; write 'name = {text}'")
            archs[name] = arch
        return archs


class SubnetMetrics(nn.Module):
    """Accuracy and loss of several subnets on one data set.

    Args:
        names: The subnets' names.
        num_classes: Classes.
        top_k: As in :class:`EvaluationSettings`.
    """

    def __init__(self, names: Iterable[str], num_classes: int, top_k: int = 1) -> None:
        if top_k > num_classes:
            raise ConfigError(f"evaluation.top_k: {top_k} is more than the {num_classes} classes; give less")
        super().__init__()
        self.num_classes = num_classes
        self.names = list(names)
        self.accuracy = nn.ModuleList(
            Accuracy(task="multiclass", num_classes=num_classes, average="micro", top_k=top_k) for _ in self.names
        )
        self.loss = nn.ModuleList(MeanMetric() for _ in self.names)

    def update(self, index: int, logits: Tensor, targets: Tensor) -> None:
        """Adds a batch of a subnet.

        Args:
            index: The subnet's index among the names.
            logits: ``[batch, labels]``; at most as many labels as classes.
            targets: ``[batch]``.
        """
        accuracy, loss = self.metrics_at(index)
        missing = self.num_classes - logits.shape[1]  # a label set has fewer labels than there are classes
        padded = functional.pad(logits, (0, missing), value=-torch.inf) if missing else logits
        accuracy.update(padded, targets)
        loss.update(functional.cross_entropy(logits, targets), weight=len(targets))

    def metrics_at(self, index: int) -> tuple[Metric, Metric]:
        """Returns accuracy and loss of a subnet, by its index among the names."""
        accuracy, loss = self.accuracy[index], self.loss[index]
        assert isinstance(accuracy, Metric)
        assert isinstance(loss, Metric)
        return accuracy, loss

    def compute(self) -> dict[str, Tensor]:
        """Returns all values over the batches of all ranks, by name, and resets the metrics."""
        values = {}
        with warnings.catch_warnings():
            # a rank may have had no batch of a subnet
            warnings.filterwarnings("ignore", message=".*was called before the ``update`` method.*")
            for name, metric in self.by_name().items():
                values[name] = metric.compute()
                with torch.inference_mode(False):  # a fit after validate could not add to inference tensors
                    metric.reset()
        return values

    def by_name(self) -> dict[str, Metric]:
        """Returns the metrics, named ``<subnet>/accuracy`` and ``<subnet>/loss``."""
        named: dict[str, Metric] = {}
        for index, name in enumerate(self.names):
            named[f"{name}/accuracy"], named[f"{name}/loss"] = self.metrics_at(index)
        return named


@dataclass
class Recalibration:
    """Batch-norm statistics gathered on copies of subnets (once-for-all's recalibration; HeteroFL's static norm).

    The copies are dropped when the weights change.
    """

    batches: Sequence[Tensor]
    copies: dict[str, nn.Module] = field(default_factory=dict)

    def network(self, name: str, supernet: Supernet, arch: Any) -> nn.Module:
        """Returns a copy of the subnet with the batches' statistics, in evaluation mode."""
        if name not in self.copies:
            self.copies[name] = recalibrated(supernet.subnet(arch), self.batches)
        return self.copies[name]


@torch.no_grad()
def recalibrated(network: nn.Module, batches: Iterable[Tensor]) -> nn.Module:
    """Returns the network in evaluation mode, its batch-norm statistics set to the mean over batches.

    Layers without running statistics get them. The network is changed: give a copy.

    Args:
        network: Any network.
        batches: Inputs, ``[batch, ...]``.

    Example:
        >>> norm = nn.BatchNorm2d(1, track_running_stats=False)
        >>> x = torch.arange(4.0).reshape(4, 1, 1, 1)
        >>> float(recalibrated(norm, [x]).running_mean)
        1.5
    """
    norms = fresh_statistics(network)
    network.eval()  # dropout stays off
    if norms:
        for norm in norms:
            norm.train()
        for inputs in batches:
            network(inputs)
    return network.eval()


def fresh_statistics(network: nn.Module) -> list[_BatchNorm]:
    """Returns a network's batch norms, to which it has given running statistics of no batch yet, in place.

    Example:
        >>> norm = nn.BatchNorm2d(1, track_running_stats=False)
        >>> fresh_statistics(norm)[0].running_var
        tensor([1.])
    """
    norms = [module for module in network.modules() if isinstance(module, _BatchNorm)]
    device = next((parameter.device for parameter in network.parameters()), None)
    for norm in norms:
        norm.track_running_stats = True
        norm.register_buffer("running_mean", torch.zeros(norm.num_features, device=device))
        norm.register_buffer("running_var", torch.ones(norm.num_features, device=device))
        norm.register_buffer("num_batches_tracked", torch.tensor(0, device=device))
        norm.momentum = None  # a plain mean over the batches  # type: ignore[assignment]
    return norms


def _label(text: str) -> str:
    """Returns an architecture's text without characters that metric and file names exclude.

    Example:
        >>> _label("d: [0,1,0,1], e: 0.14")
        'd0101-e0.14'
        >>> _label("d: [1,0], e: [0.1,0.25]")
        'd10-e0.1_0.25'
    """
    parts = re.split(r",\s*(?![^\[]*\])", text)  # commas outside brackets
    labels = []
    for part in parts:
        between = "_" if "." in part else ""
        labels.append(re.sub(r"[^\w.-]", "", part.replace(",", between)))
    return "-".join(labels)
