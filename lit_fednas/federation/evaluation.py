"""Evaluation of subnets of the global weights: in place, or on copies with recalibrated batch-norm statistics."""

from __future__ import annotations

import logging
import math
import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache, partial
from itertools import islice, zip_longest
from typing import Annotated, Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torchmetrics import Metric, MetricCollection
from typing_extensions import override

from lit_fednas.data import ClientData, Task
from lit_fednas.errors import ConfigError
from lit_fednas.ranges import Filled, NonNegativeInt, Range, checked
from lit_fednas.records.run import Directions
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.supernets import Supernet

log = logging.getLogger(__name__)

#: The mean over sampled architectures has this name among the subnets.
SAMPLED = "sampled"
#: Default number of training batches for recalibration, if a network's norms keep no statistics.
RECALIBRATION_BATCHES = 20
#: Maximum of ``evaluation.subnets``, because each is evaluated at every validation.
MAX_SUBNETS = 1000


@checked("evaluation")
@dataclass(frozen=True)
class EvaluationSettings:
    """Settings of the evaluation of subnets.

    Args:
        subnets: Architectures in the space's notation, or ``smallest`` or ``largest``. A name may precede an
            architecture: ``tiny = d: [0,0,0,0], e: 0.1``; otherwise its metrics are named after the architecture. The
            default is the supernet's own list (for SuperFed the architectures of Table 4).
        recalibrate_batches: Number of batches of the clients' training data for new batch-norm statistics, which a
            copy of each subnet gathers before its evaluation. The default is 20 if the norms keep no statistics, so
            that metrics are those of the deployed network; otherwise 0. With 0, norms without statistics use those of
            each evaluated batch, which a single example does not have.
        channels_last: Whether images keep the channels innermost in memory, which is often faster.
        sampled: Number of architectures drawn from the space for every validation and test; their mean accuracy
            ``val/sampled/accuracy`` is the quality of the supernet over architectures (FedorAS, Fig. 5 and 10).
        predicted: Architecture for ``trainer.predict``, in the notation of ``subnets`` without a name.
    """

    subnets: Annotated[Sequence[str], Filled] | None = None
    recalibrate_batches: NonNegativeInt | None = None
    channels_last: bool = False
    sampled: Annotated[int, Range(at_least=0, at_most=10**6)] = 0
    predicted: str = "largest"

    def __post_init__(self) -> None:
        if self.subnets is not None and len(self.subnets) > MAX_SUBNETS:
            number = f"{len(self.subnets):,}"
            raise ConfigError(f"evaluation.subnets: {number} are too many; give {MAX_SUBNETS:,} at most, or search")

    def check_norms(self, network: nn.Module) -> None:
        """Warns if the network's norms need a recalibration, or if it has no norms to recalibrate."""
        batches = self.recalibrate_batches
        if batches == 0 and normalises_over_batches(network):
            log.warning(
                "evaluation.recalibrate_batches: 0 evaluates with the statistics of each evaluated batch, which a "
                "deployed network does not have; leave it out to measure deployed networks"
            )
        elif batches and not any(isinstance(module, _BatchNorm) for module in network.modules()):
            log.warning("evaluation.recalibrate_batches: %d has no effect, as the networks have no batch norm", batches)

    def logits(self, network: Callable[[Tensor], Tensor], inputs: Tensor) -> Tensor:
        """Returns a network's float32 logits of a batch, in the memory layout of the settings."""
        return network(self.laid_out(inputs)).float()

    def laid_out(self, inputs: Tensor) -> Tensor:
        """Returns a batch in the memory layout of the settings; copies it only if its layout differs."""
        # only inputs need the layout: a convolution's output takes the layout of its input
        if self.channels_last and inputs.ndim == 4:
            return inputs.contiguous(memory_format=torch.channels_last)
        return inputs

    def named(self, supernet: Supernet) -> dict[str, Any]:
        """Returns the architectures by the names of their metrics; refuses reserved or repeated names."""
        archs: dict[str, Any] = {}
        for text in supernet.default_eval_archs if self.subnets is None else self.subnets:
            name, equals, description = str(text).partition("=")
            description = description.strip() if equals else str(text)
            arch = supernet.space.named(description)
            name = name.strip() if equals else _label(description)
            if name in ("", "mean", SAMPLED):
                raise ConfigError(f"evaluation.subnets: {text!r} uses the reserved name {name!r}; choose another name")
            if name in archs:
                raise ConfigError(f"evaluation.subnets: two are named {name!r}; write 'name = {text}'")
            archs[name] = arch
        return archs


