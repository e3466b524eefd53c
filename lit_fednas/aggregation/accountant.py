"""Accountants of user-level differential privacy: the epsilon of a run's rounds at a given delta (guide *privacy*)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping
from functools import lru_cache
from types import ModuleType
from typing import Any

from typing_extensions import override

from lit_fednas.errors import CheckpointError, ConfigError


def dp_accounting() -> ModuleType:
    """Returns the package of that name, imported when it is first needed."""
    try:
        import dp_accounting
    except ImportError:
        raise ConfigError(
            "privacy: needs the package dp-accounting, which is not installed; "
            "install it with: pip install 'lit-fednas[privacy]'"
        ) from None
    logging.getLogger("absl").setLevel(logging.ERROR)  # it warns of orders that it leaves out
    return dp_accounting


class Accountant(ABC):
    """Adds up what rounds have released; keeps counts and sums of squares alone, so that a resumed one is exact.

    Args:
        noise_multiplier: z, above 0.
    """

    def __init__(self, noise_multiplier: float) -> None:
        self.noise_multiplier = noise_multiplier

    @abstractmethod
    def add(self, losses: Mapping[int, float]) -> None:
        """Adds a round.

        Args:
            losses: The square of each asked client's influence, as a share of what the noise is made for.
        """

    @abstractmethod
    def epsilon(self, delta: float) -> float:
        """Returns the epsilon of all rounds so far."""

    @abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Returns the counts; plain values."""

    @abstractmethod
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores the counts.

        Raises:
            CheckpointError: They are of another kind of cohorts.
        """


class KnownCohorts(Accountant):
    """The client that has spent most: Gaussian mechanisms compose exactly (Dong, Roth and Su, 2022).

    Example:
        >>> accountant = KnownCohorts(2.0)
        >>> for cohort in ([0, 1], [1, 2], [1, 3], [1, 4]):
        ...     accountant.add(dict.fromkeys(cohort, 1.0))
        >>> round(accountant.epsilon(1e-5), 4)  # client 1: four rounds of z = 2 are one of z = 1
        4.3772
    """

    def __init__(self, noise_multiplier: float) -> None:
        super().__init__(noise_multiplier)
        self.spent: dict[int, float] = {}

    @override
    def add(self, losses: Mapping[int, float]) -> None:
        for client, loss in losses.items():
            self.spent[client] = self.spent.get(client, 0.0) + loss

    @override
    def epsilon(self, delta: float) -> float:
        most = max(self.spent.values(), default=0.0)
        if most == 0:
            return 0.0
        return float(dp_accounting().get_epsilon_gaussian(self.noise_multiplier / most**0.5, delta))

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"spent": dict(self.spent)}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.spent = {int(client): float(loss) for client, loss in state["spent"].items()}

    @staticmethod
    def noise_for(epsilon: float, delta: float, rounds: int) -> float:
        """Returns the noise multiplier with which a client may take part in so many rounds."""
        return float(dp_accounting().get_sigma_gaussian(epsilon, delta)) * rounds**0.5


class SampledCohorts(Accountant):
    """Every client alike, by the number of rounds: privacy loss distributions of the sampled Gaussian mechanism.

    Args:
        noise_multiplier: z, above 0.
        probability: With which each client takes part in a round.
    """

    def __init__(self, noise_multiplier: float, probability: float) -> None:
        super().__init__(noise_multiplier)
        self.probability = probability
        self.rounds = 0

    @override
    def add(self, losses: Mapping[int, float]) -> None:
        self.rounds += 1

    @override
    def epsilon(self, delta: float) -> float:
        if not self.rounds:
            return 0.0
        return _epsilon_of_sampled(self.noise_multiplier, self.probability, self.rounds, delta)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"rounds": self.rounds, "probability": self.probability}

    @override
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
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
