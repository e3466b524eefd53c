"""Evaluators: metrics of architectures with shared weights, on the data of the server or of clients."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric
from typing_extensions import override

from lit_fednas.data import Classification, ClientData, Task
from lit_fednas.errors import ConfigError
from lit_fednas.federation.evaluation import EvaluationSettings, SubnetMetrics, normalises_over_batches, recalibrated
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.records import ALL_TIERS, SearchFiles
from lit_fednas.records.run import Directions
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.search.proxies import Batch
from lit_fednas.supernets import Supernet
from lit_fednas.tiers import Population

_COSTS = ("macs", "bytes_down", "bytes_up")
_BYTES_PER_SUM = 4  # float32; the server knows the clients' counts


class Evaluator:
    """Evaluates architectures of a supernet on data that stay on the device.

    A subnet runs in place; it is copied only to recalibrate its batch norms.

    Args:
        batches: ``(inputs, targets)`` on the supernet's device.
        settings: Settings of evaluations, such as the layout of images.
        recalibration: Batches of training data for new batch-norm statistics; empty to keep the statistics.
        task: The task; classification if not given.
        added: Metrics in addition to the task's, by name (``model.metrics``).
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
        self._metrics = SubnetMetrics(["arch"], self.task, added).to(device)
        for metric in self._metrics.modules():
            if isinstance(metric, Metric):  # each process evaluates other architectures
                metric.distributed_available_fn = lambda: False

    @property
    def directions(self) -> Directions:
        """The names of metrics, the main one first, and whether higher is better."""
        return self._metrics.directions

    @property
    def num_examples(self) -> int:
        """The number of examples per evaluation."""
        return sum(len(targets) for _, targets in self.batches)

    def __call__(self, arch: Any) -> dict[str, float]:
        """Returns the metrics of an architecture."""
        return self.metrics(self.running(arch))

    def scorer(self, tier: str, generation: int, archs: Sequence[Any]) -> Callable[[Any], dict[str, float]]:
        """Returns the function that scores a generation's new architectures."""
        return self

    def description(self, tiers: Sequence[str]) -> dict[str, Any]:
        """Returns the settings of evaluations for ``settings.json``."""
        return {
            "num_examples": self.num_examples,
            "recalibrate_batches": len(self.recalibration),
            "federated": None,
        }

    def finish(self, files: SearchFiles) -> dict[str, Any]:
        """Writes the costs of a finished search's evaluations; returns additions to ``settings.json``."""
        return {}

    def batch(self, size: int = 64) -> Batch | None:
        """Returns the first examples for proxies; ``None`` without data on the server."""
        if not self.batches:
            return None
        inputs, targets = self.batches[0]
        return Batch(inputs[:size], targets[:size], self.task)

    def running(self, arch: Any) -> Callable[[Tensor], Tensor]:
        """Returns the architecture in place, or :meth:`network` if its norms need new statistics."""
        self.supernet.eval()
        return self.network(arch) if self.recalibration else lambda inputs: self.supernet(inputs, arch)

    def network(self, arch: Any) -> nn.Module:
        """Returns a recalibrated copy of the architecture."""
        return recalibrated(self.supernet.subnet(arch), self.recalibration)

    @torch.no_grad()
    def metrics(self, network: Callable[[Tensor], Tensor]) -> dict[str, float]:
        """Returns the metrics of a network that returns logits."""
        for inputs, targets in self.batches:
            self._metrics.update(0, self.settings.logits(network, inputs), targets)
        values = self._metrics.compute()
        return {name: float(values[f"arch/{name}"]) for name in self.directions}


@checked("search.federated")
@dataclass(frozen=True)
class FederatedEvaluation:
    """Lets clients score the architectures instead of the server.

    Args:
        rounds: Evaluation rounds per generation, each with as many clients as a cohort of the training. (With 4, the
            paper's rankings agree with central ones to a Kendall's tau above 0.8.)
    """

    rounds: PositiveInt = 4


