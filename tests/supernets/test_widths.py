"""Width-sliced supernets, compared with zeroed networks, numpy's ``ix_`` and layer-by-layer references."""

import copy
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from math import ceil
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import (
    BatchNorm,
    GroupNorm,
    GrowableViT,
    NetworkFamily,
    SlicedCNN,
    SlicedConvNet,
    SlicedLSTM,
    SlicedMobileNet,
    SlicedResNet,
    UnitMask,
    Width,
    WidthSupernet,
)
from lit_fednas.supernets.families import tensors_of as tensors
from lit_fednas.supernets.widths import WidthSpace
from lit_fednas.testing.networks import batch
from tests.support import refusals

UNITS = {
    "cnn": {"layer0": 6, "layer1": 10},
    "convnet": {"conv1": 4, "conv2": 6, "conv3": 5},
    "mobilenet": {"conv0": 4, "conv1": 6, "conv2": 7},
    "resnet": {"stage0": 4, "stage0.block0": 4, "stage1": 6, "stage1.block0": 6},
    "transformer": {"patches.out": 12, "layer1.heads": 3, "layer1.units": 24},
}

FAMILIES: dict[str, NetworkFamily] = {
    "cnn": SlicedCNN((6, 10), BatchNorm()),
    "convnet": SlicedConvNet((4, 6, 5), pools=(1, 3)),
    "mobilenet": SlicedMobileNet(0.5, (8, 12, 14), (1, 2, 1)),
    "resnet": SlicedResNet((4, 6), (1, 1), BatchNorm()),
    "transformer": GrowableViT(dim=12, heads=3, depth=1),
}

KEPT = {
    "cnn": UnitMask(((0, 2, 5), (1, 2, 3, 9))),
    "convnet": UnitMask(((1, 3), (0, 3, 4), (0, 4))),
    "mobilenet": UnitMask(((0, 3), (1, 2, 5), (3, 6))),
    "resnet": UnitMask(((0, 3), (1, 2), (2, 5), (0, 1, 2, 3, 4, 5))),
    "transformer": UnitMask(((0, 1, 7, 11), (0, 2), (3, 5, 8, 12, 20, 23))),
}


def randomised(family: NetworkFamily, scaler: bool = False) -> WidthSupernet:
    """A supernet with distinct parameters and buffers, none of them 0 or 1."""
    net, draws = WidthSupernet((3, 8, 8), 5, family, [1, 0.5, 0.25], scaler), generator(0, "weights")
    with torch.no_grad():
        for tensor in net.shared_tensors().values():
            if tensor.is_floating_point():
                tensor.copy_(torch.rand(tensor.shape, generator=draws).mul_(0.3).add_(0.1 - 0.25 * (tensor.ndim > 1)))
    return net


def supernet(name: str, scaler: bool = False) -> WidthSupernet:
    return randomised(FAMILIES[name], scaler and name != "transformer")  # this family has no scalers


def archs(name: str) -> list[Width | UnitMask]:
    """The first units, windows inside, over and beyond the end, and selected units."""
    return [Width(0.5), Width(0.25, 1), Width(0.5, 5), Width(0.5, 107), Width(1.0, 3), KEPT[name]]


def units_of(name: str, arch: Width | UnitMask) -> dict[str, list[int]]:
    """The positions of kept units; whole groups are not shifted."""
    if isinstance(arch, UnitMask):
        return dict(zip(UNITS[name], map(list, arch.units), strict=True))
    windows = {group: (full, ceil(arch.ratio * full)) for group, full in UNITS[name].items()}
    return {
        group: [(arch.shift + i) % full for i in range(size)] if size < full else list(range(full))
        for group, (full, size) in windows.items()
    }


def entries(
    net: WidthSupernet, tensor: str, shape: Sequence[int], kept_units: Mapping[str, list[int]]
) -> list[list[int]]:
    """A subnet's entries in each dimension of a tensor."""
    return [
        list(range(full)) if group is None else [unit * repeat + i for unit in kept_units[group] for i in range(repeat)]
        for full, (group, repeat) in zip(shape, net.axes[tensor], strict=True)
    ]


