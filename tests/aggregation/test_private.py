"""The sum of clipped updates with noise: its sensitivity by brute force, its noise by many draws, values by hand."""

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
    """Without buffers, so that norms are those of all its tensors."""
    return networks.kept("private", lambda: networks.elastic(stage_widths=[8, 8], stem_width=2))


def private(average: OverlapAverage, net: Supernet, noise: float = 0.0, **settings: Any) -> PrivateAverage:
    average.setup(net)
    return PrivateAverage(average, NORM, noise, **{"sequence": NoiseSequence(3), "round": 0, **settings})


def given(*values: Any) -> RoundValues:
    round_values = RoundValues()
    for value in values:
        round_values.give(value)
    return round_values


def alike(beta: float | None = None) -> OverlapAverage:
    return OverlapAverage(weighted=False) if beta is None else MaxNet(weighted=False)


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors.values()])


def step(
    net: Supernet, updates: list[ClientUpdate], tasks: list[ClientTask], noise: float = 0.0, **settings: Any
) -> Tensor:
    """By how much a round moves the shared weights."""
    return flat(aggregate(private(alike(), net, noise, **settings), net, updates, tasks)) - flat(net.shared_tensors())


def holders(net: Supernet, tasks: list[ClientTask], weight: float = 1.0) -> Tensor:
    """How many of the tasks hold each element."""
    held = {name: torch.zeros(tensor.shape) for name, tensor in net.shared_tensors().items()}
    for task in tasks:
        for region in net.regions(task.arch).values():
            region.add_to(held[region.name], 1.0, weight)
    return flat(held)


def undivided(aggregation: OverlapAverage, net: Supernet, updates: list[ClientUpdate], tasks: Any, *values: Any) -> Any:
    """The sum without noise, as one vector, and the greatest coefficient."""
    average = private(aggregation, net)
    begun(average, net, updates, tasks, values=given(*values))
    return flat(average.values).double(), average.greatest


def moved(net: Supernet, one: ClientUpdate, size: float, seed: int) -> ClientUpdate:
    """An update that changes the sent weights by random values of a size, in every fourth case in one element alone."""
    draws = generator(seed, "moved")
    weights = {name: tensor.detach().clone() for name, tensor in net.views(one.task.arch).items()}
    floating = [name for name, tensor in weights.items() if tensor.is_floating_point()]
    if seed % 4 == 0:
        weights[floating[seed % len(floating)]].view(-1)[0] += size
    else:
        for name in floating:
            weights[name] += size * torch.randn(weights[name].shape, generator=draws)
    return ClientUpdate(one.result, weights)


@pytest.mark.parametrize("beta", [None, 0.9, 0.02])
def test_no_client_moves_the_sum_by_more_than_the_bound_and_one_reaches_it(beta: float | None) -> None:
    """Over random cohorts of nested networks; each client in turn sends another update, or none."""
    net, aggregation = nested(), alike(beta)
    values = [] if beta is None else [Beta(beta)]
    shares = []
    for seed in range(12):
        size = 2 + seed % 5
        asked = random_updates(net, size, largest=True, seed=seed)
        tasks = [one.task for one in asked]
        updates = [moved(net, one, 10.0 ** (place % 4 - 3), 7 * seed + place) for place, one in enumerate(asked)]
        whole, greatest = undivided(aggregation, net, updates, tasks, *values)
        for place in range(size):
            without = [*updates[:place], *updates[place + 1 :]]
            sent_nothing, _ = undivided(aggregation, net, without, tasks, *values)
            unchanged = moved(net, asked[place], 0.0, 1)
            sent_unchanged, _ = undivided(aggregation, net, [*without, unchanged], tasks, *values)
            assert torch.equal(sent_nothing, sent_unchanged)  # failing is no change: the denominators stay, too
            shares.append(float((whole - sent_nothing).norm()) / (NORM * greatest))
    assert max(shares) == pytest.approx(1, rel=1e-5)
    assert min(shares) < 0.5


def by_hand(net: Supernet, updates: list[ClientUpdate], tasks: list[ClientTask], coefficient: Any) -> dict[str, Tensor]:
    """The new weights by the formulas, element by element of a dense vector per client."""
    result = {}
    shared = net.shared_tensors()
    for name, tensor in shared.items():
        total, held = torch.zeros(tensor.shape).double(), torch.zeros(tensor.shape).double()
        for task in tasks:
            for region in net.regions(task.arch).values():
                if region.name == name:
                    region.add_to(held, 1.0, coefficient(task))
        for one in updates:
            sent = net.views(one.task.arch)
            norm = sqrt(sum(float((one.weights[n] - sent[n]).detach().double().square().sum()) for n in sent))
            for subnet_name, region in net.regions(one.task.arch).items():
                if region.name == name:
                    change = (one.weights[subnet_name] - sent[subnet_name]).double() * min(1, NORM / norm)
                    region.add_to(total, change, coefficient(one.task))
        result[name] = tensor.detach().double() + torch.nan_to_num(total / held, nan=0.0)
    return result


