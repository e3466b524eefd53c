"""Updates whose norm stands out are rejected, for every method alike."""

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
from lit_fednas.testing.aggregations import random_updates, update
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
    def report(self):
        if self.task.client == 1:
            for tensor, before in zip(self.network.parameters(), self.before, strict=True):
                tensor.copy_(before + self.factor * (tensor - before))
        return ()


def run(factor: float, cohort: UniformCohort | None = None, **faults: Any):
    told, cohort = Noted("on_client_end", lambda *given: given[2:]), cohort or UniformCohort(count=6)
    module = make_module(linear_net(), objective=Wild(factor), cohort=cohort, faults=FaultPolicy(**faults))
    trainer = fit(module, tiny_data(), 1, callbacks=[told])
    return weights(module), told.all, trainer.callback_metrics


def test_rejected_updates_were_never_there() -> None:
    after, told, metrics = run(-10.0, norm_bound=5)
    others = UniformCohort(count=5, availability=OnlyClients([0, 2, 3, 4, 5]))
    assert_same(after, run(1, others)[0], rtol=1e-5, atol=1e-7)
    assert {result.task.client for result, _ in told if result.status == "wild"} == {1}
    result, update = told[1]
    assert "times the cohort's median, faults.norm_bound is 5" in result.reason
    assert update is None
    assert [float(metrics[f"clients/{name}"]) for name in ("wild", "failed", "used")] == [1, 1, 5]


def test_a_bound_that_nobody_exceeds_changes_nothing() -> None:
    after, _, metrics = run(1.0, norm_bound=5)
    assert_same(after, run(1.0)[0])
    assert float(metrics["clients/wild"]) == 0


# ---- networks of different size -----------------------------------------------------------------------


def held(net: Supernet, updates: list[ClientUpdate]) -> dict[Hashable, float]:
    holder = NormBound(net, 3)
    for one in updates:
        assert holder.hold(one)
    ratios = holder.ratios(holder.evidence)
    return {one.task.client: ratios[one.task.key] for one in updates}


def changed(net: Supernet, one: ClientUpdate, factor: float, only: str = "") -> ClientUpdate:
    """The update with some tensors' changes multiplied."""
    tensors = dict(one.weights)
    for name, old in net.views(one.task.arch).items():
        if only in name and old.is_floating_point():
            tensors[name] = old + factor * (tensors[name] - old)
    return replace(one, weights=tensors)


def one_by_one(net: Supernet, updates: list[ClientUpdate], parameters: bool) -> list[float]:
    """The definition, in lists of numbers."""
    lists: list[dict[str, list[float]]] = []
    for one in updates:
        lists.append({})
        for name, region in net.regions(one.task.arch).items():
            old = region.of(net.shared_tensors()[region.name])
            if old.is_floating_point() and (region.name in dict(net.named_parameters())) is parameters:
                lists[-1][region.name] = (one.weights[name] - old).double().flatten().tolist()

    def rms(numbers: list[float]) -> float:
        return math.sqrt(sum(number * number for number in numbers) / len(numbers))

    whole = statistics.median(rms([number for part in one.values() for number in part]) for one in lists)
    ratios = []
    for one in lists:
        norm, expected = 0.0, 0.0
        for name, part in one.items():
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
    ratios = held(net, updates)
    kinds = [one_by_one(net, updates, parameters=True)]
    if any(tensor.is_floating_point() for tensor in dict(net.named_buffers()).values()):
        kinds.append(one_by_one(net, updates, parameters=False))
    for place, one in enumerate(updates):
        assert ratios[one.task.client] == pytest.approx(max(kind[place] for kind in kinds), rel=1e-5)
    wild = updates[2].task.client
    assert [client for client, ratio in ratios.items() if ratio > 3] == [wild]


def test_running_statistics_count_for_themselves() -> None:
    net = kept_instance("elastic-batchnorm")
    updates = [update(net, client, net.space.smallest, 10) for client in range(5)]
    updates[1] = changed(net, updates[1], 100, only="running_var")
    ratios = held(net, updates)
    assert ratios.pop(1) > 10
    assert max(ratios.values()) < 2
