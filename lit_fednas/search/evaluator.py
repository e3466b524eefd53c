"""How good an architecture is with the weights it shares, on the server's validation data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lit_fednas.data.readers import EvalBatches
from lit_fednas.errors import ConfigError
from lit_fednas.federation.evaluation import EvaluationSettings, SubnetMetrics, recalibrated
from lit_fednas.records import SearchFiles
from lit_fednas.rng import generator
from lit_fednas.supernets import Supernet


class Metrics(NamedTuple):
    """Of one architecture on one data set."""

    accuracy: float
    loss: float


@dataclass(frozen=True)
class Generation:
    """Architectures that a method proposes together, and that are scored on the same data.

    Attributes:
        tier: The tier that is searched.
        number: Of the generation, from 0.
        archs: The architectures.
    """

    tier: str
    number: int
    archs: Sequence[Any]


class Evaluator:
    """Evaluates architectures of a supernet on data that stay on the device.

    A subnet runs in place, without being built; it is copied only where batch-norm statistics are gathered anew.

    Args:
        supernet: The weights.
        batches: ``(inputs, targets)``, on the supernet's device.
        settings: How: top-k, precision, layout.
        recalibration: Batches of training data to gather batch-norm statistics on; none to leave them.
    """

    def __init__(
        self,
        supernet: Supernet,
        batches: Iterable[tuple[Tensor, Tensor]],
        settings: EvaluationSettings = EvaluationSettings(),
        recalibration: Sequence[Tensor] = (),
    ) -> None:
        self.supernet = supernet
        self.batches = list(batches)
        self.settings = settings
        self.recalibration = recalibration
        device = next(supernet.parameters()).device
        self._metrics = SubnetMetrics(["arch"], supernet.num_classes, settings.top_k).to(device)

    @property
    def num_examples(self) -> int:
        """Examples that every architecture is evaluated on."""
        return sum(len(targets) for _, targets in self.batches)

    def __call__(self, arch: Any) -> Metrics:
        """Evaluates an architecture."""
        return self.metrics(self.running(arch), partial(self.supernet.targets, arch))

    def scorer(self, generation: Generation) -> Callable[[Any], Metrics]:
        """What scores a generation's architectures, none of which was scored before: here, the same for all."""
        return self

    def description(self, tiers: Sequence[str]) -> dict[str, Any]:
        """What ``settings.json`` says of how the architectures of these tiers are scored."""
        return {
            "num_examples": self.num_examples,
            "top_k": self.settings.top_k,
            "recalibrate_batches": len(self.recalibration),
            "precision": self.settings.precision,
            "federated": None,
        }

    def finish(self, files: SearchFiles) -> dict[str, Any]:
        """Writes down what the scores of a finished search cost; returns what ``settings.json`` says of it."""
        return {}

    def running(self, arch: Any) -> Callable[[Tensor], Tensor]:
        """The architecture in place, or :meth:`network` where its norms need new statistics."""
        self.supernet.eval()
        return self.network(arch) if self.recalibration else lambda inputs: self.supernet(inputs, arch)

    def network(self, arch: Any) -> nn.Module:
        """The architecture as a network of its own, as it is evaluated: with its norms' new statistics, if any."""
        network = self.supernet.subnet(arch).eval()
        return recalibrated(network, self.recalibration) if self.recalibration else network

    @torch.no_grad()
    def metrics(
        self, network: Callable[[Tensor], Tensor], labels: Callable[[Tensor], Tensor] = lambda classes: classes
    ) -> Metrics:
        """Evaluates any network on the same data.

        Args:
            network: It.
            labels: What it is to say of examples, given their classes (``Supernet.targets``).
        """
        for inputs, classes in self.batches:
            self._metrics.update(0, self.settings.logits(network, inputs), labels(classes))
        found = self._metrics.compute()
        return Metrics(float(found["arch/accuracy"]), float(found["arch/loss"]))


def share_of(batches: EvalBatches, share: float, seed: int) -> EvalBatches:
    """A uniform share of validation data (FedorAS, App. K.1).

    Args:
        batches: All of it.
        share: Above 0, up to 1.
        seed: Of the draw.

    Raises:
        ConfigError: The share is out of range or leaves nothing.
    """
    rows = batches.rows
    count = round(share * len(rows))
    if not 0 < share <= 1 or count < 1:
        raise ConfigError(f"search.validation_share: {share} of {len(rows)} examples; give above 0, at most 1")
    if count == len(rows):
        return batches
    chosen = torch.randperm(len(rows), generator=generator(seed, "search-validation"))[:count]
    return EvalBatches(batches.reader, rows[chosen.sort().values], batches.batch_size)
