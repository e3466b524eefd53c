"""User-level differential privacy of an overlap average: clipped updates, and Gaussian noise once per round.

The guide *privacy* derives the bound for architectures of different size, and the noise of buffers and sampled cohorts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.aggregation.sums import FlatTensors, Sums, summable_dtype
from lit_fednas.messages import ClientTask
from lit_fednas.rng import numpy_generator
from lit_fednas.supernets import Region, Supernet


@dataclass(frozen=True)
class GaussianMechanism:
    """How a round's updates are clipped, and the noise of their sum; what the callback ``Privacy`` gives to a round.

    Attributes:
        clip_norm: The greatest norm S of an update's parameters.
        noise_multiplier: z, of all that the round releases; 0 for clipping without noise.
        seed: What the noise is drawn from.
        round: The round, from 0.
        buffer_norm: The greatest norm S_b of an update's running statistics; ``None`` if the supernet has none.
        count_noise: The noise's standard deviation in the count of updates within the norm, where that is released.
        planned: A plan of some of the clients that can take part, where cohorts are sampled; ``None`` where they are
            known.
        expected: The number of clients that are expected to take part, where cohorts are sampled.
    """

    clip_norm: float
    noise_multiplier: float
    seed: int
    round: int
    buffer_norm: float | None = None
    count_noise: float | None = None
    planned: Sequence[ClientTask] | None = None
    expected: float = 0.0

    @property
    def sum_multiplier(self) -> float:
        """The multiplier of the sum, which with that of the count makes z (Andrew et al., 2021, Theorem 1)."""
        if not self.noise_multiplier or self.count_noise is None:
            return self.noise_multiplier
        # each client moves the count of updates within the norm, less one half each, by at most one half
        return (self.noise_multiplier**-2 - (2 * self.count_noise) ** -2) ** -0.5


@dataclass(frozen=True)
class Released:
    """What a private round has released, for the accountant; what the aggregation gives back to the round.

    Attributes:
        influences: Each asked client's coefficient as a share of the greatest, which the noise is made for.
        within: The share of updates within the norm, with noise; ``None`` if it is not released.
        clipped: The share of the updates that were clipped, without noise; NaN without an update.
    """

    influences: Mapping[int, float]
    within: float | None
    clipped: float


class PrivateSums(Sums):
    """The sum of clipped changes, by public denominators."""

    def __init__(
        self,
        supernet: Supernet,
        mechanism: GaussianMechanism,
        coefficients: Mapping[int, float],
        covered: Mapping[Any, float],
        greatest: float,
    ) -> None:
        self.mechanism = mechanism
        self.coefficients = dict(coefficients)
        self.greatest = greatest
        self.shared = supernet.shared_tensors()
        norms = {name: self._norm(tensor) for name, tensor in self.shared.items()}
        self.norms = {name: norm for name, norm in norms.items() if norm is not None}
        released = {name: self.shared[name] for name in self.norms}
        dtypes = {name: summable_dtype(tensor) for name, tensor in released.items()}
        self.values = FlatTensors(released, dtypes)
        self.weights = FlatTensors(released, dtypes)
        for arch, weight in covered.items():
            for region in supernet.regions(arch).values():
                if region.name in self.norms:
                    region.add_to(self.weights[region.name], 1.0, weight)
        # of the updates: those within the norm less half of all, those that were clipped, all
        self.counts = torch.zeros(3, dtype=torch.float64)
        self._within: float | None = None

    def _norm(self, tensor: Tensor) -> float | None:
        """Returns the norm of a tensor's group; ``None`` if the tensor keeps its value."""
        if isinstance(tensor, nn.Parameter):
            return self.mechanism.clip_norm if tensor.requires_grad else None
        return self.mechanism.buffer_norm if tensor.is_floating_point() else None

    @torch.no_grad()
    @override
    def add(self, holder: Any, parts: Iterable[tuple[Region, Tensor, float]]) -> None:
        groups: dict[bool, list[tuple[Region, Tensor, float]]] = {True: [], False: []}
        for region, value, weight in parts:
            if region.name in self.norms:
                sent = self.shared[region.name]
                groups[isinstance(sent, nn.Parameter)].append((region, value - region.of(sent), weight))
        for of_parameters, group in groups.items():
            norm = sqrt(sum(float(torch.linalg.vector_norm(one, dtype=torch.float64)) ** 2 for _, one, _ in group))
            bound = self.norms[group[0][0].name] if group else inf
            factor = min(1.0, bound / norm) if norm else 1.0
            for region, change, weight in group:
                region.add_to(self.values[region.name], change.to(self.values[region.name].dtype), weight * factor)
            if of_parameters:
                within = norm <= bound
                self.counts += torch.tensor([within - 0.5, not within, 1], dtype=torch.float64)

    @torch.no_grad()
    @override
    def merge(self, other: Self) -> None:
        self.counts += other.counts
        for buffer, more in zip(self.values.buffers, other.values.buffers, strict=True):
            buffer.add_(more)

    @property
    @override
    def tensors(self) -> list[Tensor]:
        return [*self.values.buffers, self.counts]

    @torch.no_grad()
    @override
    def averages(self, shared: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Adds the noise, the same on all ranks, and divides."""
        groups = len(set(map(type, (self.shared[name] for name in self.norms))))
        multiplier = self.mechanism.sum_multiplier * sqrt(groups) * self.greatest
        # not torch's generator, of whose seed the CPU's takes 32 bits, so that one could try all
        draws = numpy_generator(self.mechanism.seed, "privacy", self.mechanism.round)
        averages = {name: tensor.detach().to(summable_dtype(tensor), copy=True) for name, tensor in shared.items()}
        for name, total in self.values.items():
            if multiplier:
                noise = draws.standard_normal(tuple(total.shape), dtype=np.float32)
                total.add_(torch.as_tensor(noise, device=total.device), alpha=multiplier * self.norms[name])
            weights = self.weights[name]
            averages[name] += torch.where(weights > 0, total / weights, 0)
            if name.endswith("running_var"):
                averages[name].clamp_(min=0)
        self._within = self._released_within()
        return averages

    def _released_within(self) -> float | None:
        """Returns the share of updates within the norm, with noise (Andrew et al., 2021, Algorithm 1)."""
        if self.mechanism.count_noise is None:
            return None
        expected = len(self.coefficients) if self.mechanism.planned is None else self.mechanism.expected
        draws = numpy_generator(self.mechanism.seed, "privacy-count", self.mechanism.round)
        noise = draws.standard_normal() * self.mechanism.count_noise
        count = float(self.counts[0]) + (noise if self.mechanism.noise_multiplier else 0.0)
        return 0.5 + count / expected if expected else 0.5

    @property
    def released(self) -> Released:
        """What the round has released, after :meth:`averages`."""
        influences = {client: weight / self.greatest for client, weight in self.coefficients.items()}
        _, clipped, updates = self.counts.tolist()
        return Released(influences, self._within, clipped / updates if updates else float("nan"))
