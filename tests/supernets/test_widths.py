"""Width-sliced supernets against tables written by hand, numpy's ``ix_`` and layer-by-layer references."""

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from jsonargparse import ArgumentParser
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from lit_fednas.errors import ConfigError
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import (
    BatchNorm,
    GroupNorm,
    GrowableViT,
    NetworkFamily,
    SlicedCNN,
    SlicedConvNet,
    SlicedMobileNet,
    SlicedResNet,
    SlicedSmallCNN,
    Supernet,
    UnitMask,
    Width,
    WidthSupernet,
)
from lit_fednas.supernets.layers import Scaler
from lit_fednas.supernets.width.space import WidthSpace
from lit_fednas.testing.networks import batch

CUT = tuple[str | None, int]
NONE: CUT = (None, 1)


def conv(out: str, into: str | None) -> tuple[CUT, ...]:
    return ((out, 1), (into, 1), NONE, NONE)


def batch_norm(name: str, group: str) -> dict[str, tuple[CUT, ...]]:
    parts = ("weight", "bias", "running_mean", "running_var")
    return {**{f"{name}.{part}": ((group, 1),) for part in parts}, f"{name}.num_batches_tracked": ()}


def layer_norm(name: str) -> dict[str, tuple[CUT, ...]]:
    return {f"{name}.weight": (EMBEDDING,), f"{name}.bias": (EMBEDDING,)}


def linear(name: str, out: CUT, into: CUT) -> dict[str, tuple[CUT, ...]]:
    return {f"{name}.weight": (out, into), f"{name}.bias": (out,)}


HEADS, HIDDEN, EMBEDDING = ("layer1.heads", 4), ("layer1.units", 1), ("patches.out", 1)

#: What each dimension of each tensor is cut by, written by hand.
AXES: dict[str, dict[str, tuple[CUT, ...]]] = {
    "cnn": {
        "layer0.conv.weight": conv("layer0", None),
        "layer0.conv.bias": (("layer0", 1),),
        **batch_norm("layer0.norm", "layer0"),
        "layer1.conv.weight": conv("layer1", "layer0"),
        "layer1.conv.bias": (("layer1", 1),),
        **batch_norm("layer1.norm", "layer1"),
        **linear("classifier", NONE, ("layer1", 1)),
    },
    "convnet": {
        "conv1.conv.weight": conv("conv1", None),
        "conv1.conv.bias": (("conv1", 1),),
        "conv2.conv.weight": conv("conv2", "conv1"),
        "conv2.conv.bias": (("conv2", 1),),
        "conv3.conv.weight": conv("conv3", "conv2"),
        "conv3.conv.bias": (("conv3", 1),),
        **linear("classifier", NONE, ("conv3", 4)),  # 8x8 pixels are pooled behind the first and the third
    },
    "mobilenet": {
        "conv0.conv.weight": conv("conv0", None),
        **batch_norm("conv0.norm", "conv0"),
        "conv1.depthwise.conv.weight": conv("conv0", None),
        **batch_norm("conv1.depthwise.norm", "conv0"),
        "conv1.pointwise.conv.weight": conv("conv1", "conv0"),
        **batch_norm("conv1.pointwise.norm", "conv1"),
        "conv2.depthwise.conv.weight": conv("conv1", None),
        **batch_norm("conv2.depthwise.norm", "conv1"),
        "conv2.pointwise.conv.weight": conv("conv2", "conv1"),
        **batch_norm("conv2.pointwise.norm", "conv2"),
        **linear("classifier", NONE, ("conv2", 1)),
    },
    "smallcnn": {
        "conv1.0.weight": conv("conv1", None),
        "conv1.0.bias": (("conv1", 1),),
        "conv2.0.weight": conv("conv2", "conv1"),
        "conv2.0.bias": (("conv2", 1),),
        **linear("hidden.0", ("hidden", 1), ("conv2", 4)),  # 8x8 pixels become 6x6, 4x4 and then 2x2
        **linear("classifier", NONE, ("hidden", 1)),
    },
    "resnet": {
        "stem.weight": conv("stage0", None),
        **batch_norm("stage0.block0.block.norm1", "stage0"),
        "stage0.block0.block.conv1.weight": conv("stage0.block0", "stage0"),
        **batch_norm("stage0.block0.block.norm2", "stage0.block0"),
        "stage0.block0.block.conv2.weight": conv("stage0", "stage0.block0"),
        **batch_norm("stage1.block0.norm1", "stage0"),
        "stage1.block0.sum.block.conv1.weight": conv("stage1.block0", "stage0"),
        **batch_norm("stage1.block0.sum.block.norm2", "stage1.block0"),
        "stage1.block0.sum.block.conv2.weight": conv("stage1", "stage1.block0"),
        "stage1.block0.sum.shortcut.weight": conv("stage1", "stage0"),
        **batch_norm("norm", "stage1"),
        **linear("classifier", NONE, ("stage1", 1)),
    },
    "transformer": {
        "cells.patches.patches.weight": conv("patches.out", None),
        "cells.patches.patches.bias": (EMBEDDING,),
        "cells.patches.positions": (NONE, NONE, EMBEDDING),
        **layer_norm("cells.layer1.0.block.norm"),
        **linear("cells.layer1.0.block.attention.query", HEADS, EMBEDDING),
        **linear("cells.layer1.0.block.attention.key", HEADS, EMBEDDING),
        **linear("cells.layer1.0.block.attention.value", HEADS, EMBEDDING),
        **linear("cells.layer1.0.block.attention.output", EMBEDDING, HEADS),
        **layer_norm("cells.layer1.1.block.norm"),
        **linear("cells.layer1.1.block.hidden", HIDDEN, EMBEDDING),
        **linear("cells.layer1.1.block.output", EMBEDDING, HIDDEN),
        **layer_norm("cells.head.norm"),
        **linear("cells.head.classifier", NONE, EMBEDDING),
    },
}