@pytest.fixture(params=sorted(FAMILIES))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_subnets_hold_the_entries_of_the_kept_units(name: str) -> None:
    net = supernet(name)
    assert net.units == UNITS[name]
    whole = tensors(net.network)
    for arch in archs(name):
        positions = units_of(name, arch)
        assert {group: list(units) for group, units in net.kept_units(arch).items()} == positions
        subnet = tensors(net.subnet(arch))
        for tensor, value in whole.items():
            expected = value.detach().numpy()
            if value.ndim:
                expected = expected[np.ix_(*entries(net, tensor, value.shape, positions))]
            np.testing.assert_array_equal(subnet[tensor].detach().numpy(), expected, err_msg=f"{tensor} {arch}")


@torch.no_grad()
def test_a_subnet_is_the_whole_network_without_the_other_units_outgoing_weights(name: str) -> None:
    net, tested = supernet(name).eval(), archs(name)
    if name == "transformer":  # layer norm sees all entries of the embedding
        tested = [UnitMask((tuple(range(12)), (2,), (3, 4, 9))), UnitMask((tuple(range(12)), (0, 1, 2), (23,)))]
    for arch in tested:
        positions, zeroed = units_of(name, arch), copy.deepcopy(net.network)
        for tensor, parameter in zeroed.named_parameters():
            if parameter.ndim > 1 and tensor != "cells.patches.positions":
                inputs = entries(net, tensor, parameter.shape, positions)[1]
                parameter[:, [unit for unit in range(parameter.shape[1]) if unit not in inputs]] = 0
        torch.testing.assert_close(net.subnet(arch)(batch(net)), zeroed(batch(net)), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(net(batch(net), arch), net.subnet(arch)(batch(net)))  # no space draws these


# --- a narrower net inside a client's network


def test_running_a_narrower_net_inside_a_client(name: str) -> None:
    """It equals a separate module with a copy of the first entries of the client's tensors."""
    net = supernet(name, scaler=True).train()
    for arch, ratio in ((Width(1.0), 0.1), (Width(0.5, 5), 0.25), (KEPT[name], 0.25)):
        client, narrow = net.subnet(arch), net.empty_subnet(Width(ratio)).train()
        weights = {tensor: value.detach().clone() for tensor, value in tensors(client).items()}
        corners = {tensor: tuple(slice(0, size) for size in value.shape) for tensor, value in tensors(narrow).items()}
        with torch.no_grad():
            for tensor, value in tensors(narrow).items():
                value.copy_(weights[tensor][corners[tensor]])
        with isolated(0, "dropout"):
            expected = narrow(batch(net))
        with isolated(0, "dropout"):
            output = net.run_inside(client, Width(ratio), batch(net))
        torch.testing.assert_close(output, expected)
        expected.square().sum().backward()
        output.square().sum().backward()
        for tensor, parameter in client.named_parameters():
            assert torch.equal(parameter, weights[tensor])
            gradient = torch.zeros_like(parameter)
            gradient[corners[tensor]] = narrow.get_parameter(tensor).grad
            torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)
        for tensor, buffer in client.named_buffers():
            weights[tensor][corners[tensor]] = narrow.get_buffer(tensor)
            torch.testing.assert_close(buffer, weights[tensor])


# --- references, layer by layer


def layer(w: Mapping[str, Tensor], name: str, x: Tensor, scale: float, padding: int = 1) -> Tensor:
    return functional.relu(functional.conv2d(x, w[f"{name}.weight"], w[f"{name}.bias"], padding=padding) / scale)


def classified(w: Mapping[str, Tensor], x: Tensor) -> Tensor:
    return functional.linear(x, w["classifier.weight"], w["classifier.bias"])


def cnn_reference(w: Mapping[str, Tensor], x: Tensor, scale: float) -> Tensor:
    x = functional.max_pool2d(layer(w, "layer0.conv", x, scale), 2)
    return classified(w, layer(w, "layer1.conv", x, scale).mean((2, 3)))


def convnet_reference(w: Mapping[str, Tensor], x: Tensor, scale: float) -> Tensor:
    x = functional.max_pool2d(layer(w, "conv1.conv", x, scale), 2)
    x = layer(w, "conv3.conv", layer(w, "conv2.conv", x, scale), scale)
    return classified(w, functional.max_pool2d(x, 2).flatten(1))


