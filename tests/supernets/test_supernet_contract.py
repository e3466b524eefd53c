"""What every supernet promises, for every instance in ``instances.py``."""

import copy
import itertools
import json
import math
import pickle

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from lit_fednas.rng import isolated, numpy_generator
from lit_fednas.supernets import Supernet
from tests.supernets.instances import INSTANCES, batch, concrete_supernets, instance, kept_instance, names

RANDOM_ARCHS = 20


@pytest.fixture(params=names())
def net(request: pytest.FixtureRequest) -> Supernet:
    """A fresh instance."""
    return instance(request.param)


@pytest.fixture(params=names())
def kept(request: pytest.FixtureRequest) -> Supernet:
    """An instance for all tests that leave it as it was; so its networks are built once."""
    return kept_instance(request.param)


def some_archs(net: Supernet, count: int) -> list:
    rng = numpy_generator(0, "archs")
    drawn = [net.space.sample(rng) for _ in range(count)]
    return list(dict.fromkeys([net.space.smallest, net.space.largest, *drawn]))


def tensors(network: nn.Module) -> dict[str, Tensor]:
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


def positions(net: Supernet, arch: object) -> dict[str, list[int]]:
    """For each tensor of the subnet: the flat positions of its elements in the shared tensor."""
    found = {}
    shared = net.shared_tensors()
    for name, region in net.regions(arch).items():
        whole = shared[region.name]
        found[name] = region.of(torch.arange(whole.numel()).view(whole.shape)).flatten().tolist()
    return found


def test_every_supernet_has_an_instance() -> None:
    covered = {type(make()) for make in INSTANCES.values()}
    missing = sorted(kind.__name__ for kind in concrete_supernets() - covered)
    assert not missing, f"add instances of {missing} to tests/supernets/instances.py"


def test_index_covers_the_subnet_and_shapes_match(kept: Supernet) -> None:
    shared = kept.shared_tensors()
    assert set(shared) == set(tensors(kept))
    for arch in some_archs(kept, 6):
        own = tensors(kept.subnet(arch))
        index = kept.index(arch)
        assert set(index) == set(kept.regions(arch)) == set(own)
        for name, region in index.items():
            assert region.of(shared[region.name]).shape == own[name].shape, name
            assert shared[region.name].dtype == own[name].dtype, name
        for name, places in positions(kept, arch).items():
            assert len(set(places)) == len(places), f"{name} has an element twice"


def test_superset_holds_all_weights(kept: Supernet) -> None:
    net = kept
    held = {region.name for region in net.index(net.space.superset).values()}
    parameters = dict(net.named_parameters())
    assert set(parameters) <= held
    whole = sum(parameter.numel() for parameter in parameters.values())
    assert net.cost(net.space.superset).parameters == whole


@pytest.mark.parametrize("training", [False, True])
def test_subnet_alone_equals_in_place(kept: Supernet, training: bool) -> None:
    net, x = kept, batch(kept)
    before = copy.deepcopy(net.state_dict())
    net.train(training)
    for arch in some_archs(net, 8):
        net.load_state_dict(before)
        subnet = net.subnet(arch)
        assert all(module.training == training for module in subnet.modules())
        with isolated(0, "dropout"):
            alone = subnet(x)
        with isolated(0, "dropout"):
            in_place = net(x, arch)
        assert (in_place.shape[0], in_place.shape[-1]) == (len(x), net.num_classes)
        torch.testing.assert_close(in_place, alone, rtol=1e-4, atol=1e-5)
        if arch == net.space.largest:
            net.load_state_dict(before)
            with isolated(0, "dropout"):
                torch.testing.assert_close(net(x), alone, rtol=1e-4, atol=1e-5)
    net.load_state_dict(before)


def test_running_in_place_moves_the_buffers_in_place(net: Supernet) -> None:
    net.train()
    for arch in some_archs(net, 1):
        subnet = net.subnet(arch)
        with isolated(0, "dropout"):
            subnet(batch(net))
        with isolated(0, "dropout"):
            net(batch(net), arch)
        views = net.views(arch)
        for name, buffer in subnet.named_buffers():
            torch.testing.assert_close(views[name], buffer, msg=f"{name} of {arch}")