UNITS = {
    "cnn": {"layer0": 6, "layer1": 10},
    "convnet": {"conv1": 4, "conv2": 6, "conv3": 5},
    "mobilenet": {"conv0": 4, "conv1": 6, "conv2": 7},
    "smallcnn": {"conv1": 4, "conv2": 6, "hidden": 10},
    "resnet": {"stage0": 4, "stage0.block0": 4, "stage1": 6, "stage1.block0": 6},
    "transformer": {"patches.out": 12, "layer1.heads": 3, "layer1.units": 24},
}

FAMILIES: dict[str, NetworkFamily] = {
    "cnn": SlicedCNN((6, 10), BatchNorm()),
    "convnet": SlicedConvNet((4, 6, 5), pools=(1, 3)),
    "mobilenet": SlicedMobileNet(0.5, (8, 12, 14), (1, 2, 1)),
    "smallcnn": SlicedSmallCNN((4, 6), 10),
    "resnet": SlicedResNet((4, 6), (1, 1), BatchNorm()),
    "transformer": GrowableViT(dim=12, heads=3, depth=1),
}

KEPT = {
    "cnn": UnitMask(((0, 2, 5), (1, 2, 3, 9))),
    "convnet": UnitMask(((1, 3), (0, 3, 4), (0, 4))),
    "mobilenet": UnitMask(((0, 3), (1, 2, 5), (3, 6))),
    "smallcnn": UnitMask(((1,), (0, 3, 4), (2, 3, 4))),
    "resnet": UnitMask(((0, 3), (1, 2), (2, 5), (0, 1, 2, 3, 4, 5))),
    "transformer": UnitMask(((0, 1, 7, 11), (0, 2), (3, 5, 8, 12, 20, 23))),
}


def supernet(name: str, widths: Sequence[float] = (1, 0.5, 0.25), scaler: bool = False) -> WidthSupernet:
    """A supernet whose parameters and buffers all differ, and are no zeros and ones."""
    return randomised(WidthSupernet((3, 8, 8), 5, FAMILIES[name], widths, scaler and name != "transformer"))


def randomised(net: WidthSupernet) -> WidthSupernet:
    draws = generator(0, "weights")
    with torch.no_grad():
        for tensor in net.shared_tensors().values():
            if tensor.is_floating_point():
                tensor.copy_(0.1 + 0.3 * torch.rand(tensor.shape, generator=draws))
                if tensor.ndim > 1:
                    tensor.sub_(0.25)
    return net


def archs(name: str) -> list[Width | UnitMask]:
    """The first units; a window within; one that goes round the end; one that begins beyond it; picked units."""
    return [Width(0.5), Width(0.25, 1), Width(0.5, 5), Width(0.5, 107), Width(1.0, 3), KEPT[name]]


def units_of(name: str, arch: Width | UnitMask) -> dict[str, list[int]]:
    """The kept places, counted up one by one."""
    if isinstance(arch, UnitMask):
        return dict(zip(UNITS[name], map(list, arch.units), strict=True))
    found: dict[str, list[int]] = {}
    for group, full in UNITS[name].items():
        size, place = 0, arch.shift
        while size < arch.ratio * full:
            size += 1
        found[group] = []
        for _ in range(size):
            while place >= full:
                place -= full
            found[group].append(place)
            place += 1
        if size == full:
            found[group].sort()
    return found


def entries(name: str, tensor: str, shape: Sequence[int], kept: Mapping[str, list[int]]) -> list[list[int]]:
    """For each dimension of a tensor the entries that a subnet has."""
    return [
        list(range(full)) if group is None else [unit * repeat + i for unit in kept[group] for i in range(repeat)]
        for full, (group, repeat) in zip(shape, AXES[name][tensor], strict=True)
    ]


def tensors(network: nn.Module) -> dict[str, Tensor]:
    return {**dict(network.named_parameters()), **dict(network.named_buffers())}


@pytest.fixture(params=sorted(FAMILIES))
def name(request: pytest.FixtureRequest) -> str:
    return request.param


def test_groups_and_axes_are_those_written_by_hand(name: str) -> None:
    net = supernet(name)
    assert net.units == UNITS[name]
    assert net.axes == AXES[name]
    assert set(net.axes) == set(tensors(net.network))


