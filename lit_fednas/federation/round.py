"""A round as the server and its callbacks see it, and the callbacks that follow it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from inspect import getattr_static
from typing import TYPE_CHECKING, Any, ClassVar

from lightning import Callback, LightningModule, Trainer
from torch import Tensor

from lit_fednas.data import Task
from lit_fednas.errors import ConfigError, did_you_mean
from lit_fednas.messages import (
    WILD,
    WITHHELD,
    ClientResult,
    ClientTask,
    ClientUpdate,
    RoundValues,
    mean_loss,
    mean_tested,
)
from lit_fednas.parts import Part, check_callbacks

if TYPE_CHECKING:
    from lit_fednas.aggregation import Aggregation
    from lit_fednas.federation.module import FederatedLightningModule
    from lit_fednas.federation.trainer import FederatedTrainer

Averages = dict[str, Tensor]
#: Hooks that the commands after training call with the folder that they have written.
_AFTER_TRAINING = ("on_search_end", "on_finetune_end")


class ServerRound:
    """One round; the "batch" of the server's step.

    Callbacks read it, and change what happens between rounds through it alone: they give values of schedules,
    reject updates, watch and mix averages, commit their state, and add or remove architectures. (Training is stopped as
    everywhere in Lightning, by ``trainer.should_stop``.)

    Attributes:
        number: The round, from 0.
        max_rounds: Rounds of the whole run; -1 if it has no end.
        progress: The share of the run's rounds, MACs or bytes that was spent before the round, of these budgets the
            greatest share; ``None`` if the run has no end.
        aggregation: What merges the round's updates: the method's, unless a callback sets another before the round is
            planned.
        seed: What cohort and architectures are drawn from: the run's, unless a callback sets another before the round
            is planned.
        values: What schedules gave, before the round is planned.
        tasks: What the clients are asked, once the round is planned.
        results: How it went, one result per task in the plan's order, once all clients have answered.
        rejected: Architectures whose weights stay as they were.
        restructure: Lets the supernet add or remove architectures, in ``on_server_step``: called with a function
            that makes the change, the same on all ranks, it returns what that returns.
    """

    # no dataclass, which Lightning would copy as a batch whose tensors are to be moved
    def __init__(
        self,
        number: int,
        restructure: Callable[..., Any],
        aggregation: Aggregation,
        seed: int = 0,
        max_rounds: int = -1,
    ) -> None:
        self.number = number
        self.max_rounds = max_rounds
        self.progress = number / max_rounds if max_rounds > 0 else None
        self.aggregation = aggregation
        self.seed = seed
        self.values = RoundValues()
        self.tasks: Sequence[ClientTask] = ()
        self.results: list[ClientResult] = []
        self.rejected: set[Any] = set()
        self.restructure = restructure
        self._watchers: list[Callable[[Averages], None]] = []
        self._mixtures: list[Callable[[Averages], Averages]] = []
        self._commits: list[tuple[Any, dict[str, Any]]] = []

    @property
    def survivors(self) -> list[ClientResult]:
        """The results whose updates are used."""
        return [result for result in self.results if result.ok]

    def give(self, value: Any) -> None:
        """Sets the round's value of this type, in ``on_round_start``."""
        self.values.give(value)

    def reject(self, arch: Any) -> None:
        """Keeps all weights of an architecture as they were, in ``on_results``; its updates count as not sent."""
        self.rejected.add(arch)
        self.results = [
            result.rejected(WITHHELD) if result.ok and result.task.arch == arch else result for result in self.results
        ]

    def watch(self, watcher: Callable[[Averages], None]) -> None:
        """Shows the averages of the accepted updates, by the supernet's names, before they are mixed.

        They are the same on all ranks, and not to be changed; in a round without enough survivors there are none.
        """
        self._watchers.append(watcher)

    def mix(self, mixture: Callable[[Averages], Averages]) -> None:
        """Lets the server step towards what the mixture returns for the averages, by the supernet's names."""
        self._mixtures.append(mixture)

    def target(self, averages: Averages) -> Averages:
        """Returns what the server steps towards, given the averages of the accepted updates."""
        for watcher in self._watchers:
            watcher(averages)
        for mixture in self._mixtures:
            averages = mixture(averages)
        return averages

    def commit(self, callback: Any, **state: Any) -> None:
        """Sets attributes of a callback after the server's step, before ``on_server_step``."""
        self._commits.append((callback, state))

    def end_step(self) -> None:
        """Sets all that callbacks have committed."""
        for callback, state in self._commits:
            for name, value in state.items():
                setattr(callback, name, value)


