"""Tests the private average: sensitivity by brute force, noise by many draws, values by hand."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from math import sqrt
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import toeplitz
from scipy.special import binom
from torch import Tensor

from lit_fednas.aggregation import Beta, MaxNet, OverlapAverage
from lit_fednas.aggregation.private import NoiseSequence, PrivateAverage
from lit_fednas.errors import ConfigError
from lit_fednas.federation import CyclicCohort
from lit_fednas.messages import ClientTask, ClientUpdate, RoundValues
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.supernets import Supernet
from lit_fednas.testing import networks
from lit_fednas.testing.aggregations import aggregate, begun, random_updates, update

NORM = 0.7


def nested() -> Supernet:
    """Returns a network without buffers, so that norms include all tensors."""
    return networks.cached_net("private", lambda: networks.elastic(stage_widths=[8, 8], stem_width=2))


def private(average: OverlapAverage, net: Supernet, noise: float = 0.0, **settings: Any) -> PrivateAverage:
    average.setup(net)
    return PrivateAverage(average, NORM, noise, **{"sequence": NoiseSequence(3), "round": 0, **settings})


def round_values_of(*values: Any) -> RoundValues:
    round_values = RoundValues()
    for value in values:
        round_values.give(value)
    return round_values


def equal_weights(beta: float | None = None) -> OverlapAverage:
    return OverlapAverage(weighted=False) if beta is None else MaxNet(weighted=False)


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors.values()])


def step(
    net: Supernet, updates: list[ClientUpdate], tasks: list[ClientTask], noise: float = 0.0, **settings: Any
) -> Tensor:
    """Returns the change of the shared weights in a round."""
    average = private(equal_weights(), net, noise, **settings)
    return flat(aggregate(average, net, updates, tasks)) - flat(net.shared_tensors())


def holders(net: Supernet, tasks: list[ClientTask], weight: float = 1.0) -> Tensor:
    """Returns the number of tasks that hold each element, times a weight."""
    counts = {name: torch.zeros(tensor.shape) for name, tensor in net.shared_tensors().items()}
    for task in tasks:
        for region in net.regions(task.arch).values():
            region.add_to(counts[region.name], 1.0, weight)
    return flat(counts)


def undivided(aggregation: OverlapAverage, net: Supernet, updates: list[ClientUpdate], tasks: Any, *values: Any) -> Any:
    """Returns the sum without noise, as one vector, and the greatest coefficient."""
    average = private(aggregation, net)
    begun(average, net, updates, tasks, values=round_values_of(*values))
    return flat(average.values).double(), average.greatest


def changed_update(net: Supernet, base: ClientUpdate, size: float, seed: int) -> ClientUpdate:
    """Returns an update with random changes; every fourth seed changes a single element."""
    draws = generator(seed, "moved")
    weights = {name: tensor.detach().clone() for name, tensor in net.views(base.task.arch).items()}
    floating = [name for name, tensor in weights.items() if tensor.is_floating_point()]
    if seed % 4 == 0:
        weights[floating[seed % len(floating)]].view(-1)[0] += size
    else:
        for name in floating:
            weights[name] += size * torch.randn(weights[name].shape, generator=draws)
    return ClientUpdate(base.result, weights)


@pytest.mark.parametrize("beta", [None, 0.9, 0.02])
def test_the_bound_on_a_client_s_influence_is_tight(beta: float | None) -> None:
    """Random cohorts of nested networks; each client in turn sends no update or an unchanged one."""
    net, aggregation = nested(), equal_weights(beta)
    values = [] if beta is None else [Beta(beta)]
    influences = []
    for seed in range(12):
        size = 2 + seed % 5
        unchanged_updates = random_updates(net, size, largest=True, seed=seed)
        tasks = [entry.task for entry in unchanged_updates]
        scales = [10.0 ** (position % 4 - 3) for position in range(size)]
        updates = [changed_update(net, unchanged_updates[n], scale, 7 * seed + n) for n, scale in enumerate(scales)]
        full_sum, greatest = undivided(aggregation, net, updates, tasks, *values)
        for position in range(size):
            other_updates = [*updates[:position], *updates[position + 1 :]]
            sent_nothing, _ = undivided(aggregation, net, other_updates, tasks, *values)
            unchanged = changed_update(net, unchanged_updates[position], 0.0, 1)
            sent_unchanged, _ = undivided(aggregation, net, [*other_updates, unchanged], tasks, *values)
            assert torch.equal(sent_nothing, sent_unchanged)  # a failed client equals an unchanged update
            influences.append(float((full_sum - sent_nothing).norm()) / (NORM * greatest))
    assert max(influences) == pytest.approx(1, rel=1e-5)
    assert min(influences) < 0.5


def by_hand(net: Supernet, updates: list[ClientUpdate], tasks: list[ClientTask], coefficient: Any) -> dict[str, Tensor]:
    """Returns the new weights by the formulas, with dense vectors per client."""
    result = {}
    shared = net.shared_tensors()
    for name, tensor in shared.items():
        total, weights = torch.zeros(tensor.shape).double(), torch.zeros(tensor.shape).double()
        for task in tasks:
            for region in net.regions(task.arch).values():
                if region.name == name:
                    region.add_to(weights, 1.0, coefficient(task))
        for entry in updates:
            initial = net.views(entry.task.arch)
            norm = sqrt(sum(float((entry.weights[n] - initial[n]).detach().double().square().sum()) for n in initial))
            for subnet_name, region in net.regions(entry.task.arch).items():
                if region.name == name:
                    change = (entry.weights[subnet_name] - initial[subnet_name]).double() * min(1, NORM / norm)
                    region.add_to(total, change, coefficient(entry.task))
        result[name] = tensor.detach().double() + torch.nan_to_num(total / weights, nan=0.0)
    return result


@pytest.mark.parametrize("beta", [None, 0.6])
def test_the_average_follows_the_formulas_also_if_a_client_fails(beta: float | None) -> None:
    net = nested()
    cohort_updates = random_updates(net, 6, largest=True, seed=5)
    tasks = [entry.task for entry in cohort_updates]
    sizes = [1e-4, 1, 2, 1e-3, 3]  # the last client fails
    updates = [changed_update(net, cohort_updates[position], size, position) for position, size in enumerate(sizes)]
    average, values = private(equal_weights(beta), net), round_values_of(*([] if beta is None else [Beta(beta)]))
    largest = next(task.client for task in tasks if task.arch == net.space.largest)
    share = lambda task: 1.0 if beta is None else beta if task.client == largest else (1 - beta) / 5  # noqa: E731
    expected = by_hand(net, updates, tasks, share)
    for name, tensor in aggregate(average, net, updates, tasks, values=values).items():
        torch.testing.assert_close(tensor.double(), expected[name], rtol=1e-4, atol=1e-6, msg=name)
    assert average.clipped == pytest.approx(3 / 5)
    assert max(average.influences.values()) == 1
    assert len(average.influences) == 6
    if beta is not None:
        assert sorted(average.influences.values())[0] == pytest.approx(0.4 / 5 / 0.6)


def test_noise_has_the_stated_deviation_and_spares_untrained_elements() -> None:
    """Elements that both clients hold have half of the deviation."""
    net, noise = nested(), 1.5
    for arch, covers_all in ((net.space.largest, True), (net.space.smallest, False)):
        tasks = [ClientTask(0, 0, net.space.smallest, 9), ClientTask(0, 1, arch, 9)]
        draws = torch.stack([step(net, [], tasks, noise, round=round) for round in range(400)])
        deviations, clients = draws.std(dim=0), holders(net, tasks)
        assert bool((deviations[clients == 0] == 0).all())
        assert (clients == 0).any() != covers_all
        for count in clients[clients > 0].unique():
            mean = float(deviations[clients == count].square().mean().sqrt())
            assert mean == pytest.approx(noise * NORM / float(count), rel=0.02)
    correlations = torch.corrcoef(draws[:, clients > 0][:, :60].T) - torch.eye(60)
    assert float(correlations.abs().max()) < 0.25  # elements are independent


def strategy(rounds: int, bands: int) -> np.ndarray:
    """Returns the banded square root of the matrix that sums over rounds."""
    k = np.arange(rounds)
    return toeplitz(np.where(k < bands, binom(2 * k, k) / 4.0**k, 0), np.zeros(rounds))


@pytest.mark.parametrize("bands", [1, 2, 5])
def test_noise_solves_the_banded_system(bands: int) -> None:
    """A skipped round has no effect on later rounds."""
    net, noise, sequence = nested(), 1.5, NoiseSequence(3, bands, first=0)
    tasks = [entry.task for entry in random_updates(net, 5, largest=True, seed=8)]
    counts, matrix = holders(net, tasks), strategy(8, bands)
    draws = [numpy_generator(3, "privacy", round).standard_normal(len(counts), dtype=np.float32) for round in range(8)]
    expected = np.linalg.solve(matrix, np.stack(draws)) * noise * NORM * np.linalg.norm(matrix[:, 0])
    for round in (0, 1, 3, 4, 5, 6, 7):
        noisy_sum = step(net, [], tasks, noise, round=round, sequence=sequence) * counts
        np.testing.assert_allclose(noisy_sum.numpy(), expected[round], rtol=1e-3, atol=1e-4)


def test_correlated_noise_has_a_smaller_sum_and_a_later_start_shares_none() -> None:
    """The variance of the sum of t rounds is the squared norm of row t of A C^-1; A has ones below its diagonal."""
    sequence, total = NoiseSequence(3, 20), np.zeros(20_000)
    sums = np.tril(np.ones((100, 100))) @ np.linalg.inv(strategy(100, 20))
    for round in range(100):
        total += sequence.noise(round, {"w": (20_000,)})["w"]
        assert total.var() == pytest.approx((sums[round] ** 2).sum(), rel=0.06)
    assert sequence.norm * total.std() < 0.34 * 10  # the deviation of independent noise is 10
    first = numpy_generator(3, "privacy", 9).standard_normal(5, dtype=np.float32)
    assert NoiseSequence(3, 20).noise(9, {"w": (5,)})["w"].tolist() == first.tolist()


@pytest.mark.parametrize(("clients", "count"), [(6, 2), (7, 3), (9, 2)])
def test_a_client_s_influence_depends_only_on_its_number_of_turns(clients: int, count: int) -> None:
    """For all directions x of its updates, |C x|^2 / |c|^2. Turns overlap if there are more bands than pauses."""
    cohort, rounds = CyclicCohort(count=count), 10
    pause = cohort.separation(clients)
    for bands in (pause, pause + 1):
        matrix, greatest = strategy(rounds + bands, bands), 0.0
        for client in range(clients):
            turns = [t for t in range(rounds) if client in cohort.draw(t, [1] * clients, seed=1)]
            for directions in filter(any, product((-1, 0, 1), repeat=len(turns))):
                change = matrix[:, turns] @ directions / NoiseSequence(0, bands).norm
                greatest = max(greatest, float((change**2).sum() / np.abs(directions).sum()))
        assert greatest == pytest.approx(1) if bands == pause else greatest > 1.1


def test_all_ranks_add_the_same_noise_once_per_round() -> None:
    net = nested()
    client_updates = random_updates(net, 5, largest=True, seed=8)
    tasks = [entry.task for entry in client_updates]
    change = step(net, client_updates, tasks, 1.0)
    ranks = [private(equal_weights(), net, 1.0) for _ in range(2)]
    for rank, aggregation in enumerate(ranks):
        begun(aggregation, net, client_updates[rank::2], tasks)
    for totals in zip(*(aggregation.sums() for aggregation in ranks), strict=True):
        total_sum = totals[0] + totals[1]
        for total in totals:
            total.copy_(total_sum)
    first, second = (flat(aggregation.finish()) - flat(net.shared_tensors()) for aggregation in ranks)
    torch.testing.assert_close(first, change, rtol=1e-5, atol=1e-5)
    assert torch.equal(first, second)
    next_change = step(net, client_updates, tasks, 1.0, round=1)
    assert float((next_change - change).abs().min()) > 0


def test_buffers_and_frozen_weights_do_not_change() -> None:
    net = networks.cached_net("plain", networks.plain)
    old = {name: tensor.detach().clone() for name, tensor in net.shared_tensors().items()}
    trained = [name for name, parameter in net.named_parameters() if parameter.requires_grad]
    fixed = [name for name in old if name not in trained]
    assert len(fixed) == 4
    task = ClientTask(0, 0, net.space.largest, 5)
    averages = aggregate(private(equal_weights(), net), net, [update(net, 0, net.space.largest, 5)], [task])
    assert all(torch.equal(averages[name].to(old[name].dtype), old[name]) for name in fixed)
    changes = torch.cat([(averages[name] - old[name]).flatten() for name in trained])
    assert float(changes.norm()) == pytest.approx(NORM, rel=1e-5)


def test_sampled_rounds_divide_by_the_expected_cohort() -> None:
    """Two clients are expected; a fourth of the plan trains the smallest network. Noise needs no client."""
    net = nested()
    tasks = [ClientTask(0, client, net.space.largest, 5) for client in range(8)]
    sampled: dict[str, Any] = {
        "planned": [replace(tasks[0], arch=net.space.smallest), *tasks[1:4]],
        "expected": 2.0,
    }
    counts = holders(net, sampled["planned"], 2 / 4)
    assert counts.unique().tolist() == [1.5, 2]
    changed = changed_update(net, update(net, 3, net.space.largest, 5), 5.0, 1)
    first, *others = (
        step(net, [changed], [tasks[client] for client in clients], **sampled)
        for clients in ([3], [3, 4], [3, 4, 5])  # the number of unchanged updates has no effect
    )
    assert float((first * counts).norm()) == pytest.approx(NORM, rel=1e-5)
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-5, atol=1e-7)
    noise = step(net, [], [], 1.0, **sampled)
    for clients in (1.5, 2):
        assert float(noise[counts == clients].std()) == pytest.approx(NORM / clients, rel=0.1)


class _ExampleWeights(OverlapAverage):
    def weight(self, update: ClientUpdate, name: str) -> float:
        return float(update.result.num_seen)


class _DoubleAdd(OverlapAverage):
    def add(self, update: ClientUpdate) -> None:
        super().add(update)
        super().add(update)


REFUSED: dict[str, tuple[OverlapAverage, dict[str, Any], str]] = {
    "examples": (OverlapAverage(), {}, "set weighted to false"),
    "trim": (OverlapAverage(False, trim=0.1), {}, r"trim 0\.1 leaves out values"),
    "weight overridden": (_ExampleWeights(False), {}, r"_ExampleWeights overrides weight"),
    "add overridden": (_DoubleAdd(False), {}, r"_DoubleAdd overrides add"),
    "MaxNet, sampled": (MaxNet(weighted=False), {"sampled": True}, "the coefficients of MaxNet depend on the cohort"),
    "two tasks": (OverlapAverage(False), {"second_task": True}, "a client has several tasks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_unbounded_influences_are_refused(name: str) -> None:
    aggregation, settings, message = REFUSED[name]
    net = nested()
    tasks = [ClientTask(0, client, net.space.largest, 5) for client in range(3)]
    if settings.get("second_task"):
        tasks.append(replace(tasks[0], arch=net.space.smallest))
    sampled = {"planned": tasks, "expected": 1.5} if settings.get("sampled") else {}
    with pytest.raises(
        ConfigError, match=rf"model\.aggregation: a client's influence is unbounded: .*{message}.*set privacy to null"
    ):
        begun(private(aggregation, net, **sampled), net, [], tasks, values=round_values_of(Beta(0.5)))