def test_gradients_in_place_are_those_of_the_subnet(net: Supernet) -> None:
    net.train()
    for arch in some_archs(net, 1):
        subnet = net.subnet(arch)
        reference = copy.deepcopy(net)
        with isolated(0, "dropout"):
            subnet(batch(net)).square().sum().backward()
        with isolated(0, "dropout"):
            reference(batch(net), arch).square().sum().backward()
        places, regions, shared = positions(net, arch), net.regions(arch), dict(net.named_parameters())
        expected = {name: torch.zeros(p.numel()) for name, p in reference.named_parameters()}
        for name, parameter in subnet.named_parameters():
            assert parameter.requires_grad == shared[regions[name].name].requires_grad, name
            if parameter.grad is not None:
                expected[regions[name].name][places[name]] = parameter.grad.flatten()
        for name, parameter in reference.named_parameters():
            got = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            torch.testing.assert_close(got.flatten(), expected[name], rtol=1e-3, atol=1e-4, msg=f"{name} {arch}")
        assert any(grad.abs().sum() > 0 for grad in expected.values())


@torch.no_grad()
def test_views_alias_and_nothing_else_changes(net: Supernet) -> None:
    for arch in some_archs(net, 1):
        before = {name: tensor.clone() for name, tensor in net.shared_tensors().items()}
        written = {name: torch.zeros(tensor.numel(), dtype=torch.bool) for name, tensor in before.items()}
        index, places, shared = net.regions(arch), positions(net, arch), net.shared_tensors()
        for name, view in net.views(arch).items():
            if index[name].is_view:
                view.add_(1)
                written[index[name].name][places[name]] = True
                assert view.untyped_storage().data_ptr() == shared[index[name].name].untyped_storage().data_ptr()
            else:
                view.add_(1)  # a copy, as said in ``Region.of``
        for name, tensor in net.shared_tensors().items():
            expected = before[name].flatten() + written[name].to(tensor.dtype)
            torch.testing.assert_close(tensor.flatten(), expected, rtol=0, atol=0)


@torch.no_grad()
def test_adding_to_regions_changes_just_them(net: Supernet) -> None:
    for arch in some_archs(net, 1):
        own, places = tensors(net.subnet(arch)), positions(net, arch)
        totals = {name: torch.ones(t.shape, dtype=torch.float64) for name, t in net.shared_tensors().items()}
        expected = {name: total.flatten().clone() for name, total in totals.items()}
        for name, region in net.regions(arch).items():
            value = own[name].double()
            region.add_to(totals[region.name], value, 0.5)
            region.add_to(totals[region.name], 2.0, 3.0)
            expected[region.name][places[name]] += 0.5 * value.flatten() + 6.0
        for name, total in totals.items():
            torch.testing.assert_close(total.flatten(), expected[name])


@torch.no_grad()
def test_subnet_is_a_copy_and_load_into_refreshes_it(net: Supernet) -> None:
    for arch in some_archs(net, 1):
        subnet = net.subnet(arch)
        before = {name: tensor.clone() for name, tensor in net.shared_tensors().items()}
        storages = {tensor.untyped_storage().data_ptr() for tensor in before.values()}
        for tensor in tensors(subnet).values():
            assert tensor.untyped_storage().data_ptr() not in storages
            tensor.add_(1)
        for name, tensor in net.shared_tensors().items():
            torch.testing.assert_close(tensor, before[name], rtol=0, atol=0)
        own = {name: tensor.data_ptr() for name, tensor in tensors(subnet).items()}
        net.load_into(subnet, arch)
        places, regions, shared = positions(net, arch), net.regions(arch), net.shared_tensors()
        for name, tensor in tensors(subnet).items():
            whole = shared[regions[name].name]
            torch.testing.assert_close(tensor.flatten(), whole.flatten()[places[name]], rtol=0, atol=0)
            assert tensor.data_ptr() == own[name]


