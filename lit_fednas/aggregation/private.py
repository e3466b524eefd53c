"""User-level differential privacy of an overlap average: clipped updates, and Gaussian noise once per round.

**The release.** In a round, client k trains the architecture ``a_k``, and its update changes the elements of ``a_k`` by
``d_k`` (0 elsewhere). The L2 norm of ``d_k`` is clipped to S over the architecture's own parameters (McMahan et al.,
2018, "Learning Differentially Private Recurrent Language Models", flat clipping). With coefficients ``c_k`` the server
computes, once per round and for all shared elements e together::

    G = sum_k c_k clip_S(d_k) + N(0, (z S c_max)^2 I)        c_max = max_k c_k
    w_e <- w_e + G_e / D_e                                   D_e = sum of c_k over the clients with e in a_k

**Neighbours** are two runs, in one of which all contributions of one client are replaced by those of a client that
fails: zero in every sum ("zero-out": Kairouz et al., 2021, "Practical and Private (Deep) Learning without Sampling or
Shuffling"; Ponomareva et al., 2023, "How to DP-fy ML"). The population, the tiers, the initial weights and the settings
are public.

**Sensitivity.** The plan (who trains what, hence ``c_k`` and ``D_e``) is drawn before any client trains and does not
depend on clients' data. So for neighbours that differ in client j, all other terms of the sum are equal, and the
undivided sums differ by ``c_j clip_S(d_j)``, whose norm is at most ``c_j S <= c_max S``; any update with a norm of S or
more reaches ``c_j S``. This holds whatever ``a_j`` is: a smaller network moves fewer elements, but may move these by as
much. The division by ``D_e`` comes after the noise and uses no client's data, so it is post-processing; so are the
server's optimizer and all later uses of the weights. ``D_e`` counts the clients that were asked: whether a client fails
may depend on its data, so for the weights a client that failed is one that changed nothing. The noise of the average is
``z S c_max / D_e``: elements that few clients train receive more of it. Elements in nobody's task keep their value,
without noise, which says no more than the public plan. (If the noise were added to the average in place of the sum, its
sensitivity would be ``c_j |clip_S(d_j) / D|``, up to ``c_j S / min_e D_e``: one rarely trained element would decide the
noise of all.)

MaxNet's coefficients are public (beta and the number of tasks), so the bound holds for it. With its largest client at
beta and n - 1 others at (1 - beta) / (n - 1), ``c_max / D_e`` is beta for what all hold, in place of 1 / n for an
average of equals. So the noise is n beta times as large: 45 times at beta 0.9 with 50 clients. On the other hand, a
client with the coefficient ``c_k`` has only ``c_k / c_max`` of the influence that the noise is made for, and the
accountant counts it so (:mod:`~lit_fednas.aggregation.accountant`).

**Buffers.** Running statistics (floating-point buffers) are a second group, with a norm S_b of their own. Scaled by 1 /
S and 1 / S_b, a client's two groups together have a norm of at most sqrt(2) c_k, so the noise of both is larger by
sqrt(2). Variances that the noise makes negative become 0 (post-processing). Counters and frozen parameters keep their
values. Networks without running statistics (``GroupNorm``) do not pay for them.

**Sampling.** With ``PoissonCohort`` every client takes part with probability q, independently of all others, and the
accountant counts the sampled Gaussian mechanism. This needs that whether a client takes part changes nothing but its
own term of the sum:

* coefficients are all equal;
* architectures are drawn independently of the cohort (``Assignment.depends_on``), and as secretly: a client's place in
  the cohort says which draw is its own;
* denominators are those of an expected cohort: q times the number of available clients, times the share of a public
  sample of them that holds e, by a plan for the sample that is drawn apart. So they do not tell who took part. (Any
  ``D_e`` keeps the guarantee that is drawn independently of the cohort; this one makes the expected step about that of
  the average.)
* noise is added in every round to each element with ``D_e > 0``, whoever trains it, also if nobody takes part; the
  others keep their values, whoever trains them.

Given all other draws, if the release without client j has the distribution N(m, v), it is with client j a mixture of
N(m, v) with the weight 1 - q and N(m + c_j clip_S(d_j), v) with the weight q: the sampled Gaussian mechanism of
add-or-remove neighbours, which zero-out is here. Divergences are jointly convex, so the bound also holds for the
mixture over all other draws. For all other cohorts no amplification is claimed: they count as known.

**What is refused**, since no bound is known or it would need a derivation of its own: coefficients by numbers of
examples (``weighted``: they are private and have no limit); ``trim`` (one client decides which values of others are
left out); aggregations that weigh tensors by what clients report (``OperatorAverage``, ``ClassAverage``); sums by
architecture, some of which are rejected after looking at results; several tasks of one client in a round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
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
        """The multiplier of the sum, which with that of the count makes :attr:`noise_multiplier`.

        Andrew et al. (2021), Theorem 1: ``(z^-2 - (2 sigma_b)^-2)^(-1/2)``, as each client moves the count of updates
        within the norm, less one half each, by at most one half.
        """
        if not self.noise_multiplier or self.count_noise is None:
            return self.noise_multiplier
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


def by_architecture(tasks: Collection[ClientTask], weights: Iterable[float]) -> dict[Any, float]:
    """Returns the sum of the clients' weights, by architecture."""
    sums: dict[Any, float] = {}
    for task, weight in zip(tasks, weights, strict=True):
        sums[task.arch] = sums.get(task.arch, 0.0) + weight
    return sums