def test_subnets_hold_the_entries_of_the_kept_units(name: str) -> None:
    net = supernet(name)
    whole = tensors(net.network)
    for arch in archs(name):
        kept = units_of(name, arch)
        assert {group: positions.tolist() for group, positions in net.kept(arch).items()} == kept
        subnet = tensors(net.subnet(arch))
        for tensor, value in whole.items():
            expected = value.detach().numpy()
            if value.ndim:
                expected = expected[np.ix_(*entries(name, tensor, value.shape, kept))]
            np.testing.assert_array_equal(subnet[tensor].detach().numpy(), expected, err_msg=f"{tensor} {arch}")


def test_first_units_and_windows_within_are_views(name: str) -> None:
    net = supernet(name)
    for arch in (Width(1.0, 2), Width(0.5), Width(0.25, 1)):
        assert all(region.is_view for region in net.index(arch).values()), arch
    assert all(region.index is None for region in net.index(Width(1.0, 2)).values())
    assert not all(region.is_view for region in net.index(Width(0.5, 5)).values())


@torch.no_grad()
def test_shared_weights_take_up_a_round_trip_of_any_subnet(name: str) -> None:
    """What is added at a subnet's places comes out there, and nothing changes elsewhere."""
    net = supernet(name)
    for arch in archs(name):
        before = {key: tensor.clone() for key, tensor in net.shared_tensors().items()}
        kept = units_of(name, arch)
        for tensor, region in net.regions(arch).items():
            shared = net.shared_tensors()[region.name]
            if not shared.is_floating_point():
                continue
            value = torch.arange(region.of(shared).numel(), dtype=torch.float64).view(region.of(shared).shape)
            region.add_to(shared, value.to(shared.dtype))
            expected = before[region.name].numpy().copy()
            if shared.ndim:
                expected[np.ix_(*entries(name, tensor, shared.shape, kept))] += value.numpy().astype(expected.dtype)
            else:
                expected += value.numpy().astype(expected.dtype)
            np.testing.assert_array_equal(shared.numpy(), expected, err_msg=f"{tensor} {arch}")
        for key, tensor in net.shared_tensors().items():
            tensor.copy_(before[key])


@pytest.mark.parametrize("training", [False, True])
def test_running_in_place_equals_the_subnet_and_so_do_its_gradients(name: str, training: bool) -> None:
    for arch in archs(name):
        net = supernet(name, scaler=True).train(training)
        subnet, x = net.subnet(arch), batch(net)
        with isolated(0, "dropout"):
            alone = subnet(x)
        with isolated(0, "dropout"):
            inside = net(x, arch)
        torch.testing.assert_close(inside, alone)
        alone.square().sum().backward()
        inside.square().sum().backward()
        kept = units_of(name, arch)
        for tensor, parameter in net.network.named_parameters():
            expected = np.zeros(parameter.shape, dtype=np.float32)
            expected[np.ix_(*entries(name, tensor, parameter.shape, kept))] = subnet.get_parameter(tensor).grad
            np.testing.assert_allclose(parameter.grad, expected, rtol=1e-3, atol=1e-4, err_msg=f"{tensor} {arch}")


@torch.no_grad()
def test_the_whole_width_is_the_whole_network(name: str) -> None:
    net = supernet(name, scaler=True)
    for training in (True, False):
        net.train(training)
        for arch in (
            Width(1.0),
            Width(1.0, 5),
            UnitMask(tuple(tuple(range(full)) for full in net.units.values())),
        ):
            with isolated(0, "dropout"):
                expected = copy.deepcopy(net.network)(batch(net))
            with isolated(0, "dropout"):
                assert torch.equal(net.subnet(arch)(batch(net)), expected)


@torch.no_grad()
@pytest.mark.parametrize("norm", [None, BatchNorm()])
def test_a_subnet_is_the_whole_network_without_the_other_units_outgoing_weights(
    name: str, norm: BatchNorm | None
) -> None:
    family = {
        "cnn": SlicedCNN((6, 10), norm),
        "convnet": SlicedConvNet((4, 6, 5), (1, 3), norm),
        "mobilenet": SlicedMobileNet(0.5, (8, 12, 14), (1, 2, 1), norm),
        "resnet": SlicedResNet((4, 6), (1, 1), norm),
        "smallcnn": FAMILIES["smallcnn"],
        "transformer": FAMILIES["transformer"],
    }[name]
    net = randomised(WidthSupernet((3, 8, 8), 5, family, [1, 0.5, 0.25])).eval()
    chosen = archs(name)
    if name == "transformer":  # layer norm sees all entries of the embedding
        chosen = [UnitMask((tuple(range(12)), (2,), (3, 4, 9))), UnitMask((tuple(range(12)), (0, 1, 2), (23,)))]
    for arch in chosen:
        kept = units_of(name, arch)
        zeroed = copy.deepcopy(net.network)
        for tensor, parameter in zeroed.named_parameters():
            if parameter.ndim > 1 and tensor != "cells.patches.positions":
                inputs = entries(name, tensor, parameter.shape, kept)[1]
                for unit in set(range(parameter.shape[1])) - set(inputs):
                    parameter[:, unit] = 0
        torch.testing.assert_close(net.subnet(arch)(batch(net)), zeroed(batch(net)), rtol=1e-4, atol=1e-5)


