"""What every objective promises."""

from __future__ import annotations

import functools
from collections.abc import Callable
from io import BytesIO
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from lit_fednas.data import IID, ArraySource, ClientData, FederatedDataModule
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, Report
from lit_fednas.objectives import Objective
from lit_fednas.objectives.base import ClientStates, collect_state, give_state
from lit_fednas.rng import isolated
from lit_fednas.supernets import ElasticResNet, GroupNorm, Supernet
from lit_fednas.testing import networks
from lit_fednas.testing.contract import Contract, global_generators
from lit_fednas.testing.networks import tiny_examples


def elastic() -> ElasticResNet:
    """Returns an elastic network for the images of :func:`images`."""
    return networks.elastic(GroupNorm(2), input_shape=(1, 8, 8), num_classes=4, stage_widths=[8, 16], divisor=2)


def images() -> FederatedDataModule:
    """Returns four clients with images of 1x8x8 of four classes, of which each validates on three in ten."""
    return FederatedDataModule(ArraySource(tiny_examples()), IID(), num_clients=4, client_val=0.3)


@functools.cache
def _clients(make: Callable[[], FederatedDataModule]) -> ClientData:
    """Returns the clients' data, which no test changes; so they are made once."""
    data = make()
    data.setup("fit")
    return data.clients


class ObjectiveContract(Contract):
    """The contract of objectives; ``instances`` make objectives.

    Attributes:
        supernet: Makes shared weights that the objective works with, for the inputs of ``data``.
        data: Makes the clients' data.

    Example:
        >>> from lit_fednas.objectives import CrossEntropy
        >>> class TestSmoothing(ObjectiveContract):
        ...     instances = {"a-tenth": lambda: CrossEntropy(label_smoothing=0.1)}
    """

    supernet: ClassVar[Callable[[], Supernet]] = staticmethod(elastic)
    data: ClassVar[Callable[[], FederatedDataModule]] = staticmethod(images)

    @property
    def clients(self) -> ClientData:
        """The clients' data."""
        return _clients(type(self).data)

    def ready(self) -> Objective:
        """Returns a fresh objective that is set up."""
        objective: Objective = self.case.make()
        objective.setup(networks.kept("supernet", type(self).supernet), self.clients)
        return objective

    def fit(
        self, objective: Objective, clients: ClientData, client: int = 0, states: ClientStates | None = None
    ) -> Fit:
        """Returns what one client's fit of four steps comes to, of a network with all weights."""
        net = networks.kept("supernet", type(self).supernet)
        task = ClientTask(0, client, net.space.superset, clients.size(client))
        network = net.subnet(task.arch).train()
        batches = list(clients.batches(client, 8, torch.Generator().manual_seed(client)))
        losses = []
        give_state(objective, states or {})
        with isolated(0, "fit"):
            objective.begin(network, task, torch.Generator().manual_seed(client))
            for step in range(4):
                network.zero_grad()
                loss = objective.loss(network, *batches[step % len(batches)])
                assert loss.shape == ()
                loss.backward()
                losses.append(loss.detach())
                with torch.no_grad():
                    for parameter in network.parameters():
                        if parameter.grad is not None:
                            parameter.sub_(0.05 * parameter.grad)
            return Fit(torch.stack(losses), network, objective.report(), collect_state(objective))

    def check_the_loss_is_finite_and_trains(self) -> None:
        """A loss is one finite number whose gradients change the weights."""
        clients = self.clients
        fit = self.fit(self.ready(), clients)
        assert fit.losses.isfinite().all()
        net = networks.kept("supernet", type(self).supernet)
        before = dict(net.subnet(net.space.superset).named_parameters())
        assert any(not torch.equal(before[name], parameter) for name, parameter in fit.network.named_parameters())

    def check_a_fit_is_a_function_of_its_generator(self) -> None:
        """Fits with equal generators are equal and move no global one; torch's is seeded by client, as in a run."""
        clients = self.clients
        torch.manual_seed(1)
        first = self.fit(self.ready(), clients)
        torch.manual_seed(2)
        before = global_generators()
        self.assert_equal(self.fit(self.ready(), clients), first)
        assert global_generators() == before

    def check_a_fit_leaves_nothing_for_the_next(self) -> None:
        """A client's fit does not depend on who was trained before, be it the client itself."""
        clients = self.clients
        used, fresh = self.ready(), self.fit(self.ready(), clients)
        self.fit(used, clients, client=1)
        for _ in range(2):
            self.assert_equal(self.fit(used, clients), fresh)

    def check_a_fit_continues_from_the_state_that_it_is_given(self) -> None:
        """What a client's next fit needs is in the state alone, which can be saved: another machine may go on."""
        clients, used = self.clients, self.ready()
        states = self.fit(used, clients).states
        torch.save(states, file := BytesIO())
        file.seek(0)
        loaded = torch.load(file, weights_only=True)
        self.assert_equal(self.fit(self.ready(), clients, states=loaded), self.fit(used, clients, states=states))

    def check_a_fit_reads_nothing_of_the_server(self) -> None:
        """A fit depends on the weights that the client was sent alone: a device has no others."""
        clients = self.clients
        objective: Objective = self.case.make()
        unknown = type(self).supernet()
        with torch.no_grad():
            for tensor in unknown.shared_tensors().values():
                tensor.zero_()
        objective.setup(unknown, clients)
        self.assert_equal(self.fit(objective, clients), self.fit(self.ready(), clients))

    def check_reports_are_of_the_stated_types(self) -> None:
        """There is one report of each type in ``report_types`` and no other."""
        clients = self.clients
        objective = self.ready()
        reports = self.fit(objective, clients).reports
        assert sorted(type(one).__name__ for one in reports) == sorted(kind.__name__ for kind in objective.report_types)
        assert all(isinstance(one, Report) for one in reports)

    def check_another_kind_of_supernet_is_refused(self) -> None:
        """An objective that states a kind of supernet refuses one of another before training."""
        clients = self.clients
        objective: Objective = self.case.make()
        kind = type(objective).supernet_kind
        if kind is not None:
            with pytest.raises(ConfigError, match=f"model.objective: {type(objective).__name__} does not work with"):
                objective.setup(networks.kept("plain", networks.plain), clients)

    @staticmethod
    def assert_equal(one: Fit, other: Fit) -> None:
        """Validates that two fits are equal, bit for bit."""
        assert torch.equal(one.losses, other.losses)
        state = other.network.state_dict()
        assert all(torch.equal(tensor, state[name]) for name, tensor in one.network.state_dict().items())
        assert one.reports == other.reports
        torch.testing.assert_close(one.states, other.states, rtol=0, atol=0)


class Fit:
    """What a client's fit comes to.

    Args:
        losses: Of its steps.
        network: As it was trained.
        reports: What the client reports.
        states: What is kept of it.
    """

    def __init__(
        self, losses: Tensor, network: nn.Module, reports: tuple[Any, ...], states: ClientStates | None
    ) -> None:
        self.losses = losses
        self.network = network
        self.reports = reports
        self.states = states
