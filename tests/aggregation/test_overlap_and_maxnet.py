"""Tests SuperFed's two averages against references for its Algorithms 1 and 2."""

from typing import Any

import pytest
import torch
from torch import Tensor

from lit_fednas.aggregation import Beta, MaxNet, OverlapAverage
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, RoundValues
from lit_fednas.supernets import Supernet
from lit_fednas.testing.aggregations import aggregate, random_updates, update
from tests.aggregation.instances import Vector, vector_update
from tests.references import superfed
from tests.supernets.instances import kept_instance, roll

NETS = ["elastic-batchnorm", "elastic-narrow", "rolling", "early-exit-batchnorm"]


def assert_equal(net: Supernet, result: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    shared = net.shared_tensors()
    assert result.keys() == expected.keys() == shared.keys()
    for name, tensor in expected.items():
        if shared[name].is_floating_point():
            torch.testing.assert_close(result[name].double(), tensor, rtol=1e-5, atol=1e-6, msg=name)
        else:  # halves may be rounded up or down
            assert torch.equal(result[name], result[name].round())
            assert ((result[name] - tensor).abs() <= 0.5 + 1e-9).all()


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(
    ("seed", "largest", "beta", "weighted"), [(0, True, 0.9, True), (1, True, 0.2, False), (1, False, None, True)]
)
def test_overlap_is_algorithm_1_and_maxnet_algorithm_2(
    name: str, seed: int, largest: bool, beta: float | None, weighted: bool
) -> None:
    net = kept_instance(name)
    updates = random_updates(net, 2 + 3 * seed, largest, seed)
    n = [float(update.task.num_examples) if weighted else 1.0 for update in updates]
    archs = [update.task.arch for update in updates]
    arguments = net.state_dict(), archs, [update.weights for update in updates], n
    corners = roll if name == "rolling" else superfed.corners
    assert_equal(net, aggregate(OverlapAverage(weighted), net, updates), superfed.algorithm_1(*arguments, corners))
    if beta is not None:
        expected = superfed.algorithm_2(*arguments, archs.index(net.space.largest), beta, corners)
        assert_equal(net, aggregate(MaxNet(beta, weighted), net, updates), expected)


def sent(client: int, examples: int, *values: float) -> Any:
    """Returns an update of a vector's first numbers."""
    return vector_update(client, (0, len(values)), examples, *values)


# Overlaps are 2, 1, 1, 0; client 4's second value is exactly zero.
TWO = [sent(3, 1, 1.0), sent(4, 3, 2.0, 0.0, 6.0)]
ZEROS = [sent(0, 1, 0.0, 0.0, 0.0), sent(1, 1, 0.0, -0.0)]
#: Cases with the old values 10, 20, 30 and 40.
BY_HAND: dict[str, tuple[OverlapAverage, list[Any], list[float]]] = {
    "overlaps": (OverlapAverage(), TWO, [1.75, 0.0, 6.0, 40.0]),
    "equal weights": (OverlapAverage(False), TWO, [1.5, 0.0, 6.0, 40.0]),
    "zeros": (OverlapAverage(), ZEROS, [0.0, 0.0, 0.0, 40.0]),
    "zeros of MaxNet": (MaxNet(), ZEROS, [0.0, 0.0, 0.0, 40.0]),
    "values that cancel": (OverlapAverage(), [sent(0, 1, 2.0), sent(1, 1, -2.0)], [0.0, 20.0, 30.0, 40.0]),
    "no examples": (OverlapAverage(), [sent(0, 0, 1.0, 1.0), sent(1, 4, 2.0)], [2.0, 20.0, 30.0, 40.0]),
    "no examples, equal weights": (OverlapAverage(False), [sent(0, 0, 1.0, 1.0)], [1.0, 1.0, 30.0, 40.0]),
    # Sums stay in the range of the weights for any number of examples.
    "large": (OverlapAverage(), [sent(client, 10**9, 1.0, 3.0) for client in range(1000)], [1.0, 3.0, 30.0, 40.0]),
    # Weights: 0.8 x 1 for the largest, 0.1 x 2 and 0.1 x 6 for the others.
    "MaxNet": (
        MaxNet(0.8),
        [sent(1, 2, 1.0, 0.0), sent(2, 1, 3.0, 3.0, 3.0, 3.0), sent(0, 6, 5.0)],
        [(0.2 * 1 + 0.8 * 3 + 0.6 * 5) / 1.6, 0.8 * 3 / 1.0, 3.0, 3.0],
    ),
    "MaxNet, the first of the largest": (
        MaxNet(0.9),
        [sent(9, 1, 0.0, 0.0, 0.0, 0.0), sent(2, 1, 1.0, 1.0, 1.0, 1.0)],
        [0.1] * 4,
    ),
}


@pytest.mark.parametrize(("aggregation", "updates", "expected"), BY_HAND.values(), ids=list(BY_HAND))
def test_by_hand(aggregation: OverlapAverage, updates: list[Any], expected: list[float]) -> None:
    tasks = [update.task for update in updates]
    for order in (updates, updates[::-1]):
        result = aggregate(aggregation, Vector(), order, tasks)["network.w"]
        torch.testing.assert_close(result, torch.tensor(expected), rtol=1e-4, atol=1e-6)


def test_maxnet_of_survivors_keeps_the_size_of_the_cohort() -> None:
    updates = [sent(1, 1, 0.0), sent(2, 1, 3.0, 3.0, 3.0, 3.0)]
    tasks = [*(u.task for u in updates), ClientTask(0, 7, (0, 2), 1), ClientTask(0, 8, (0, 2), 1)]
    result = aggregate(MaxNet(0.7), Vector(), updates, tasks)["network.w"]
    torch.testing.assert_close(result[0], torch.tensor(0.7 * 3 / (0.7 + 0.3 / 3)))


def test_a_round_without_examples_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"aggregation.weighted"):
        aggregate(OverlapAverage(), Vector(), [sent(0, 0, 1.0, 1.0)])