# --- a narrower net inside a client's network


def corner_net(net: WidthSupernet, client: nn.Module, ratio: float) -> nn.Module:
    """The narrower net as a module of its own, with a copy of the first entries of the client's tensors."""
    narrow = net.empty_subnet(Width(ratio)).train(client.training)
    own = tensors(client)
    with torch.no_grad():
        for tensor, value in tensors(narrow).items():
            value.copy_(own[tensor][tuple(slice(0, size) for size in value.shape)])
    return narrow


@pytest.mark.parametrize("training", [False, True])
def test_running_a_narrower_net_inside_a_client(name: str, training: bool) -> None:
    net = supernet(name, scaler=True).train(training)
    for arch in (Width(1.0), Width(0.5), Width(0.5, 5), KEPT[name]):
        for ratio in (0.25, 0.1):
            client = net.subnet(arch)
            narrow = corner_net(net, client, ratio)
            before = {tensor: value.clone() for tensor, value in tensors(client).items()}
            with isolated(0, "dropout"):
                expected = narrow(batch(net))
            with isolated(0, "dropout"):
                got = net.run_inside(client, ratio, batch(net))
            torch.testing.assert_close(got, expected)
            expected.square().sum().backward()
            got.square().sum().backward()
            for tensor, parameter in client.named_parameters():
                gradient = torch.zeros_like(parameter)
                of_narrow = narrow.get_parameter(tensor).grad
                gradient[tuple(slice(0, size) for size in of_narrow.shape)] = of_narrow
                torch.testing.assert_close(parameter.grad, gradient, rtol=1e-3, atol=1e-5)
            for tensor, buffer in client.named_buffers():
                moved = before[tensor]
                of_narrow = narrow.get_buffer(tensor)
                moved[tuple(slice(0, size) for size in of_narrow.shape)] = of_narrow
                torch.testing.assert_close(buffer, moved)


def test_running_the_clients_own_width_inside_is_running_it(name: str) -> None:
    net = supernet(name, scaler=True).eval()
    for arch in (Width(1.0), Width(0.5), Width(0.5, 5)):
        client = net.subnet(arch)
        torch.testing.assert_close(net.run_inside(client, arch.ratio, batch(net)), client(batch(net)))


def test_a_width_inside_is_that_of_the_supernet(name: str) -> None:
    """Of an unshifted client, the narrower net is the server's subnet of that ratio."""
    net = supernet(name, scaler=True).train()
    net.eval()
    client = net.subnet(Width(0.5))
    torch.testing.assert_close(net.run_inside(client, 0.25, batch(net)), net(batch(net), Width(0.25)))


def test_narrower_nets_run_inside_stacked_clients() -> None:
    """With weights that are mapped over clients by ``torch.func``, as clients that are trained together have."""
    net = randomised(WidthSupernet((3, 8, 8), 5, SlicedCNN((4, 6), None), [1, 0.5], scaler=True)).train()
    client = net.subnet(Width(1.0))

    class Inside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = client

        def forward(self, x: Tensor) -> Tensor:
            return net.run_inside(self.network, 0.5, x).square().sum()

    inside = Inside()
    net.run_inside(client, 1.0, batch(net))  # so that all widths are built
    weights = {tensor: torch.stack([value, 2 * value]).detach() for tensor, value in inside.named_parameters()}
    gradients = vmap(grad(lambda one, x: functional_call(inside, one, (x,))))(weights, torch.stack([batch(net)] * 2))
    for place in range(2):
        with torch.no_grad():
            for tensor, value in inside.named_parameters():
                value.copy_(weights[tensor][place])
        inside.zero_grad()
        inside(batch(net)).backward()
        for tensor, value in inside.named_parameters():
            torch.testing.assert_close(gradients[tensor][place], value.grad, rtol=1e-3, atol=1e-4)


def test_nothing_wider_than_the_client_runs_inside_it(name: str) -> None:
    net = supernet(name)
    for ratio in (0.5, 1.0):
        with pytest.raises(ConfigError, match=rf"width {ratio:g} .* not above the network's own"):
            net.run_inside(net.subnet(Width(0.25)), ratio, batch(net))


def test_client_networks_are_left_as_they_are(name: str) -> None:
    net = supernet(name).eval()
    client = net.subnet(Width(0.5))
    before = {tensor: (id(value), value.clone()) for tensor, value in tensors(client).items()}
    net.run_inside(client, 0.25, batch(net))
    for tensor, value in tensors(client).items():
        assert id(value) == before[tensor][0]
        assert torch.equal(value, before[tensor][1])


# --- references, layer by layer


def cnn_reference(w: Mapping[str, Tensor], x: Tensor, scale: float) -> Tensor:
    x = functional.relu(functional.conv2d(x, w["layer0.conv.weight"], w["layer0.conv.bias"], padding=1) / scale)
    x = functional.max_pool2d(x, 2)
    x = functional.relu(functional.conv2d(x, w["layer1.conv.weight"], w["layer1.conv.bias"], padding=1) / scale)
    return functional.linear(x.mean((2, 3)), w["classifier.weight"], w["classifier.bias"])


