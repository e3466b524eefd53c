"""What every aggregation promises, for every instance in ``instances.py``."""

import inspect
import itertools
import pkgutil
import weakref
from dataclasses import replace
from importlib import import_module

import pytest
import torch
from torch import Tensor

import lit_fednas.aggregation
from lit_fednas.aggregation import Aggregation
from lit_fednas.supernets import BatchNorm, Supernet
from tests.aggregation.instances import INSTANCES, aggregate, changed, random_updates, start, suited, update
from tests.supernets.instances import kept_instance
from tests.supernets.suites import grown_suite

NETS = ["elastic-batchnorm", "plain", "rolling"]
PAIRS = [*itertools.product(NETS, sorted(INSTANCES)), ("suite", "overlap"), ("suite", "overlap-alike")]


@pytest.fixture(params=PAIRS, ids="-".join)
def pair(request: pytest.FixtureRequest) -> tuple[str, str]:
    return request.param


@pytest.fixture
def net(pair: tuple[str, str]) -> Supernet:
    return grown_suite(norm=BatchNorm()) if pair[0] == "suite" else kept_instance(pair[0])


@pytest.fixture
def aggregation(pair: tuple[str, str], net: Supernet) -> Aggregation:
    return suited(INSTANCES[pair[1]](), net)


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name in one:
        counter = one[name].dtype == torch.float64  # counters are rounded: a half may go up or down
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1 if counter else 1e-5, msg=name)


def test_every_aggregation_has_an_kept_instance() -> None:
    for module in pkgutil.walk_packages(lit_fednas.aggregation.__path__, "lit_fednas.aggregation."):
        import_module(module.name)
    found, todo = set(), [Aggregation]
    while todo:
        for kind in todo.pop().__subclasses__():
            todo.append(kind)
            if kind.__module__.startswith("lit_fednas.") and not inspect.isabstract(kind):
                found.add(kind)
    missing = sorted(kind.__name__ for kind in found - {type(make()) for make in INSTANCES.values()})
    assert not missing, f"add instances of {missing} to tests/aggregation/instances.py"


def test_every_shared_tensor_comes_back_and_may_be_overwritten(aggregation: Aggregation, net: Supernet) -> None:
    before = {name: tensor.clone() for name, tensor in net.shared_tensors().items()}
    result = aggregate(aggregation, net, random_updates(net, 3, largest=False, seed=1))
    assert result.keys() == before.keys()
    with torch.no_grad():
        for name, tensor in result.items():
            assert tensor.shape == before[name].shape
            assert not tensor.requires_grad
            assert tensor.isfinite().all()
            tensor.fill_(7)
    for name, tensor in net.shared_tensors().items():
        assert torch.equal(tensor, before[name]), name


def test_order_does_not_matter(aggregation: Aggregation, net: Supernet) -> None:
    updates = random_updates(net, 6, largest=True, seed=2)
    tasks = [u.task for u in updates]
    first = aggregate(aggregation, net, updates, tasks)
    assert_equal(aggregate(aggregation, net, updates[::-1], tasks), first)
    assert_equal(aggregate(aggregation, net, updates[3:] + updates[:3], tasks), first)


def test_several_ranks_are_one(aggregation: Aggregation, net: Supernet) -> None:
    """Each rank knows all tasks and adds its own updates; then the sums are added in place."""
    updates = random_updates(net, 5, largest=True, seed=3)
    tasks = [u.task for u in updates]
    whole = aggregate(aggregation, net, updates, tasks)
    kinds = [type(aggregation).__new__(type(aggregation)) for _ in range(3)]
    for rank, other in enumerate(kinds):
        other.__dict__.update(aggregation.__dict__)
        start(other, net, tasks)
        for one in updates[rank::3]:
            other.add(one)
    for totals in zip(*(other.sums() for other in kinds), strict=True):
        totals[0].add_(totals[1]).add_(totals[2])
    assert_equal(kinds[0].finish(), whole)


def test_updates_are_neither_changed_nor_kept(aggregation: Aggregation, net: Supernet) -> None:
    updates = random_updates(net, 3, largest=True, seed=4)
    start(aggregation, net, [u.task for u in updates])
    copies = [{name: tensor.clone() for name, tensor in u.weights.items()} for u in updates]
    for one in updates:
        aggregation.add(one)
    for one, weights in zip(updates, copies, strict=True):
        for name, tensor in one.weights.items():
            assert torch.equal(tensor, weights[name]), name
    gone = [weakref.ref(tensor) for u in updates for tensor in u.weights.values()]
    storages = {tensor.untyped_storage().data_ptr() for u in updates for tensor in u.weights.values()}
    assert not storages & {total.untyped_storage().data_ptr() for total in aggregation.sums()}
    del one, updates, tensor
    assert not any(reference() is not None for reference in gone)
    aggregation.finish()


def test_later_writing_into_the_tensors_does_no_harm(aggregation: Aggregation, net: Supernet) -> None:
    """A client's network is used again for the next client."""
    updates = random_updates(net, 3, largest=True, seed=5)
    expected = aggregate(aggregation, net, updates)
    start(aggregation, net, [u.task for u in updates])
    for one in updates:
        aggregation.add(one)
        for tensor in one.weights.values():
            tensor.fill_(99)
    assert_equal(aggregation.finish(), expected)


def test_rounds_do_not_touch_each_other(aggregation: Aggregation, net: Supernet) -> None:
    updates = random_updates(net, 4, largest=True, seed=6)
    first = aggregate(aggregation, net, updates)
    aggregate(aggregation, net, random_updates(net, 2, largest=True, seed=7))
    assert_equal(aggregate(aggregation, net, updates), first)


def test_an_unfinished_round_is_forgotten(aggregation: Aggregation, net: Supernet) -> None:
    updates = random_updates(net, 4, largest=True, seed=8)
    expected = aggregate(aggregation, net, updates)
    start(aggregation, net, [u.task for u in updates])
    aggregation.add(updates[0])
    assert_equal(aggregate(aggregation, net, updates), expected)


def test_updates_that_agree_are_the_result(aggregation: Aggregation, net: Supernet) -> None:
    one = update(net, 0, net.space.largest, 10)
    updates = [one] + [
        changed(one, task=replace(one.task, client=client, num_examples=10 * client), num_seen=1) for client in (1, 2)
    ]
    result = aggregate(aggregation, net, updates)
    for name, region in net.regions(net.space.largest).items():
        torch.testing.assert_close(result[region.name], one.weights[name].to(result[region.name].dtype))


def test_numbers_to_log_are_plain(aggregation: Aggregation, net: Supernet) -> None:
    updates = random_updates(net, 2, largest=True, seed=9)
    aggregate(aggregation, net, updates)
    for name, value in aggregation.metrics([one.result for one in updates]).items():
        assert isinstance(name, str)
        assert isinstance(value, float)
