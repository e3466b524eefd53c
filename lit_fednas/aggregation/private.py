"""User-level differential privacy of an overlap average: clipped updates, Gaussian noise once per round, accountants.

The guide *privacy* derives the bound for architectures of different size, sampled cohorts and correlated noise.
"""

import logging
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import nan, sqrt
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.aggregation.base import Aggregation
from lit_fednas.aggregation.overlap import OverlapAverage
from lit_fednas.aggregation.sums import summable_dtype, zeros_like
from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.messages import ClientTask, ClientUpdate, RoundValues
from lit_fednas.rng import numpy_generator


class NoiseSequence:
    """Standard normal noise of consecutive rounds; with several bands it is correlated, so that part of it cancels.

    The rounds' noise is w = C^-1 u, with u independent and C lower triangular with the ``bands`` diagonals
    binom(2 k, k) / 4^k, so that w_t = u_t - sum_k c_k w_(t-k): the banded square root of the sum over rounds (Kalinin
    and Lampert, 2024, "Banded Square Root Matrix Factorization for Differentially Private Model Training"). The noise
    of the last ``bands`` - 1 rounds is kept in memory only, because anyone who reads it can subtract it.

    Attributes:
        norm: The norm of a column of C, by which correlated noise must be larger than independent noise.
    """

    def __init__(self, seed: int, bands: int = 1, first: int | None = None) -> None:
        self.seed = seed
        self.factors: list[float] = np.cumprod([1.0, *(1 - 0.5 / np.arange(1, bands))]).tolist()
        self.norm = sqrt(sum(factor**2 for factor in self.factors))
        self._next = first if bands > 1 else None  # None: the next call may ask for any round
        self._recent: deque[dict[str, np.ndarray]] = deque(maxlen=bands - 1)  # the newest round first

    def noise(self, round: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """Returns a round's noise by name, float32; the noise of skipped rounds is drawn, too."""
        noise: dict[str, np.ndarray] = {}
        for number in range(round if self._next is None else self._next, round + 1):
            # NumPy, as torch's CPU generator uses 32 bits of a seed, which an attacker could enumerate
            draws = numpy_generator(self.seed, "privacy", number)
            noise = {name: np.asarray(draws.standard_normal(shape, dtype=np.float32)) for name, shape in shapes.items()}
            for factor, recent_noise in zip(self.factors[1:], self._recent, strict=False):
                for name, values in noise.items():
                    values -= factor * recent_noise[name]
            self._recent.appendleft(noise)
        self._next = round + 1 if self._recent else None
        return noise


#: Methods of an overlap average that must not be overridden, as the private average does not call them.
_MERGING_METHODS = ("weight", "contributions", "start", "add", "sums", "finish")


@dataclass(eq=False)
class PrivateAverage(Aggregation):
    """Overlap average of one round with clipped updates, public denominators and noise in the sum.

    Attributes:
        influences: Each client's coefficient in a finished round, relative to the greatest, which scales the noise.
        clipped: The share of a finished round's updates that were clipped, without noise; NaN without an update.

    Raises:
        ConfigError: A client's influence has no known bound (also raised by :meth:`start`).
    """

    average: OverlapAverage  # the method's aggregation after its setup, which gives the clients' coefficients
    clip_norm: float  # the greatest norm S of an update's parameters
    noise_multiplier: float  # z; 0 clips without noise
    sequence: NoiseSequence
    round: int  # the number of the round, from 0
    planned: Sequence[ClientTask] | None = None  # tasks of a sample of the available clients, if cohorts are sampled
    expected: float = 0.0  # expected size of a sampled cohort

    def __post_init__(self) -> None:
        kind = type(self.average)
        overridden = [
            name for name in _MERGING_METHODS if getattr(kind, name, None) is not getattr(OverlapAverage, name)
        ]
        if overridden:
            raise _unbounded(f"{kind.__name__} overrides {', '.join(overridden)}; use OverlapAverage or MaxNet")
        if self.average.trim:
            raise _unbounded(
                f"trim {self.average.trim:g} leaves out values depending on other clients' updates; set it to 0"
            )
        if self.planned is not None and kind.coefficient is not OverlapAverage.coefficient:
            raise _unbounded(
                f"the coefficients of {kind.__name__} depend on the cohort, which PoissonCohort keeps secret; use "
                f"OverlapAverage, or model.cohort UniformCohort"
            )
        self._supernet = self.average._supernet

    @override
    def start(self, tasks: Sequence[ClientTask], values: RoundValues | None = None) -> None:
        self.average.prepare(tasks, values or RoundValues())
        coefficient, planned = self.average.coefficient, tasks if self.planned is None else self.planned
        if any(coefficient(replace(task, num_examples=task.num_examples + 1)) != coefficient(task) for task in planned):
            raise _unbounded(
                "weights are the clients' numbers of examples, which are private and unlimited; set weighted to false"
            )
        if len({task.client for task in tasks}) < len(tasks):
            raise _unbounded("a client has several tasks in a round; use an assignment with one task per client")
        participation = self.expected / len(planned) if self.planned else 1.0
        weights = [coefficient(task) * participation for task in planned]
        scale = 1.0 / sum(weights) if sum(weights) > 0 else 1.0
        weight_of_arch: dict[Any, float] = {}  # the planned weight of each architecture
        for task, weight in zip(planned, weights, strict=True):
            weight_of_arch[task.arch] = weight_of_arch.get(task.arch, 0.0) + weight * scale
        self._coefficients = {task.client: coefficient(task) * scale for task in tasks}
        self.greatest = max((coefficient(task) * scale for task in planned), default=1.0)
        self._shared = self._supernet.shared_tensors()
        # Buffers and frozen parameters keep their values.
        trained = {
            name: value
            for name, value in self._shared.items()
            if isinstance(value, nn.Parameter) and value.requires_grad
        }
        self.values, self.weights = zeros_like(trained), zeros_like(trained)
        for arch, weight in weight_of_arch.items():
            for region in self._supernet.regions(arch).values():
                if region.name in trained:
                    region.add_to(self.weights[region.name], 1.0, weight)
        self._counts = torch.zeros(2, dtype=torch.float64)  # numbers of clipped and of all updates

    @override
    @torch.no_grad()
    def add(self, update: ClientUpdate) -> None:
        """Adds a client's changes, scaled by one factor so that their joint norm is at most ``clip_norm``."""
        changes = [
            (region, update.weights[name] - region.of(self._shared[region.name]))
            for name, region in self._supernet.regions(update.task.arch).items()
            if region.name in self.values
        ]
        norm = sqrt(sum(float(torch.linalg.vector_norm(change, dtype=torch.float64)) ** 2 for _, change in changes))
        factor = min(1.0, self.clip_norm / norm) if norm else 1.0
        weight = self._coefficients[update.task.client] * factor
        for region, change in changes:
            region.add_to(self.values[region.name], change.to(self.values[region.name].dtype), weight)
        self._counts += torch.tensor([norm > self.clip_norm, 1], dtype=torch.float64)

    @override
    def sums(self) -> list[Tensor]:
        return [*self.values.values(), self._counts]

    @override
    @torch.no_grad()
    def finish(self) -> dict[str, Tensor]:
        """Returns the new weights; all ranks add the same noise."""
        deviation = self.noise_multiplier * self.greatest * self.clip_norm * self.sequence.norm
        shapes = {name: tuple(total.shape) for name, total in self.values.items()}
        noise = self.sequence.noise(self.round, shapes) if deviation else {}
        averages = {
            name: tensor.detach().to(summable_dtype(tensor), copy=True) for name, tensor in self._shared.items()
        }
        for name, total in self.values.items():
            if deviation:
                total.add_(torch.as_tensor(noise[name], device=total.device), alpha=deviation)
            weights = self.weights[name]
            averages[name] += torch.where(weights > 0, total / weights, 0)
        # Elements without a planned architecture have no noise; they must not move.
        self.untrained = {name: weights <= 0 for name, weights in self.weights.items()}
        self.influences = {client: weight / self.greatest for client, weight in self._coefficients.items()}
        clipped, updates = self._counts.tolist()
        self.clipped = clipped / updates if updates else nan
        return averages


def _unbounded(reason: str) -> ConfigError:
    return ConfigError(f"model.aggregation: a client's influence is unbounded: {reason}; or set privacy to null")


def dp_accounting() -> ModuleType:
    """Imports and returns the optional package ``dp_accounting``."""
    try:
        import dp_accounting
    except ImportError:
        raise ConfigError("privacy: needs dp-accounting; pip install 'lit-fednas[privacy]'") from None
    logging.getLogger("absl").setLevel(logging.ERROR)  # hides warnings about skipped orders
    return dp_accounting


@dataclass(eq=False)
class KnownCohorts:
    """Accountant of the client with the greatest loss: Gaussian mechanisms compose exactly (Dong, Roth and Su, 2022).

    Example:
        >>> accountant = KnownCohorts(2.0)
        >>> for cohort in ([0, 1], [1, 2], [1, 3], [1, 4]):
        ...     accountant.add(dict.fromkeys(cohort, 1.0))
        >>> round(accountant.epsilon(1e-5), 4)  # client 1: four rounds of z = 2 are one of z = 1
        4.3772
    """

    noise_multiplier: float
    spent: dict[int, float] = field(default_factory=dict)

    def add(self, losses: Mapping[int, float]) -> None:
        """Adds a round; ``losses`` are the squares of its clients' influences (:class:`PrivateAverage`)."""
        for client, loss in losses.items():
            self.spent[client] = self.spent.get(client, 0.0) + loss

    def epsilon(self, delta: float) -> float:
        """Returns the epsilon of all rounds so far."""
        greatest_loss = max(self.spent.values(), default=0.0)
        if greatest_loss == 0:
            return 0.0
        return float(dp_accounting().get_epsilon_gaussian(self.noise_multiplier / greatest_loss**0.5, delta))

    def state_dict(self) -> dict[str, Any]:
        """Returns the clients' sums of squares."""
        return {"spent": dict(self.spent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the clients' sums of squares."""
        self.spent = {int(client): float(loss) for client, loss in state["spent"].items()}

    @staticmethod
    def noise_for(epsilon: float, delta: float, rounds: int) -> float:
        """Returns the noise multiplier that keeps a client within ``epsilon`` if it takes part in ``rounds`` rounds."""
        return float(dp_accounting().get_sigma_gaussian(epsilon, delta)) * rounds**0.5


@dataclass(eq=False)
class SampledCohorts:
    """Accountant of Poisson-sampled cohorts, by privacy loss distributions of the sampled Gaussian mechanism."""

    noise_multiplier: float
    probability: float
    rounds: int = 0

    def add(self, losses: Mapping[int, float]) -> None:
        """Adds a round; its clients make no difference."""
        self.rounds += 1

    def epsilon(self, delta: float) -> float:
        """Returns the epsilon of all rounds so far."""
        if not self.rounds:
            return 0.0
        return _epsilon_of_sampled(self.noise_multiplier, self.probability, self.rounds, delta)

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of rounds and the sampling probability."""
        return {"rounds": self.rounds, "probability": self.probability}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the number of rounds, or raises ``CheckpointError`` if the sampling probability has changed."""
        if state["probability"] != self.probability:
            raise CheckpointError(
                f"model.cohort.ratio: {self.probability:g} is not the checkpoint's {state['probability']:g}, on which "
                f"epsilon depends; keep the checkpoint's value"
            )
        self.rounds = int(state["rounds"])

    @staticmethod
    def noise_for(epsilon: float, delta: float, rounds: int, probability: float) -> float:
        """Returns the noise multiplier that keeps ``rounds`` rounds within ``epsilon``."""
        accounting = dp_accounting()
        from dp_accounting.pld import PLDAccountant

        def event(noise_multiplier: float) -> Any:
            sampled = accounting.PoissonSampledDpEvent(probability, accounting.GaussianDpEvent(noise_multiplier))
            return accounting.SelfComposedDpEvent(sampled, rounds)

        return float(accounting.calibrate_dp_mechanism(PLDAccountant, event, epsilon, delta, tol=1e-3))


Accountant = KnownCohorts | SampledCohorts


@lru_cache(maxsize=1)
def _sampled_round(noise_multiplier: float, probability: float) -> Any:
    """Returns the privacy loss distribution of one sampled round."""
    dp_accounting()
    from dp_accounting.pld import privacy_loss_distribution

    return privacy_loss_distribution.from_gaussian_mechanism(noise_multiplier, sampling_prob=probability)


@lru_cache(maxsize=8)  # each round asks twice: before it is allowed, and after it is added
def _epsilon_of_sampled(noise_multiplier: float, probability: float, rounds: int, delta: float) -> float:
    composed = _sampled_round(noise_multiplier, probability).self_compose(rounds)
    return float(composed.get_epsilon_for_delta(delta))
