"""Contract of objectives."""

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import pytest
import torch

from lit_fednas.data import IID, ArraySource, ClientData, FederatedDataModule
from lit_fednas.errors import ConfigError
from lit_fednas.messages import ClientTask, Statistics
from lit_fednas.objectives import Objective
from lit_fednas.objectives.base import ClientStates, collect_state, give_state
from lit_fednas.rng import isolated
from lit_fednas.supernets import ElasticResNet, GroupNorm, Supernet
from lit_fednas.testing import networks
from lit_fednas.testing.contract import Contract, assert_alike, global_seed, reloaded


def elastic() -> ElasticResNet:
    """Returns an elastic network for the images of :func:`images`."""
    return networks.elastic(GroupNorm(2), input_shape=(1, 8, 8), num_classes=4, stage_widths=[8, 16], divisor=2)


def images() -> FederatedDataModule:
    """Returns four clients with images of 1x8x8 in four classes; 30 % of each client's are for validation."""
    return FederatedDataModule(ArraySource(networks.tiny_examples()), IID(), num_clients=4, client_val=0.3)


@functools.cache
def _clients(make: Callable[[], FederatedDataModule]) -> ClientData:
    """Returns the clients' data, built once since no test changes them."""
    data = make()
    data.setup("fit")
    return data.clients


class ObjectiveContract(Contract):
    """The contract of objectives; ``instances`` make objectives.

    Attributes:
        supernet: Function that makes shared weights for the objective and for the inputs of ``data``.
        data: Function that makes the clients' data.

    Example:
        >>> from lit_fednas.objectives import CrossEntropy
        >>> class TestSmoothing(ObjectiveContract):
        ...     instances = {"a-tenth": lambda: CrossEntropy(label_smoothing=0.1)}
    """

    supernet: ClassVar[Callable[[], Supernet]] = staticmethod(elastic)
    data: ClassVar[Callable[[], FederatedDataModule]] = staticmethod(images)

    @property
    def net(self) -> Supernet:
        """The shared weights."""
        return networks.cached_net("supernet", type(self).supernet)

    def ready(self, net: Supernet | None = None) -> Objective:
        """Returns a fresh objective after its setup."""
        objective: Objective = self.case.make()
        objective.setup(net or self.net, _clients(type(self).data))
        return objective

    def fit(self, objective: Objective, client: int = 0, states: ClientStates | None = None) -> dict[str, Any]:
        """Returns ``losses``, ``weights``, ``statistics`` and ``states`` of four steps of a client with all weights."""
        clients, space = _clients(type(self).data), self.net.space
        task = ClientTask(0, client, space.superset, clients.size(client))
        network = self.net.subnet(task.arch).train()
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
            statistics, states = objective.statistics(), collect_state(objective)
            objective.end(network)
        return {"losses": losses, "weights": network.state_dict(), "statistics": statistics, "states": states}

    def check_the_loss_is_finite_and_trains(self) -> None:
        """A loss is one finite number, and its gradients change the weights."""
        fit, initial = self.fit(self.ready()), self.net.subnet(self.net.space.superset)
        assert all(loss.isfinite() for loss in fit["losses"])
        assert any(not torch.equal(tensor, fit["weights"][name]) for name, tensor in initial.named_parameters())

    def check_a_fit_is_a_function_of_its_generator(self) -> None:
        """Fits with equal generators are equal, and move no global generator."""
        with global_seed(1):
            first = self.fit(self.ready())
        with global_seed(2):
            assert_alike(self.fit(self.ready()), first)

    def check_a_fit_leaves_nothing_for_the_next(self) -> None:
        """A client's fit does not depend on earlier fits, not even on the client's own."""
        used, fresh = self.ready(), self.fit(self.ready())
        self.fit(used, client=1)
        for _ in range(2):
            assert_alike(self.fit(used), fresh)

    def check_a_fit_continues_from_the_state_that_it_is_given(self) -> None:
        """The saved state alone has everything that a client's next fit needs, so another machine can continue."""
        used = self.ready()
        states = self.fit(used)["states"]
        assert_alike(self.fit(self.ready(), states=reloaded(states)), self.fit(used, states=states))

    def check_a_fit_reads_nothing_of_the_server(self) -> None:
        """A fit depends only on the weights that the client has received, since a device has no others."""
        unknown = type(self).supernet()
        with torch.no_grad():
            for tensor in unknown.shared_tensors().values():
                tensor.zero_()
        assert_alike(self.fit(self.ready(unknown)), self.fit(self.ready()))

    def check_statistics_are_of_the_stated_types(self) -> None:
        """There is one item of each type in ``statistics_types``, and no other."""
        objective = self.ready()
        statistics = self.fit(objective)["statistics"]
        assert sorted(map(str, map(type, statistics))) == sorted(map(str, objective.statistics_types))
        assert all(isinstance(item, Statistics) for item in statistics)

    def check_another_kind_of_supernet_is_refused(self) -> None:
        """An objective that declares a kind of supernet refuses other kinds before training."""
        kind = type(self.case.make())
        if kind.supernet_kind is not None:
            with pytest.raises(ConfigError, match=f"model.objective: {kind.__name__} does not work with"):
                self.ready(networks.cached_net("plain", networks.plain))
