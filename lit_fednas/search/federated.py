"""A search whose architectures are scored by clients on their own data (FedorAS, section 4.7, App. K.2).

Each generation is scored in evaluation rounds, which ask as many clients as a round of training does. A client gets the
smallest supernet that holds all architectures of the generation, and answers for each with what its task sums (for
classes, two numbers). No client is asked twice about a generation; for the next, all are drawn anew. Only clients of
the searched tier and above are asked.

Clients are drawn uniformly, whatever the cohort's own rule and availability. An architecture that an earlier
tier's search has had scored keeps that score. Statistics that norms are recalibrated with are not counted as sent.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.data import ClientData
from lit_fednas.errors import ConfigError
from lit_fednas.federation.evaluation import EvaluationSettings, normalises_over_batches
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.records import ALL_TIERS, SearchFiles
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.search.evaluator import Evaluator
from lit_fednas.supernets import Supernet
from lit_fednas.tiers import Population

_COSTS = ("macs", "bytes_down", "bytes_up")
_NUMBER_BYTES = 4  # float32; how many units a client has is known, as are its examples


@checked("search.federated")
@dataclass(frozen=True)
class FederatedEvaluation:
    """Lets clients score the architectures instead of the server.

    Args:
        rounds: Evaluation rounds per generation, each of as many clients as the training's cohort has. (With 4,
            the paper's rankings agree with central ones to a Kendall's tau above 0.8.)
        split: The examples of a client: those held out by ``data.client_val``, or those it trained on.

    Raises:
        ConfigError: A setting is out of range.
    """

    rounds: PositiveInt = 4
    split: Literal["val", "train"] = "val"


@dataclass
class ClientDraw:
    """Draws the clients that are asked about a generation.

    Args:
        clients: All clients' data.
        population: Their tiers.
        cohort: Clients per evaluation round.
        settings: The number of rounds, and the split.
        seed: Of the search.
        least: Examples that a client must have.

    Raises:
        ConfigError: No client has an example in the split.
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
                "data.client_val: 0 leaves no client anything to score architectures on; set it to 0.1, for "
                "instance, or leave search.federated out"
            )

    @property
    def sizes(self) -> np.ndarray:
        """The number of examples that each client scores on."""
        return self.clients.split_sizes(self.settings.split)

    def eligible(self, tier: str) -> list[int]:
        """Returns the clients that can be asked in a tier's search: of the tier and above, with examples.

        Raises:
            ConfigError: The tier is not one of the clients', or none of its clients has an example.
        """
        return self._eligible(tier).tolist()

    def order(self, tier: str, generation: int) -> np.ndarray:
        """Returns a tier's eligible clients in the order in which a generation's rounds would ask them."""
        rng = numpy_generator(self.seed, f"federated-search-{tier}", generation)
        return rng.permutation(self._eligible(tier))

    def asked(self, tier: str, generation: int) -> list[int]:
        """Returns the clients that are asked about a generation, in the order of its rounds."""
        return self.order(tier, generation)[: self.settings.rounds * self.cohort].tolist()

    def rounds(self, clients: int) -> int:
        """Returns the number of evaluation rounds in which so many clients are asked."""
        return math.ceil(clients / self.cohort)

    def _eligible(self, tier: str) -> np.ndarray:
        names = [one.name for one in self.population.tiers]
        if names and tier not in (*names, ALL_TIERS):
            raise ConfigError(
                f"search.tiers: {tier!r} is not a tier of the clients ({', '.join(names)}), so nobody can be "
                f"asked; leave search.tiers out, or use these names"
            )
        able = np.arange(self.population.num_clients)
        if names and tier != ALL_TIERS:
            able = np.array(self.population.eligible(tier), dtype=np.int64)
        eligible: np.ndarray = able[self.sizes[able] >= self.least]
        if not len(eligible):
            raise ConfigError(
                f"data.client_val: leaves none of the {len(able)} clients that can run {tier!r} examples enough "
                f"to score on ({self.least}); raise it, or lower data.num_clients"
            )
        return eligible


