"""A round as the server and its callbacks see it, and the few ways in which callbacks may change it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lit_fednas.data import Task
from lit_fednas.messages import SCALED, WILD, WITHHELD, ClientResult, ClientTask, RoundValues

Averages = dict[str, Tensor]


class ServerRound:
    """One round; the "batch" of the server's step.

    Callbacks read it, and change what happens between rounds through it alone: they give values of schedules,
    reject updates, watch and mix averages, and add or remove architectures. (Training is stopped as everywhere in
    Lightning, by ``trainer.should_stop``.)

    Args:
        number: The round, from 0.
        restructure: See the attribute.
        seed: The run's seed.
        max_rounds: See the attribute.

    Attributes:
        number: The round, from 0.
        max_rounds: Rounds of the whole run; -1 if it has no end.
        seed: What cohort and architectures are drawn from: the run's, unless a callback sets another before the round
            is planned.
        values: What schedules gave, before the round is planned.
        tasks: What the clients are asked, once the round is planned.
        results: How it went, one result per task in the plan's order, once all clients have answered.
        rejected: Architectures whose updates are not merged.
        restructure: Lets the supernet add or remove architectures, in ``on_server_step``: called with a function
            that makes the change, the same on all ranks, it returns what that returns.
    """

    def __init__(
        self, number: int, restructure: Callable[[Callable[[], Any]], Any], seed: int = 0, max_rounds: int = -1
    ) -> None:
        self.number = number
        self.max_rounds = max_rounds
        self.seed = seed
        self.values = RoundValues()
        self.tasks: Sequence[ClientTask] = ()
        self.results: list[ClientResult] = []
        self.rejected: set[Any] = set()
        self.restructure = restructure
        self._watchers: list[Callable[[Averages], None]] = []
        self._mixtures: list[Callable[[Averages], Averages]] = []

    @property
    def survivors(self) -> list[ClientResult]:
        """The results whose updates are used."""
        return [result for result in self.results if result.ok]

    def give(self, value: Any) -> None:
        """Sets the round's value of this type, in ``on_round_start``."""
        self.values.give(value)

    def reject(self, arch: Any) -> None:
        """Rejects the updates of an architecture, in ``on_results``; they are not merged, and count as not sent.

        Args:
            arch: The architecture.
        """
        self.rejected.add(arch)
        self.results = [
            result.rejected(WITHHELD) if result.ok and result.task.arch == arch else result for result in self.results
        ]

    def watch(self, watcher: Callable[[Averages], None]) -> None:
        """Shows the averages of the accepted updates before they are mixed, and before the server's step.

        Args:
            watcher: Is given the averages by the supernet's names, the same on all ranks, not to be changed; not
                called in a round without enough survivors.
        """
        self._watchers.append(watcher)

    def mix(self, mixture: Callable[[Averages], Averages]) -> None:
        """Lets the server step towards a mixture of the averages.

        Args:
            mixture: Is given the averages by the supernet's names, and returns what replaces them; called after
                all watchers.
        """
        self._mixtures.append(mixture)

    def target(self, averages: Averages) -> Averages:
        """Returns what the server steps towards.

        Args:
            averages: Of the accepted updates, by the supernet's names.
        """
        for watcher in self._watchers:
            watcher(averages)
        for mixture in self._mixtures:
            averages = mixture(averages)
        return averages


def client_metrics(round: ServerRound, task: Task, bounded: bool) -> dict[str, float]:
    """Returns metrics of a round's clients, by name."""
    metrics: dict[str, float] = {}
    survivors = round.survivors
    if seen := sum(result.num_seen for result in survivors):
        metrics["clients/loss"] = sum(result.loss * result.num_seen for result in survivors) / seen
    metrics["clients/used"] = float(len(survivors))
    metrics["clients/failed"] = float(sum(not result.answered for result in round.results))
    if bounded:
        scaled = sum(result.reason.startswith(SCALED) for result in survivors)
        metrics["clients/wild"] = float(scaled + sum(result.status == WILD for result in round.results))
    tested = [result for result in round.results if result.num_tested]
    if count := sum(result.num_tested for result in tested):
        means = {
            name: sum(result.tested[name] * result.num_tested for result in tested) / count for name in task.averaged
        }
        metrics[f"clients/{task.metric}"] = task.derived(means)[task.metric]
    return metrics
