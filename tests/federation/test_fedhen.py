"""FedHeN and its baselines as a whole, against their algorithms written out (Alg. 1 to 4)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lit_fednas.aggregation import OverlapAverage
from lit_fednas.assignment import ByTier, FixedArchitecture
from lit_fednas.data import Dirichlet
from lit_fednas.federation import ClientSettings, FederatedCallback, UniformCohort
from lit_fednas.objectives import CrossEntropy, SideObjective
from lit_fednas.supernets import EarlyExitResNet, GroupNorm
from lit_fednas.tiers import ArchitectureTiers, ClientTiers, ListedTiers, TierShares
from tests.support import assert_same, fit, make_module, sgd, tiny_data, weights

SHAPE, CLASSES, CLIENTS = (1, 8, 8), 4, 8


def exits(*shape: Any) -> EarlyExitResNet:
    return EarlyExitResNet(*shape, width=4, norm=GroupNorm(2), blocks=[1, 1, 1], exits=[1, 3])


def net() -> EarlyExitResNet:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return exits(SHAPE, CLASSES)


def tiers(allocation: Any = None) -> ClientTiers:
    source = ArchitectureTiers({"simple": "smallest", "complex": "largest"})
    return ClientTiers(source, allocation or TierShares([0.5, 0.5], shuffle=False))


def method(**settings: Any) -> Any:
    parts = {"supernet": net(), "tiers": tiers(), "assignment": ByTier(), "objective": SideObjective()}
    parts |= {"aggregation": OverlapAverage(weighted=False), "cohort": UniformCohort(count=5)}
    client = ClientSettings(sgd(0.1), batch_size=8, epochs=2, clip_norm=10.0)
    return make_module(**{**parts, "client": client, **settings})


def run(module: Any) -> dict[int, tuple[Any, dict[str, Tensor]]]:
    """What each client sends: the architecture and a copy of the weights."""
    sent = {}

    class Kept(FederatedCallback):
        def on_client_end(self, trainer, module, result, update):
            if update is not None:
                copied = {name: tensor.clone() for name, tensor in update.weights.items()}
                sent[update.task.client] = (update.task.arch, copied)

    data = tiny_data(CLIENTS, partitioner=Dirichlet(alpha=1.0, min_size=4))  # so that weights by examples would show
    fit(module, data, 1, callbacks=[Kept()])
    return sent


def mean(tensors: list[Tensor]) -> Tensor:
    return torch.stack(tensors).mean(0)


def test_the_server_of_algorithm_1():
    module = method()
    sent = run(module)
    simple = {client for client, (arch, _) in sent.items() if str(arch) == "exits: 1"}
    assert simple == {client for client in sent if client < CLIENTS // 2}
    assert 0 < len(simple) < len(sent) == 5
    after = weights(module)
    assert after.keys() == {f"network.{name}" for name in sent[max(sent)][1]}
    for name in sent[max(sent)][1]:
        in_simple = name in sent[min(sent)][1]  # the index set M
        of = [tensors[name] for client, (_, tensors) in sent.items() if in_simple or client not in simple]
        torch.testing.assert_close(after[f"network.{name}"], mean(of), msg=name)  # lines 18, 20, 22


def test_without_complex_devices_it_is_federated_averaging_of_the_simple_model():
    everyone = ListedTiers({"simple": list(range(CLIENTS)), "complex": []})
    fedhen = method(tiers=tiers(everyone))
    run(fedhen)
    fedavg = method(tiers=None, assignment=FixedArchitecture("smallest"), objective=CrossEntropy())
    run(fedavg)
    assert_same(weights(fedhen), weights(fedavg))
    name = "network.heads.1.classifier.weight"
    assert not torch.equal(weights(fedhen)[name], net().shared_tensors()[name])
