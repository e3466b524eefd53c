"""Contract of aggregations; clients' random updates, and rounds of an aggregation alone."""

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lit_fednas.aggregation import Aggregation
from lit_fednas.messages import (
    ClassStatistics,
    ClientResult,
    ClientTask,
    ClientUpdate,
    OperatorStatistics,
    RoundValues,
    Statistics,
)
from lit_fednas.rng import generator, numpy_generator
from lit_fednas.supernets import Supernet
from lit_fednas.supernets.families import tensors_of
from lit_fednas.testing import networks
from lit_fednas.testing.contract import Contract, assert_alike


class AggregationContract(Contract):
    """The contract of aggregations; ``instances`` make aggregations.

    Attributes:
        supernets: Functions that make the supernets for the tests, by name; by default one with slices, one with a
            single architecture, and one with regions that are not slices.
        net: The global weights in the present test.

    Example:
        >>> from lit_fednas.aggregation import OverlapAverage
        >>> class TestAverage(AggregationContract):
        ...     instances = {"all-alike": lambda: OverlapAverage(weighted=False)}
    """

    supernets: ClassVar[Mapping[str, Callable[[], Supernet]]] = networks.SMALL
    net: Supernet

    def statistics(self, net: Supernet, client: int) -> tuple[Statistics, ...]:
        """Returns a client's statistics; a subclass adds those that its aggregation ``needs``."""
        return usual_statistics(net, client)

    def updates(self, size: int, seed: int, largest: bool = True) -> list[ClientUpdate]:
        """Returns a cohort's random updates; with ``largest``, one has the largest architecture."""
        updates = random_updates(self.net, size, largest, seed)
        return [changed(update, statistics=self.statistics(self.net, update.task.client)) for update in updates]

    @override
    def promises(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for name, make in self.supernets.items():
            self.net = networks.cached_net(name, make)
            for promise, check in super().promises():
                yield f"{promise} with {name}", check

    def check_every_shared_tensor_comes_back_and_may_be_overwritten(self) -> None:
        """The result has every shared tensor, in its own memory."""
        net = self.net
        initial = {name: tensor.detach().clone() for name, tensor in net.shared_tensors().items()}
        result = begun(self.case.make(), net, self.updates(3, seed=1, largest=False)).finish()
        assert result.keys() == initial.keys()
        for name, tensor in result.items():
            assert tensor.shape == initial[name].shape
            assert not tensor.requires_grad
            assert tensor.isfinite().all()
            tensor.fill_(7)
        assert_alike(net.shared_tensors(), initial)

    def check_neither_order_nor_ranks_matter(self) -> None:
        """The order of updates and their division into ranks change only the rounding of sums."""
        aggregation, net, updates = self.case.make(), self.net, self.updates(6, seed=2)
        tasks = [update.task for update in updates]
        first = aggregate(aggregation, net, updates, tasks)
        assert_equal(aggregate(aggregation, net, updates[::-1], tasks), first)
        assert_equal(aggregate(aggregation, net, updates[3:] + updates[:3], tasks), first)
        ranks = [begun(self.case.make(), net, updates[rank::3], tasks) for rank in range(3)]
        for totals in zip(*(other.sums() for other in ranks), strict=True):
            totals[0].add_(totals[1]).add_(totals[2])
        assert_equal(ranks[0].finish(), first)

    def check_updates_are_neither_changed_nor_kept(self) -> None:
        """Updates are only read; after ``add`` their memory is free, or reused for the next client."""
        aggregation, net, updates = self.case.make(), self.net, self.updates(3, seed=4)
        expected = aggregate(aggregation, net, updates)
        copies = deepcopy([update.weights for update in updates])
        begun(aggregation, net, updates)
        assert_alike([update.weights for update in updates], copies)
        tensors = [tensor for update in updates for tensor in update.weights.values()]
        storages = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        assert not storages & {total.untyped_storage().data_ptr() for total in aggregation.sums()}
        references = [weakref.ref(tensor.fill_(99)) for tensor in tensors]
        del updates, tensors
        assert not any(reference() is not None for reference in references)
        assert_equal(aggregation.finish(), expected)

    def check_rounds_do_not_touch_each_other(self) -> None:
        """A round does not affect the next round, whether it was finished or not."""
        aggregation, net, updates = self.case.make(), self.net, self.updates(4, seed=6)
        first = aggregate(aggregation, net, updates)
        aggregate(aggregation, net, self.updates(2, seed=7))
        assert_equal(aggregate(aggregation, net, updates), first)
        begun(aggregation, net, updates[:1], [update.task for update in updates])
        assert_equal(aggregate(aggregation, net, updates), first)

    def check_updates_that_agree_are_the_result(self) -> None:
        """If all clients send the same weights, these are the result."""
        net = self.net
        common = changed(update(net, 0, net.space.largest, 10), statistics=self.statistics(net, 0))
        tasks = [replace(common.task, client=client, num_examples=10 * client) for client in (1, 2)]
        updates = [common, *(changed(common, task=task, num_seen=1) for task in tasks)]
        result = aggregate(self.case.make(), net, updates)
        for name, region in net.regions(net.space.largest).items():
            torch.testing.assert_close(result[region.name], common.weights[name].to(result[region.name].dtype))


def assert_equal(result: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    """Validates that two rounds' results are equal up to the order of float sums."""
    assert result.keys() == other.keys()
    for name in result:
        is_counter = result[name].dtype == torch.float64  # counters are rounded: a half may go up or down
        torch.testing.assert_close(result[name], other[name], rtol=1e-5, atol=1 if is_counter else 1e-5, msg=name)


def usual_statistics(net: Supernet, client: int) -> tuple[Statistics, ...]:
    """Returns the statistics that the package's aggregations read."""
    classes = [number for number in range(net.num_classes) if client == 0 or (number + client) % 3]
    return ClassStatistics(classes), OperatorStatistics({})


def update(net: Supernet, client: int, arch: object, examples: int, seed: int = 0) -> ClientUpdate:
    """Returns a client's update with random weights, a fifth of them zero, and counters from 0 to 99."""
    draws = generator(seed, "update", client)

    def trained(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return torch.randint(0, 100, tensor.shape, generator=draws)
        values = torch.randn(tensor.shape, generator=draws)
        return values * (torch.rand(tensor.shape, generator=draws) > 0.2)

    weights = {name: trained(tensor) for name, tensor in tensors_of(net.skeleton(arch)).items()}
    task = ClientTask(round=0, client=client, arch=arch, num_examples=examples)
    result = ClientResult(task, num_steps=1, num_seen=examples, loss=0.0, statistics=usual_statistics(net, client))
    return ClientUpdate(result, weights)


def changed(update: ClientUpdate, **settings: Any) -> ClientUpdate:
    """Returns an update with changed fields of its result."""
    return replace(update, result=replace(update.result, **settings))


def random_updates(net: Supernet, size: int, largest: bool, seed: int) -> list[ClientUpdate]:
    """Returns updates with random architectures and numbers of examples; with ``largest``, one is the largest."""
    rng = numpy_generator(seed, "cohort")
    archs = [net.space.sample(rng) for _ in range(size)]
    if largest:
        archs[int(rng.integers(size))] = net.space.largest
    clients = rng.permutation(3 * size)[:size]
    return [
        update(net, int(client), arch, int(rng.integers(1, 500)), seed)
        for client, arch in zip(clients, archs, strict=True)
    ]


def begun(
    aggregation: Aggregation,
    net: Supernet,
    updates: Sequence[ClientUpdate],
    tasks: Sequence[ClientTask] | None = None,
    values: RoundValues | None = None,
) -> Aggregation:
    """Starts a round and adds its updates; ``tasks`` may have more clients than answered."""
    if getattr(aggregation, "_supernet", None) is not net:  # one setup per supernet, as in a run
        aggregation.setup(net)
    aggregation.start([update.task for update in updates] if tasks is None else tasks, values=values)
    for update in updates:
        aggregation.add(update)
    return aggregation


def aggregate(aggregation: Aggregation, net: Supernet, *arguments: Any, **settings: Any) -> dict[str, Tensor]:
    """Returns the result of a round with the arguments of :func:`begun`."""
    # copies, because an aggregation may reuse the returned memory in its next round
    return {name: tensor.clone() for name, tensor in begun(aggregation, net, *arguments, **settings).finish().items()}