@dataclass
class ClientDraw:
    """Draws the clients that score a generation, without replacement; each generation has its own draw.

    Args:
        clients: All clients' data.
        cohort: Clients per evaluation round.
        settings: The number of rounds.
        seed: The search's seed.
        least: Minimum of examples per client.

    Raises:
        ConfigError: No client has an example held out for validation.
    """

    clients: ClientData
    population: Population
    cohort: int
    settings: FederatedEvaluation
    seed: int
    least: int = 1

    def __post_init__(self) -> None:
        if not self.sizes.any():
            raise ConfigError(
                "data.client_val: 0 leaves clients no examples to score on; raise it, or leave search.federated out"
            )

    @property
    def sizes(self) -> np.ndarray:
        """The number of each client's validation examples (``data.client_val``)."""
        return self.clients.split_sizes("val")

    def eligible(self, tier: str) -> list[int]:
        """Returns the clients of a tier and above that have enough examples; raises ConfigError without any."""
        names = [client_tier.name for client_tier in self.population.tiers]
        if names and tier not in (*names, ALL_TIERS):
            raise ConfigError(
                f"search.tiers: {tier!r} is not a tier of the clients ({', '.join(names)}); leave search.tiers out"
            )
        for_all = not names or tier == ALL_TIERS
        capable = np.array(range(self.population.num_clients) if for_all else self.population.eligible(tier), dtype=int)
        eligible = capable[self.sizes[capable] >= self.least]
        if not len(eligible):
            raise ConfigError(
                f"data.client_val: leaves none of the {len(capable)} clients that can run {tier!r} enough examples "
                f"to score on ({self.least}); raise it, or lower data.num_clients"
            )
        return eligible.tolist()

    def order(self, tier: str, generation: int) -> np.ndarray:
        """Returns a tier's eligible clients in the order of a generation's rounds."""
        return numpy_generator(self.seed, f"federated-search-{tier}", generation).permutation(self.eligible(tier))

    def asked(self, tier: str, generation: int) -> list[int]:
        """Returns the clients that score a generation, in the order of its rounds."""
        return self.order(tier, generation)[: self.settings.rounds * self.cohort].tolist()