def mobilenet_reference(w: Mapping[str, Tensor], x: Tensor, scale: float) -> Tensor:
    """Depthwise convolutions run channel by channel and have no scaler."""

    def separable(name: str, x: Tensor, stride: int) -> Tensor:
        kernels, bias = w[f"{name}.depthwise.conv.weight"], w[f"{name}.depthwise.conv.bias"]
        channels = [
            functional.conv2d(x[:, i : i + 1], kernels[i : i + 1], bias[i : i + 1], stride, padding=1)
            for i in range(x.shape[1])
        ]
        return layer(w, f"{name}.pointwise.conv", functional.relu(torch.cat(channels, 1)), scale, padding=0)

    x = separable("conv1", layer(w, "conv0.conv", x, scale), 2)
    return classified(w, separable("conv2", x, 1).mean((2, 3)))


def resnet_reference(w: Mapping[str, Tensor], x: Tensor, scale: float) -> Tensor:
    x = functional.conv2d(x, w["stem.weight"], padding=1)
    y = functional.conv2d(functional.relu(x / scale), w["stage0.block0.block.conv1.weight"], padding=1)
    x = x + functional.conv2d(functional.relu(y / scale), w["stage0.block0.block.conv2.weight"], padding=1)
    active = functional.relu(x / scale)
    y = functional.conv2d(active, w["stage1.block0.sum.block.conv1.weight"], padding=1, stride=2)
    y = functional.conv2d(functional.relu(y / scale), w["stage1.block0.sum.block.conv2.weight"], padding=1)
    x = y + functional.conv2d(active, w["stage1.block0.sum.shortcut.weight"], stride=2)
    return classified(w, functional.relu(x / scale).mean((2, 3)))


def transformer_reference(w: Mapping[str, Tensor], x: Tensor, scale: float) -> Tensor:
    """It runs patch by patch and head by head, with an explicit softmax and without scalers."""

    def through(layer: str, y: Tensor) -> Tensor:
        return y @ w[f"{layer}.weight"].T + w[f"{layer}.bias"]

    def normed(layer: str, y: Tensor) -> Tensor:
        y = (y - y.mean(-1, keepdim=True)) / (y.var(-1, correction=0, keepdim=True) + 1e-5).sqrt()
        return y * w[f"{layer}.weight"] + w[f"{layer}.bias"]

    patches = [x[:, :, i : i + 4, j : j + 4].flatten(1) for i in (0, 4) for j in (0, 4)]
    kernel = w["cells.patches.patches.weight"].flatten(1)
    y = torch.stack(patches, 1) @ kernel.T + w["cells.patches.patches.bias"] + w["cells.patches.positions"]
    z = normed("cells.layer1.0.block.norm", y)
    attention = "cells.layer1.0.block.attention"
    query, key, value = (through(f"{attention}.{part}", z) for part in ("query", "key", "value"))
    mixed = torch.zeros_like(query)
    for first in range(0, query.shape[2], 4):
        head = slice(first, first + 4)
        weights = (query[..., head] @ key[..., head].transpose(1, 2) / 4**0.5).softmax(2)
        mixed[..., head] = weights @ value[..., head]
    y = y + through("cells.layer1.0.block.attention.output", mixed)
    z = through("cells.layer1.1.block.hidden", normed("cells.layer1.1.block.norm", y))
    y = y + through("cells.layer1.1.block.output", functional.gelu(z))
    return functional.linear(
        normed("cells.head.norm", y).mean(1), w["cells.head.classifier.weight"], w["cells.head.classifier.bias"]
    )


REFERENCES = {
    "cnn": (SlicedCNN((6, 10), None), cnn_reference),
    "convnet": (FAMILIES["convnet"], convnet_reference),
    "mobilenet": (SlicedMobileNet(0.5, (8, 12, 14), (1, 2, 1), None), mobilenet_reference),
    "resnet": (SlicedResNet((4, 6), (1, 1), None), resnet_reference),
    "transformer": (FAMILIES["transformer"], transformer_reference),
}


