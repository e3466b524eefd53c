"""A round on the server, and the callbacks that take part in it."""

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
#: Hooks of the commands after training; their argument is the written folder.
_AFTER_TRAINING = ("on_search_end", "on_finetune_end")


class ServerRound:
    """One round; the "batch" of the server's step.

    All effects of callbacks between rounds go through this object: they give values of schedules, reject updates, watch
    and mix averages, commit their state, and add or remove architectures. (``trainer.should_stop`` stops the training,
    as everywhere in Lightning.)

    Attributes:
        number: The round, from 0.
        max_rounds: Number of rounds of the whole run; -1 for no end.
        progress: Share of the run before the round: the largest of the spent shares of rounds, MACs and bytes;
            ``None`` if the run has no end.
        aggregation: Aggregation of the round's updates. A callback may replace the method's before the plan.
        seed: Seed of the cohort and the architectures. A callback may replace the run's before the plan.
        values: Values of schedules; they are complete before the plan.
        tasks: The clients' tasks, after the plan.
        results: One result per task in the plan's order, after all clients have answered.
        rejected: Architectures that keep their weights in this round.
        restructure: Function that callbacks call in ``on_server_step`` to change the supernet: its argument is a
            function that adds or removes architectures, the same on all ranks; it returns that function's result.
    """

    # Lightning would copy a dataclass, to move its tensors like those of a batch
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
        """The results with accepted updates."""
        return [result for result in self.results if result.ok]

    def give(self, value: Any) -> None:
        """Sets the round's value of a type; for ``on_round_start``."""
        self.values.give(value)

    def reject(self, arch: Any) -> None:
        """Rejects an architecture's updates as if they were not sent, and keeps its weights; for ``on_results``."""
        self.rejected.add(arch)
        self.results = [
            result.rejected(WITHHELD) if result.ok and result.task.arch == arch else result for result in self.results
        ]

    def watch(self, watcher: Callable[[Averages], None]) -> None:
        """Registers a function that reads the accepted updates' averages, by the supernet's names, before mixing."""
        # not called in a round without enough survivors
        self._watchers.append(watcher)

    def mix(self, mixture: Callable[[Averages], Averages]) -> None:
        """Registers a function that replaces the averages, by the supernet's names, as the server step's target."""
        self._mixtures.append(mixture)

    def target(self, averages: Averages) -> Averages:
        """Returns the server step's target, from the averages of the accepted updates."""
        for watcher in self._watchers:
            watcher(averages)
        for mixture in self._mixtures:
            averages = mixture(averages)
        return averages

    def commit(self, callback: Any, **state: Any) -> None:
        """Sets attributes of a callback after the server's step, before ``on_server_step``."""
        self._commits.append((callback, state))

    def end_step(self) -> None:
        """Sets all attributes that callbacks have committed."""
        for callback, state in self._commits:
            for name, value in state.items():
                setattr(callback, name, value)


def client_metrics(round: ServerRound, task: Task, bounded: bool) -> dict[str, float]:
    """Returns metrics of a round's clients, by name; ``bounded`` adds the number of updates over the norm bound."""
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
    """A Lightning callback with further hooks, which may change a round through :class:`ServerRound`.

    Lightning's hooks keep their meaning, with rounds in place of epochs: ``on_train_epoch_start`` runs before the draw
    of the cohort, ``on_validation_end`` after the evaluation of the global weights, ``on_train_epoch_end`` at the end.

    A callback's memory from round to round is its ``state_dict``. It changes only after the server's step
    (:meth:`on_server_step`, :meth:`ServerRound.commit`), so that an interrupted round leaves no trace. Tensors of a
    checkpoint are restored on the CPU.

    Attributes:
        field: The callback's key in a configuration, from the name of its class: ``BetaDecay`` is ``beta_decay``.
        metric_names: Names of the metrics that the callback logs in every round or at every validation, after setup.
        gives: Types of the values that the callback gives to rounds (:meth:`ServerRound.give`); a part must read each.
    """

    field: ClassVar[str] = "trainer.callbacks"
    metric_names: Sequence[str] = ()
    gives: ClassVar[tuple[type, ...]] = ()

    def __init_subclass__(cls, **settings: Any) -> None:
        """Sets :attr:`field` from the name of the class."""
        super().__init_subclass__(**settings)
        cls.field = re.sub(r"(?<!^)(?=[A-Z])", "_", cls.__name__).lower()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Validates the names of hooks, that the supernet is supported, and that a part reads each given value."""
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
        """Called before the plan of the round; may give values."""

    def on_cohort_start(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Called after the plan of the round, before its clients train."""

    def on_client_end(
        self,
        trainer: FederatedTrainer,
        module: FederatedLightningModule,
        result: ClientResult,
        update: ClientUpdate | None,
    ) -> None:
        """Called on all ranks after each task; the rank that trained the client passes its update, if it can be used.

        The update's tensors are valid until the next task. A callback must not change them, or anything in training.
        """

    def on_results(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Called after all clients' answers, before the server's step; may reject updates, watch and mix averages."""

    def on_server_step(self, trainer: FederatedTrainer, module: FederatedLightningModule, round: ServerRound) -> None:
        """Called after the server's step, before the evaluation of the global weights; may change the supernet."""

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        """Calls :meth:`on_server_step`; Lightning's batch is the round."""
        self.on_server_step(trainer, pl_module, batch)  # type: ignore[arg-type]