class SubnetMetrics(nn.Module):
    """The metrics of several subnets on one data set: the task's metrics and those that a user adds."""

    def __init__(self, names: Iterable[str], task: Task, added: Mapping[str, Metric] | None = None) -> None:
        for name in added or {}:
            if name in task.metrics:
                raise ConfigError(f"model.metrics: {name!r} is a metric of every {type(task).__name__}; rename it")
        super().__init__()
        self.task = task
        self.names = list(names)
        self.directions = directions_of_metrics(task, added or {})
        self._of_task = nn.ModuleList(TaskMetrics(task) for _ in self.names)
        self._added = nn.ModuleList(MetricCollection(dict(added or {})).clone() for _ in self.names)

    def update(self, index: int, outputs: Tensor, targets: Tensor) -> None:
        """Adds a batch to the metrics of the subnet at an index."""
        of_task, added = self._of_subnet(index)
        of_task.update(outputs, targets)
        if added:
            added.update(*counted_batch(self.task, outputs, targets))

    def compute(self) -> dict[str, Tensor]:
        """Returns all values over the batches of all ranks, named ``<subnet>/<metric>``, and resets the metrics."""
        values: dict[str, Tensor] = {}
        with warnings.catch_warnings():
            # a rank may have evaluated no batch of a subnet
            warnings.filterwarnings("ignore", message=".*was called before the ``update`` method.*")
            for index, subnet in enumerate(self.names):
                for metric in self._of_subnet(index):
                    values |= {f"{subnet}/{name}": value for name, value in metric.compute().items()}
                    with torch.inference_mode(False):  # a fit after validate could not add to inference tensors
                        metric.reset()
        return values

    def mean(self, values: Mapping[str, Tensor]) -> Tensor:
        """Returns the mean of the task's main metric over subnets, without :data:`SAMPLED`."""
        return torch.stack([values[f"{name}/{self.task.metric}"] for name in self.names if name != SAMPLED]).mean()

    @property
    def metric_names(self) -> list[str]:
        """The names of all values that :meth:`compute` returns."""
        return [f"{subnet}/{name}" for subnet in self.names for name in self.directions]

    def _of_subnet(self, index: int) -> tuple[TaskMetrics, MetricCollection]:
        return cast(TaskMetrics, self._of_task[index]), cast(MetricCollection, self._added[index])


def directions_of_metrics(task: Task, added: Mapping[str, Metric]) -> Directions:
    """Returns for a task's and a user's metrics whether higher is better; ``None`` for metrics without a direction."""
    return {**task.metrics, **{name: metric.higher_is_better for name, metric in added.items()}}


