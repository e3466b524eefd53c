"""Updates with outlying norms are rejected, with every method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import pytest
import torch

from lit_fednas.federation import FaultPolicy, OnlyClients, UniformCohort
from lit_fednas.federation.acceptance import NormBound
from lit_fednas.messages import ClientUpdate
from lit_fednas.objectives import CrossEntropy
from lit_fednas.supernets import Supernet
from lit_fednas.testing.aggregations import random_updates
from lit_fednas.testing.aggregations import update as random_update
from tests.supernets.instances import kept_instance
from tests.support import Noted, assert_same, fit, linear_net, make_module, tiny_data, weights


class Wild(CrossEntropy):
    """Client 1 multiplies its change."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def begin(self, network, task, generator):
        self.network, self.task = network, task
        self.before = [tensor.detach().clone() for tensor in network.parameters()]

    @torch.no_grad()
    def statistics(self):
        if self.task.client == 1:
            for tensor, start in zip(self.network.parameters(), self.before, strict=True):
                tensor.copy_(start + self.factor * (tensor - start))
        return ()


def run(factor: float, cohort: UniformCohort | None = None, **faults: Any):
    ends, cohort = Noted("on_client_end", lambda *arguments: arguments[2:]), cohort or UniformCohort(count=6)
    module = make_module(linear_net(), objective=Wild(factor), cohort=cohort, faults=FaultPolicy(**faults))
    trainer = fit(module, tiny_data(), 1, callbacks=[ends])
    return weights(module), ends.all, trainer.callback_metrics


def test_rejected_updates_have_no_effect() -> None:
    final_weights, ends, metrics = run(-10.0, norm_bound=5)
    others = UniformCohort(count=5, availability=OnlyClients([0, 2, 3, 4, 5]))
    assert_same(final_weights, run(1, others)[0], rtol=1e-5, atol=1e-7)
    assert {result.task.client for result, _ in ends if result.status == "wild"} == {1}
    result, update = ends[1]
    assert "times the cohort's median, faults.norm_bound is 5" in result.reason
    assert update is None
    assert [float(metrics[f"clients/{name}"]) for name in ("wild", "failed", "used")] == [1, 1, 5]


def test_a_bound_that_nobody_exceeds_changes_nothing() -> None:
    final_weights, _, metrics = run(1.0, norm_bound=5)
    assert_same(final_weights, run(1.0)[0])
    assert float(metrics["clients/wild"]) == 0


# ---- networks of different size -----------------------------------------------------------------------


def ratios_of(net: Supernet, updates: list[ClientUpdate]) -> dict[Hashable, float]:
    holder = NormBound(net, 3)
    for update in updates:
        assert holder.hold(update)
    ratios = holder.ratios(holder.evidence)
    return {update.task.client: ratios[update.task.key] for update in updates}


def changed(net: Supernet, update: ClientUpdate, factor: float, only: str = "") -> ClientUpdate:
    """Returns the update with the changes of some tensors multiplied."""
    tensors = dict(update.weights)
    for name, old in net.views(update.task.arch).items():
        if only in name and old.is_floating_point():
            tensors[name] = old + factor * (tensors[name] - old)
    return replace(update, weights=tensors)


def ratios_by_definition(net: Supernet, updates: list[ClientUpdate], parameters: bool) -> list[float]:
    """Computes the ratios by their definition, with lists of numbers."""
    lists: list[dict[str, list[float]]] = []
    for update in updates:
        lists.append({})
        for name, region in net.regions(update.task.arch).items():
            old = region.of(net.shared_tensors()[region.name])
            if old.is_floating_point() and (region.name in dict(net.named_parameters())) is parameters:
                lists[-1][region.name] = (update.weights[name] - old).double().flatten().tolist()

    def rms(numbers: list[float]) -> float:
        return math.sqrt(sum(number * number for number in numbers) / len(numbers))

    whole = statistics.median(rms([number for part in update.values() for number in part]) for update in lists)
    ratios = []
    for update in lists:
        norm, expected = 0.0, 0.0
        for name, part in update.items():
            sizes = [rms(other[name]) for other in lists if name in other]
            typical = statistics.median(sizes) if len(sizes) > 2 else whole
            norm += sum(number * number for number in part)
            expected += len(part) * typical**2
        ratios.append(math.sqrt(norm / expected))
    return ratios


@pytest.mark.parametrize("name", ["elastic-batchnorm", "rolling"])
def test_the_definition(name: str) -> None:
    net = kept_instance(name)
    updates = random_updates(net, 7, largest=True, seed=3)
    updates[2] = changed(net, updates[2], 30)
    ratios = ratios_of(net, updates)
    kinds = [ratios_by_definition(net, updates, parameters=True)]
    if any(tensor.is_floating_point() for tensor in dict(net.named_buffers()).values()):
        kinds.append(ratios_by_definition(net, updates, parameters=False))
    for index, update in enumerate(updates):
        assert ratios[update.task.client] == pytest.approx(max(kind[index] for kind in kinds), rel=1e-5)
    wild = updates[2].task.client
    assert [client for client, ratio in ratios.items() if ratio > 3] == [wild]


def test_running_statistics_are_compared_separately() -> None:
    net = kept_instance("elastic-batchnorm")
    updates = [random_update(net, client, net.space.smallest, 10) for client in range(5)]
    updates[1] = changed(net, updates[1], 100, only="running_var")
    ratios = ratios_of(net, updates)
    assert ratios.pop(1) > 10
    assert max(ratios.values()) < 2