def test_cost_is_that_of_the_extracted_subnet(kept: Supernet) -> None:
    net = kept.eval()
    for arch in some_archs(net, 8):
        subnet, cost = net.subnet(arch), net.cost(arch)
        counted = sdpa_kernel(SDPBackend.MATH), torch.backends.mkldnn.flags(enabled=False)  # not their fused forms
        with FlopCounterMode(display=False) as counter, torch.no_grad(), counted[0], counted[1]:
            subnet(batch(net, 3))
        assert counter.get_total_flops() == 2 * 3 * cost.macs
        assert cost.parameters == sum(parameter.numel() for parameter in subnet.parameters())
        assert cost.bytes == sum(t.numel() * t.element_size() for t in tensors(subnet).values())


def test_the_bounds_bound_the_cost(kept: Supernet) -> None:
    least, most = kept.cost(kept.space.smallest), kept.cost(kept.space.largest)
    for arch in some_archs(kept, RANDOM_ARCHS):
        cost = kept.cost(arch)
        assert least.macs <= cost.macs <= most.macs
        assert least.parameters <= cost.parameters <= most.parameters
        assert least.bytes <= cost.bytes <= most.bytes


def test_more_architectures_than_are_remembered(kept: Supernet, monkeypatch: pytest.MonkeyPatch) -> None:
    net, archs = copy.deepcopy(kept).eval(), some_archs(kept, 1)
    expected = [kept.eval()(batch(kept), arch) for arch in archs]
    monkeypatch.setattr("lit_fednas.supernets.base._SKELETONS_KEPT", 2)
    net._skeletons.clear()
    for _ in range(2):
        for arch, output in zip(archs, expected, strict=True):
            assert net.cost(arch) == kept.cost(arch)
            torch.testing.assert_close(net(batch(net), arch), output)
            assert len(net._skeletons) <= 2


def test_architectures_are_small_hashable_values(kept: Supernet) -> None:
    for arch in some_archs(kept, RANDOM_ARCHS):
        assert hash(arch) == hash(copy.deepcopy(arch))
        assert pickle.loads(pickle.dumps(arch)) == arch
        assert len(pickle.dumps(arch)) < 2000


def test_genes_and_text_go_round(kept: Supernet) -> None:
    space = kept.space
    for arch in some_archs(kept, 50):
        genes = space.encode(arch)
        assert len(genes) == len(space.cardinalities)
        assert all(0 <= gene < n for gene, n in zip(genes, space.cardinalities, strict=True))
        assert space.decode(genes) == arch
        assert space.parse(str(arch)) == arch
        assert space.parse(arch) == arch
        assert space.named(str(arch)) == arch
    assert space.named("smallest") == space.smallest
    assert space.named("largest") == space.largest


def test_size_counts_distinct_networks(kept: Supernet) -> None:
    """Brute force over all gene vectors, or draws from a large space: different architectures are different
    networks; a space that was gone through has as many as it says.
    """
    net, space = kept, kept.space
    enumerable = math.prod(space.cardinalities) <= 100
    if enumerable:
        archs = {space.decode(genes) for genes in itertools.product(*(range(n) for n in space.cardinalities))}
    else:
        rng = np.random.default_rng(0)
        archs = {space.smallest, space.largest, *(space.sample(rng) for _ in range(30))}
    networks = {tuple((name, tuple(at)) for name, at in sorted(positions(net, arch).items())) for arch in archs}
    assert len(archs) == len(networks)
    assert len(archs) == space.size if enumerable else len(archs) <= space.size
    assert {space.smallest, space.largest} <= archs


def _loosely_uniform(draws: np.ndarray, cardinality: int) -> None:
    """Pearson's statistic, below its mean plus six standard deviations."""
    counts = np.bincount(draws, minlength=cardinality)
    assert len(counts) == cardinality
    expected = len(draws) / cardinality
    statistic = ((counts - expected) ** 2 / expected).sum()
    freedom = cardinality - 1
    assert statistic <= freedom + 6 * math.sqrt(2 * freedom), counts


def test_samples_are_uniform_and_independent_over_genes(kept: Supernet, monkeypatch: pytest.MonkeyPatch) -> None:
    space, rng = kept.space, np.random.default_rng(0)
    assert type(space.sample(rng)) is type(space.smallest)
    monkeypatch.setattr(type(space), "decode", lambda self, genes: tuple(genes))
    genes = np.array([space.sample(rng) for _ in range(3000)])
    assert genes.shape == (3000, len(space.cardinalities))
    for place, cardinality in enumerate(space.cardinalities):
        _loosely_uniform(genes[:, place], cardinality)
    for place, (first, second) in enumerate(itertools.pairwise(space.cardinalities)):
        _loosely_uniform(genes[:, place] * second + genes[:, place + 1], first * second)


