"""User-level differential privacy of an overlap average: clipped updates, Gaussian noise once per round, accountants.

The guide *privacy* derives the bound for architectures of different size, and the noise of sampled cohorts and of
correlated rounds.
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
    """Standard normal noise of consecutive rounds, independent or correlated so that part of it cancels in their sum.

    The rounds' noise is w = C^-1 u, with u independent and C lower triangular with the ``bands`` diagonals
    binom(2 k, k) / 4^k, so that w_t = u_t - sum_k c_k w_(t-k): the banded square root of the sum over rounds (Kalinin
    and Lampert, 2024, "Banded Square Root Matrix Factorization for Differentially Private Model Training"). The last
    ``bands`` - 1 rounds' noise is kept in memory; whoever has it can subtract it, so it is in no file.

    Attributes:
        norm: The norm of a column of C, by which the noise has to be larger than independent noise.
    """

    def __init__(self, seed: int, bands: int = 1, first: int | None = None) -> None:
        self.seed = seed
        self.factors: list[float] = np.cumprod([1.0, *(1 - 0.5 / np.arange(1, bands))]).tolist()
        self.norm = sqrt(sum(factor**2 for factor in self.factors))
        self._next = first if bands > 1 else None  # None: the round of the next call
        self._recent: deque[dict[str, np.ndarray]] = deque(maxlen=bands - 1)  # the latest first

    def noise(self, round: int, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, np.ndarray]:
        """Returns a round's noise by name, float32; the rounds between the last one and it have noise of their own."""
        noise: dict[str, np.ndarray] = {}
        for number in range(round if self._next is None else self._next, round + 1):
            # not torch's generator, of whose seed the CPU's takes 32 bits, so that one could try all
            draws = numpy_generator(self.seed, "privacy", number)
            noise = {name: np.asarray(draws.standard_normal(shape, dtype=np.float32)) for name, shape in shapes.items()}
            for factor, earlier in zip(self.factors[1:], self._recent, strict=False):
                for name, values in noise.items():
                    values -= factor * earlier[name]
            self._recent.appendleft(noise)
        self._next = round + 1 if self._recent else None
        return noise


#: The methods by which an overlap average merges.
_MERGING = ("weight", "contributions", "start", "add", "sums", "finish")


@dataclass(eq=False)
class PrivateAverage(Aggregation):
    """An overlap average of one round, by public denominators, of clipped changes with noise in their sum.

    Attributes:
        influences: Each asked client's coefficient, by the greatest, which the noise is made for; of a finished round.
        clipped: The share of the updates that were clipped, without noise; NaN without an update.

    Raises:
        ConfigError: No bound on a client's influence is known (also of :meth:`start`).
    """

    average: OverlapAverage  # the method's, set up, for the clients' coefficients
    clip_norm: float  # the greatest norm S of an update's parameters
    noise_multiplier: float  # z; 0 for clipping without noise
    sequence: NoiseSequence  # draws the noise
    round: int  # the number of the round, from 0
    planned: Sequence[ClientTask] | None = None  # a plan of some of the clients that can take part, if they are sampled
    expected: float = 0.0  # how many are expected to take part, if they are sampled

    def __post_init__(self) -> None:
        kind = type(self.average)
        merging = [name for name in _MERGING if getattr(kind, name, None) is not getattr(OverlapAverage, name)]
        if merging:
            way = f"in a way of its own ({', '.join(merging)})"
            raise _unbounded(
                f"{kind.__name__} merges {way}; use OverlapAverage or MaxNet, or override prepare and coefficient alone"
            )
        if self.average.trim:
            raise _unbounded(f"trim {self.average.trim:g} leaves out values by what other clients send; set it to 0")
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
            raise _unbounded("clients count by their examples, which are private and unlimited; set weighted to false")
        if len({task.client for task in tasks}) < len(tasks):
            raise _unbounded("a client has several tasks in a round; use an assignment that gives it one")
        counted = self.expected / len(planned) if self.planned else 1.0
        weights = [coefficient(task) * counted for task in planned]
        scale = 1.0 / sum(weights) if sum(weights) > 0 else 1.0
        covered: dict[Any, float] = {}  # the planned weight of each architecture
        for task, weight in zip(planned, weights, strict=True):
            covered[task.arch] = covered.get(task.arch, 0.0) + weight * scale
        self._coefficients = {task.client: coefficient(task) * scale for task in tasks}
        self.greatest = max((coefficient(task) * scale for task in planned), default=1.0)
        self._shared = self._supernet.shared_tensors()
        # buffers and frozen parameters keep their values
        trained = {
            name: one for name, one in self._shared.items() if isinstance(one, nn.Parameter) and one.requires_grad
        }
        self.values, self.weights = zeros_like(trained), zeros_like(trained)
        for arch, weight in covered.items():
            for region in self._supernet.regions(arch).values():
                if region.name in trained:
                    region.add_to(self.weights[region.name], 1.0, weight)
        self._counts = torch.zeros(2, dtype=torch.float64)  # clipped updates, and all updates

    @override
    @torch.no_grad()
    def add(self, update: ClientUpdate) -> None:
        """Adds a client's tensors, all clipped by one factor."""
        changes = [
            (region, update.weights[name] - region.of(self._shared[region.name]))
            for name, region in self._supernet.regions(update.task.arch).items()
            if region.name in self.values
        ]
        norm = sqrt(sum(float(torch.linalg.vector_norm(part, dtype=torch.float64)) ** 2 for _, part in changes))
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
        """Adds the noise, the same on all ranks, and divides."""
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
        # elements that no planned architecture holds have no noise either
        self.untrained = {name: weights <= 0 for name, weights in self.weights.items()}
        self.influences = {client: weight / self.greatest for client, weight in self._coefficients.items()}
        clipped, updates = self._counts.tolist()
        self.clipped = clipped / updates if updates else nan
        return averages


