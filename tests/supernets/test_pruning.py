"""Pruning, compared with zeroed networks, norms by hand and brute force; the channels of units are listed by hand."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lit_fednas.errors import CheckpointError, ConfigError
from lit_fednas.rng import generator
from lit_fednas.supernets import (
    BatchNorm,
    Cut,
    GroupNorm,
    GrowableViT,
    Model,
    NetworkFamily,
    Norm,
    PrunedSequence,
    SlicedCNN,
    SlicedConvNet,
    SlicedMobileNet,
    SlicedResNet,
    UnitCounts,
    find_cuts,
)
from lit_fednas.supernets.pruning import PrunedModel
from tests.support import refusals

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
}
#: Every family, and every norm.
CASES = [
    *[("cnn", "static"), ("convnet", "none"), ("convnet-linear", "group")],
    *[("mobilenet", "batch"), ("resnet", "group")],
]

#: The layers with a group's units as filters; an asterisk marks layers that only keep the channels.
LAYERS: dict[str, dict[str, str]] = {
    "cnn": {"layer0": "layer0.conv layer0.norm*", "layer1": "layer1.conv layer1.norm*"},
    "convnet": {f"conv{number}": f"conv{number}.conv conv{number}.norm*" for number in (1, 2, 3)},
    "convnet-linear": {
        **{f"conv{number}": f"conv{number}.conv conv{number}.norm*" for number in (1, 2)},
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
}


def sequence(name: str, norm: str = "batch") -> PrunedSequence:
    return drawn(PrunedSequence(SHAPE, CLASSES, MAKE[name](NORMS[norm])))


@torch.no_grad()
def drawn(net: PrunedSequence) -> PrunedSequence:
    """A sequence with random tensors, including affine weights and running statistics."""
    draws = generator(0, "weights")
    for key, tensor in net.shared_tensors().items():
        if tensor.is_floating_point():
            values = torch.randn(tensor.shape, generator=draws) / 2
            tensor.copy_(values.abs() + 0.2 if key.endswith("running_var") else values)
    return net


def layers(name: str, group: str) -> dict[str, bool]:
    """The layers with a group's channels, and whether the channels are the layer's filters."""
    return {word.removesuffix("*"): not word.endswith("*") for word in LAYERS[name][group].split()}


def weakest(network: nn.Module, name: str, group: str, count: int, multiple: int = 1) -> list[int]:
    """The units with the smallest L2 norm over all layers that write them, in blocks if a norm has groups."""
    total: dict[int, float] = {}
    for layer, writes in layers(name, group).items():
        if writes:
            for unit, filter in enumerate(network.get_submodule(layer).weight.tolist()):
                total[unit // multiple] = total.get(unit // multiple, 0.0) + float(np.square(filter).sum())
    blocks = sorted(total, key=total.__getitem__)[: count // multiple]
    return sorted(block * multiple + unit for block in blocks for unit in range(multiple))


@torch.no_grad()
def zeroed(network: nn.Module, name: str, group: str, units: Sequence[int]) -> nn.Module:
    """A copy in float64 with zero filters and norms for these units."""
    zeroed_network = copy.deepcopy(network).double()
    for layer in layers(name, group):
        for tensor in zeroed_network.get_submodule(layer).parameters(recurse=False):
            tensor[list(units)] = 0
    return zeroed_network


def one_cut(net: PrunedSequence, group: str, count: int) -> Cut:
    """A cut of this many filters from one group."""
    sizes = net.models[-1].sizes
    return Cut(group, count, {**sizes, group: sizes[group] - count}, 0.0)


def images(size: int = 6) -> Tensor:
    return torch.randn(size, *SHAPE, generator=generator(0, "images"), dtype=torch.float64)


def assert_same_function(expected: nn.Module, actual: nn.Module, train: bool = True) -> None:
    for training in (False, True) if train else (False,):
        expected, actual = expected.train(training), actual.train(training)
        torch.testing.assert_close(expected(images()), actual(images()), rtol=1e-10, atol=1e-10)


def multiple_of(norm: str) -> int:
    return 2 if norm == "group" else 1


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_the_weakest_filters_leave_and_the_others_compute_the_same(name: str, norm: str) -> None:
    """In training too, because batch statistics are per channel."""
    net = sequence(name, norm)
    whole = net.networks[0]
    for group, full in net.models[0].sizes.items():
        for count in range(2, full, 2):
            (arch,) = net.propose([one_cut(net, group, count)])
            expected = zeroed(whole, name, group, weakest(whole, name, group, count, multiple_of(norm)))
            assert_same_function(net.subnet(arch).double(), expected)


def test_filters_are_ranked_by_their_squares() -> None:
    """The weights (3, 3), (5, 0), (9, 9) have sums of squares 18, 25 and 162, but sums 6, 5 and 18."""
    net = PrunedSequence(SHAPE, CLASSES, SlicedMobileNet(1.0, (3, 4), (1, 2)))
    whole = net.networks[0]
    with torch.no_grad():
        weight = whole.get_submodule("conv0.conv").weight.zero_()
        weight[:, 0, 0, 0] = torch.tensor([-3.0, 5.0, 9.0])
        weight[:, 1, 2, 1] = torch.tensor([3.0, 0.0, 9.0])
    (arch,) = net.propose([one_cut(net, "conv0", 1)])
    assert net.subnet(arch).get_submodule("conv0.conv").weight[:, 0, 0, 0].tolist() == [5, 9]


def test_heads_of_attention_leave_whole() -> None:
    """The heads with the smallest queries, keys and values leave; the others do not change."""
    net = drawn(PrunedSequence(SHAPE, CLASSES, GrowableViT(dim=12, heads=3, depth=1)))
    (arch,) = net.propose([one_cut(net, "layer1.heads", 1)])
    whole = net.networks[0]
    attention = whole.get_submodule("cells.layer1.0.block.attention")
    parts = [attention.get_submodule(part).weight for part in ("query", "key", "value")]
    head = int(torch.stack(parts).view(3, 3, 48).square().sum((0, 2)).argmin())
    expected = copy.deepcopy(whole).double()
    with torch.no_grad():
        expected.get_submodule("cells.layer1.0.block.attention.output").weight[:, 4 * head : 4 * head + 4] = 0
    assert_same_function(net.subnet(arch).double(), expected, train=False)


# --- how many filters leave


@pytest.mark.parametrize(
    ("size", "multiple", "budget", "removed"),
    [(8, 1, 3, 5), (8, 1, 0.9, None), (8, 1, 100, 1), (8, 2, 3, 6), (3, 2, 2, None)],
)
def test_the_fewest_filters_leave_that_meet_the_budget(
    size: int, multiple: int, budget: float, removed: int | None
) -> None:
    """The second of two groups costs nothing: it is cut only if the budget is already met."""
    sizes = {"a": size, "b": 4}
    cuts = find_cuts(sizes, multiple, lambda units: units["a"], budget)
    assert [cut.unit for cut in cuts] == ([] if removed is None else ["a", "b"] if budget == 100 else ["a"])
    for cut in cuts[:1]:
        assert cut.removed == removed
        assert cut.sizes == {"a": size - removed, "b": 4}
        assert cut.resource == cut.sizes["a"] <= budget


def test_unit_counts_cost_the_same_as_a_network() -> None:
    net = sequence("convnet-linear", "group")
    cuts = [one_cut(net, group, 2) for group in net.models[0].sizes]
    for arch, cut in zip(net.propose(cuts), cuts, strict=True):
        assert net.cost(arch).parameters == sum(parameter.numel() for parameter in net.subnet(arch).parameters())
        assert net.cost(UnitCounts.of(cut.sizes)) == net.cost(arch)
        assert net.sizes(arch) == net.sizes(UnitCounts.of(cut.sizes)) == cut.sizes


# --- step after step


@pytest.mark.parametrize(("name", "norm"), [("mobilenet", "batch"), ("convnet-linear", "group")])
def test_pruning_again_composes(name: str, norm: str) -> None:
    """The second cut uses the remaining norms: filters have lost inputs in the first cut."""
    fresh, multiple = sequence(name, norm), multiple_of(norm)
    sizes = fresh.models[0].sizes
    groups = list(sizes)
    for index, first in enumerate(groups):
        for second in (first, groups[(index + 1) % len(groups)]):
            net = copy.deepcopy(fresh)
            whole = net.networks[0]
            net.propose([one_cut(net, first, 2)])
            net.select(first)
            gone = weakest(whole, name, first, 2, multiple)
            if net.models[-1].sizes[second] <= 2:
                continue
            (arch,) = net.propose([one_cut(net, second, 2)])
            second_removed = weakest(net.networks[1], name, second, 2, multiple)
            if first == second:
                second_removed = [
                    [unit for unit in range(sizes[first]) if unit not in gone][index] for index in second_removed
                ]
            expected = zeroed(zeroed(whole, name, first, gone), name, second, second_removed)
            assert_same_function(net.subnet(arch).double(), expected)


def test_models_candidates_and_names() -> None:
    net = sequence("convnet", "none")
    assert [str(arch) for arch in net.space.each()] == ["model: 0"]
    archs = net.propose([one_cut(net, "conv1", 1), one_cut(net, "conv3", 2)])
    assert [str(arch) for arch in archs] == ["candidate: 1 conv1", "candidate: 1 conv3"]
    assert net.space.size == 1, "candidates are no results"
    selected_weights = {name: tensor.clone() for name, tensor in net.subnet(archs[1]).named_parameters()}
    assert net.select("conv3", round=7) == Model(1)
    assert net.models[1] == PrunedModel(1, "conv3", {"conv1": 4, "conv2": 6, "conv3": 6}, 7)
    assert net.models[0] == PrunedModel(0, "", {"conv1": 4, "conv2": 6, "conv3": 8}, None)
    assert all(torch.equal(tensor, selected_weights[name]) for name, tensor in net.subnet(Model(1)).named_parameters())
    assert [str(arch) for arch in net.space.each()] == ["model: 1", "model: 0"]
    assert (net.space.smallest, net.space.largest) == (Model(1), Model(0))
    assert not list(net.candidates.parameters())
    assert net.cost(archs[0]).macs > 0, "the cost of a removed candidate is still known"
    for text, arch in [("1", Model(1)), (0, Model(0)), ("candidate: 1 conv3", Model(1, "conv3"))]:
        assert net.space.parse(text) == net.space.parse(str(arch)) == arch


def test_candidates_have_weights_of_their_own() -> None:
    """The candidates of a step, their parent and the selected model share no tensors."""
    net = sequence("mobilenet")
    archs = net.propose([one_cut(net, "conv1", 2), one_cut(net, "conv2", 2)])
    tensor_names = [{region.name for region in net.index(arch).values()} for arch in (Model(0), *archs)]
    assert len(set.union(*tensor_names)) == sum(len(names) for names in tensor_names)
    assert set.union(*tensor_names) == set(net.shared_tensors())
    initial_weights = copy.deepcopy(net.networks[0].state_dict())
    with torch.no_grad():
        for tensor in net.views(archs[0]).values():
            tensor.add_(1)
    changed = net.subnet(archs[0]).eval()(images().float())
    net.select("conv1")
    torch.testing.assert_close(net.eval()(images().float(), Model(1)), changed)
    assert all(torch.equal(tensor, initial_weights[key]) for key, tensor in net.networks[0].state_dict().items())


def test_candidates_can_be_proposed_anew() -> None:
    """Nothing is remembered of earlier candidates with the same names."""
    net = sequence("mobilenet").eval()
    (first,) = net.propose([one_cut(net, "conv1", 2)])
    old_output, cost = net(images().float(), first), net.cost(first)
    assert net.propose([one_cut(net, "conv1", 4)]) == [first]
    assert net.cost(first).parameters < cost.parameters
    assert not torch.allclose(net(images().float(), first), old_output)


# --- checkpoints


def test_a_saved_sequence_comes_back() -> None:
    """Two models after the first, and candidates for the next."""
    net = sequence("mobilenet")
    for group in ("conv1", "conv2"):
        net.propose([one_cut(net, other, 1) for other in ("conv1", "conv2")])
        net.select(group, round=3)
    net.propose([one_cut(net, "conv0", 2), one_cut(net, "conv2", 3)])
    structure = net.structure()
    with pytest.raises(CheckpointError, match=r"sequence of models began with .*'conv2': 8.*'conv2': 9"):
        PrunedSequence(SHAPE, CLASSES, SlicedMobileNet(1.0, (4, 6, 9), (1, 2, 1))).restore(structure)
    other = PrunedSequence(SHAPE, CLASSES, MAKE["mobilenet"](BatchNorm())).eval()
    other.restore(json.loads(json.dumps(structure)))
    other.load_state_dict(net.state_dict())
    assert (other.models, other.cuts, other.structure()) == (net.models, net.cuts, structure)
    assert other.fingerprint == net.fingerprint
    assert list(other.space.each()) == list(net.space.each()) == [Model(2), Model(1), Model(0)]
    candidates = [Model(3, "conv0"), Model(3, "conv2")]
    for arch in [Model(0), Model(1), Model(2), *candidates]:
        assert net.sizes(arch) == other.sizes(arch)
        assert net.cost(arch) == other.cost(arch)
        assert torch.equal(net.eval()(images().float(), arch), other(images().float(), arch))
    assert other.cost(Model(1, "conv2")) == net.cost(Model(1, "conv2")), "a removed candidate"
    for models in (net, other):
        models.select("conv2")
        models.propose([one_cut(models, "conv1", 2)])
    assert other.structure() == net.structure()
    assert other.digest() == net.digest()


# --- errors


test_invalid_settings_are_refused = refusals(
    (lambda: Model.read("candidate: 1"), "cannot be read; write it as 'model: 0'"),
    (lambda: sequence("mobilenet").space.parse("model: 1"), "choose from model: 0"),
)


def test_a_candidate_that_is_gone_has_no_weights() -> None:
    net = sequence("mobilenet")
    (arch,) = net.propose([one_cut(net, "conv1", 2)])
    net.select("conv1")
    for gone in (arch, UnitCounts.of(net.sizes(arch))):
        with pytest.raises(ConfigError, match="has no weights; name a model or a present candidate"):
            net.index(gone)