@pytest.mark.parametrize("beta", [None, 0.6])
def test_the_average_is_that_of_the_formulas_also_if_a_client_fails(beta: float | None) -> None:
    net = nested()
    asked = random_updates(net, 6, largest=True, seed=5)
    tasks = [one.task for one in asked]
    sizes = [1e-4, 1, 2, 1e-3, 3]  # the last one fails
    updates = [moved(net, asked[place], size, place) for place, size in enumerate(sizes)]
    average, values = private(alike(beta), net), given(*([] if beta is None else [Beta(beta)]))
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


def test_the_noise_has_the_stated_deviation_per_element_and_none_where_nobody_trains() -> None:
    """Two clients, of which one trains the largest network: half of the deviation where both hold an element."""
    net, noise = nested(), 1.5
    for second, everywhere in ((net.space.largest, True), (net.space.smallest, False)):
        asked = [ClientTask(0, 0, net.space.smallest, 9), ClientTask(0, 1, second, 9)]
        draws = torch.stack([step(net, [], asked, noise, round=round) for round in range(400)])
        deviations, clients = draws.std(dim=0), holders(net, asked)
        assert bool((deviations[clients == 0] == 0).all())
        assert (clients == 0).any() != everywhere
        for count in clients[clients > 0].unique():
            mean = float(deviations[clients == count].square().mean().sqrt())
            assert mean == pytest.approx(noise * NORM / float(count), rel=0.02)
    correlations = torch.corrcoef(draws[:, clients > 0][:, :60].T) - torch.eye(60)
    assert float(correlations.abs().max()) < 0.25  # independent from element to element


def strategy(rounds: int, bands: int) -> np.ndarray:
    """The first diagonals of the square root of the matrix that sums over rounds."""
    k = np.arange(rounds)
    return toeplitz(np.where(k < bands, binom(2 * k, k) / 4.0**k, 0), np.zeros(rounds))


@pytest.mark.parametrize("bands", [1, 2, 5])
def test_the_noise_of_rounds_solves_the_banded_system_at_the_scale_of_its_columns(bands: int) -> None:
    """A round that is left out changes nothing for the later ones."""
    net, noise, sequence = nested(), 1.5, NoiseSequence(3, bands, first=0)
    tasks = [one.task for one in random_updates(net, 5, largest=True, seed=8)]
    held, matrix = holders(net, tasks), strategy(8, bands)
    draws = [numpy_generator(3, "privacy", round).standard_normal(len(held), dtype=np.float32) for round in range(8)]
    expected = np.linalg.solve(matrix, np.stack(draws)) * noise * NORM * np.linalg.norm(matrix[:, 0])
    for round in (0, 1, 3, 4, 5, 6, 7):
        moved = step(net, [], tasks, noise, round=round, sequence=sequence) * held
        np.testing.assert_allclose(moved.numpy(), expected[round], rtol=1e-3, atol=1e-4)


def test_correlated_noise_adds_up_to_less_and_a_later_start_shares_none() -> None:
    """The variance of the noise of t rounds together is the squared norm of row t of A C^-1, for A of ones."""
    sequence, total = NoiseSequence(3, 20), np.zeros(20_000)
    sums = np.tril(np.ones((100, 100))) @ np.linalg.inv(strategy(100, 20))
    for round in range(100):
        total += sequence.noise(round, {"w": (20_000,)})["w"]
        assert total.var() == pytest.approx((sums[round] ** 2).sum(), rel=0.06)
    assert sequence.norm * total.std() < 0.34 * 10  # of independent noise
    first = numpy_generator(3, "privacy", 9).standard_normal(5, dtype=np.float32)
    assert NoiseSequence(3, 20).noise(9, {"w": (5,)})["w"].tolist() == first.tolist()


@pytest.mark.parametrize(("clients", "count"), [(6, 2), (7, 3), (9, 2)])
def test_what_a_client_changes_by_is_its_number_of_turns_whichever_it_takes(clients: int, count: int) -> None:
    """In whatever direction each moves the sum: |C x|^2 / |c|^2. With a band more than it pauses, turns overlap."""
    cohort, rounds = CyclicCohort(count=count), 10
    pause = cohort.separation(clients)
    for bands in (pause, pause + 1):
        matrix, most = strategy(rounds + bands, bands), 0.0
        for client in range(clients):
            turns = [t for t in range(rounds) if client in cohort.draw(t, [1] * clients, seed=1)]
            for taken in filter(any, product((-1, 0, 1), repeat=len(turns))):
                moved = matrix[:, turns] @ taken / NoiseSequence(0, bands).norm
                most = max(most, float((moved**2).sum() / np.abs(taken).sum()))
        assert most == pytest.approx(1) if bands == pause else most > 1.1