def counted_batch(task: Task, outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Returns a batch in torchmetrics' form: for classes ``[count, classes]`` and ``[count]``, without ignored ones."""
    if not task.has_classes:
        return outputs, targets
    outputs, targets = outputs.flatten(0, -2), targets.flatten()
    counted = slice(None) if task.ignored is None else targets != task.ignored
    return outputs[counted], targets[counted]


class TaskMetrics(Metric):
    """The metrics of a task, from sums and their count."""

    full_state_update = False
    sums: Tensor
    count: Tensor

    def __init__(self, task: Task) -> None:
        super().__init__()
        self.task = task
        self.add_state("sums", torch.zeros(len(task.averaged)), dist_reduce_fx="sum")
        self.add_state("count", torch.zeros(()), dist_reduce_fx="sum")

    @override
    def update(self, outputs: Tensor, targets: Tensor) -> None:
        values = self.task.values(outputs, targets)
        self.sums += torch.stack([values[name].sum() for name in self.task.averaged])
        self.count += self.task.count(targets).sum()

    @override
    def compute(self) -> dict[str, Tensor]:
        means = self.sums / self.count
        return self.task.derived(dict(zip(self.task.averaged, means, strict=True)))


class ClientScore(NamedTuple):
    """One client's score of a network: means over examples or tokens, and the task's metrics that follow from them."""

    client: int
    num_examples: int
    num_units: int
    means: Mapping[str, float]
    metrics: Mapping[str, float]

    def row(self) -> dict[str, float]:
        """Returns the client's row of ``clients.csv``, without the column ``tier``."""
        return {"client": self.client, "num_examples": self.num_examples, **self.metrics}


@torch.no_grad()
def client_scores(
    network: Callable[[Tensor], Tensor],
    data: ClientData,
    clients: Sequence[int],
    split: str = "test",
    settings: EvaluationSettings = EvaluationSettings(),
    batch_size: int = 512,
) -> list[ClientScore]:
    """Evaluates a network on clients' own splits; several clients share one batch."""
    task = data.task
    clients = [client for client in clients if data.size(client, split)]
    if not clients:
        return []
    draws = generator(0, "evaluation")
    batches: Iterable[tuple[Tensor, Tensor]] = (
        batch
        for client in clients
        for batch in data.batches(client, batch_size, draws, split=split, shuffle=False, augment=False)
    )
    if len(clients) > 1:
        inputs, targets = zip(*batches, strict=True)
        batches = [(torch.cat(inputs), torch.cat(targets))]
    rows = []
    for x, y in batches:
        values = task.values(settings.logits(network, x), y)
        rows.append(torch.stack([task.count(y).double(), *(values[name].double() for name in task.averaged)], 1))
    sizes = [data.size(client, split) for client in clients]
    scores = []
    for client, size, part in zip(clients, sizes, torch.cat(rows).cpu().split(sizes), strict=True):
        count, *sums = part.sum(0).tolist()
        means = {name: total / count if count else math.nan for name, total in zip(task.averaged, sums, strict=True)}
        scores.append(ClientScore(client, size, int(count), means, task.derived(means)))
    return scores


def pooled(scores: Iterable[ClientScore], task: Task) -> dict[str, float]:
    """Returns the task's metrics over the pooled examples of several clients; NaN without examples."""
    scores = [score for score in scores if score.num_units]
    count = sum(score.num_units for score in scores)
    sums = {name: sum(score.means[name] * score.num_units for score in scores) for name in task.averaged}
    return task.derived({name: total / count if count else math.nan for name, total in sums.items()})


def batches_of_clients(sizes: Mapping[int, int], batch_size: int) -> list[list[int]]:
    """Returns groups of consecutive clients that fit in a batch; a client with more examples is a group of its own."""
    groups: list[list[int]] = []
    room = 0
    for client, size in sizes.items():
        if size == 0:
            continue
        if not groups or size > room:
            groups.append([])
            room = batch_size
        groups[-1].append(client)
        room -= size
    return groups


@dataclass
class Recalibration:
    """Copies of subnets with new batch-norm statistics (once-for-all's recalibration; HeteroFL's static norm)."""

    batches: Sequence[Tensor]
    copies: dict[str, nn.Module] = field(default_factory=dict)  # until the weights change

    def network(self, name: str, supernet: Supernet, arch: Any) -> Callable[[Tensor], Tensor]:
        """Returns a copy of the subnet with statistics of the batches, or without batches the subnet itself."""
        if not self.batches:
            return partial(supernet, arch=arch)
        if name not in self.copies:
            self.copies[name] = recalibrated(supernet.subnet(arch), self.batches)
        return self.copies[name]


def recalibration_batches(clients: ClientData, count: int, batch_size: int, seed: int) -> list[Tensor]:
    """Returns batches of clients' training data, the same for a seed, so that a resumed run evaluates equally."""
    order = (client for client in map(int, _order(clients.num_clients, seed)) if clients.sizes[client] > 1)
    streams = [
        clients.batches(client, batch_size, generator(seed, "recalibration", client), augment=False)
        for client in islice(order, count)
    ]
    batches = (batch for turn in zip_longest(*streams) for batch in turn if batch is not None)
    # batch norm refuses batches of one example
    return list(islice((inputs for inputs, _ in batches if len(inputs) > 1), count))


@lru_cache(maxsize=1)
def _order(num_clients: int, seed: int) -> np.ndarray:
    """Returns the clients in a random order, cached because every evaluation of a run uses the same."""
    return numpy_generator(seed, "recalibration").permutation(num_clients)


@torch.no_grad()
def recalibrated(network: nn.Module, batches: Iterable[Tensor]) -> nn.Module:
    """Sets a network's batch-norm statistics to means over the batches, if any; returns it in evaluation mode."""
    norms = fresh_statistics(network) if batches else []
    network.eval()  # dropout stays off
    if norms:
        for norm in norms:
            norm.train()
        for inputs in batches:
            network(inputs)
    return network.eval()


def normalises_over_batches(network: nn.Module) -> bool:
    """Returns whether an example's output depends on its batch even in evaluation mode: norms without statistics."""
    return any(isinstance(module, _BatchNorm) and module.running_mean is None for module in network.modules())


def fresh_statistics(network: nn.Module) -> list[_BatchNorm]:
    """Gives a network's batch norms new, empty running statistics, in place, and returns the norms."""
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
    """Returns an architecture's text without characters that are invalid in metric or file names: ``d01-e0.14``."""
    parts = re.split(r",\s*(?![^\[]*\])", text)  # commas outside brackets
    return "-".join(re.sub(r"[^\w.-]", "", part.replace(",", "_" if "." in part else "")) for part in parts)