def convnet_reference(w: Mapping[str, Tensor], x: Tensor, scale: float) -> Tensor:
    x = functional.relu(functional.conv2d(x, w["conv1.conv.weight"], w["conv1.conv.bias"], padding=1) / scale)
    x = functional.max_pool2d(x, 2)
    x = functional.relu(functional.conv2d(x, w["conv2.conv.weight"], w["conv2.conv.bias"], padding=1) / scale)
    x = functional.relu(functional.conv2d(x, w["conv3.conv.weight"], w["conv3.conv.bias"], padding=1) / scale)
    x = functional.max_pool2d(x, 2).flatten(1)
    return functional.linear(x, w["classifier.weight"], w["classifier.bias"])


def mobilenet_reference(w: Mapping[str, Tensor], x: Tensor, scale: float) -> Tensor:
    """Channel by channel in the depthwise convolutions, which the scaler leaves as they are."""

    def depthwise(layer: str, x: Tensor, stride: int) -> Tensor:
        kernels, bias = w[f"{layer}.depthwise.conv.weight"], w[f"{layer}.depthwise.conv.bias"]
        channels = [
            functional.conv2d(x[:, at : at + 1], kernels[at : at + 1], bias[at : at + 1], stride, padding=1)
            for at in range(x.shape[1])
        ]
        return functional.relu(torch.cat(channels, 1))

    def pointwise(layer: str, x: Tensor) -> Tensor:
        kernels, bias = w[f"{layer}.pointwise.conv.weight"][:, :, 0, 0], w[f"{layer}.pointwise.conv.bias"]
        return functional.relu((torch.einsum("bchw,oc->bohw", x, kernels) + bias[:, None, None]) / scale)

    x = functional.relu(functional.conv2d(x, w["conv0.conv.weight"], w["conv0.conv.bias"], padding=1) / scale)
    x = pointwise("conv1", depthwise("conv1", x, 2))
    x = pointwise("conv2", depthwise("conv2", x, 1))
    return functional.linear(x.mean((2, 3)), w["classifier.weight"], w["classifier.bias"])


def smallcnn_reference(w: Mapping[str, Tensor], x: Tensor, scale: float) -> Tensor:
    x = functional.relu(functional.conv2d(x, w["conv1.0.weight"], w["conv1.0.bias"]) / scale)
    x = functional.relu(functional.conv2d(x, w["conv2.0.weight"], w["conv2.0.bias"]) / scale)
    x = functional.max_pool2d(x, 2).flatten(1)
    x = functional.relu(functional.linear(x, w["hidden.0.weight"], w["hidden.0.bias"]) / scale)
    return functional.linear(x, w["classifier.weight"], w["classifier.bias"])


def resnet_reference(w: Mapping[str, Tensor], x: Tensor, scale: float) -> Tensor:
    x = functional.conv2d(x, w["stem.weight"], padding=1)
    y = functional.conv2d(functional.relu(x / scale), w["stage0.block0.block.conv1.weight"], padding=1)
    x = x + functional.conv2d(functional.relu(y / scale), w["stage0.block0.block.conv2.weight"], padding=1)
    active = functional.relu(x / scale)
    y = functional.conv2d(active, w["stage1.block0.sum.block.conv1.weight"], padding=1, stride=2)
    y = functional.conv2d(functional.relu(y / scale), w["stage1.block0.sum.block.conv2.weight"], padding=1)
    x = y + functional.conv2d(active, w["stage1.block0.sum.shortcut.weight"], stride=2)
    x = functional.relu(x / scale).mean((2, 3))
    return functional.linear(x, w["classifier.weight"], w["classifier.bias"])


def transformer_reference(w: Mapping[str, Tensor], x: Tensor, scale: float) -> Tensor:
    """Patch by patch, and head by head with the softmax written out; there are no scalers."""

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
        at = slice(first, first + 4)
        weights = (query[..., at] @ key[..., at].transpose(1, 2) / 4**0.5).softmax(2)
        mixed[..., at] = weights @ value[..., at]
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
    "smallcnn": (FAMILIES["smallcnn"], smallcnn_reference),
    "resnet": (SlicedResNet((4, 6), (1, 1), None), resnet_reference),
    "transformer": (FAMILIES["transformer"], transformer_reference),
}


@torch.no_grad()
@pytest.mark.parametrize("scaler", [False, True])
def test_networks_are_the_references_scaled_in_training_alone(name: str, scaler: bool) -> None:
    family, reference = REFERENCES[name]
    scaler = scaler and name != "transformer"  # which has none
    net = randomised(WidthSupernet((3, 8, 8), 5, family, [1, 0.5, 0.25], scaler))
    shares = [len(places) / full for places, full in zip(KEPT[name].units, UNITS[name].values(), strict=True)]
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


