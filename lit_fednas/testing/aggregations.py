"""What every aggregation promises; random updates of clients, and rounds of an aggregation alone."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.aggregation import Aggregation
from lit_fednas.messages import (
    ClassesReport,
    ClientResult,
    ClientTask,
    ClientUpdate,
    OperatorReport,
    Report,
    RoundValues,
)
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.supernets import Supernet
from lit_fednas.testing import networks
from lit_fednas.testing.contract import Contract


class AggregationContract(Contract):
    """The contract of aggregations; ``instances`` make aggregations.

    Attributes:
        supernets: What makes the supernets that every instance is tested with, by name: of slices, of a single
            architecture, and of regions that are not slices, unless a subclass names others.
        net: The global weights of the supernet that is being tested with.

    Example:
        >>> from lit_fednas.aggregation import OverlapAverage
        >>> class TestAverage(AggregationContract):
        ...     instances = {"all-alike": lambda: OverlapAverage(weighted=False)}
    """

    supernets: ClassVar[Mapping[str, Callable[[], Supernet]]] = networks.SMALL
    net: Supernet

    def reports(self, net: Supernet, client: int) -> tuple[Report, ...]:
        """Returns what a client reports, which a subclass extends if its aggregation ``needs`` other reports."""
        return usual_reports(net, client)

    def reported(self, net: Supernet, one: ClientUpdate) -> ClientUpdate:
        """Returns an update with what the client reports."""
        return changed(one, reports=self.reports(net, one.task.client))

    def updates(self, net: Supernet, size: int, largest: bool, seed: int) -> list[ClientUpdate]:
        """Returns a cohort's random updates; one has the largest architecture, if asked."""
        return [self.reported(net, one) for one in random_updates(net, size, largest, seed)]

    @override
    def promises(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for name, make in self.supernets.items():
            self.net = networks.kept(name, make)
            for promise, check in super().promises():
                yield f"{promise} with {name}", check

    def check_every_shared_tensor_comes_back_and_may_be_overwritten(self) -> None:
        """The result has every shared tensor, in memory of its own."""
        aggregation, net = self.case.make(), self.net
        before = {name: tensor.clone() for name, tensor in net.shared_tensors().items()}
        result = aggregate(aggregation, net, self.updates(net, 3, largest=False, seed=1))
        assert result.keys() == before.keys()
        with torch.no_grad():
            for name, tensor in result.items():
                assert tensor.shape == before[name].shape
                assert not tensor.requires_grad
                assert tensor.isfinite().all()
                tensor.fill_(7)
        for name, tensor in net.shared_tensors().items():
            assert torch.equal(tensor, before[name]), name

    def check_order_does_not_matter(self) -> None:
        """The order in which updates arrive changes nothing but the rounding of sums."""
        aggregation, net = self.case.make(), self.net
        updates = self.updates(net, 6, largest=True, seed=2)
        tasks = [u.task for u in updates]
        first = aggregate(aggregation, net, updates, tasks)
        assert_equal(aggregate(aggregation, net, updates[::-1], tasks), first)
        assert_equal(aggregate(aggregation, net, updates[3:] + updates[:3], tasks), first)

    def check_several_ranks_are_one(self) -> None:
        """Each rank knows all tasks and adds its own updates; then the sums are added in place."""
        aggregation, net = self.case.make(), self.net
        updates = self.updates(net, 5, largest=True, seed=3)
        tasks = [u.task for u in updates]
        whole = aggregate(aggregation, net, updates, tasks)
        ranks = [copy(aggregation) for _ in range(3)]
        for rank, other in enumerate(ranks):
            start(other, net, tasks)
            for one in updates[rank::3]:
                other.add(one)
        for totals in zip(*(other.sums() for other in ranks), strict=True):
            totals[0].add_(totals[1]).add_(totals[2])
        assert_equal(ranks[0].finish(), whole)

    def check_updates_are_neither_changed_nor_kept(self) -> None:
        """Updates are read, and their memory is free after ``add``."""
        aggregation, net = self.case.make(), self.net
        updates = self.updates(net, 3, largest=True, seed=4)
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

    def check_later_writing_into_the_tensors_does_no_harm(self) -> None:
        """A client's network is used again for the next client."""
        aggregation, net = self.case.make(), self.net
        updates = self.updates(net, 3, largest=True, seed=5)
        expected = aggregate(aggregation, net, updates)
        start(aggregation, net, [u.task for u in updates])
        for one in updates:
            aggregation.add(one)
            for tensor in one.weights.values():
                tensor.fill_(99)
        assert_equal(aggregation.finish(), expected)

    def check_rounds_do_not_touch_each_other(self) -> None:
        """A round leaves nothing behind for the next."""
        aggregation, net = self.case.make(), self.net
        updates = self.updates(net, 4, largest=True, seed=6)
        first = aggregate(aggregation, net, updates)
        aggregate(aggregation, net, self.updates(net, 2, largest=True, seed=7))
        assert_equal(aggregate(aggregation, net, updates), first)

    def check_an_unfinished_round_is_forgotten(self) -> None:
        """A round that was begun and not finished leaves nothing behind."""
        aggregation, net = self.case.make(), self.net
        updates = self.updates(net, 4, largest=True, seed=8)
        expected = aggregate(aggregation, net, updates)
        start(aggregation, net, [u.task for u in updates])
        aggregation.add(updates[0])
        assert_equal(aggregate(aggregation, net, updates), expected)

    def check_updates_that_agree_are_the_result(self) -> None:
        """If all clients send the same weights, those are the result."""
        aggregation, net = self.case.make(), self.net
        one = self.reported(net, update(net, 0, net.space.largest, 10))
        updates = [one] + [
            changed(one, task=replace(one.task, client=client, num_examples=10 * client), num_seen=1)
            for client in (1, 2)
        ]
        result = aggregate(aggregation, net, updates)
        for name, region in net.regions(net.space.largest).items():
            torch.testing.assert_close(result[region.name], one.weights[name].to(result[region.name].dtype))

    def check_numbers_to_log_are_plain(self) -> None:
        """Metrics are floats by name."""
        aggregation, net = self.case.make(), self.net
        updates = self.updates(net, 2, largest=True, seed=9)
        aggregate(aggregation, net, updates)
        for name, value in aggregation.metrics([one.result for one in updates]).items():
            assert isinstance(name, str)
            assert isinstance(value, float)


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Validates that two rounds' results are equal up to the order of float sums."""
    assert one.keys() == other.keys()
    for name in one:
        counter = one[name].dtype == torch.float64  # counters are rounded: a half may go up or down
        torch.testing.assert_close(one[name], other[name], rtol=1e-5, atol=1 if counter else 1e-5, msg=name)


def usual_reports(net: Supernet, client: int) -> tuple[Report, ...]:
    """Returns what the package's aggregations read."""
    classes = [number for number in range(net.num_classes) if client == 0 or (number + client) % 3]
    return ClassesReport(classes), OperatorReport({})


def update(net: Supernet, client: int, arch: object, examples: int, seed: int = 0) -> ClientUpdate:
    """Returns a client's update with random weights, one in five of them exactly zero, and counters from 0 to 99."""
    draws = generator(seed, "update", client)

    def trained(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return torch.randint(0, 100, tensor.shape, generator=draws)
        values = torch.randn(tensor.shape, generator=draws)
        return values * (torch.rand(tensor.shape, generator=draws) > 0.2)

    network = net.skeleton(arch)
    weights = {name: trained(tensor) for name, tensor in [*network.named_parameters(), *network.named_buffers()]}
    task = ClientTask(round=0, client=client, arch=arch, num_examples=examples)
    result = ClientResult(task, num_steps=1, num_seen=examples, loss=0.0, reports=usual_reports(net, client))
    return ClientUpdate(result, weights)


def changed(one: ClientUpdate, **settings: Any) -> ClientUpdate:
    """Returns an update with another result."""
    return replace(one, result=replace(one.result, **settings))


def random_updates(net: Supernet, size: int, largest: bool, seed: int) -> list[ClientUpdate]:
    """Returns the updates of random architectures and numbers of examples; one is the largest, if asked."""
    rng = numpy_generator(seed, "cohort")
    archs = [net.space.sample(rng) for _ in range(size)]
    if largest:
        archs[int(rng.integers(size))] = net.space.largest
    clients = rng.permutation(3 * size)[:size]
    return [
        update(net, int(client), arch, int(rng.integers(1, 500)), seed)
        for client, arch in zip(clients, archs, strict=True)
    ]


def start(aggregation: Aggregation, net: Supernet, tasks: Sequence[ClientTask], **settings: Any) -> None:
    """Begins a round; the aggregation is set up once for a supernet, as in a run."""
    if getattr(aggregation, "_supernet", None) is not net:
        aggregation.setup(net)
    aggregation.start(tasks, **settings)


def aggregate(
    aggregation: Aggregation,
    net: Supernet,
    updates: Sequence[ClientUpdate],
    tasks: Sequence[ClientTask] | None = None,
    rejected: Sequence[Any] = (),
    values: RoundValues | None = None,
    by_architecture: bool = False,
) -> dict[str, Tensor]:
    """Returns the result of one round; ``tasks`` are given if more were asked than have answered."""
    tasks = [u.task for u in updates] if tasks is None else tasks
    start(aggregation, net, tasks, values=values, by_architecture=by_architecture)
    for one in updates:
        aggregation.add(one)
    return aggregation.finish(rejected)