def _unbounded(reason: str) -> ConfigError:
    return ConfigError(
        f"model.aggregation: no bound on a client's influence is known: {reason}; or set privacy to null"
    )


def dp_accounting() -> ModuleType:
    """Returns the package of that name, imported when it is first needed."""
    try:
        import dp_accounting
    except ImportError:
        raise ConfigError("privacy: needs dp-accounting; pip install 'lit-fednas[privacy]'") from None
    logging.getLogger("absl").setLevel(logging.ERROR)  # it warns of orders that it leaves out
    return dp_accounting


@dataclass(eq=False)
class KnownCohorts:
    """Accounts for the client that has spent most: Gaussian mechanisms compose exactly (Dong, Roth and Su, 2022).

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
        """Adds a round; ``losses`` are the squares of the asked clients' influences, which the noise is made for."""
        for client, loss in losses.items():
            self.spent[client] = self.spent.get(client, 0.0) + loss

    def epsilon(self, delta: float) -> float:
        """Returns the epsilon of all rounds so far."""
        most = max(self.spent.values(), default=0.0)
        if most == 0:
            return 0.0
        return float(dp_accounting().get_epsilon_gaussian(self.noise_multiplier / most**0.5, delta))

    def state_dict(self) -> dict[str, Any]:
        """Returns the sums of squares, so that a resumed accountant is exact."""
        return {"spent": dict(self.spent)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the sums."""
        self.spent = {int(client): float(loss) for client, loss in state["spent"].items()}

    @staticmethod
    def noise_for(epsilon: float, delta: float, rounds: int) -> float:
        """Returns the noise multiplier with which a client may take part in so many rounds."""
        return float(dp_accounting().get_sigma_gaussian(epsilon, delta)) * rounds**0.5


@dataclass(eq=False)
class SampledCohorts:
    """Accounts for all clients alike, by the rounds: privacy loss distributions of the sampled Gaussian mechanism."""

    noise_multiplier: float
    probability: float
    rounds: int = 0

    def add(self, losses: Mapping[int, float]) -> None:
        """Adds a round, whoever took part."""
        self.rounds += 1

    def epsilon(self, delta: float) -> float:
        """Returns the epsilon of all rounds so far."""
        if not self.rounds:
            return 0.0
        return _epsilon_of_sampled(self.noise_multiplier, self.probability, self.rounds, delta)

    def state_dict(self) -> dict[str, Any]:
        """Returns the number of rounds."""
        return {"rounds": self.rounds, "probability": self.probability}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the number of rounds; raises ``CheckpointError`` if another share of the clients was sampled."""
        if state["probability"] != self.probability:
            raise CheckpointError(
                f"model.cohort.ratio: {self.probability:g} is not that of the checkpoint's run, "
                f"{state['probability']:g}, by which epsilon is accounted for; a resumed run must keep it"
            )
        self.rounds = int(state["rounds"])

    @staticmethod
    def noise_for(epsilon: float, delta: float, rounds: int, probability: float) -> float:
        """Returns the noise multiplier with which so many rounds stay within an epsilon."""
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


@lru_cache(maxsize=8)  # what a round is allowed by, it is accounted for with
def _epsilon_of_sampled(noise_multiplier: float, probability: float, rounds: int, delta: float) -> float:
    composed = _sampled_round(noise_multiplier, probability).self_compose(rounds)
    return float(composed.get_epsilon_for_delta(delta))