class FederatedEvaluator(Evaluator):
    """Lets clients score a generation on their own data (FedorAS, section 4.7, App. K.2).

    An evaluation round has as many clients as a round of training, drawn uniformly from those of the searched tier and
    above. A client receives the smallest supernet that contains all architectures of the generation, and answers for
    each with the sums of its task's metrics (for classes, two numbers). A score is the mean over all examples of these
    clients. With all clients it equals the score of an :class:`Evaluator` on all their examples, unless networks
    normalise by the statistics of a batch. Statistics for recalibration are not counted as sent. Other arguments are
    those of :class:`Evaluator`.

    Args:
        draw: Draws the clients.
        batch_size: Maximum of examples per batch.
    """

    def __init__(
        self,
        supernet: Supernet,
        draw: ClientDraw,
        settings: EvaluationSettings = EvaluationSettings(),
        recalibration: Sequence[Tensor] = (),
        batch_size: int = 512,
    ) -> None:
        super().__init__(supernet, [], settings, recalibration, draw.clients.task)
        self.draw = draw
        self.batch_size = batch_size
        if not recalibration and normalises_over_batches(supernet.skeleton(supernet.space.smallest)):
            draw.least = 2  # a single example has no statistics
        self._rows: dict[tuple[str, int], dict[str, Any]] = {}
        # keeps the batches of the last clients in memory
        self._read = lru_cache(maxsize=1)(lambda clients: [self._batches(client) for client in clients])

    @property
    @override
    def num_examples(self) -> int:
        return int(self.draw.sizes.sum())

    @override
    def __call__(self, arch: Any) -> dict[str, float]:
        return self.measured(self.answers(arch, self.draw.eligible(ALL_TIERS)).sum(0))

    @override
    def scorer(self, tier: str, generation: int, archs: Sequence[Any]) -> Callable[[Any], dict[str, float]]:
        """Draws the generation's clients and records the costs of their evaluations."""
        clients = self.draw.asked(tier, generation) if archs else []
        size = union_bytes(self.supernet, archs)
        self._rows[tier, generation] = {
            "tier": tier,
            "generation": generation,
            "evaluation_rounds": math.ceil(len(clients) / self.draw.cohort),
            "clients": len(clients),
            "architectures": len(archs),
            "supernet_bytes": size,
            "bytes_down": size * len(clients),
            "bytes_up": _BYTES_PER_SUM * len(self.task.averaged) * len(archs) * len(clients),
            "macs": sum(map(self.supernet.macs, archs)) * int(self.draw.sizes[clients].sum()),
        }
        answers_of_archs: dict[Any, np.ndarray] = {}
        answers = self.answers_of(archs, clients)

        def score(arch: Any) -> dict[str, float]:
            while arch not in answers_of_archs:
                answers_of_archs.update([next(answers)])
            return self.measured(answers_of_archs[arch].sum(0))

        return score

    def answers_of(self, archs: Sequence[Any], clients: Sequence[int]) -> Iterator[tuple[Any, np.ndarray]]:
        """Yields each architecture of a generation with :meth:`answers`."""
        return ((arch, self.answers(arch, clients)) for arch in archs)

    def measured(self, answer: np.ndarray) -> dict[str, float]:
        """Returns the metrics for a sum of clients' :meth:`answers`."""
        # float32, as the metrics of the central evaluator
        means = (answer[1:] / answer[0]).astype(np.float32).tolist()
        metrics = self.task.derived(dict(zip(self.task.averaged, means, strict=True)))
        return {name: metrics[name] for name in self.directions}

    @torch.no_grad()
    def answers(self, arch: Any, clients: Sequence[int]) -> np.ndarray:
        """Lets clients evaluate an architecture.

        Returns:
            float64 ``[clients, 1 + values]``: the count of examples or tokens, and the sums of the task's
            values over them.
        """
        network = self.running(arch)

        def answer(inputs: Tensor, targets: Tensor) -> Tensor:
            values = self.task.values(self.settings.logits(network, inputs), targets)
            sums = (values[name].sum() for name in self.task.averaged)
            return torch.stack([self.task.count(targets).sum().float(), *sums])

        sums = [torch.stack([answer(*batch) for batch in batches]).sum(0) for batches in self._read(tuple(clients))]
        return torch.stack(sums).double().cpu().numpy()

    @override
    def description(self, tiers: Sequence[str]) -> dict[str, Any]:
        federated = {
            **asdict(self.draw.settings),
            "cohort": self.draw.cohort,
            "eligible": {tier: len(self.draw.eligible(tier)) for tier in tiers},
        }
        return {**super().description(tiers), "federated": federated}

    @override
    def finish(self, files: SearchFiles) -> dict[str, Any]:
        rows = self._rows.values()
        files.write("federated", rows)
        return {"communication": {name: sum(row[name] for row in rows) for name in _COSTS}}

    def _batches(self, client: int) -> list[tuple[Tensor, Tensor]]:
        """Returns a client's examples in batches of near-equal size."""
        size = int(self.draw.sizes[client])
        batch_size = math.ceil(size / math.ceil(size / self.batch_size))
        draws = generator(0, "evaluation")  # nothing is drawn: no shuffling, no augmentation
        return list(self.draw.clients.batches(client, batch_size, draws, split="val", shuffle=False, augment=False))


def union_bytes(supernet: Supernet, archs: Iterable[Any]) -> int:
    """Returns the bytes of the smallest supernet that contains the architectures (FedorAS, App. K.2).

    Elements of parameters and buffers that several architectures share count once.

    Example:
        >>> from lit_fednas.supernets import PathCNN
        >>> net = PathCNN((3, 8, 8), 10, width=8, stage_layers=[1], strides=[2], operators=["sep_e1", "id"])
        >>> union_bytes(net, [net.space.smallest, net.space.largest]) == net.cost(net.space.superset).bytes
        True
    """
    shared = supernet.shared_tensors()
    return sum(int(mask.sum()) * shared[name].element_size() for name, mask in covered(supernet, archs).items())


def covered(supernet: Supernet, archs: Iterable[Any]) -> dict[str, Tensor]:
    """Returns bool masks of the shared tensors' elements that some architecture contains, by name."""
    shared = supernet.shared_tensors()
    masks: dict[str, Tensor] = {}
    for arch in archs:
        for region in supernet.regions(arch).values():
            mask = masks.setdefault(region.name, torch.zeros_like(shared[region.name], dtype=torch.bool))
            mask[... if region.index is None else region.index] = True
    return masks