def test_maxnet_ignores_beta_without_other_clients_or_a_largest() -> None:
    """The client of the largest architecture may have failed."""
    net = kept_instance("elastic")
    cohort_updates = random_updates(net, 5, True, 3)
    alone = [update(net, 0, net.space.largest, 5)]
    others = [entry for entry in cohort_updates if entry.task.arch != net.space.largest]
    for updates, tasks in ((alone, None), (others, None), (others, [entry.task for entry in cohort_updates])):
        expected = aggregate(OverlapAverage(), net, updates)
        for name, tensor in aggregate(MaxNet(0.9), net, updates, tasks).items():
            torch.testing.assert_close(tensor, expected[name])


def test_counters_are_averaged_and_rounded() -> None:
    net = kept_instance("plain")
    name = "1.num_batches_tracked"
    examples = [7, 11, 13, 1]
    updates = [update(net, client, "whole", n) for client, n in enumerate(examples)]
    for client, entry in enumerate(updates):
        entry.weights[name].fill_(3 * 10**9 + 5 * client)
    mean = sum(n * 5 * client for client, n in enumerate(examples)) / sum(examples)  # 6.25
    assert int(aggregate(OverlapAverage(), net, updates)["network." + name]) == 3 * 10**9 + round(mean)


def test_a_scheduled_beta_is_used_in_its_round() -> None:
    net = kept_instance("elastic")
    updates = random_updates(net, 4, True, 5)
    aggregation, scheduled = MaxNet(0.6), RoundValues()
    scheduled.give(Beta(0.4))
    for values, beta in ((scheduled, 0.4), (RoundValues(), 0.6), (None, 0.6)):
        result = aggregate(aggregation, net, updates, values=values)
        expected = aggregate(MaxNet(beta), net, updates)
        assert all(torch.equal(result[name], tensor) for name, tensor in expected.items())
    other = aggregate(MaxNet(0.4), net, updates)
    assert not all(torch.equal(result[name], tensor) for name, tensor in other.items())