@torch.no_grad()
@pytest.mark.parametrize("scaler", [False, True])
@pytest.mark.parametrize("name", REFERENCES)
def test_networks_are_the_references_scaled_in_training_alone(name: str, scaler: bool) -> None:
    family, reference = REFERENCES[name]
    scaler = scaler and name != "transformer"  # this family has no scalers
    net = randomised(family, scaler)
    shares = [len(positions) / full for positions, full in zip(KEPT[name].units, UNITS[name].values(), strict=True)]
    for arch, width in [(Width(1.0), 1), (Width(0.5), 0.5), (Width(0.25, 3), 0.25), (KEPT[name], np.mean(shares))]:
        subnet = net.subnet(arch)
        w = tensors(subnet)
        expected = reference(w, batch(net), 1.0)
        torch.testing.assert_close(subnet.eval()(batch(net)), expected)
        for module in subnet.modules():
            module.training = not isinstance(module, nn.Dropout)
        scaled = reference(w, batch(net), width if scaler else 1.0)
        torch.testing.assert_close(subnet(batch(net)), scaled)
        assert torch.allclose(scaled, expected) == (width == 1 or not scaler)


def test_the_norm_follows_the_scaler() -> None:
    """Batch statistics undo the scaler, except for their epsilon, which is large here."""
    net = randomised(SlicedCNN((4,), BatchNorm(affine=False)), scaler=True)
    subnet = net.subnet(Width(0.5)).train()
    subnet.get_submodule("layer0.norm").eps = 0.3
    w = tensors(subnet)
    y = functional.conv2d(batch(net), w["layer0.conv.weight"], w["layer0.conv.bias"], padding=1) / 0.5
    y = (y - y.mean((0, 2, 3), keepdim=True)) / (y.var((0, 2, 3), correction=0, keepdim=True) + 0.3).sqrt()
    torch.testing.assert_close(subnet.get_submodule("layer0")(batch(net)), functional.relu(y))


# --- counts


def test_parameters_counted_by_hand() -> None:
    net = WidthSupernet()  # HeteroFL's network for CIFAR
    assert net.default_eval_archs[::2] == ("width: 0.0625", "width: 0.25", "width: 1")
    for ratio in (1, 0.5, 0.25, 0.125, 0.0625):
        a, b, c, d = (int(full * ratio) for full in (64, 128, 256, 512))
        convolutions = (3 * 9 + 1) * a + (a * 9 + 1) * b + (b * 9 + 1) * c + (c * 9 + 1) * d
        cost = net.cost(Width(ratio))
        assert cost.parameters == convolutions + 2 * (a + b + c + d) + (d + 1) * 10
        assert cost.macs == (32 * 32 * 27 * a + 16 * 16 * 9 * a * b + 8 * 8 * 9 * b * c + 4 * 4 * 9 * c * d + d * 10)
        assert cost == net.cost(Width(ratio, 5))


def test_the_lstm_has_the_published_sizes_and_costs() -> None:
    """FedorAS, Table 5: FjORD on Shakespeare, in millions, with 80 characters (90 give 0.215 for the whole)."""
    net = WidthSupernet((80,), 80, SlicedLSTM(), [0.2, 0.4, 0.6, 0.8, 1])
    archs = [Width(ratio) for ratio in net.space.widths]
    assert [round(net.cost(arch).parameters / 1e6, 2) for arch in archs] == [0.01, 0.04, 0.08, 0.14, 0.21]
    assert [round(net.operations(arch) / 1e6) for arch in archs] == [1, 3, 7, 11, 17]


@torch.no_grad()
def test_a_subnet_of_lstms_is_that_of_the_kept_units() -> None:
    """Compares it with torch's LSTM, which has all input gates first, then all forget gates, and so on."""
    net, arch = WidthSupernet((5,), 7, SlicedLSTM((6, 4), embedding=3), [1, 0.5]), Width(0.5, 4)
    x = torch.randint(7, (2, 5), generator=generator(0, "tokens"))
    units_of_layers = [list(range(3)), *net.kept_units(arch).values()]
    assert units_of_layers[1:] == [[4, 5, 0], [0, 1]]
    y = net.network.embedding(x)
    for number, (inputs, units) in enumerate(pairwise(units_of_layers)):
        layer = getattr(net.network, f"layer{number}")
        reference = nn.LSTM(len(inputs), len(units), batch_first=True)
        for name, columns in {"weight_ih": inputs, "weight_hh": units, "bias_ih": None, "bias_hh": None}.items():
            rows = [getattr(layer, f"{name}_l0")[unit, gate] for gate in range(4) for unit in units]
            value = torch.stack(rows) if columns is None else torch.stack(rows)[:, columns]
            getattr(reference, f"{name}_l0").copy_(value)
        y, _ = reference(y)
    head = net.network.classifier
    expected = functional.linear(y, head.weight[:, units_of_layers[-1]], head.bias)
    torch.testing.assert_close(net.subnet(arch)(x), expected)


