"""What is logged of a round: ``clients/...``, by the results of its clients."""

from __future__ import annotations

from lit_fednas.data import Task
from lit_fednas.federation.round import ServerRound
from lit_fednas.messages import WILD


def client_metrics(round: ServerRound, task: Task, bounded: bool) -> dict[str, float]:
    """Returns metrics of a round's clients, by name."""
    metrics: dict[str, float] = {}
    survivors = round.survivors
    if seen := sum(result.num_seen for result in survivors):
        metrics["clients/loss"] = sum(result.loss * result.num_seen for result in survivors) / seen
    metrics["clients/used"] = float(len(survivors))
    metrics["clients/failed"] = float(sum(not result.answered for result in round.results))
    if bounded:
        scaled = sum(bool(result.reason) for result in survivors)
        metrics["clients/wild"] = float(scaled + sum(result.status == WILD for result in round.results))
    tested = [result for result in round.results if result.num_tested]
    if count := sum(result.num_tested for result in tested):
        means = {
            name: sum(result.tested[name] * result.num_tested for result in tested) / count for name in task.averaged
        }
        metrics[f"clients/{task.metric}"] = task.derived(means)[task.metric]
    return metrics
