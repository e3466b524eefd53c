"""SuperFed's two ways of averaging against references written from its Algorithms 1 and 2."""

import numpy as np
import pytest
import torch
from torch import Tensor

from lit_fednas.aggregation import Beta, MaxNet, OverlapAverage
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientResult, ClientTask, ClientUpdate, RoundValues
from lit_fednas.supernets import Ladder, PlainNetwork, Region, Supernet
from lit_fednas.testing.updates import aggregate, random_updates, start, update
from tests.aggregation.instances import archs_of, examples_of, weights_of
from tests.references import superfed
from tests.supernets.instances import kept_instance, roll

PADDING = 16  # elements of a tensor at most, so that each begins at a multiple of 64 bytes
NETS = ["elastic", "elastic-batchnorm", "elastic-groupnorm", "elastic-narrow", "rolling"]


def place(name: str) -> superfed.Impose:
    return roll if name == "rolling" else superfed.corners  # type: ignore[return-value]


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
@pytest.mark.parametrize("largest", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_overlap_is_algorithm_1(name: str, largest: bool, seed: int) -> None:
    net = kept_instance(name)
    updates = random_updates(net, 2 + 3 * seed, largest, seed)
    for weighted in (True, False):
        n = examples_of(updates) if weighted else np.ones(len(updates))
        expected = superfed.algorithm_1(
            net.state_dict(), archs_of(updates), weights_of(updates), n.tolist(), place(name)
        )
        assert_equal(net, aggregate(OverlapAverage(weighted), net, updates), expected)


@pytest.mark.parametrize("name", NETS)
@pytest.mark.parametrize(("seed", "beta"), [(0, 0.9), (1, 0.2)])
def test_maxnet_is_algorithm_2(name: str, seed: int, beta: float) -> None:
    net = kept_instance(name)
    updates = random_updates(net, 2 + 3 * seed, True, seed)
    j = archs_of(updates).index(net.space.largest)
    for weighted in (True, False):
        n = examples_of(updates) if weighted else np.ones(len(updates))
        expected = superfed.algorithm_2(
            net.state_dict(), archs_of(updates), weights_of(updates), n.tolist(), j, beta, place(name)
        )
        assert_equal(net, aggregate(MaxNet(beta, weighted), net, updates), expected)


class Vector(PlainNetwork):
    """Five shared numbers of which an architecture has the first so many."""

    def __init__(self, values: list[float]) -> None:
        network = torch.nn.Module()
        network.register_parameter("w", torch.nn.Parameter(torch.tensor(values)))
        super().__init__(network, (1,), 1)
        self.space = Ladder(range(1, 6))

    def index(self, arch: int) -> dict[str, Region]:
        return {"w": Region("network.w", None if arch == 5 else (slice(0, arch),))}

    def regions(self, arch: int) -> dict[str, Region]:
        return self.index(arch)


def answer(client: int, examples: int, values: list[float]) -> ClientUpdate:
    task = ClientTask(round=0, client=client, arch=len(values), num_examples=examples)
    return ClientUpdate(ClientResult(task, num_steps=1, num_seen=examples), {"w": torch.tensor(values)})


def test_by_hand() -> None:
    """Overlaps 2, 1, 1, 0, 0; the second trained value of client 4 is exactly zero."""
    net = Vector([10.0, 20.0, 30.0, 40.0, 50.0])
    updates = [answer(3, 1, [1.0]), answer(4, 3, [2.0, 0.0, 6.0])]
    assert aggregate(OverlapAverage(), net, updates)["network.w"].tolist() == [1.75, 0.0, 6.0, 40.0, 50.0]
    assert aggregate(OverlapAverage(False), net, updates)["network.w"].tolist() == [1.5, 0.0, 6.0, 40.0, 50.0]


def test_maxnet_by_hand() -> None:
    """Weights 0.8 x 1 for the largest, 0.1 x 2 and 0.1 x 6 for the others."""
    net = Vector([10.0] * 5)
    updates = [answer(1, 2, [1.0, 0.0]), answer(2, 1, [3.0] * 5), answer(0, 6, [5.0])]
    result = aggregate(MaxNet(0.8), net, updates)["network.w"]
    expected = [(0.2 * 1 + 0.8 * 3 + 0.6 * 5) / 1.6, 0.8 * 3 / 1.0, 3.0, 3.0, 3.0]
    torch.testing.assert_close(result, torch.tensor(expected))


@pytest.mark.parametrize("kind", [OverlapAverage, MaxNet])
def test_values_that_cancel_or_are_zero_count_as_trained(kind: type[OverlapAverage]) -> None:
    net = Vector([10.0] * 5)
    result = aggregate(kind(), net, [answer(0, 1, [0.0, 0.0, 0.0]), answer(1, 1, [0.0, -0.0])])["network.w"]
    assert result.tolist() == [0.0, 0.0, 0.0, 10.0, 10.0]
    result = aggregate(OverlapAverage(), net, [answer(0, 1, [2.0]), answer(1, 1, [-2.0])])["network.w"]
    assert result.tolist() == [0.0, 10.0, 10.0, 10.0, 10.0]


@pytest.mark.parametrize("kind", [OverlapAverage, MaxNet])
def test_what_nobody_trained_stays_exactly(kind: type[OverlapAverage]) -> None:
    net = kept_instance("elastic-batchnorm")
    smallest = net.space.smallest
    result = aggregate(kind(), net, [update(net, client, smallest, 3) for client in range(4)])
    held = superfed.padded(
        net.state_dict(),
        superfed.corners,
        smallest,
        {name: torch.ones(tensor.shape) for name, tensor in net.subnet(smallest).state_dict().items()},
    )
    untouched = 0
    for name, tensor in net.shared_tensors().items():
        free = held[name] == 0
        assert torch.equal(result[name][free], tensor[free].to(result[name].dtype)), name
        untouched += int(free.sum())
    assert untouched > 1000


@pytest.mark.parametrize("kind", [OverlapAverage, MaxNet])
def test_nobody_answered(kind: type[OverlapAverage]) -> None:
    net = kept_instance("elastic-batchnorm")
    updates = random_updates(net, 3, True, 0)
    result = aggregate(kind(), net, [], [u.task for u in updates])
    for name, tensor in net.shared_tensors().items():
        assert torch.equal(result[name], tensor.to(result[name].dtype)), name


@pytest.mark.parametrize("name", ["elastic-batchnorm", "plain"])
def test_one_architecture_for_all_is_federated_averaging(name: str) -> None:
    """App. C, in numpy: the mean of whole state dicts, weighted by the examples."""
    net = kept_instance(name)
    n = [40, 7, 113]
    updates = [update(net, client, net.space.largest, n[client]) for client in range(3)]
    result = aggregate(OverlapAverage(), net, updates)
    for key, tensor in net.shared_tensors().items():
        stacked = [u.weights[key.removeprefix("network.")].double().numpy() for u in updates]
        mean = np.average(stacked, axis=0, weights=n)
        mean = mean if tensor.is_floating_point() else np.round(mean)
        np.testing.assert_allclose(result[key].numpy(), mean, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("weighted", [True, False])
def test_who_failed_is_left_out(weighted: bool) -> None:
    """What is over for those who answered is as if the others had not been asked."""
    net = kept_instance("elastic")
    updates = random_updates(net, 5, True, 3)
    tasks = [u.task for u in updates]
    survivors = [updates[0], updates[3], updates[4]]
    n = (examples_of(survivors) if weighted else np.ones(3)).tolist()
    expected = superfed.algorithm_1(net.state_dict(), archs_of(survivors), weights_of(survivors), n)
    assert_equal(net, aggregate(OverlapAverage(weighted), net, survivors, tasks), expected)


def test_maxnet_without_the_largest_client_is_plain_overlap_of_the_others() -> None:
    net = kept_instance("elastic")
    updates = random_updates(net, 5, True, 3)
    j = archs_of(updates).index(net.space.largest)
    others = updates[:j] + updates[j + 1 :]
    result = aggregate(MaxNet(0.9), net, others, [u.task for u in updates])
    n = examples_of(others).tolist()
    assert_equal(net, result, superfed.algorithm_1(net.state_dict(), archs_of(others), weights_of(others), n))


def test_maxnet_of_survivors_keeps_the_size_of_the_cohort() -> None:
    net = Vector([10.0] * 5)
    updates = [answer(1, 1, [0.0]), answer(2, 1, [3.0] * 5)]
    tasks = [*(u.task for u in updates), ClientTask(0, 7, 2, 1), ClientTask(0, 8, 2, 1)]
    result = aggregate(MaxNet(0.7), net, updates, tasks)["network.w"]
    torch.testing.assert_close(result[0], torch.tensor(0.7 * 3 / (0.7 + 0.3 / 3)))


@pytest.mark.parametrize("size", [2, 5])
def test_a_uniform_beta_is_overlap_averaging(size: int) -> None:
    """Where the decay ends: beta = 1 / |S|."""
    net = kept_instance("elastic-batchnorm")
    updates = random_updates(net, size, True, 4)
    for weighted in (True, False):
        even = aggregate(OverlapAverage(weighted), net, updates)
        result = aggregate(MaxNet(1 / size, weighted), net, updates)
        for name, tensor in even.items():
            torch.testing.assert_close(result[name], tensor, rtol=1e-5, atol=1e-6)


def test_maxnet_alone_or_without_a_largest_counts_all_alike() -> None:
    net = kept_instance("elastic")
    alone = [update(net, 0, net.space.largest, 5)]
    without = [update(net, client, net.space.smallest, 5 + client) for client in range(3)]
    for updates in (alone, without):
        expected = aggregate(OverlapAverage(), net, updates)
        result = aggregate(MaxNet(0.9), net, updates)
        for name, tensor in expected.items():
            torch.testing.assert_close(result[name], tensor)


def test_the_first_of_several_largest_is_j() -> None:
    net = Vector([10.0] * 5)
    updates = [answer(9, 1, [0.0] * 5), answer(2, 1, [1.0] * 5)]
    tasks = [u.task for u in updates]
    for order in (updates, updates[::-1]):
        result = aggregate(MaxNet(0.9), net, order, tasks)["network.w"]
        torch.testing.assert_close(result, torch.full((5,), 0.1))


def test_a_client_without_examples_has_no_weight() -> None:
    net = Vector([10.0] * 5)
    updates = [answer(0, 0, [1.0, 1.0]), answer(1, 4, [2.0])]
    assert aggregate(OverlapAverage(), net, updates)["network.w"].tolist() == [2.0, 10.0, 10.0, 10.0, 10.0]
    with pytest.raises(ConfigError, match=r"aggregation.weighted"):
        aggregate(OverlapAverage(), net, updates[:1])
    assert aggregate(OverlapAverage(False), net, updates[:1])["network.w"].tolist() == [1.0, 1.0, 10.0, 10.0, 10.0]


def test_large_cohorts_of_large_clients_stay_exact() -> None:
    """Sums are kept in the range of the weights, whatever the number of examples."""
    net = Vector([0.0] * 5)
    updates = [answer(client, 10**9, [1.0, 3.0]) for client in range(1000)]
    result = aggregate(OverlapAverage(), net, updates)["network.w"]
    torch.testing.assert_close(result, torch.tensor([1.0, 3.0, 0.0, 0.0, 0.0]), rtol=1e-4, atol=0)


def test_counters_are_averaged_and_rounded() -> None:
    net = kept_instance("plain")
    name = "1.num_batches_tracked"
    examples = [7, 11, 13, 1]
    updates = [update(net, client, "whole", n) for client, n in enumerate(examples)]
    for client, one in enumerate(updates):
        one.weights[name].fill_(3 * 10**9 + 5 * client)
    mean = sum(n * 5 * client for client, n in enumerate(examples)) / sum(examples)  # 6.25
    assert int(aggregate(OverlapAverage(), net, updates)["network." + name]) == 3 * 10**9 + round(mean)


def test_a_window_round_the_end_falls_into_its_places() -> None:
    """Units 4, 5, 0, 1 of six: the first of the update lies at 4, the last at 1."""
    net = kept_instance("rolling")
    one = update(net, 0, (4, 4), 10)
    result = aggregate(OverlapAverage(), net, [one])
    bias, matrix = result["network.0.bias"], result["network.2.weight"]
    assert torch.equal(bias[[4, 5, 0, 1]], one.weights["0.bias"])
    assert torch.equal(bias[[2, 3]], net.network[0].bias[[2, 3]])
    for i, row in enumerate([4, 5, 0, 1]):
        assert torch.equal(matrix[row, [4, 5, 0, 1]], one.weights["2.weight"][i])
        assert torch.equal(matrix[row, [2, 3]], net.network[2].weight[row, [2, 3]])
    assert torch.equal(matrix[[2, 3]], net.network[2].weight[[2, 3]])


@pytest.mark.parametrize("kind", [OverlapAverage, MaxNet])
def test_memory_is_that_of_the_supernet(kind: type[OverlapAverage]) -> None:
    """Sums of one supernet, whatever the cohort; weights by element only where a client holds a part."""
    net = kept_instance("elastic")
    elements = sum(tensor.numel() for tensor in net.shared_tensors().values())
    aggregation = kind()
    for size in (1, 9):
        whole = [update(net, client, net.space.largest, 3) for client in range(size)]
        start(aggregation, net, [u.task for u in whole])
        for one in whole:
            aggregation.add(one)
        held = sum(total.numel() for total in aggregation.sums())
        assert elements <= held <= elements + PADDING * len(net.shared_tensors())
    mixed = [*whole, update(net, 20, net.space.smallest, 3)]
    start(aggregation, net, [u.task for u in mixed])
    partial = {
        "network." + name
        for name, tensor in net.subnet(net.space.smallest).named_parameters()
        if tensor.shape != net.shared_tensors()["network." + name].shape
    }
    extra = sum(net.shared_tensors()[name].numel() for name in partial)
    held = sum(total.numel() for total in aggregation.sums())
    tensors = len(net.shared_tensors()) + len(partial)
    assert elements + extra <= held <= elements + extra + PADDING * tensors
    places = [total.data_ptr() for total in aggregation.sums()[:2]]
    aggregation.finish()
    start(aggregation, net, [u.task for u in mixed])
    assert [total.data_ptr() for total in aggregation.sums()[:2]] == places  # the next round has the same memory
    assert not any(total.any() for total in aggregation.sums())


@pytest.mark.parametrize("beta", [0.0, 1.0, -0.1, 1.5])
def test_beta_lies_between_zero_and_one(beta: float) -> None:
    with pytest.raises(ConfigError, match=rf"aggregation.beta: {beta} must be above 0 and below 1"):
        MaxNet(beta)


def test_the_round_s_beta_counts_and_is_logged() -> None:
    """A value that a schedule gives holds for its round alone."""
    net = kept_instance("elastic")
    updates = random_updates(net, 4, True, 5)
    aggregation, given = MaxNet(0.6), RoundValues()
    assert aggregation.metrics([]) == {"beta": 0.6}
    given.give(Beta(0.4))
    for values, beta in ((given, 0.4), (RoundValues(), 0.6), (None, 0.6)):
        result = aggregate(aggregation, net, updates, values=values)
        assert aggregation.metrics([]) == {"beta": beta}
        expected = aggregate(MaxNet(beta), net, updates)
        assert all(torch.equal(result[name], tensor) for name, tensor in expected.items())
    other = aggregate(MaxNet(0.4), net, updates)
    assert not all(torch.equal(result[name], tensor) for name, tensor in other.items())
    assert OverlapAverage().metrics([]) == {}