def test_mutation_draws_each_gene_with_its_rate(kept: Supernet, monkeypatch: pytest.MonkeyPatch) -> None:
    space, rng = kept.space, np.random.default_rng(0)
    for arch in some_archs(kept, RANDOM_ARCHS):
        assert space.mutate(arch, rng, 0.0) == arch
        mutant = space.mutate(arch, rng, 0.5)
        assert space.decode(space.encode(mutant)) == mutant
    smallest = space.smallest
    old = np.array(space.encode(smallest))
    monkeypatch.setattr(type(space), "decode", lambda self, genes: tuple(genes))
    anew = np.array([space.mutate(smallest, rng, 1.0) for _ in range(3000)])
    some = np.array([space.mutate(smallest, rng, 0.3) for _ in range(3000)])
    for place, cardinality in enumerate(space.cardinalities):
        _loosely_uniform(anew[:, place], cardinality)
        changed = (some[:, place] != old[place]).mean()
        assert changed == pytest.approx(0.3 * (1 - 1 / cardinality), abs=0.05)
    changes = some != old
    for place, (first, second) in enumerate(itertools.pairwise(space.cardinalities)):  # each gene by itself
        together = (changes[:, place] & changes[:, place + 1]).mean()
        assert together == pytest.approx(0.3**2 * (1 - 1 / first) * (1 - 1 / second), abs=0.03)


def test_samples_depend_on_the_generator_alone(kept: Supernet) -> None:
    def draw() -> list:
        rng = np.random.default_rng(3)
        return [kept.space.sample(rng) for _ in range(5)]

    torch_state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    assert draw() == draw()
    assert torch.equal(torch.get_rng_state(), torch_state)
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002


@pytest.mark.parametrize("how", ["deepcopy", "pickle"])
def test_copies_are_whole_and_apart(net: Supernet, how: str) -> None:
    net.eval()
    x, archs = batch(net), some_archs(net, 1)
    before = [net(x, arch) for arch in archs]  # so that there is something remembered to copy
    twin = copy.deepcopy(net) if how == "deepcopy" else pickle.loads(pickle.dumps(net))
    assert twin.fingerprint == net.fingerprint
    for arch, expected in zip(archs, before, strict=True):
        torch.testing.assert_close(twin(x, arch), expected)
    with torch.no_grad():
        for parameter in twin.parameters():
            parameter.mul_(-0.5).add_(0.1)
    for arch, expected in zip(archs, before, strict=True):
        torch.testing.assert_close(net(x, arch), expected)
        torch.testing.assert_close(twin(x, arch), twin.subnet(arch)(x), rtol=1e-4, atol=1e-5)
        assert not torch.allclose(twin(x, arch), expected)


def test_state_dict_is_the_shared_tensors(kept: Supernet) -> None:
    state, shared = kept.state_dict(), kept.shared_tensors()
    assert set(shared) <= set(state)  # a tensor that two modules share has two names there
    assert {tensor.data_ptr() for tensor in state.values()} == {tensor.data_ptr() for tensor in shared.values()}
    parameters = [name for name, _ in kept.named_parameters()]
    assert list(kept.shared_tensors())[: len(parameters)] == parameters


def test_fingerprints_are_plain_and_tell_instances_apart(kept: Supernet) -> None:
    assert json.loads(json.dumps(kept.fingerprint)) == kept.fingerprint
    assert [kept_instance(name).fingerprint for name in INSTANCES].count(kept.fingerprint) == 1


def test_nothing_moves_in_evaluation(kept: Supernet) -> None:
    net = kept.eval()
    before = copy.deepcopy(net.state_dict())
    net(batch(net), net.space.largest)
    net.cost(net.space.smallest)
    for name, tensor in net.state_dict().items():
        assert torch.equal(tensor, before[name])


def test_the_skeleton_holds_no_memory(kept: Supernet) -> None:
    assert {tensor.device.type for tensor in tensors(kept.skeleton(kept.space.largest)).values()} == {"meta"}