def test_the_norm_stands_behind_the_scaler() -> None:
    """Batch statistics make the scaler's factor vanish but for their epsilon, which is made large here."""
    net = randomised(WidthSupernet((3, 8, 8), 5, SlicedCNN((4,), BatchNorm(affine=False)), [1, 0.5], scaler=True))
    subnet = net.subnet(Width(0.5)).train()
    layer = subnet.get_submodule("layer0")
    layer.get_submodule("norm").eps = 0.3
    w = tensors(subnet)
    y = functional.conv2d(batch(net), w["layer0.conv.weight"], w["layer0.conv.bias"], padding=1) / 0.5
    y = (y - y.mean((0, 2, 3), keepdim=True)) / (y.var((0, 2, 3), correction=0, keepdim=True) + 0.3).sqrt()
    torch.testing.assert_close(layer(batch(net)), functional.relu(y))


def test_the_scaler_by_hand() -> None:
    x = torch.tensor([[1.0, -2.0]])
    assert Scaler(0.25)(x).tolist() == [[4.0, -8.0]]
    assert Scaler(0.25).eval()(x).tolist() == [[1.0, -2.0]]
    assert Scaler()(x) is x
    with pytest.raises(ConfigError, match="scale: 0"):
        Scaler(0)


# --- counts


def test_parameters_counted_by_hand() -> None:
    net = WidthSupernet()  # HeteroFL's network for CIFAR
    for ratio in (1, 0.5, 0.25, 0.125, 0.0625):
        a, b, c, d = (int(full * ratio) for full in (64, 128, 256, 512))
        convolutions = (3 * 9 + 1) * a + (a * 9 + 1) * b + (b * 9 + 1) * c + (c * 9 + 1) * d
        cost = net.cost(Width(ratio))
        assert cost.parameters == convolutions + 2 * (a + b + c + d) + (d + 1) * 10
        assert cost.macs == (32 * 32 * 27 * a + 16 * 16 * 9 * a * b + 8 * 8 * 9 * b * c + 4 * 4 * 9 * c * d + d * 10)
        assert cost == net.cost(Width(ratio, 5))


def test_resnet18_counted_by_hand() -> None:
    cost = WidthSupernet((3, 32, 32), 10, SlicedResNet()).cost(Width(1.0))
    stages = ((64, 64), (64, 128), (128, 256), (256, 512))
    total = 3 * 9 * 64 + 2 * 512 + 513 * 10  # stem, last norm, classifier
    for before, out in stages:
        total += before * out * 9 + 3 * out * out * 9 + 2 * (before + 3 * out)
        total += before * out if before != out else 0
    assert cost.parameters == total


@torch.no_grad()
@pytest.mark.parametrize("pixels", [8, 16])
@pytest.mark.parametrize("family", [SlicedCNN(), SlicedResNet(), GrowableViT(), SlicedSmallCNN()])
def test_default_families_take_small_images(family: NetworkFamily, pixels: int) -> None:
    net = WidthSupernet((1, pixels, pixels), 10, family).train()
    for arch in (net.space.smallest, net.space.largest):
        assert net.subnet(arch)(batch(net, 2)).shape == (2, 10)


def test_attention_is_counted() -> None:
    """2x2 tokens; half of 6 entries and 3 heads are three of the embedding and two heads of two entries."""
    net = WidthSupernet((3, 8, 8), 5, GrowableViT(dim=6, heads=3, depth=1), [1, 0.5])
    linear_macs = 3 * 16 * 3 + 4 * 3 * 4 + 2 * 3 * 6  # per token
    assert net.macs(Width(0.5)) == 4 * linear_macs + 2 * 2 * 2 * 4 * 4 + 3 * 5
    biases, activations = 4 * (3 + 3 * 4 + 3 + 6 + 3) + 5, 4 * 6
    assert net.operations(Width(0.5)) == net.macs(Width(0.5)) + biases + activations


def test_sizes_are_rounded_up() -> None:
    net = WidthSupernet((3, 8, 8), 5, SlicedCNN((100, 10), None), [1, 0.5])
    assert net.sizes(0.07) == {"layer0": 7, "layer1": 1}  # although 0.07 * 100 is above 7 in floats
    assert net.sizes(0.101) == {"layer0": 11, "layer1": 2}
    assert net.sizes(0.001) == net.sizes(1e-12) == {"layer0": 1, "layer1": 1}
    assert net.sizes(1) == {"layer0": 100, "layer1": 10}


def test_sizes_are_multiples_of_a_group_norms_groups() -> None:
    net = WidthSupernet((3, 8, 8), 5, SlicedCNN((8, 20), GroupNorm(4)), [1, 0.5])
    assert net.sizes(0.5) == {"layer0": 4, "layer1": 12}
    assert net.sizes(0.6) == {"layer0": 8, "layer1": 12}
    assert net.sizes(0.9) == {"layer0": 8, "layer1": 20}
    assert net.subnet(Width(0.5)).get_submodule("layer1.norm").num_groups == 3
    assert SlicedResNet(norm=GroupNorm(4)).multiple == 4
    assert SlicedResNet().multiple == SlicedCNN(norm=None).multiple == GrowableViT().multiple == 1


def test_architectures_of_the_same_sizes_are_built_alike(name: str) -> None:
    net = supernet(name)
    first, second = net.build(Width(0.5)), net.build(Width(0.5, 5))
    assert str(first) == str(second)
    assert [value.shape for value in tensors(first).values()] == [value.shape for value in tensors(second).values()]


