"""The settings of a fine-tuning."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lit_fednas.errors import ConfigError
from lit_fednas.federation import ClientSettings, CohortSampler
from lit_fednas.objectives import Objective
from lit_fednas.ranges import NonNegativeInt, PositiveFloat, PositiveInt, checked
from lit_fednas.records.files import check_folder_name


@checked("finetune")
@dataclass(frozen=True)
class FinetuneSettings:
    """Federated averaging of each tier's network (FedorAS, section 3.3, Tables 10 and 11), or of named models.

    The server optimizer and the running mean of its weights (``weight_average``) are those of the run.

    Args:
        rounds: Rounds per tier.
        macs: A budget in place of ``rounds``: multiply-accumulates of all clients' forward passes per network. The
            number of rounds is the one whose expected computation is nearest to it, at least one, without
            ``head_rounds`` and losses by ``faults``. ``equal`` divides the computation of the run's own training by
            the number of networks.
        client: How clients train; as in the run's training if not given. They may fail as there (``faults``), but none
            is a straggler.
        cohort: How the clients of a round are drawn from the eligible ones; as in the run's training if not given.
        objective: The clients' objective; plain cross-entropy if not given.
        initial: ``supernet`` starts from the weights of the supernet, ``random`` from scratch (the paper's rand-init).
        tier_aware: Whether only clients of a tier and above train its network; else all clients do, as they do
            with named ``models``.
        labels: The label set that all networks classify; that of their tier if not given. Only clients whose labels are
            at least as fine take part.
        head_rounds: Additional rounds at the start that train the classifier alone (transfer to other labels, App. H).
        architectures: The number of architectures that are drawn from each tier in place of the search's and trained;
            the best on the validation data is the tier's (random search, App. F.1); 0 for the search's.
        tiers: Names of the tiers whose networks are trained; all if not given.
        models: Architectures to train in place of the search's (FedNAS, section 4.4, FL-tune): each as the space
            writes it, for instance ``"model: 12"``; ``smallest`` or ``largest``; or in a row of models ``all``, and
            ``0.5 of macs``, the largest of those whose MACs are at most half of the largest one's. No search is
            needed. Each is a tier of its own, named after it (``model-12``). Clients test them (``models.csv``).
        in_groups: Whether the eligible clients are divided into one group per candidate, so that all could be trained
            at the same time (FedNAS, section 4.4); else all eligible clients train each. Cohorts keep their size, if
            the group has as many clients.
        metric: The metric of the best network on the validation data: one of the task or of ``model.metrics``; the
            task's first (for classes ``accuracy``) if not given.
        search: The search whose tiers are trained.
        check_val_every_n_rounds: How often the server's validation set is evaluated.
        seed: The seed of the draws; that of the run if not given.
        name: The name of the fine-tuning's folder in the run's folder.

    Raises:
        ConfigError: A setting is out of range.
    """

    rounds: PositiveInt = 100
    macs: PositiveFloat | Literal["equal"] | None = None
    client: ClientSettings | None = None
    cohort: CohortSampler | None = None
    objective: Objective | None = None
    initial: Literal["supernet", "random"] = "supernet"
    tier_aware: bool = True
    labels: str | None = None
    head_rounds: NonNegativeInt = 0
    architectures: NonNegativeInt = 0
    tiers: Sequence[str] | None = None
    models: Sequence[str] | None = None
    in_groups: bool = False
    metric: str | None = None
    search: str = "search"
    check_val_every_n_rounds: PositiveInt = 10
    seed: int | None = None
    name: str = "finetune"

    def __post_init__(self) -> None:
        for name in ("models", "tiers"):
            given = getattr(self, name)
            if isinstance(given, str):
                raise ConfigError(f"finetune.{name}: {given!r} is one name; give a list, as [{given!r}]")
            if given is not None and not given:
                raise ConfigError(f"finetune.{name}: is empty; name at least one, or leave it out for the search's")
        if self.models is not None and self.tiers is not None:
            raise ConfigError(
                f"finetune.tiers: {list(self.tiers)} are not trained if finetune.models is given; give only one"
            )
        if self.models is not None and self.architectures:
            raise ConfigError(
                f"finetune.models: replaces random architectures, and finetune.architectures is {self.architectures}; "
                f"give only one"
            )
        check_folder_name("finetune.name", self.name)
        if self.name == self.search:
            raise ConfigError(f"finetune.name: {self.name!r} is the search's folder; give another")