class FederatedEvaluator(Evaluator):
    """Scores a generation by some clients' own data.

    A score is the mean over all examples of the clients that are asked. So if all are, it is that of an
    :class:`Evaluator` on all their examples together. (A network that normalises by the batch's own statistics
    sees one client's examples at a time, and differs.)

    Args:
        supernet: The weights.
        draw: Which clients are asked.
        settings: How: top-k, precision, layout.
        recalibration: Batches of training data to gather batch-norm statistics on; none to leave them.
        batch_size: The most examples per batch.
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
            draw.least = 2  # one example has no statistics
        self._rows: dict[tuple[str, int], dict[str, Any]] = {}
        self._read: tuple[list[int], list[list[tuple[Tensor, Tensor]]]] = ([], [])

    @property
    @override
    def num_examples(self) -> int:
        return int(self.draw.sizes.sum())

    @override
    def __call__(self, arch: Any) -> dict[str, float]:
        return self.score(arch, self.draw.eligible(ALL_TIERS))

    @override
    def scorer(self, tier: str, generation: int, archs: Sequence[Any]) -> Callable[[Any], dict[str, float]]:
        """Draws the generation's clients, if there is anything to ask, and notes what asking them costs."""
        asked = self.draw.asked(tier, generation) if archs else []
        size = union_bytes(self.supernet, archs)
        self._rows[tier, generation] = {  # of federated.csv
            "tier": tier,
            "generation": generation,
            "evaluation_rounds": self.draw.rounds(len(asked)),
            "clients": len(asked),
            "architectures": len(archs),
            "supernet_bytes": size,
            "bytes_down": size * len(asked),
            "bytes_up": _NUMBER_BYTES * len(self.draw.clients.task.averaged) * len(archs) * len(asked),
            "macs": sum(map(self.supernet.macs, archs)) * int(self.draw.sizes[asked].sum()),
        }
        found: dict[Any, np.ndarray] = {}
        answers = self.answers_of(archs, asked)

        def score(arch: Any) -> dict[str, float]:
            while arch not in found:
                found.update([next(answers)])
            return self.measured(found[arch].sum(0))

        return score

    def score(self, arch: Any, clients: Sequence[int]) -> dict[str, float]:
        """Returns the metrics over all examples of some clients."""
        return self.measured(self.answers(arch, clients).sum(0))

    def answers_of(self, archs: Sequence[Any], clients: Sequence[int]) -> Iterator[tuple[Any, np.ndarray]]:
        """Yields each architecture of a generation with :meth:`answers`."""
        return ((arch, self.answers(arch, clients)) for arch in archs)

    def measured(self, answer: np.ndarray) -> dict[str, float]:
        """Returns the metrics that some answers come to.

        Args:
            answer: Their sum, as :meth:`answers` has them.
        """
        # float32, as torchmetrics gives it to the central evaluator
        means = (answer[1:] / answer[0]).astype(np.float32).tolist()
        found = self.draw.clients.task.derived(dict(zip(self.draw.clients.task.averaged, means, strict=True)))
        return {name: found[name] for name in self.directions}

    @torch.no_grad()
    def answers(self, arch: Any, clients: Sequence[int]) -> np.ndarray:
        """Lets clients evaluate an architecture.

        Args:
            arch: The architecture.
            clients: The clients.

        Returns:
            float64 ``[clients, 1 + values]``: the units (examples, or tokens), and the sums over them of what the task
            averages.
        """
        network = self.running(arch)
        targets = partial(self.supernet.targets, arch)
        answers = [
            torch.stack([self._answer(network, inputs, targets(classes)) for inputs, classes in batches]).sum(0)
            for batches in self._batches(clients)
        ]
        return torch.stack(answers).double().cpu().numpy()

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
        files.write("federated", self._rows.values())
        rows = self._rows.values()
        return {"communication": {name: sum(row[name] for row in rows) for name in _COSTS}}

    def _answer(self, network: Callable[[Tensor], Tensor], inputs: Tensor, targets: Tensor) -> Tensor:
        task = self.draw.clients.task
        values = task.values(self.settings.logits(network, inputs), targets, self.settings.top_k)
        return torch.stack([task.units(targets).sum().float(), *(values[name].sum() for name in task.averaged)])

    def _batches(self, clients: Sequence[int]) -> list[list[tuple[Tensor, Tensor]]]:
        """Returns each client's examples in batches of near-equal size; kept until others are asked."""
        if self._read[0] != list(clients):
            self._read = list(clients), [self._batches_of(client) for client in clients]
        return self._read[1]

    def _batches_of(self, client: int) -> list[tuple[Tensor, Tensor]]:
        size = int(self.draw.sizes[client])
        even = math.ceil(size / math.ceil(size / self.batch_size))
        draws = generator(0, "evaluation")  # nothing is drawn: no shuffling, no augmentation
        split = self.draw.settings.split
        return list(self.draw.clients.batches(client, even, draws, split=split, shuffle=False, augment=False))


def union_bytes(supernet: Supernet, archs: Iterable[Any]) -> int:
    """Returns the bytes of the smallest supernet that holds some architectures (FedorAS, App. K.2).

    Args:
        supernet: The supernet; elements of its shared tensors that several architectures share are sent once.
        archs: The architectures.

    Returns:
        Bytes of the covered elements of parameters and buffers; 0 for no architecture.

    Example:
        >>> from lit_fednas.supernets import PathCNN
        >>> net = PathCNN((3, 8, 8), 10, width=8, stage_layers=[1], strides=[2], operators=["sep_e1", "id"])
        >>> union_bytes(net, [net.space.smallest, net.space.largest]) == net.cost(net.space.superset).bytes
        True
    """
    shared = supernet.shared_tensors()
    return sum(int(mask.sum()) * shared[name].element_size() for name, mask in covered(supernet, archs).items())


def covered(supernet: Supernet, archs: Iterable[Any]) -> dict[str, Tensor]:
    """Returns which elements of the shared tensors some architectures hold, by name; bool, of the tensors' shapes."""
    shared = supernet.shared_tensors()
    masks: dict[str, Tensor] = {}
    for arch in archs:
        for region in supernet.regions(arch).values():
            mask = masks.setdefault(region.name, torch.zeros_like(shared[region.name], dtype=torch.bool))
            mask[... if region.index is None else region.index] = True
    return masks