def test_all_widths_are_evaluated_by_default() -> None:
    net = supernet("cnn", widths=[1, 0.25, 0.5])
    assert net.default_eval_archs == ("width: 0.25", "width: 0.5", "width: 1")
    assert [net.space.named(text) for text in net.default_eval_archs] == [Width(0.25), Width(0.5), Width(1)]


# --- the space

SPACE = WidthSpace([1, 0.5, 1 / 3, 0.0625], {"a": 6, "b": 8})


@pytest.mark.parametrize(
    ("text", "arch"),
    [
        ("width: 0.5", Width(0.5)),
        ("width: 0.5, shift: 3", Width(0.5, 3)),
        ({"width": 0.5}, Width(0.5)),
        ({"width": 0.5, "shift": 3}, Width(0.5, 3)),
        (0.5, Width(0.5)),
        (".5", Width(0.5)),
        (1, Width(1.0)),
        ("6.25e-2", Width(0.0625)),
        (0.3333333, Width(1 / 3)),
        ("kept: 0-3,5/0,2-7", UnitMask(((0, 1, 2, 3, 5), (0, 2, 3, 4, 5, 6, 7)))),
        ("kept:2/0-1", UnitMask(((2,), (0, 1)))),
        ({"kept": "0,2/7"}, UnitMask(((0, 2), (7,)))),
    ],
)
def test_reading_architectures(text: object, arch: Width | UnitMask) -> None:
    assert SPACE.parse(text) == arch
    assert SPACE.parse(str(arch)) == arch
    assert SPACE.parse(arch) == arch


