"""Pruning against zeroed networks, raw norms and brute force; where a unit's channels lie is written by hand."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import (
    BatchNorm,
    FilterCriterion,
    GroupNorm,
    GrowableViT,
    L1Norm,
    L2Norm,
    Model,
    NetworkFamily,
    Norm,
    NormScale,
    PrunedSequence,
    SlicedCNN,
    SlicedConvNet,
    SlicedMobileNet,
    SlicedResNet,
    SlicedSmallCNN,
    UnitCounts,
)
from lit_fednas.supernets.pruning.filters import Cut, Prunable, find_cuts, remaining, sums_of_powers, without_filters
from lit_fednas.supernets.pruning.sequence import PrunedModel

SHAPE, CLASSES = (3, 8, 8), 5

NORMS: dict[str, Norm | None] = {
    "batch": BatchNorm(),
    "static": BatchNorm(running_statistics=False),
    "group": GroupNorm(2),
    "none": None,
}
MAKE: dict[str, Callable[[Norm | None], NetworkFamily]] = {
    "cnn": lambda norm: SlicedCNN((6, 10), norm),
    "convnet": lambda norm: SlicedConvNet((4, 6, 8), (1, 3), norm),
    "convnet-linear": lambda norm: SlicedConvNet((4, 6), (1,), norm, linear=10),
    "mobilenet": lambda norm: SlicedMobileNet(1.0, (4, 6, 8), (1, 2, 1), norm),
    "resnet": lambda norm: SlicedResNet((4, 8), (1, 2), norm),
    "smallcnn": lambda norm: SlicedSmallCNN((4, 6), 10),
}
CASES = [(name, norm) for name in MAKE for norm in NORMS if name != "smallcnn" or norm == "none"]
FEW = [("convnet", "none"), ("mobilenet", "batch"), ("resnet", "group"), ("smallcnn", "none")]

#: The layers whose filters a group's units are; an asterisk marks those whose channels only follow.
LAYERS: dict[str, dict[str, str]] = {
    "cnn": {"layer0": "layer0.conv layer0.norm*", "layer1": "layer1.conv layer1.norm*"},
    "convnet": {f"conv{place}": f"conv{place}.conv conv{place}.norm*" for place in (1, 2, 3)},
    "convnet-linear": {
        **{f"conv{place}": f"conv{place}.conv conv{place}.norm*" for place in (1, 2)},
        "linear": "linear.linear",
    },
    "mobilenet": {
        "conv0": "conv0.conv conv0.norm* conv1.depthwise.conv* conv1.depthwise.norm*",
        "conv1": "conv1.pointwise.conv conv1.pointwise.norm* conv2.depthwise.conv* conv2.depthwise.norm*",
        "conv2": "conv2.pointwise.conv conv2.pointwise.norm*",
    },
    "resnet": {
        "stage0": "stem stage0.block0.block.conv2 stage0.block0.block.norm1* stage1.block0.norm1*",
        "stage0.block0": "stage0.block0.block.conv1 stage0.block0.block.norm2*",
        "stage1": "stage1.block0.sum.block.conv2 stage1.block0.sum.shortcut stage1.block1.block.conv2 "
        "stage1.block1.block.norm1* norm*",
        "stage1.block0": "stage1.block0.sum.block.conv1 stage1.block0.sum.block.norm2*",
        "stage1.block1": "stage1.block1.block.conv1 stage1.block1.block.norm2*",
    },
    "smallcnn": {"conv1": "conv1.0", "conv2": "conv2.0", "hidden": "hidden.0"},
}


def sequence(name: str, norm: str = "batch", units: Mapping[str, Sequence[str]] | None = None) -> PrunedSequence:
    """A sequence whose tensors are all drawn: affine weights and running statistics too."""
    with isolated(0, "network"):
        net = PrunedSequence(SHAPE, CLASSES, MAKE[name](NORMS[norm]), units)
    return drawn(net)


@torch.no_grad()
def drawn(net: PrunedSequence) -> PrunedSequence:
    draws = generator(0, "weights")
    for key, tensor in net.shared_tensors().items():
        if tensor.is_floating_point():
            values = torch.randn(tensor.shape, generator=draws) / 2
            tensor.copy_(values.abs() + 0.2 if key.endswith("running_var") else values)
    return net


def layers(name: str, group: str) -> dict[str, bool]:
    """The layers that a group's channels go through, and whether they make them."""
    return {word.removesuffix("*"): not word.endswith("*") for word in LAYERS[name][group].split()}


