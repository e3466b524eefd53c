"""The metrics of architectures with the weights that they share."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from lit_fednas.data import Classification, Task
from lit_fednas.data.readers import EvalBatches
from lit_fednas.errors import ConfigError
from lit_fednas.federation.evaluation import EvaluationSettings, SubnetMetrics, recalibrated
from lit_fednas.records import Directions, SearchFiles
from lit_fednas.rng import generator
from lit_fednas.supernets import Supernet


class Evaluator:
    """Evaluates architectures of a supernet on data that stay on the device.

    A subnet runs in place, without being built; it is copied only where batch-norm statistics are gathered anew.

    Args:
        supernet: The weights.
        batches: ``(inputs, targets)``, on the supernet's device.
        settings: How: top-k, precision, layout.
        recalibration: Batches of training data to gather batch-norm statistics on; none to leave them.
        task: What targets are; classes if not given.
        added: Metrics beside the task's, by name (``model.metrics``).
    """

    def __init__(
        self,
        supernet: Supernet,
        batches: Iterable[tuple[Tensor, Tensor]],
        settings: EvaluationSettings = EvaluationSettings(),
        recalibration: Sequence[Tensor] = (),
        task: Task | None = None,
        added: Mapping[str, Metric] | None = None,
    ) -> None:
        self.supernet = supernet
        self.batches = [(settings.laid_out(inputs), targets) for inputs, targets in batches]
        self.settings = settings
        self.recalibration = recalibration
        device = next(supernet.parameters()).device
        self.task = task or Classification(supernet.num_classes)
        self._metrics = SubnetMetrics(["arch"], self.task, settings.top_k, added).to(device)
        for metric in self._metrics.modules():
            if isinstance(metric, Metric):  # processes that share a search evaluate architectures of their own
                metric.distributed_available_fn = lambda: False

    @property
    def directions(self) -> Directions:
        """The metrics of an architecture, the one that counts most first, and whether higher is better."""
        return self._metrics.directions

    @property
    def num_examples(self) -> int:
        """Examples that every architecture is evaluated on."""
        return sum(len(targets) for _, targets in self.batches)

    def __call__(self, arch: Any) -> dict[str, float]:
        """Evaluates an architecture; returns its metrics."""
        return self.metrics(self.running(arch), partial(self.supernet.targets, arch))

    def scorer(self, tier: str, generation: int, archs: Sequence[Any]) -> Callable[[Any], dict[str, float]]:
        """Returns what scores a generation's architectures, of which none was scored before."""
        return self

    def description(self, tiers: Sequence[str]) -> dict[str, Any]:
        """Returns how the architectures of these tiers are scored, for ``settings.json``."""
        return {
            "num_examples": self.num_examples,
            "top_k": self.settings.top_k,
            "recalibrate_batches": len(self.recalibration),
            "precision": self.settings.precision,
            "federated": None,
        }

    def finish(self, files: SearchFiles) -> dict[str, Any]:
        """Writes what the scores of a finished search cost; returns what to add to ``settings.json``."""
        return {}

    def running(self, arch: Any) -> Callable[[Tensor], Tensor]:
        """Returns the architecture in place, or :meth:`network` where its norms need new statistics."""
        self.supernet.eval()
        return self.network(arch) if self.recalibration else lambda inputs: self.supernet(inputs, arch)

    def network(self, arch: Any) -> nn.Module:
        """Returns a copy of the architecture as it is evaluated: with its norms' new statistics, if any."""
        network = self.supernet.subnet(arch).eval()
        return recalibrated(network, self.recalibration) if self.recalibration else network

    def answering(self, arch: Any) -> Callable[[Tensor], np.ndarray]:
        """Returns what evaluates an architecture on some of the examples.

        Returns:
            Takes row numbers ``[rows]``, in the order of the batches; returns what the task averages, for each row
            the sum over its units: float64 ``[rows, values]``.
        """
        network, (inputs, targets) = self.running(arch), self._examples
        size = len(self.batches[0][1])

        @torch.no_grad()
        def answer(rows: Tensor) -> np.ndarray:
            found = []
            for part in rows.to(targets.device).split(size):
                outputs = self.settings.logits(network, inputs[part])
                values = self.task.values(outputs, self.supernet.targets(arch, targets[part]), self.settings.top_k)
                found.append(torch.stack([values[name] for name in self.task.averaged], 1))
            return torch.cat(found).double().cpu().numpy()

        return answer

    @cached_property
    def _examples(self) -> tuple[Tensor, Tensor]:
        inputs, targets = (torch.cat(parts) for parts in zip(*self.batches, strict=True))
        sizes = [len(part) for _, part in self.batches]
        self.batches = list(zip(inputs.split(sizes), targets.split(sizes), strict=True))  # views: data are kept once
        return inputs, targets

    @torch.no_grad()
    def metrics(
        self, network: Callable[[Tensor], Tensor], labels: Callable[[Tensor], Tensor] = lambda classes: classes
    ) -> dict[str, float]:
        """Returns the metrics of any network on the same data.

        Args:
            network: Returns logits.
            labels: Its targets, given the examples' classes (``Supernet.targets``).
        """
        for inputs, classes in self.batches:
            self._metrics.update(0, self.settings.logits(network, inputs), labels(classes))
        values = self._metrics.compute()
        return {name: float(values[f"arch/{name}"]) for name in self.directions}


def share_of(batches: EvalBatches, share: float, seed: int) -> EvalBatches:
    """Returns a uniform draw of validation data (FedorAS, App. K.1)."""
    rows = batches.rows
    count = round(share * len(rows))
    if count < 1:
        raise ConfigError(f"search.validation_share: {share} of {len(rows)} examples leaves none; give more")
    if count == len(rows):
        return batches
    chosen = torch.randperm(len(rows), generator=generator(seed, "search-validation"))[:count]
    return EvalBatches(batches.reader, rows[chosen.sort().values], batches.batch_size)
