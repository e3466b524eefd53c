"""What a search is asked to do."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from lit_fednas.costs import LatencySource
from lit_fednas.errors import ConfigError
from lit_fednas.records import COST_NAMES
from lit_fednas.search.federated import FederatedEvaluation
from lit_fednas.search.method import SearchMethod
from lit_fednas.search.nsga2 import NSGA2
from lit_fednas.tiers import TierSource


@dataclass(frozen=True)
class SearchSettings:
    """A search after training.

    Args:
        tiers: The device tiers; if not given, those of the clients (``model.tiers``), or else three found from the
            space.
        method: How each tier is searched.
        evaluations: Distinct architectures of the tier to evaluate, per tier (FedorAS: 1000).
        labels: The label set that all architectures tell apart; that of their tier if not given (FedorAS, App. H).
        per_tier: Whether each tier has a search of its own; else one search covers the whole space with so many
            evaluations, and the tiers choose from it.
        cost: The objective beside accuracy.
        metric: What is best on the validation data: the greatest ``accuracy`` or the least ``loss``.
        federated: How clients score the architectures on their own data (FedorAS, section 4.7); if not given, the
            server does, on its validation data.
        validation_share: Which uniform share of the server's validation data is used.
        latency: How latency is found; not at all if not given.
        seed: Of the search; that of the run if not given.
        name: The folder in the run's folder.

    Raises:
        ConfigError: A setting is out of range.
    """

    tiers: TierSource | None = None
    method: SearchMethod = field(default_factory=NSGA2)
    evaluations: int = 1000
    labels: str | None = None
    per_tier: bool = True
    cost: str = "macs"
    metric: Literal["accuracy", "loss"] = "accuracy"
    federated: FederatedEvaluation | None = None
    validation_share: float = 1.0
    latency: LatencySource | None = None
    seed: int | None = None
    name: str = "search"

    def __post_init__(self) -> None:
        if self.evaluations < 1:
            raise ConfigError(f"search.evaluations: {self.evaluations} must be at least 1")
        if self.cost not in COST_NAMES:
            raise ConfigError(f"search.cost: {self.cost!r} is no cost; choose from {', '.join(COST_NAMES)}")
        if self.federated is not None and self.validation_share != 1:
            raise ConfigError(
                f"search.validation_share: {self.validation_share} is a share of the server's validation data, "
                f"which search.federated does without; leave one of the two out, or lower data.client_val"
            )
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ConfigError(f"search.name: {self.name!r} cannot name a folder; use letters, digits, - and _")