def test_writing_architectures() -> None:
    assert [str(width) for width in (Width(0.5), Width(1), Width(0.0625, 12))] == [
        "width: 0.5",
        "width: 1",
        "width: 0.0625, shift: 12",
    ]
    odd = WidthSpace([1, 0.1234567], {"a": 6})
    assert odd.parse(str(odd.smallest)) == odd.smallest
    assert str(UnitMask(((0, 1, 2, 3, 5), (0, 2, 3)))) == "kept: 0-3,5/0,2-3"
    assert str(UnitMask(((4,), (6, 7)))) == "kept: 4/6-7"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("width: 0.4", "width: 0.4: is not one of the widths.*0.0625, 0.33.*, 0.5, 1"),
        ("width: 0", "architecture.ratio: 0.0 must be above 0"),
        ("width: 1.5", "at most 1"),
        ("width: -0.5", "cannot be read"),
        ("half", "cannot be read"),
        ("width: 0.5, shift: x", "cannot be read"),
        (True, "cannot be read"),
        (None, "cannot be read"),
        ({"width": 0.5, "turn": 3}, "cannot be read"),
        ("kept: 1", "2: a, b"),
        ("kept: 1/2/3", "units of 3 groups"),
        ("kept: 0,0/1", "0,0 of a must be ascending"),
        ("kept: 2,1/1", "ascending positions from 0 to 5"),
        ("kept: 0/8", "8 of b must be ascending positions from 0 to 7"),
        ("kept: 0/", "cannot be read"),
        ("kept: 0/5-4", "at least one"),
        (UnitMask(((-1,), (0,))), "ascending"),
    ],
)
def test_what_is_not_in_the_space_is_refused(text: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SPACE.parse(text)


def test_genes_are_places_of_ascending_widths() -> None:
    assert SPACE.widths == (0.0625, 1 / 3, 0.5, 1.0)
    assert [SPACE.decode([gene]) for gene in range(4)] == [Width(0.0625), Width(1 / 3), Width(0.5), Width(1.0)]
    assert [SPACE.encode(Width(ratio)) for ratio in SPACE.widths] == [(0,), (1,), (2,), (3,)]
    for arch in (Width(0.5, 3), UnitMask(((0,), (0,)))):
        with pytest.raises(ConfigError, match="is what a client trains in a round"):
            SPACE.encode(arch)
    with pytest.raises(ConfigError, match="not one of the widths"):
        SPACE.encode(Width(0.4))


def test_kept_units_keep_whole_groups_of_a_norm() -> None:
    space = WidthSpace([1], {"a": 6}, multiple=4)
    assert space.parse("kept: 0-2,5") == UnitMask(((0, 1, 2, 5),))
    assert space.parse("kept: 0-5") == UnitMask(((0, 1, 2, 3, 4, 5),))
    with pytest.raises(ConfigError, match="3 kept units of a must be a multiple of 4"):
        space.parse("kept: 0-2")


def test_kept_units_are_checked_where_they_are_used() -> None:
    net = supernet("cnn")
    for use in (net.build, net.index, net.kept, net.subnet, net.cost):
        with pytest.raises(ConfigError, match="units of 1 groups"):
            use(UnitMask(((0,),)))


# --- errors


@dataclass(frozen=True)
class Bound(NetworkFamily):
    """A family with a dimension that two groups share."""

    kind: str

    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        return {"a": 4, "b": 4}

    def build(
        self, sizes: Mapping[str, int], input_shape: Sequence[int], num_classes: int, scale: float = 1.0
    ) -> nn.Module:
        width = {"sum": sizes["a"] + sizes["b"], "product": sizes["a"] * sizes["b"], "token": sizes["a"] + 1}
        return nn.Sequential(nn.Linear(input_shape[0], width[self.kind]), nn.Linear(width[self.kind], num_classes))


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("sum", "dimension 0 of 0.weight in Bound has 8 entries and grows with a by 1;"),
        ("product", "has 16 entries and grows with b by 4, but with a as well"),
        ("token", "has 5 entries and grows with a by 1"),
    ],
)
def test_a_dimension_belongs_to_one_group(kind: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WidthSupernet((3,), 2, Bound(kind), [1])


class Core(nn.Module):
    """``[batch, first]`` times ``[first, 3, second]``."""

    def __init__(self, first: int, second: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(first, 3, second))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("bi,ijk->bk", x, self.weight)


class Apart(NetworkFamily):
    """A family with a tensor that is cut in its first and its last dimension, in units of three."""

    multiple = 3

    def units(self, input_shape: Sequence[int]) -> dict[str, int]:
        return {"a": 6, "b": 4}

    def build(
        self, sizes: Mapping[str, int], input_shape: Sequence[int], num_classes: int, scale: float = 1.0
    ) -> nn.Module:
        first, second = sizes["a"], sizes["b"]
        return nn.Sequential(nn.Linear(input_shape[0], first), Core(first, second), nn.Linear(second, num_classes))


def test_tensors_that_are_cut_in_dimensions_apart() -> None:
    net = WidthSupernet((3,), 2, Apart(), [1, 0.5])
    assert net.sizes(0.5) == {"a": 3, "b": 3}
    assert net.sizes(0.9) == {"a": 6, "b": 4}, "not more than there are"
    assert net.axes["1.weight"] == (("a", 1), NONE, ("b", 1))
    expected = net.network.get_parameter("1.weight").detach().numpy()[np.ix_([4, 5, 0], [0, 1, 2], [2, 3, 0])]
    arch = Width(0.5, 10)
    assert net.kept(arch)["b"].tolist() == [2, 3, 0]
    np.testing.assert_array_equal(net.subnet(arch).get_parameter("1.weight").detach().numpy(), expected)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"widths": [0.5, 0.25]}, "supernet.widths: .* with 1 as one of them"),
        ({"widths": []}, "supernet.widths"),
        ({"widths": [1, 0]}, "supernet.widths"),
        ({"widths": [2, 1]}, "supernet.widths"),
        ({"widths": [1, 0.5, 0.5]}, "has a duplicate"),
        ({"widths": [1, 0.0015, 0.001]}, "0.001 and 0.0015 are the same network"),
        ({"input_shape": (8, 8)}, "channels, height, width for SlicedCNN"),
        ({"input_shape": (3, 4, 8)}, "4x8 pixels are too few for SlicedCNN, which needs 8x8"),
        ({"family": SlicedCNN((8, 12), GroupNorm(8))}, "norm.group_size: 8 does not divide"),
        ({"family": GrowableViT(patch_size=3)}, "patch_size: 3 does not divide 8x8"),
        ({"family": GrowableViT(patch_size=16)}, "16x16 or more"),
        ({"family": SlicedSmallCNN(), "input_shape": (1, 5, 8)}, "6x6 or more"),
    ],
)
def test_settings_that_cannot_work(settings: dict, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        WidthSupernet(**{"input_shape": (3, 8, 8), "num_classes": 5, **settings})


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SlicedCNN((8, 0)), "family.hidden"),
        (lambda: SlicedCNN(()), "family.hidden"),
        (lambda: SlicedResNet((8, 8), (1, 0)), "family.blocks"),
        (lambda: SlicedResNet((8, 8), (1,)), "as many numbers as hidden"),
        (lambda: SlicedSmallCNN((8,)), "must be two numbers"),
        (lambda: SlicedSmallCNN(hidden=0), "family.hidden: 0"),
        (lambda: Width(0), "must be above 0"),
        (lambda: Width(0.5, -1), "architecture.shift: -1 must be at least 0"),
    ],
)
def test_families_and_widths_that_cannot_be(make: object, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()  # type: ignore[operator]


def test_a_config_file_can_say_it_all() -> None:
    parser = ArgumentParser()
    parser.add_subclass_arguments(Supernet, "supernet")
    where = "lit_fednas.supernets"
    family = {
        "class_path": f"{where}.SlicedResNet",
        "init_args": {"hidden": [4, 8], "blocks": [1, 1], "norm": None},
    }
    config = parser.parse_object(
        {
            "supernet": {
                "class_path": f"{where}.WidthSupernet",
                "init_args": {
                    "input_shape": [3, 8, 8],
                    "num_classes": 5,
                    "family": family,
                    "widths": [1, 0.25],
                    "scaler": True,
                },
            }
        }
    )
    net = parser.instantiate_classes(config).supernet
    assert isinstance(net, WidthSupernet)
    assert (net.family.norm, net.sizes(0.25)["stage1"], net.scaler) == (None, 2, True)
    defaults = parser.parse_object({"supernet": {"class_path": f"{where}.WidthSupernet"}})
    assert parser.instantiate_classes(defaults).supernet.units["layer3"] == 512
