"""Growth of a pool: when it opens, what pays, how weights begin, against simulated draws and values by hand."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torchvision import models
from torchvision.models.regnet import BlockParams

from lit_fednas.assignment import CostWeighted, FixedArchitecture, PoolLimit, PoolOfTiers, RisingPath
from lit_fednas.callbacks import CostLedger, PoolGrowth, Privacy
from lit_fednas.costs import RoundCost
from lit_fednas.rng import isolated
from lit_fednas.supernets import (
    BatchNorm,
    ElasticMLP,
    ElasticResNet,
    ElasticTCN,
    ElasticTransformer,
    GroupNorm,
    GrowableViT,
    PathCNN,
    SlicedCNN,
    SlicedLSTM,
    SlicedMobileNet,
    SlicedResNet,
    TracedNetwork,
    WidthSupernet,
)
from lit_fednas.testing.networks import batch
from lit_fednas.tiers import ArchitectureCosts, Population, Tier
from tests.support import Noted, fit, make_module, refusals, seeded, tiny_data, tiny_supernet, weights

NET = tiny_supernet(depths=[0, 1, 2], ratios=[0.25, 0.5, 1.0])
SMALL, SECOND, *_ = RisingPath(4).architectures(ArchitectureCosts(NET), "macs")


def trained(growth: PoolGrowth, rounds: int = -1, **settings: Any) -> tuple[list[list[Any]], Any]:
    """The architectures of each round, and the trained module."""
    module = make_module(tiny_supernet(depths=[0, 1, 2], ratios=[0.25, 0.5, 1.0]), CostWeighted(RisingPath(4), 0.0))
    archs = Noted("on_results", lambda trainer, module, round: [result.task.arch for result in round.results])
    ledger = CostLedger(**settings)
    fit(module, tiny_data(), rounds, callbacks=[archs, growth, ledger], limit_val_batches=0)
    return archs.all, module


def test_the_smallest_alone_until_a_share_of_the_rounds_is_over() -> None:
    """Of 12 rounds at 0.25: rounds 1 to 4, as the fourth begins after a quarter of them."""
    archs, _ = trained(PoolGrowth(0.25, threshold=None, least=0.0), 12)
    assert {arch for round in archs[:4] for arch in round} == {SMALL}
    assert {arch for round in archs[4:] for arch in round} > {SMALL}


def test_the_smallest_alone_until_a_share_of_the_budget_is_spent() -> None:
    """40 examples at 6 clients, of whom three train: a round has about 20 times the MACs of one example."""
    budget = 400 * NET.macs(SMALL)
    archs, module = trained(PoolGrowth(0.25, threshold=None, least=0.0), max_macs=budget)
    sizes = module.population.sizes
    spent, expected = 0, 0
    while spent < 0.25 * budget:  # a round that begins after a quarter of the budget is the last
        cohort = module.cohort.draw(expected, sizes, module.seed)
        spent += NET.macs(SMALL) * sum(int(sizes[client]) for client in cohort)
        expected += 1
    small = [set(round) == {SMALL} for round in archs]
    assert small[: expected + 1] == [True] * (expected + 1)
    assert not all(small[expected + 1 :])


def test_opens_when_the_loss_is_flat() -> None:
    """With one slope over one round and no limit to it, after the second round."""
    archs, _ = trained(PoolGrowth(threshold=1e9, gamma=1, delta=1, least=0.0), 12)
    assert {arch for round in archs[:2] for arch in round} == {SMALL}
    assert {arch for round in archs[2:] for arch in round} > {SMALL}
    archs, _ = trained(PoolGrowth(0.5, threshold=1e9, gamma=1, delta=30, least=0.0), 12)  # too few losses
    assert {arch for round in archs[:7] for arch in round} == {SMALL}
    assert {arch for round in archs[7:] for arch in round} > {SMALL}


POPULATIONS = {
    "alike": Population(1),
    "a fleet": Population(4, (Tier("weak", {"macs": NET.macs(SECOND)}), Tier("strong", {})), (0, 0, 0, 1)),
}


def traffic(arch: Any) -> tuple[int, int]:
    """Down twice what goes up, as if they were sent in fewer bits."""
    return 2 * NET.cost(arch).bytes, NET.cost(arch).bytes


BUDGETS = {"macs": NET.macs, "bytes": lambda arch: sum(traffic(arch)), "rounds": lambda arch: 1}


@pytest.mark.parametrize("population", POPULATIONS)
@pytest.mark.parametrize("budget", BUDGETS)
def test_examples_left_against_simulated_draws(population: str, budget: str) -> None:
    """The first stage has trained 100,000 examples in a tenth of the run; other budgets are spent less."""
    clients, cost = POPULATIONS[population], BUDGETS[budget]
    pools = PoolOfTiers(RisingPath(4), ArchitectureCosts(NET), clients)
    ledger, first_examples = CostLedger(max_macs=1000.0, max_bytes=1000.0), 100_000
    ledger.total = RoundCost(macs=100 if budget == "macs" else 50, bytes_down=100 if budget == "bytes" else 50)
    trainer: Any = SimpleNamespace(callbacks=[ledger], max_rounds=50)
    round: Any = SimpleNamespace(number=5 if budget == "rounds" else 2)
    module: Any = SimpleNamespace(supernet=NET, assignment=SimpleNamespace(pools=pools), traffic=traffic)
    rng = np.random.default_rng(0)
    for arch in pools.archs[1:]:
        examples, budget_left = 0, 9 * first_examples * cost(SMALL)
        while budget_left > 0:  # batches have 64 examples
            drawn_arch = pools.draw(int(rng.integers(clients.num_clients)), rng, pools.cost_of(arch))
            examples += 64 * (drawn_arch == arch)
            budget_left -= 64 * cost(drawn_arch)
        expected = PoolGrowth()._examples_left(trainer, module, round, arch)
        assert examples / first_examples == pytest.approx(expected, rel=0.08)


def test_architectures_with_too_few_examples_stay_closed() -> None:
    """With uniform draws of k networks the largest gets 3 / k times the examples of the first quarter."""
    archs, module = trained(PoolGrowth(0.25, threshold=None, least=1.2), 16)
    later = {arch for round in archs[5:] for arch in round}
    assert later == set(module.assignment.pools.archs[:2])  # 3 / 2 is enough, 3 / 3 is not


def test_weights_do_not_change_if_the_pool_stays_closed() -> None:
    archs, module = trained(PoolGrowth(0.25, threshold=None, least=1e6), 8)
    assert {arch for round in archs for arch in round} == {SMALL}
    inside = {region.name for region in module.supernet.regions(SMALL).values()}
    fresh = tiny_supernet(depths=[0, 1, 2], ratios=[0.25, 0.5, 1.0]).shared_tensors()
    outside = [name for name in fresh if name not in inside]
    assert outside
    assert all(torch.equal(weights(module)[name], fresh[name]) for name in outside)


def test_a_limit_keeps_at_least_the_cheapest_architecture() -> None:
    assignment = CostWeighted(RisingPath(4), 0.0)
    assignment.setup(NET, POPULATIONS["a fleet"])
    pools, cost = assignment.pools, NET.macs
    limit = cost(pools.archs[2])
    assert pools.of_client(3, limit)[0] == pools.archs[:3]
    assert pools.of_client(0, limit)[0] == pools.archs[:2]
    assert pools.of_client(0, 1.0)[0] == [SMALL]  # the cheapest remains


SUPERNETS = {
    "ResNet": tiny_supernet,
    "MLP": lambda: seeded(ElasticMLP, (6,), 3, dim=8),
    "TCN": lambda: seeded(ElasticTCN, (6,), 9, channels=8),
    "operators": lambda: seeded(PathCNN, (1, 8, 8), 4, width=4, stage_layers=[1, 1], strides=[2, 2]),
    "transformer": lambda: seeded(ElasticTransformer, (1, 8, 8), 3, dim=8, heads=[1, 2]),
}


def cut(family: Any, input_shape: tuple[int, ...] = (1, 8, 8), num_classes: int = 4) -> WidthSupernet:
    return seeded(WidthSupernet, input_shape, num_classes, family, widths=[1, 0.75, 0.5])


MULTIPLIERS: dict[str, Any] = {"depths": [0, 1, 2], "ratios": [0.25, 0.5, 1.0], "width_multipliers": [0.25, 0.5, 1.0]}
NESTED = {
    **{name: make for name, make in SUPERNETS.items() if name != "operators"},
    "ResNet with batch norm": lambda: tiny_supernet(norm=BatchNorm(), **MULTIPLIERS),
    "ResNet with group norm": lambda: tiny_supernet(norm=GroupNorm(2), stem_width=8, **MULTIPLIERS),
    "ResNet with plain norm": lambda: tiny_supernet(**MULTIPLIERS),
    "ResNet without norm": lambda: tiny_supernet(norm=None, relu_before_sum=True, **MULTIPLIERS),
    "text": lambda: seeded(ElasticTransformer, (6,), 9, dim=8, heads=[1, 2]),
    "CNN": lambda: cut(SlicedCNN((6, 10), BatchNorm())),
    "MobileNet": lambda: cut(SlicedMobileNet(1.0, (4, 6), (1, 2))),
    "cut ResNet": lambda: cut(SlicedResNet((4, 8), (1, 2), BatchNorm())),
    "LSTM": lambda: cut(SlicedLSTM((6, 4), embedding=3), (6,), 7),
    "traced": lambda: cut(TracedNetwork(seeded(regnet)), (3, 32, 32), 10),
}


def one_group() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(1, 8), nn.ReLU(), nn.Flatten(), nn.Linear(288, 4))


def regnet() -> nn.Module:
    return models.RegNet(BlockParams([1, 2], [8, 16], [4, 4], [2, 2], [1, 1], se_ratio=0.25), 10)


def outputs(net: Any, arch: Any, training: bool = False) -> torch.Tensor:
    return net.run(arch, net.views(arch), batch(net, 16), training)


@pytest.mark.parametrize("name", NESTED)
@torch.no_grad()
def test_larger_architectures_have_the_smallest_ones_outputs(name: str) -> None:
    net, draws = NESTED[name](), torch.Generator().manual_seed(1)
    for tensor in net.shared_tensors().values():
        if tensor.is_floating_point():
            tensor += 0.3 * torch.rand(tensor.shape, generator=draws)
    small = net.space.smallest
    larger = [net.space.largest, *(net.space.sample(np.random.default_rng(seed)) for seed in range(3))]
    expected = outputs(net, small)
    assert not torch.allclose(outputs(net, net.space.largest), expected, rtol=0.01)
    net.keep_function(small)
    torch.testing.assert_close(outputs(net, small), expected)
    for arch in larger:
        torch.testing.assert_close(outputs(net, arch), expected, rtol=1e-4, atol=1e-4)
        training = outputs(net, arch, True), outputs(net, small, True)  # training changes running statistics
        torch.testing.assert_close(*training, rtol=1e-4, atol=1e-4)
        expected = outputs(net, small)


def test_the_pool_opens_with_the_smallest_ones_outputs() -> None:
    """Weights that are set to zero are trained afterwards."""

    def gap(trainer: Any, module: Any, round: Any) -> float:
        net, pools = module.supernet, module.assignment.pools
        return float((outputs(net, pools.largest) - outputs(net, pools.smallest)).detach().norm())

    module = make_module(NESTED["ResNet with batch norm"](), CostWeighted(RisingPath(4), 0.0))
    gaps = Noted("on_server_step", gap)
    growth = PoolGrowth(0.25, shrink=1.0, threshold=None, least=0.0, keep_function=True)
    fit(module, tiny_data(), 8, callbacks=[growth, gaps], limit_val_batches=0)
    assert [value < 1e-3 for value in gaps.all] == [number == 2 for number in range(8)]


test_outputs_that_cannot_be_kept_are_refused_before_training = refusals(
    (lambda: PathCNN((1, 8, 8), 4, 4, [1], [2], operators=["conv1", "mb3_e1"]), "cannot give architecture mb3_e1"),
    (lambda: cut(TracedNetwork(one_group())), "cannot give architecture width: 1 the outputs of width: 0.5"),
    (lambda: cut(GrowableViT(dim=8, heads=2, depth=1)), "pool_growth.keep_function: true"),
    (
        lambda: ElasticResNet((1, 8, 8), 4, 4, [4, 8], [0, 1], [0.5], divisor=1, relu_before_sum=True),
        "keep_function: true stops gradients of new blocks where supernet.relu_before_sum is true",
    ),
    call=lambda make: fit(make_module(make(), CostWeighted()), tiny_data(), callbacks=[PoolGrowth(keep_function=True)]),
)


@pytest.mark.parametrize("name", SUPERNETS)
def test_shrunk_and_perturbed_weights_by_hand(name: str) -> None:
    net = SUPERNETS[name]()
    old_parameters = {key: value.clone() for key, value in net.named_parameters()}
    with isolated(7, "shrink-and-perturb"):
        fresh = net.build(net.space.superset)
        net.initialise(fresh)
    net.shrink_and_perturb(0.3, 7)
    for key, value in fresh.named_parameters():
        torch.testing.assert_close(
            net.get_parameter(f"network.{key}"), 0.3 * old_parameters[f"network.{key}"] + 0.7 * value
        )
    rng_state = torch.get_rng_state()
    other_net = SUPERNETS[name]()
    other_net.shrink_and_perturb(0.3, 7)
    assert other_net.digest() == net.digest()
    assert torch.equal(torch.get_rng_state(), rng_state)


def test_buffers_and_frozen_parameters_do_not_change() -> None:
    net = tiny_supernet()
    frozen = next(net.parameters()).requires_grad_(False)
    old_values = {"frozen": frozen.clone(), **{name: buffer.clone() for name, buffer in net.named_buffers()}}
    net.shrink_and_perturb(0.0, 0)
    assert all(torch.equal(value, dict(net.named_buffers(), frozen=frozen)[name]) for name, value in old_values.items())


test_refused_before_training = refusals(
    (lambda: (PoolGrowth(), CostWeighted(), -1), "pool_growth: needs a limit on the run; set cost_ledger.max_macs"),
    (lambda: (PoolGrowth(), FixedArchitecture(), 3), "pool_growth: gives a PoolLimit, which neither"),
    (
        lambda: (PoolGrowth(), CostWeighted(), 3, Privacy(1.0, 0.5, noise_seed=3)),
        "pool_growth.threshold: 0.003 opens the pool",
    ),
    (
        lambda: (PoolGrowth(threshold=None), CostWeighted(), 3, "first"),
        "pool_growth: comes after Privacy",
    ),
    (lambda: (PoolGrowth(latest=1.0), CostWeighted(), 3), "pool_growth.latest"),
    call=lambda make: refused(*make()),
)


def refused(growth: PoolGrowth, assignment: Any, rounds: int, *others: Any) -> None:
    private = Privacy(1.0, 0.5, noise_seed=3)
    callbacks = [private, growth] if others == ("first",) else [growth, *others]
    fit(make_module(assignment=assignment), tiny_data(), rounds, callbacks=[*callbacks, CostLedger()])


def test_a_resumed_run_has_the_limit_of_its_checkpoint() -> None:
    growth = PoolGrowth()
    growth.load_state_dict({"losses": [1.0], "limit": 42.0})
    round_values: list[Any] = []
    module: Any = SimpleNamespace(assignment=SimpleNamespace(pools=None))
    growth.on_round_start(None, module, SimpleNamespace(give=round_values.append))  # type: ignore[arg-type]
    assert round_values == [PoolLimit(42.0)]