def weakest(network: nn.Module, name: str, group: str, count: int, multiple: int = 1) -> list[int]:
    """The units of smallest L2 norm over all that they are written by, in blocks where a norm has groups."""
    total: dict[int, float] = {}
    for layer, writes in layers(name, group).items():
        if writes:
            for unit, filter in enumerate(network.get_submodule(layer).weight.tolist()):
                total[unit // multiple] = total.get(unit // multiple, 0.0) + float(np.square(filter).sum())
    blocks = sorted(total, key=total.__getitem__)[: count // multiple]
    return sorted(block * multiple + unit for block in blocks for unit in range(multiple))


@torch.no_grad()
def zeroed(network: nn.Module, name: str, group: str, units: Sequence[int]) -> nn.Module:
    """A copy in which these units' filters and the norms behind them are nothing; in float64."""
    made = copy.deepcopy(network).double()
    for layer in layers(name, group):
        for tensor in made.get_submodule(layer).parameters(recurse=False):
            tensor[list(units)] = 0
    return made


def one_cut(net: PrunedSequence, group: str, count: int) -> Cut:
    """A unit of one group loses this many."""
    sizes = net.models[-1].sizes
    return Cut(group, {group: count}, {**sizes, group: sizes[group] - count}, 0.0)


def network_of(net: PrunedSequence, arch: Model) -> nn.Module:
    """A copy in float64, to which float32 is exact."""
    return net.subnet(arch).double()


def images(size: int = 6) -> Tensor:
    return torch.randn(size, *SHAPE, generator=generator(0, "images"), dtype=torch.float64)


def assert_same_function(one: nn.Module, other: nn.Module, train: bool) -> None:
    for training in (False, True) if train else (False,):
        one, other = one.train(training), other.train(training)
        torch.testing.assert_close(one(images()), other(images()), rtol=1e-10, atol=1e-10)


def multiple_of(norm: str) -> int:
    return 2 if norm == "group" else 1


# --- what is left


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_a_pruned_network_computes_what_is_left_of_the_whole(name: str, norm: str) -> None:
    """In training too: batch statistics are each channel's own. But for dropout, which draws by the sizes."""
    net = sequence(name, norm)
    for group, full in net.models[0].sizes.items():
        for count in range(2, full, 2):
            leaving = weakest(net.networks[0], name, group, count, multiple_of(norm))
            (arch,) = net.propose([one_cut(net, group, count)])
            pruned = network_of(net, arch)
            expected = zeroed(net.networks[0], name, group, leaving)
            assert_same_function(pruned, expected, train=name != "smallcnn")
            assert all(tensor.numel() for tensor in pruned.parameters())


@pytest.mark.parametrize(("name", "norm"), FEW)
def test_zeroing_other_filters_is_another_function(name: str, norm: str) -> None:
    """So that the test above says which filters leave."""
    net = sequence(name, norm)
    for group in net.models[0].sizes:
        (arch,) = net.propose([one_cut(net, group, 2)])
        pruned = network_of(net, arch).eval()
        leaving = weakest(net.networks[0], name, group, 2, multiple_of(norm))
        others = [unit for unit in range(net.models[0].sizes[group]) if unit not in leaving][:2]
        wrong = zeroed(net.networks[0], name, group, others).eval()
        assert not torch.allclose(pruned(images()), wrong(images()), rtol=1e-3)


@pytest.mark.parametrize(("name", "norm"), FEW)
def test_the_filters_of_smallest_norm_leave_and_the_others_keep_their_order(name: str, norm: str) -> None:
    net = sequence(name, norm)
    whole = net.networks[0]
    for group, full in net.models[0].sizes.items():
        leaving = weakest(whole, name, group, 2, multiple_of(norm))
        staying = [unit for unit in range(full) if unit not in leaving]
        (arch,) = net.propose([one_cut(net, group, 2)])
        pruned = net.subnet(arch)
        for layer in layers(name, group):
            module = pruned.get_submodule(layer)
            for part, tensor in [*module.named_parameters(), *module.named_buffers()]:
                before = dict([*whole.named_parameters(), *whole.named_buffers()])[f"{layer}.{part}"]
                assert torch.equal(tensor, before[staying] if before.ndim else before), f"{layer}.{part}"


def test_a_streams_filters_are_weighed_over_all_that_write_into_it() -> None:
    net = PrunedSequence(SHAPE, CLASSES, SlicedResNet((4,), (1,), None))
    stem, block = (net.networks[0].get_submodule(layer).weight for layer in ("stem", "stage0.block0.block.conv2"))
    with torch.no_grad():
        for weight, entries in ((stem, (5, 0, 3, 2)), (block, (0, 4, 2, 2))):
            weight.zero_()
            weight[:, 1, 2, 0] = torch.tensor(entries, dtype=torch.float32)
    weights = dict(net.networks[0].named_parameters())
    sums = sums_of_powers(net.prunable, weights, "stage0", 2)
    assert sums.tolist() == pytest.approx([25, 16, 13, 8])
    (arch,) = net.propose([one_cut(net, "stage0", 2)])
    assert net.subnet(arch).get_submodule("stem").weight[:, 1, 2, 0].tolist() == [5, 0]


def test_filters_that_leave_together_are_ranked_by_the_sum_of_their_scores() -> None:
    """L1 norms of 6 and 5 by pairs; the sums of their squares would be 18 and 25."""
    assert remaining(torch.tensor([3.0, 3.0, 0.0, 5.0]), 2, multiple=2) == [0, 1]


@pytest.mark.parametrize(
    ("criterion", "left"), [(L2Norm(), [1, 2]), (L1Norm(), [0, 2]), (NormScale(), [0, 1])], ids=lambda one: str(one)
)
def test_filters_are_ranked_by_the_criterion(criterion: FilterCriterion, left: list[int]) -> None:
    """Their two weights are (3, 3), (5, 0), (9, 9): L2 18, 25 and 162 squared, L1 6, 5 and 18."""
    net = PrunedSequence(SHAPE, CLASSES, SlicedMobileNet(1.0, (3, 4), (1, 2)), criterion=criterion)
    whole = net.networks[0]
    with torch.no_grad():
        weight = whole.get_submodule("conv0.conv").weight.zero_()
        weight[:, 0, 0, 0] = torch.tensor([-3.0, 5.0, 9.0])
        weight[:, 1, 2, 1] = torch.tensor([3.0, 0.0, 9.0])
        whole.get_submodule("conv0.norm").weight.copy_(torch.tensor([1.0, -4.0, 2.0]))  # 6, 5 and 4 with those below
        whole.get_submodule("conv1.depthwise.norm").weight.copy_(torch.tensor([5.0, -1.0, 2.0]))
    (arch,) = net.propose([one_cut(net, "conv0", 1)])
    assert net.subnet(arch).get_submodule("conv0.conv").weight[:, 0, 0, 0].tolist() == [[-3, 5, 9][at] for at in left]


def test_scales_that_are_not_there_are_refused() -> None:
    for norm in (None, BatchNorm(affine=False)):
        with pytest.raises(ConfigError, match=r"supernet.criterion: NormScale finds no norm with a scale behind"):
            PrunedSequence(SHAPE, CLASSES, SlicedCNN((6, 4), norm), criterion=NormScale())


def test_depthwise_filters_biases_and_norms_do_not_count() -> None:
    net = sequence("mobilenet")
    whole = net.networks[0]
    with torch.no_grad():
        for unit, size in enumerate((3.0, 1.0, 2.0, 6.0, 5.0, 4.0)):
            whole.get_submodule("conv1.pointwise.conv").weight[unit] = size
            for layer in ("conv2.depthwise.conv", "conv1.pointwise.norm", "conv2.depthwise.norm"):
                whole.get_submodule(layer).weight[unit] = 100 / size
    (arch,) = net.propose([one_cut(net, "conv1", 3)])
    assert net.subnet(arch).get_submodule("conv1.pointwise.conv").weight[:, 0, 0, 0].tolist() == [6, 5, 4]
    assert net.prunable.writers["conv1"] == ("conv1.pointwise.conv.weight",)


def test_a_group_norms_channels_leave_together() -> None:
    """By the norm of both: the weakest filter of all stays, for its neighbour is strong."""
    net = PrunedSequence(SHAPE, CLASSES, SlicedCNN((6, 4), GroupNorm(2)))
    weight = net.networks[0].get_submodule("layer0.conv").weight
    with torch.no_grad():
        weight.zero_()
        weight[:, 0, 0, 0] = torch.tensor([2.0, 2.0, 1.0, 9.0, 0.0, 3.0])  # 8, 82 and 9 are their squares' sums
    (arch,) = net.propose([one_cut(net, "layer0", 2)])
    assert net.subnet(arch).get_submodule("layer0.conv").weight[:, 0, 0, 0].tolist() == [1, 9, 0, 3]


def test_heads_of_attention_leave_whole() -> None:
    """Those with the smallest queries, keys and values; without them nothing else changes."""
    net = drawn(PrunedSequence(SHAPE, CLASSES, GrowableViT(dim=12, heads=3, depth=1)))
    (arch,) = net.propose([one_cut(net, "layer1.heads", 1)])
    whole = net.networks[0]
    attention = whole.get_submodule("cells.layer1.0.block.attention")
    parts = [attention.get_submodule(part).weight for part in ("query", "key", "value")]
    head = int(torch.stack(parts).view(3, 3, 48).square().sum((0, 2)).argmin())
    expected = copy.deepcopy(whole).double().eval()
    with torch.no_grad():
        expected.get_submodule("cells.layer1.0.block.attention.output").weight[:, 4 * head : 4 * head + 4] = 0
    pruned = network_of(net, arch).eval()
    torch.testing.assert_close(pruned(images()), expected(images()), rtol=1e-10, atol=1e-10)


# --- how many filters leave


def resources(network: nn.Module) -> dict[str, int]:
    """PyTorch's counts of a network; the bytes are those of all that has a value."""
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        copy.deepcopy(network).float().eval()(torch.zeros(1, *SHAPE))
    state = [*network.parameters(), *network.buffers()]
    return {
        "macs": counter.get_total_flops() // 2,
        "parameters": sum(parameter.numel() for parameter in network.parameters()),
        "bytes": sum(tensor.numel() * tensor.element_size() for tensor in state),
    }


def brute(
    units: Mapping[str, Sequence[str]],
    sizes: Mapping[str, int],
    multiple: int,
    cost: Callable[[Mapping[str, int]], int],
    budget: float,
) -> dict[str, dict[str, int]]:
    """For each unit: tries losing one share after another, the smallest first, and leaves one filter of each."""
    found = {}
    for unit, groups in units.items():
        most = max(sizes[group] for group in groups) // multiple
        for step in range(1, most):
            removed = {group: int(step / most * (sizes[group] // multiple) + 1e-9) * multiple for group in groups}
            if cost({**sizes, **{group: sizes[group] - count for group, count in removed.items()}}) <= budget:
                found[unit] = removed
                break
    return found


@pytest.mark.parametrize(("name", "norm"), FEW)
@pytest.mark.parametrize("resource", ["macs", "parameters", "bytes"])
def test_the_fewest_filters_leave_that_meet_the_budget(name: str, norm: str, resource: str) -> None:
    net, family = sequence(name, norm), MAKE[name](NORMS[norm])
    sizes, counted = family.units(SHAPE), {}

    def cost(wanted: Mapping[str, int]) -> int:
        key = tuple(wanted.items())
        if key not in counted:
            counted[key] = resources(family.build(wanted, SHAPE, CLASSES))[resource]
        return counted[key]

    def known(wanted: Mapping[str, int]) -> int:
        return getattr(net.cost(UnitCounts.of(wanted)), resource)

    whole, seen = cost(sizes), set()
    single = {group: [group] for group in sizes}
    exact = [cost({**sizes, group: size - 2}) for group, size in sizes.items()]
    for budget in [0.97 * whole, 0.8 * whole, 0.5 * whole, *exact, *(one - 1 for one in exact)]:
        cuts = find_cuts(single, sizes, net.prunable.multiple, known, budget)
        expected = brute(single, sizes, multiple_of(norm), cost, budget)
        assert {cut.unit: cut.removed for cut in cuts} == expected
        seen.add(len(expected))
        for cut in cuts:
            assert cut.resource == cost(cut.sizes) <= budget
            assert cut.sizes == {**sizes, cut.unit: sizes[cut.unit] - cut.removed[cut.unit]}
            assert cut.sizes[cut.unit] >= multiple_of(norm)
            if cut.removed[cut.unit] > multiple_of(norm):
                assert cost({**cut.sizes, cut.unit: cut.sizes[cut.unit] + multiple_of(norm)}) > budget
    assert max(seen) == len(single), "some budget is met by every unit"
    assert min(seen) < len(single), "some budget is not"
    assert not find_cuts(single, sizes, net.prunable.multiple, known, 0)


def test_units_of_several_groups_lose_the_same_share_of_each() -> None:
    units = {"first": ["stage0", "stage0.block0"], "second": ["stage1", "stage1.block0", "stage1.block1"]}
    net = sequence("resnet", "batch", units)
    assert net.units == {unit: tuple(groups) for unit, groups in units.items()}
    sizes = {"stage0": 3, "stage0.block0": 4, "stage1": 8, "stage1.block0": 2, "stage1.block1": 5}

    def cost(wanted: Mapping[str, int]) -> int:
        return net.cost(UnitCounts.of(wanted)).macs

    for share in (0.95, 0.8, 0.65, 0.5, 0.35):
        cuts = find_cuts(net.units, sizes, 1, cost, share * cost(sizes))
        assert {cut.unit: cut.removed for cut in cuts} == brute(units, sizes, 1, cost, share * cost(sizes))
    cuts = find_cuts(net.units, net.models[0].sizes, 1, cost, 0.6 * net.cost(Model(0)).macs)
    for cut, arch in zip(cuts, net.propose(cuts), strict=True):
        expected: nn.Module = net.networks[0]
        for group, count in cut.removed.items():
            expected = zeroed(expected, "resnet", group, weakest(net.networks[0], "resnet", group, count))
        assert_same_function(network_of(net, arch), expected, train=True)


def test_the_same_share_by_hand() -> None:
    """Five of eight must go; of five and of two, 3.1 and 1.25 are as many. In pairs: three of four, 1.5, 0.75."""
    units, sizes = {"u": ["a", "b", "c"]}, {"a": 8, "b": 5, "c": 2}
    (cut,) = find_cuts(units, sizes, 1, lambda n: n["a"], 3)
    assert (cut.removed, cut.sizes) == ({"a": 5, "b": 3, "c": 1}, {"a": 3, "b": 2, "c": 1})
    (cut,) = find_cuts(units, sizes, 1, lambda n: n["a"], 1)
    assert cut.sizes == {"a": 1, "b": 1, "c": 1}
    (cut,) = find_cuts(units, {"a": 8, "b": 4, "c": 2}, 2, lambda n: n["a"], 3)
    assert cut.removed == {"a": 6, "b": 2, "c": 0}
    assert not find_cuts(units, sizes, 1, lambda n: n["a"], 0.9)


def test_one_filter_stays_by_hand() -> None:
    """Costs of 10 per unit of a and 1 of b: a can go down to 10 + 3, b to 40 + 1."""
    units, sizes = {"a": ["a"], "b": ["b"]}, {"a": 4, "b": 3}

    def cuts(budget: float, multiple: int = 1) -> dict[str, int]:
        found = find_cuts(units, sizes, multiple, lambda n: 10 * n["a"] + n["b"], budget)
        return {cut.unit: cut.removed[cut.unit] for cut in found}

    assert cuts(42) == {"a": 1, "b": 1}
    assert cuts(41) == {"a": 1, "b": 2}
    assert cuts(40) == {"a": 1}
    assert cuts(32.9) == {"a": 2}
    assert cuts(13) == {"a": 3}
    assert cuts(12.9) == {}
    assert cuts(100) == {"a": 1, "b": 1}, "a candidate is smaller, also where the budget is met already"
    assert cuts(42, multiple=2) == {"a": 2}, "of three of b none can go, for two go together and three are one pair"
    alone = find_cuts(units, {"a": 4, "b": 1}, 1, lambda n: 10 * n["a"] + n["b"], 100)
    assert [cut.unit for cut in alone] == ["a"]


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_what_has_only_a_size_costs_what_a_network_does(name: str, norm: str) -> None:
    net = sequence(name, norm)
    cuts = [one_cut(net, group, 2) for group in net.models[0].sizes]
    for arch, cut in zip(net.propose(cuts), cuts, strict=True):
        expected = resources(net.subnet(arch))
        for costed in (arch, UnitCounts.of(cut.sizes)):
            cost = net.cost(costed)
            assert {"macs": cost.macs, "parameters": cost.parameters, "bytes": cost.bytes} == expected
        assert net.sizes(arch) == net.sizes(UnitCounts.of(cut.sizes)) == cut.sizes
    with pytest.raises(ConfigError, match="has no weights"):
        net.index(UnitCounts.of(cuts[0].sizes))


def test_attention_is_counted() -> None:
    """4 tokens; a head of four entries less is 2 * 4 * 4 * 4 products less, and less in four linear layers."""
    net = PrunedSequence(SHAPE, CLASSES, GrowableViT(dim=12, heads=3, depth=1))
    cut = one_cut(net, "layer1.heads", 1)
    (arch,) = net.propose([cut])
    assert net.cost(Model(0)).macs - net.cost(arch).macs == 2 * 4 * 4 * 4 + 4 * 4 * 12 * 4
    assert net.operations(Model(0)) - net.operations(arch) >= 2 * 4 * 4 * 4 + 4 * 4 * 12 * 4
    net.select("layer1.heads")
    assert net.space.smallest == Model(1)


# --- step after step


@pytest.mark.parametrize(("name", "norm"), FEW)
def test_pruning_again_composes(name: str, norm: str) -> None:
    """The second time by the norms that are left: filters have lost the inputs that left before."""
    fresh, multiple = sequence(name, norm), multiple_of(norm)
    sizes = fresh.models[0].sizes
    groups = list(sizes)
    for place, first in enumerate(groups):
        for second in (first, groups[(place + 1) % len(groups)]):
            net = copy.deepcopy(fresh)
            whole = net.networks[0]
            net.propose([one_cut(net, first, 2)])
            net.select(first)
            gone = weakest(whole, name, first, 2, multiple)
            if net.models[-1].sizes[second] <= 2:
                continue
            (arch,) = net.propose([one_cut(net, second, 2)])
            again = weakest(net.networks[1], name, second, 2, multiple)
            if first == second:
                again = [[unit for unit in range(sizes[first]) if unit not in gone][place] for place in again]
            expected = zeroed(zeroed(whole, name, first, gone), name, second, again)
            assert_same_function(network_of(net, arch), expected, train=name != "smallcnn")


def test_models_candidates_and_names() -> None:
    net = sequence("convnet", "none")
    assert [str(arch) for arch in net.space.each()] == ["model: 0"]
    archs = net.propose([one_cut(net, "conv1", 1), one_cut(net, "conv3", 2)])
    assert [str(arch) for arch in archs] == ["candidate: 1 conv1", "candidate: 1 conv3"]
    assert net.space.size == 1, "candidates are no results"
    chosen = {name: tensor.clone() for name, tensor in net.subnet(archs[1]).named_parameters()}
    assert net.select("conv3", round=7) == Model(1)
    assert net.models[1] == PrunedModel(1, "conv3", {"conv1": 4, "conv2": 6, "conv3": 6}, 7)
    assert net.models[0] == PrunedModel(0, "", {"conv1": 4, "conv2": 6, "conv3": 8}, None)
    for name, tensor in net.subnet(Model(1)).named_parameters():
        assert torch.equal(tensor, chosen[name])
    assert [str(arch) for arch in net.space.each()] == ["model: 1", "model: 0"]
    assert (net.space.smallest, net.space.largest) == (Model(1), Model(0))
    assert not list(net.candidates.parameters())
    assert net.cost(archs[0]).macs > 0, "what a candidate cost is known when it is gone"
    for arch in archs:
        with pytest.raises(ConfigError, match="has no weights; name a model or a present candidate"):
            net.index(arch)
    net.propose([one_cut(net, "conv1", 2)])
    with pytest.raises(ConfigError, match="candidate: 1 conv1: has no weights; name a model or a present candidate"):
        net.index(archs[0])
    for text, arch in [
        ("model: 1", Model(1)),
        ("1", Model(1)),
        (0, Model(0)),
        ("candidate: 2 conv1", Model(2, "conv1")),
        ("candidate: 1 conv3", Model(1, "conv3")),
    ]:
        assert net.space.parse(text) == arch
        assert net.space.parse(str(arch)) == arch


def test_candidates_have_weights_of_their_own() -> None:
    """The candidates of a step, the model that they come from, and the one that is chosen."""
    net = sequence("mobilenet")
    archs = net.propose([one_cut(net, "conv1", 2), one_cut(net, "conv2", 2)])
    before = {key: tensor.clone() for key, tensor in net.networks[0].state_dict().items()}
    other = {key: tensor.clone() for key, tensor in net.subnet(archs[1]).state_dict().items()}
    held = [{region.name for region in net.index(arch).values()} for arch in (Model(0), *archs)]
    assert len(set.union(*held)) == sum(len(names) for names in held)
    assert set.union(*held) == set(net.shared_tensors())
    with torch.no_grad():
        for tensor in net.views(archs[0]).values():
            tensor.add_(1)
    assert all(torch.equal(tensor, before[key]) for key, tensor in net.networks[0].state_dict().items())
    assert all(torch.equal(tensor, other[key]) for key, tensor in net.subnet(archs[1]).state_dict().items())
    changed = net.subnet(archs[0]).eval()(images().float())
    net.select("conv1")
    torch.testing.assert_close(net.eval()(images().float(), Model(1)), changed)
    assert all(torch.equal(tensor, before[key]) for key, tensor in net.networks[0].state_dict().items())


def test_running_in_place_is_running_the_subnet() -> None:
    net = sequence("resnet").eval()
    net.propose([one_cut(net, "stage1", 4)])
    net.select("stage1")
    archs = net.propose([one_cut(net, "stage0", 1), one_cut(net, "stage1", 2)])
    for arch in (Model(0), Model(1), *archs):
        torch.testing.assert_close(net(images().float(), arch), net.subnet(arch)(images().float()))


def test_candidates_can_be_proposed_anew() -> None:
    net = sequence("mobilenet").eval()
    first, _ = net.propose([one_cut(net, "conv1", 2), one_cut(net, "conv2", 2)])
    before = net(images().float(), first)
    assert net.cost(first).parameters > 0
    _, again = net.propose([one_cut(net, "conv2", 2), one_cut(net, "conv1", 4)])
    assert again == first
    assert net.sizes(again)["conv1"] == 2
    assert net.cost(again).parameters == sum(part.numel() for part in net.subnet(again).parameters())
    assert not torch.allclose(net(images().float(), again), before)
    assert len(net.candidates) == 2


def test_what_is_left_is_a_copy() -> None:
    net = sequence("mobilenet")
    weights = dict(net.networks[0].named_parameters())
    left = without_filters(weights, net.prunable.axes, {"conv1": [0, 4]})
    assert left["conv2.pointwise.conv.weight"].shape == (8, 2, 1, 1)
    assert not {tensor.data_ptr() for tensor in left.values()} & {tensor.data_ptr() for tensor in weights.values()}


@pytest.mark.parametrize("training", [False, True])
def test_candidates_are_in_the_mode_of_the_sequence(training: bool) -> None:
    net = sequence("mobilenet").train(training)
    net.propose([one_cut(net, "conv1", 2)])
    assert {module.training for network in net.candidates for module in network.modules()} == {training}


# --- checkpoints


def grown_small() -> PrunedSequence:
    """Two models after the first, and candidates for the next."""
    net = sequence("mobilenet")
    for group in ("conv1", "conv2"):
        net.propose([one_cut(net, other, 1) for other in ("conv1", "conv2")])
        net.select(group, round=3)
    net.propose([one_cut(net, "conv0", 2), one_cut(net, "conv2", 3)])
    return net


def test_a_saved_sequence_comes_back() -> None:
    net = grown_small()
    structure = net.structure()
    assert json.loads(json.dumps(structure)) == structure
    other = PrunedSequence(SHAPE, CLASSES, MAKE["mobilenet"](BatchNorm())).eval()
    other.restore(json.loads(json.dumps(structure)))
    for network in (*other.networks, *other.candidates):
        assert {module.training for module in network.modules()} == {False}
    other.load_state_dict(net.state_dict())
    assert other.models == net.models
    assert other.cuts == net.cuts
    assert other.structure() == structure
    assert other.fingerprint == net.fingerprint
    assert list(other.space.each()) == list(net.space.each()) == [Model(2), Model(1), Model(0)]
    candidates = [Model(3, "conv0"), Model(3, "conv2")]
    for arch in [Model(0), Model(1), Model(2), *candidates]:
        assert net.sizes(arch) == other.sizes(arch)
        assert net.cost(arch) == other.cost(arch)
        assert torch.equal(net.eval()(images().float(), arch), other(images().float(), arch))
    assert other.cost(Model(1, "conv2")) == net.cost(Model(1, "conv2")), "a candidate that is gone"
    for one in (net, other):
        one.select("conv2")
        one.propose([one_cut(one, "conv1", 2)])
    assert other.structure() == net.structure()
    assert other.digest() == net.digest()


def test_restoring_again_forgets_what_came_between() -> None:
    net = grown_small()
    early = sequence("mobilenet").structure()
    net.restore(early)
    assert [model.number for model in net.models] == [0]
    assert len(net.networks) == 1
    assert not net.cuts
    assert not len(net.candidates)
    assert net.structure() == early
    with pytest.raises(ConfigError, match=r"candidate: 1 conv1: .* out of: model: 0$"):
        net.space.parse("candidate: 1 conv1")
    with pytest.raises(ConfigError, match=r"model: 1: .* out of: model: 0$"):
        net.build(Model(1))


def test_another_initial_model_is_refused() -> None:
    other = PrunedSequence(SHAPE, CLASSES, SlicedMobileNet(1.0, (4, 6, 9), (1, 2, 1)))
    with pytest.raises(CheckpointError, match=r"sequence of models began with .*'conv2': 8.*'conv2': 9"):
        other.restore(grown_small().structure())


# --- errors


@pytest.mark.parametrize(
    ("units", "message"),
    [
        (
            {"a": ["conv9"]},
            r"supernet.units.a: \['conv9'\] must be groups of SlicedMobileNet, .*conv0, conv1, conv2",
        ),
        ({"a": []}, "supernet.units.a"),
        ({"a b": ["conv1"]}, "with a name without spaces"),
        ({"a": ["conv1"], "b": ["conv1"]}, "supernet.units.b: .* is duplicated"),
        ({"a": ["conv1", "conv1"]}, "supernet.units.a: .* is duplicated"),
        ({}, "supernet.units: is empty"),
    ],
)
def test_units_that_cannot_be(units: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        sequence("mobilenet", "batch", units)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: 1", "out of: model: 0"),
        ("model: x", "cannot be read"),
        ("model: -1", "cannot be read"),
        ("model: 0 conv1", "cannot be read"),
        ("candidate: 1", "cannot be read"),
        ("", "cannot be read"),
        ("candidate: 1 conv2", "out of: model: 0"),
        ("candidate: 2 conv1", "out of: model: 0"),
    ],
)
def test_architectures_that_are_not_there(text: str, message: str) -> None:
    net = sequence("mobilenet")
    net.propose([one_cut(net, "conv1", 2)])
    with pytest.raises(ConfigError, match=message):
        net.space.parse(text)


def test_only_models_are_results_and_only_candidates_can_be_chosen() -> None:
    net = sequence("mobilenet")
    with pytest.raises(ConfigError, match="'conv1' is not a candidate; choose from none"):
        net.select("conv1")
    (arch,) = net.propose([one_cut(net, "conv1", 2)])
    with pytest.raises(ConfigError, match="'conv2' is not a candidate; choose from conv1"):
        net.select("conv2")
    with pytest.raises(ConfigError, match="is not one network that can be searched"):
        net.space.encode(arch)


class NoFilters(SlicedCNN):
    """A family with a group of units that no layer has as its rows."""

    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        return {**super().units(input_shape), "unwritten": 4}


def test_a_group_without_filters_is_refused() -> None:
    with pytest.raises(ConfigError, match="layer of NoFilters writes the units 'unwritten'"):
        Prunable(NoFilters((4, 6)), SHAPE, CLASSES)


def test_proposing_and_restoring_draw_no_random_numbers_and_keep_the_dtype() -> None:
    sequence = PrunedSequence((3, 8, 8), 5, SlicedMobileNet(1.0, (4, 6), (1, 2))).double()
    torch.manual_seed(3)
    before = torch.get_rng_state()
    sizes = sequence.models[-1].sizes
    sequence.propose(find_cuts(sequence.units, sizes, 1, lambda left: sum(left.values()), sum(sizes.values()) - 1))
    assert {tensor.dtype for tensor in sequence.parameters()} == {torch.float64}
    structure = sequence.structure()
    sequence.restore(structure)
    assert torch.equal(torch.get_rng_state(), before)
    assert {tensor.dtype for tensor in sequence.parameters()} == {torch.float64}
    assert sequence.structure() == structure


@pytest.mark.parametrize("text", ["model: ³", "model: -1", "model: 1", "candidate: 1 conv0", "x: 0", "", "0 | 0"])
def test_architectures_that_there_are_not(text: str) -> None:
    with pytest.raises(ConfigError):
        PrunedSequence((3, 8, 8), 5, SlicedMobileNet(1.0, (4, 6), (1, 2))).space.parse(text)
