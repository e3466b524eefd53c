"""What a fine-tuning is asked to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, CohortSampler
from lit_fednas.objectives import Objective


@dataclass(frozen=True)
class FinetuneSettings:
    """Federated averaging of each tier's network (FedorAS, section 3.3, Tables 10 and 11).

    Args:
        rounds: Rounds per tier.
        client: How clients train; as in the run's training if not given.
        cohort: Which of the eligible clients take part in a round; as in the run's training if not given.
        objective: What a client optimises; plain cross-entropy if not given.
        initial: ``supernet`` starts from the weights of the supernet, ``random`` from scratch (the paper's
            rand-init).
        tier_aware: Whether only clients of a tier and above train its network; else all clients do.
        labels: The label set that all networks shall tell apart; that of their tier if not given. Only clients
            whose labels are at least as fine take part.
        head_rounds: Rounds before those, in which the classifier alone is trained (transfer to other labels,
            App. H).
        architectures: So many architectures are drawn from each tier in place of the search's, each is trained,
            and the best on the validation data is the tier's (random search, App. F.1); 0 for the search's.
        search: The search whose tiers are trained.
        check_val_every_n_rounds: How often the server's validation set is evaluated.
        seed: Of the draws; that of the run if not given.
        name: The folder in the run's folder.

    Raises:
        ConfigError: A setting is out of range.
    """

    rounds: int = 100
    client: ClientSettings | None = None
    cohort: CohortSampler | None = None
    objective: Objective | None = None
    initial: Literal["supernet", "random"] = "supernet"
    tier_aware: bool = True
    labels: str | None = None
    head_rounds: int = 0
    architectures: int = 0
    search: str = "search"
    check_val_every_n_rounds: int = 10
    seed: int | None = None
    name: str = "finetune"

    def __post_init__(self) -> None:
        if self.head_rounds < 0:
            raise ConfigError(f"finetune.head_rounds: {self.head_rounds} must be at least 0")
        if self.rounds < 1 or self.check_val_every_n_rounds < 1 or self.architectures < 0:
            raise ConfigError(
                f"finetune: rounds {self.rounds} and check_val_every_n_rounds {self.check_val_every_n_rounds} "
                f"must be at least 1, architectures {self.architectures} at least 0"
            )
        if not self.name or "/" in self.name or self.name.startswith("."):
            raise ConfigError(f"finetune.name: {self.name!r} cannot name a folder; use letters, digits, - and _")
        if self.name == self.search:
            raise ConfigError(f"finetune.name: {self.name!r} is the search's folder; give another")
