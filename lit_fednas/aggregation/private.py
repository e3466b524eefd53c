r"""User-level differential privacy of an overlap average: clipped updates, and Gaussian noise once per round.

**The release.** In a round, client k trains the architecture a_k and its update changes the elements of a_k by
:math:`\Delta_k` (zero elsewhere). Its L2 norm is clipped to S over the architecture's own parameters (McMahan et al.,
2018, "Learning Differentially Private Recurrent Language Models", flat clipping). With coefficients c_k the server
computes, once for the round and for all shared elements e together,

.. math:: G = \sum_k c_k \, \mathrm{clip}_S(\Delta_k) + N(0, (z\,S\,c_{\max})^2 I), \qquad
    w_e \leftarrow w_e + G_e / D_e, \quad D_e = \sum_{k:\, e \in a_k} c_k.

**Neighbours** are runs in which one client's contributions are replaced by no change in all rounds ("zero-out": Kairouz
et al., 2021, "Practical and Private (Deep) Learning without Sampling or Shuffling"; Ponomareva et al., 2023, "How to
DP-fy ML", section 2). The population, the tiers, the initial weights and the settings are public.

**Sensitivity.** The plan (who trains what, hence c_k and D_e) is drawn before any client trains and does not depend on
clients' data. So for neighbours that differ in client j, all other terms of the sum are equal, and the undivided sums
differ by :math:`c_j \mathrm{clip}_S(\Delta_j)`, whose norm is at most :math:`c_j S \le c_{\max} S`; any update of a
norm of S or more reaches it. This holds whatever a_j is: a smaller network moves fewer elements, but may move these by
as much. The division by D_e comes after the noise and uses no client's data, so it is post-processing, and so are the
server's optimizer and all later rounds' use of the weights. D_e counts the clients that were *asked*: whether a client
fails may depend on its data, so a client that failed counts as one that changed nothing. Noise of the average is
:math:`z S c_{\max} / D_e`: elements that few clients train receive more of it. Elements in nobody's task keep their
value, without noise, which only says what the plan says. If noise were added to the average (in place of the sum), its
sensitivity would be :math:`c_j S / \min_{e \in a_j} D_e`, which one rarely trained element decides.

MaxNet's coefficients are public (beta and the number of tasks), so the bound holds for it. With its largest client at
beta and n - 1 others at (1 - beta) / (n - 1), :math:`c_{\max} / D_e` is beta for what all hold, in place of 1 / n for
an average of equals: the noise is n beta times as large, at beta 0.9 and 50 clients 45 times. On the other hand a
client with the coefficient c_k has only :math:`c_k / c_{\max}` of the influence that the noise is made for, and the
accountant counts it so (:mod:`~lit_fednas.aggregation.accountant`).

**Buffers.** Running statistics (floating-point buffers) are a second group, with a norm S_b of their own. Scaled by
1 / S and 1 / S_b, a client's two groups together have a norm of at most sqrt(2) c_k, so the noise of both is larger by
sqrt(2). Variances that the noise would make negative become zero (post-processing). Counters and frozen parameters keep
their values. Networks without running statistics (``GroupNorm``) do not pay for them.

**Sampling.** With ``PoissonCohort`` every client takes part with probability q, independently of all others, and the
accountant counts the sampled Gaussian mechanism. This needs that a client's part in the round changes nothing but its
own term of the sum: c_k = 1; architectures are drawn independently of the cohort (``Assignment.depends_on``); and
denominators are those of an expected cohort, :math:`D_e = q \sum_{k:\, e \in a_k} c_k` over a plan of *all* clients
that is drawn apart, so that they do not tell who took part (any positive D_e would do for privacy; this one makes the
expected step that of the average). Noise is added in every round to each element with D_e > 0, whoever trains it, also
if nobody takes part. Then the release without client j is some Q, and with it the mixture of Q (weight 1 - q) and of Q
moved by at most S, given all other draws: the sampled Gaussian mechanism of add-or-remove neighbours, to which zero-out
is equal here. All other cohorts count as known: no amplification is claimed for them, see the accountant.

**What is refused**, as no bound is known or it would need one of its own: coefficients by numbers of examples
(``weighted``: they are data and have no limit), ``trim`` (an order statistic; one client moves which values are left
out), aggregations that weigh tensors by what clients report (``OperatorAverage``, ``ClassAverage``), sums by
architecture of which some are rejected after looking at them, and several tasks of one client in a round.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt
from typing import Any, Self

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.aggregation.sums import FlatTensors, Sums, summable_dtype
from lit_fednas.messages import ClientTask
from lit_fednas.rng import generator
from lit_fednas.supernets import Region, Supernet


@dataclass(frozen=True)
class GaussianMechanism:
    """How a round's updates are clipped, and the noise of their sum; what the callback ``Privacy`` gives to a round.

    Attributes:
        clip_norm: The greatest norm S of an update's parameters.
        noise_multiplier: z, of all that the round releases; 0 for clipping without noise.
        seed: The run's seed, which the noise is drawn from.
        round: The round, from 0.
        buffer_norm: The greatest norm S_b of an update's running statistics; ``None`` if the supernet has none.
        count_noise: The noise's standard deviation in the count of updates within the norm, where that is released.
        everyone: A plan of all clients, where cohorts are sampled; ``None`` where they are known.
        probability: With which each of them takes part.
    """

    clip_norm: float
    noise_multiplier: float
    seed: int
    round: int
    buffer_norm: float | None = None
    count_noise: float | None = None
    everyone: Sequence[ClientTask] | None = None
    probability: float = 1.0

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
    """The sum of clipped changes, by public denominators.

    Args:
        supernet: The shared weights, as the clients were sent them.
        mechanism: The round's.
        coefficients: Of the round's clients.
        covered: By architecture, the sum of its clients' coefficients: what the denominators are made of.
        greatest: The greatest coefficient that a client can have.
    """

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
        draws = generator(self.mechanism.seed, "privacy", self.mechanism.round)
        averages = {name: tensor.detach().to(summable_dtype(tensor), copy=True) for name, tensor in shared.items()}
        for name, total in self.values.items():
            if multiplier:
                noise = torch.randn(total.shape, generator=draws, device="cpu")
                total.add_(noise.to(total.device), alpha=multiplier * self.norms[name])
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
        everyone = self.mechanism.everyone
        expected = len(self.coefficients) if everyone is None else self.mechanism.probability * len(everyone)
        draws = generator(self.mechanism.seed, "privacy-count", self.mechanism.round)
        noise = float(torch.randn((), generator=draws, device="cpu")) * self.mechanism.count_noise
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