def test_noise_is_drawn_once_for_all_ranks_by_round() -> None:
    net = nested()
    asked = random_updates(net, 5, largest=True, seed=8)
    tasks = [one.task for one in asked]
    whole = step(net, asked, tasks, 1.0)
    ranks = [private(alike(), net, 1.0) for _ in range(2)]
    for rank, aggregation in enumerate(ranks):
        begun(aggregation, net, asked[rank::2], tasks)
    for totals in zip(*(aggregation.sums() for aggregation in ranks), strict=True):
        added = totals[0] + totals[1]
        for total in totals:
            total.copy_(added)
    first, second = (flat(aggregation.finish()) - flat(net.shared_tensors()) for aggregation in ranks)
    torch.testing.assert_close(first, whole, rtol=1e-5, atol=1e-5)
    assert torch.equal(first, second)
    later = step(net, asked, tasks, 1.0, round=1)
    assert float((later - whole).abs().min()) > 0


def test_buffers_and_frozen_weights_stay() -> None:
    net = networks.kept("plain", networks.plain)
    old = {name: tensor.detach().clone() for name, tensor in net.shared_tensors().items()}
    trained = [name for name, one in net.named_parameters() if one.requires_grad]
    kept = [name for name in old if name not in trained]
    assert len(kept) == 4
    task = ClientTask(0, 0, net.space.largest, 5)
    found = aggregate(private(alike(), net), net, [update(net, 0, net.space.largest, 5)], [task])
    assert all(torch.equal(found[name].to(old[name].dtype), old[name]) for name in kept)
    moved = torch.cat([(found[name] - old[name]).flatten() for name in trained])
    assert float(moved.norm()) == pytest.approx(NORM, rel=1e-5)


def test_sampled_rounds_divide_by_the_expected_cohort_and_add_noise_without_any_client() -> None:
    """Two clients are expected, of which a fourth trains only the smallest network, as in the public plan."""
    net = nested()
    everyone = [ClientTask(0, client, net.space.largest, 5) for client in range(8)]
    sampled: dict[str, Any] = {
        "planned": [replace(everyone[0], arch=net.space.smallest), *everyone[1:4]],
        "expected": 2.0,
    }
    held = holders(net, sampled["planned"], 2 / 4)
    assert held.unique().tolist() == [1.5, 2]
    changed = moved(net, update(net, 3, net.space.largest, 5), 5.0, 1)
    first, *others = (
        step(net, [changed], [everyone[client] for client in clients], **sampled)
        for clients in ([3], [3, 4], [3, 4, 5])  # others change nothing: their number must not show
    )
    assert float((first * held).norm()) == pytest.approx(NORM, rel=1e-5)
    for other in others:
        torch.testing.assert_close(other, first, rtol=1e-5, atol=1e-7)
    noise = step(net, [], [], 1.0, **sampled)
    for clients in (1.5, 2):
        assert float(noise[held == clients].std()) == pytest.approx(NORM / clients, rel=0.1)


class _ByOwn(OverlapAverage):
    def weight(self, update: ClientUpdate, name: str) -> float:
        return float(update.result.num_seen)


class _Twice(OverlapAverage):
    def add(self, update: ClientUpdate) -> None:
        super().add(update)
        super().add(update)


REFUSED: dict[str, tuple[OverlapAverage, dict[str, Any], str]] = {
    "examples": (OverlapAverage(), {}, "set weighted to false"),
    "trim": (OverlapAverage(False, trim=0.1), {}, r"trim 0\.1 leaves out values"),
    "own weights": (_ByOwn(False), {}, r"_ByOwn merges in a way of its own \(weight\)"),
    "own sums": (_Twice(False), {}, r"_Twice merges in a way of its own \(add\)"),
    "MaxNet, sampled": (MaxNet(weighted=False), {"sampled": True}, "the coefficients of MaxNet depend on the cohort"),
    "two tasks": (OverlapAverage(False), {"twice": True}, "a client has several tasks"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_has_no_known_bound_is_refused(name: str) -> None:
    aggregation, settings, message = REFUSED[name]
    net = nested()
    tasks = [ClientTask(0, client, net.space.largest, 5) for client in range(3)]
    if settings.get("twice"):
        tasks.append(replace(tasks[0], arch=net.space.smallest))
    sampled = {"planned": tasks, "expected": 1.5} if settings.get("sampled") else {}
    with pytest.raises(ConfigError, match=rf"model\.aggregation: no bound .*{message}.*set privacy to null"):
        begun(private(aggregation, net, **sampled), net, [], tasks, values=given(Beta(0.5)))