def client_metrics(round: ServerRound, task: Task, bounded: bool) -> dict[str, float]:
    """Returns metrics of a round's clients, by name."""
    metrics: dict[str, float] = {}
    survivors = round.survivors
    if any(result.num_units for result in survivors):
        metrics["clients/loss"] = mean_loss(survivors)
    metrics["clients/used"] = float(len(survivors))
    metrics["clients/failed"] = float(sum(not result.answered for result in round.results))
    if bounded:
        metrics["clients/wild"] = float(sum(result.status == WILD for result in round.results))
    if any(result.num_tested_units for result in round.results):
        means = {name: mean_tested(round.results, name) for name in task.averaged}
        metrics[f"clients/{task.metric}"] = task.derived(means)[task.metric]
    return metrics


class FederatedCallback(Part, Callback):
    """A Lightning callback that may also follow a round, and change it through :class:`ServerRound`.

    Lightning's hooks keep their meaning with a round for an epoch: ``on_train_epoch_start`` comes before the cohort is
    drawn, ``on_validation_end`` after the global weights were evaluated, ``on_train_epoch_end`` at the round's end.

    All that a method remembers from round to round is the callback's ``state_dict``. It changes after the server's
    step alone (:meth:`on_server_step`, :meth:`ServerRound.commit`), so that an interrupted round leaves no trace.
    Tensors of a checkpoint come back on the CPU.

    Attributes:
        field: The callback's key in a configuration, from the name of its class: ``BetaDecay`` is ``beta_decay``.
        metric_names: The metrics that it logs in every round or at every validation, once it is set up.
        gives: The types of the values that it gives to rounds (:meth:`ServerRound.give`); some part must read each.
    """

    field: ClassVar[str] = "trainer.callbacks"
    metric_names: Sequence[str] = ()
    gives: ClassVar[tuple[type, ...]] = ()

    def __init_subclass__(cls, **settings: Any) -> None:
        """Names the callback as configurations do."""
        super().__init_subclass__(**settings)
        cls.field = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Validates its hooks, that it works with the supernet, and that some part reads the values that it gives."""
        super().setup(trainer, pl_module, stage)
        hooks = [*dir(FederatedCallback), *_AFTER_TRAINING]
        for name in dir(self):
            if name.startswith("on_") and name not in hooks and callable(getattr_static(self, name)):
                raise ConfigError(
                    f"{self.field}: {type(self).__name__}.{name} would never be called, as there is no such hook; "
                    f"rename it{did_you_mean(name, hooks)}"
                )
        self.check_supernet(pl_module.supernet)
        if stage == "fit":
            check_callbacks(self.field, self, trainer.callbacks)  # type: ignore[attr-defined]
        parts: tuple[Any, ...] = (pl_module.assignment, pl_module.aggregation)
        for kind in self.gives if stage == "fit" else ():
            if not any(kind in part.reads for part in parts):
                names = [type(part).__name__ for part in parts]
                raise ConfigError(
                    f"{self.field}: gives a {kind.__name__}, which neither model.assignment {names[0]} nor "
                    f"model.aggregation {names[1]} reads; change one of them, or set {self.field} to null"
                )

    def on_round_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Called before the round is planned; may give values."""

    def on_cohort_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Called when the clients have their tasks."""

    def on_client_end(
        self,
        trainer: FederatedTrainer,
        module: FederatedLightningModule,
        result: ClientResult,
        update: ClientUpdate | None,
    ) -> None:
        """Called after each task, on the rank that trained the client with its update if it can be used.

        The update's tensors hold until the next client is trained; what is done with them must not touch training.
        """

    def on_results(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Called when all clients have answered, before their updates are merged.

        May reject updates, and watch or mix the averages of those that are accepted.
        """

    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Called after the server's step, before the global weights are evaluated; may change the supernet."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Calls :meth:`on_server_step`; Lightning's batch is the round."""
        self.on_server_step(trainer, pl_module, batch)  # type: ignore[arg-type]
