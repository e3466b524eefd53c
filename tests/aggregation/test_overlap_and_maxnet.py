"""SuperFed's two ways of averaging against references written from its Algorithms 1 and 2."""

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
        else:  # a half may go up or down
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
    n = [float(one.task.num_examples) if weighted else 1.0 for one in updates]
    archs = [one.task.arch for one in updates]
    given = net.state_dict(), archs, [one.weights for one in updates], n
    place = roll if name == "rolling" else superfed.corners
    assert_equal(net, aggregate(OverlapAverage(weighted), net, updates), superfed.algorithm_1(*given, place))
    if beta is not None:
        expected = superfed.algorithm_2(*given, archs.index(net.space.largest), beta, place)
        assert_equal(net, aggregate(MaxNet(beta, weighted), net, updates), expected)


def sent(client: int, examples: int, *values: float) -> Any:
    """An update of the first numbers of a vector."""
    return vector_update(client, (0, len(values)), examples, *values)


# overlaps 2, 1, 1, 0; the second trained value of client 4 is exactly zero
TWO = [sent(3, 1, 1.0), sent(4, 3, 2.0, 0.0, 6.0)]
ZEROS = [sent(0, 1, 0.0, 0.0, 0.0), sent(1, 1, 0.0, -0.0)]
#: Of numbers that were 10, 20, 30 and 40.
BY_HAND: dict[str, tuple[OverlapAverage, list[Any], list[float]]] = {
    "overlaps": (OverlapAverage(), TWO, [1.75, 0.0, 6.0, 40.0]),
    "all alike": (OverlapAverage(False), TWO, [1.5, 0.0, 6.0, 40.0]),
    "zeros": (OverlapAverage(), ZEROS, [0.0, 0.0, 0.0, 40.0]),
    "zeros of MaxNet": (MaxNet(), ZEROS, [0.0, 0.0, 0.0, 40.0]),
    "values that cancel": (OverlapAverage(), [sent(0, 1, 2.0), sent(1, 1, -2.0)], [0.0, 20.0, 30.0, 40.0]),
    "no examples": (OverlapAverage(), [sent(0, 0, 1.0, 1.0), sent(1, 4, 2.0)], [2.0, 20.0, 30.0, 40.0]),
    "no examples, alike": (OverlapAverage(False), [sent(0, 0, 1.0, 1.0)], [1.0, 1.0, 30.0, 40.0]),
    # sums are kept in the range of the weights, whatever the number of examples
    "large": (OverlapAverage(), [sent(client, 10**9, 1.0, 3.0) for client in range(1000)], [1.0, 3.0, 30.0, 40.0]),
    # weights 0.8 x 1 for the largest, 0.1 x 2 and 0.1 x 6 for the others
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


def test_a_client_without_examples_alone_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"aggregation.weighted"):
        aggregate(OverlapAverage(), Vector(), [sent(0, 0, 1.0, 1.0)])


def test_maxnet_alone_or_without_a_largest_counts_all_alike() -> None:
    """Also where the largest one's client has failed."""
    net = kept_instance("elastic")
    asked = random_updates(net, 5, True, 3)
    alone = [update(net, 0, net.space.largest, 5)]
    others = [one for one in asked if one.task.arch != net.space.largest]
    for updates, tasks in ((alone, None), (others, None), (others, [one.task for one in asked])):
        expected = aggregate(OverlapAverage(), net, updates)
        for name, tensor in aggregate(MaxNet(0.9), net, updates, tasks).items():
            torch.testing.assert_close(tensor, expected[name])


def test_counters_are_averaged_and_rounded() -> None:
    net = kept_instance("plain")
    name = "1.num_batches_tracked"
    examples = [7, 11, 13, 1]
    updates = [update(net, client, "whole", n) for client, n in enumerate(examples)]
    for client, one in enumerate(updates):
        one.weights[name].fill_(3 * 10**9 + 5 * client)
    mean = sum(n * 5 * client for client, n in enumerate(examples)) / sum(examples)  # 6.25
    assert int(aggregate(OverlapAverage(), net, updates)["network." + name]) == 3 * 10**9 + round(mean)


def test_the_round_s_beta_counts() -> None:
    """A value that a schedule gives holds for its round alone."""
    net = kept_instance("elastic")
    updates = random_updates(net, 4, True, 5)
    aggregation, given = MaxNet(0.6), RoundValues()
    given.give(Beta(0.4))
    for values, beta in ((given, 0.4), (RoundValues(), 0.6), (None, 0.6)):
        result = aggregate(aggregation, net, updates, values=values)
        expected = aggregate(MaxNet(beta), net, updates)
        assert all(torch.equal(result[name], tensor) for name, tensor in expected.items())
    other = aggregate(MaxNet(0.4), net, updates)
    assert not all(torch.equal(result[name], tensor) for name, tensor in other.items())