@pytest.mark.parametrize(
    ("family", "ratio", "sizes"),
    [
        (SlicedCNN((100, 10), None), 0.07, (7, 1)),  # 0.07 * 100 is above 7 in floats
        (SlicedCNN((100, 10), None), 1e-12, (1, 1)),
        (SlicedCNN((8, 20), GroupNorm(4)), 0.6, (8, 12)),
    ],
)
def test_sizes_are_rounded_up_to_whole_groups_of_a_norm(family: NetworkFamily, ratio: float, sizes: tuple) -> None:
    assert tuple(WidthSupernet((3, 8, 8), 5, family, [1, 0.5]).sizes(ratio).values()) == sizes


# --- the space

SPACE = WidthSpace([1, 0.5, 1 / 3, 0.0625], {"a": 6, "b": 8})
IN_FOURS = WidthSpace([1], {"a": 6}, multiple=4)


@pytest.mark.parametrize(
    ("text", "arch"),
    [
        ("width: 0.5, shift: 3", Width(0.5, 3)),
        ({"width": 0.5, "shift": 3}, Width(0.5, 3)),
        (0.5, Width(0.5)),
        (0.3333333, Width(1 / 3)),
        ("kept: 0-3,5/0,2-7", UnitMask(((0, 1, 2, 3, 5), (0, 2, 3, 4, 5, 6, 7)))),
    ],
)
def test_reading_architectures(text: object, arch: Width | UnitMask) -> None:
    assert SPACE.parse(text) == SPACE.parse(str(arch)) == SPACE.parse(arch) == arch


def test_kept_units_keep_whole_groups_of_a_norm() -> None:
    assert IN_FOURS.parse("kept: 0-2,5") == UnitMask(((0, 1, 2, 5),))
    assert IN_FOURS.parse("kept: 0-5") == UnitMask(((0, 1, 2, 3, 4, 5),))


def supernet_of(**settings: Any) -> Callable[[], WidthSupernet]:
    return lambda: WidthSupernet(**{"input_shape": (3, 8, 8), "num_classes": 5, **settings})


def run_wider() -> None:
    net = supernet("cnn")
    net.run_inside(net.subnet(Width(0.5)), Width(1.0), batch(net))


test_invalid_settings_are_refused = refusals(
    (lambda: SPACE.parse("width: 0.4"), "width: 0.4: is not in supernet.widths.*0.0625, 0.33.*, 0.5, 1"),
    (lambda: SPACE.parse({"width": 0.5, "turn": 3}), "cannot be read"),
    (lambda: SPACE.parse("kept: 1/2/3"), "kept has 3 groups; give 2: a, b"),
    (lambda: SPACE.parse("kept: 0,0/1"), "0,0 of a must be ascending positions from 0 to 5; their number"),
    (lambda: SPACE.parse("kept: 0-9999999999/1"), "0-8 of a must be ascending positions from 0 to 5"),
    (lambda: SPACE.parse("kept: 0/9,99-9999999999"), "9,99-107 of b must be ascending positions from 0 to 7"),
    (lambda: IN_FOURS.parse("kept: 0-2"), "kept units 0-2 of a must be .* a positive multiple of 4"),
    (supernet_of(widths=[0.5, 0.25]), "supernet.widths: .* must be distinct and contain 1"),
    (supernet_of(widths=[1, 0.0015, 0.001]), "0.001 and 0.0015 are the same network"),
    (supernet_of(input_shape=(3, 4, 8)), "4x8 is too small for SlicedCNN; use at least 8"),
    (supernet_of(family=SlicedCNN((8, 12), GroupNorm(8))), "norm.group_size: 8 does not divide"),
    (run_wider, "architecture width: 1: needs .* run an architecture that the network contains"),
)
