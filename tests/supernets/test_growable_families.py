"""The initial models: sizes by hand, and growth of every cell."""

from __future__ import annotations

import copy

import pytest
import torch
import torchvision
from torch import nn

from lit_fednas.costs import count_macs
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import (
    BatchNorm,
    GroupNorm,
    GrowableFamily,
    GrowableMobileNetV3Small,
    GrowableNASBench201,
    GrowablePerceptron,
    GrowableResNet18,
    GrowableViT,
)
from lit_fednas.supernets.growing.growth import carry_over, grow, plan
from tests.support import refusals

FAMILIES: dict[str, GrowableFamily] = {
    "mobilenet": GrowableMobileNetV3Small(0.25, norm=BatchNorm()),
    "nasbench201": GrowableNASBench201(4, norm=BatchNorm()),
    "perceptron": GrowablePerceptron([4, 6]),
    "resnet": GrowableResNet18(4, [1, 2], norm=BatchNorm()),
    "resnet-groups": GrowableResNet18(4, [2, 1], norm=GroupNorm(2)),
    "vit": GrowableViT(dim=8, heads=2, depth=2),
}
#: Two kinds of MobileNet's fourteen cells; the others are similar and as slow.
FEW = {"block1", "last"}


@pytest.mark.parametrize("name", FAMILIES)
def test_all_cells_grow_in_turn_and_keep_the_function(name: str) -> None:
    blueprint = start = FAMILIES[name].blueprint((3, 8, 8), 5)
    norm = getattr(FAMILIES[name], "norm", None)
    multiple = norm.group_size if isinstance(norm, GroupNorm) else 1
    assert FAMILIES[name].multiple == blueprint.multiple == multiple
    x = torch.randn(6, 3, 8, 8, generator=generator(0, "images"), dtype=torch.float64)
    with isolated(0, "network"):
        net = first = blueprint.build().double()
        first.train()(x)  # statistics that are not 0 and 1
        for number in (1, 2):
            cells = [cell.name for cell in blueprint.cells if "mobilenet" not in name or cell.name in FEW]
            old_size = sum(blueprint.parameters.values())
            for step in plan(blueprint, cells, number, factor=1.5):
                net = carry_over(net, blueprint, step, generator(0, "copies"), noise=0.3)
                blueprint = grow(blueprint, step)
            assert sum(blueprint.parameters.values()) > old_size
    assert len(blueprint.cells) > len(start.cells)
    for training in (True, False):
        expected = copy.deepcopy(first).train(training)(x)
        assert expected.shape == (6, 5)
        torch.testing.assert_close(copy.deepcopy(net).train(training)(x), expected, rtol=1e-10, atol=1e-10)


def test_resnet18_has_eighteen_layers_and_the_parameters_of_the_original() -> None:
    with torch.device("meta"):
        original = torchvision.models.resnet18(num_classes=10)
        net = GrowableResNet18(64, norm=BatchNorm()).blueprint((3, 32, 32), 10).build()
    convolutions = [m for m in net.modules() if isinstance(m, nn.Conv2d) and m.kernel_size == (3, 3)]
    assert len(convolutions) + 1 == 18
    stem = 3 * 64 * (49 - 9)  # the original stem is a 7x7 convolution
    assert sum(p.numel() for p in net.parameters()) == sum(p.numel() for p in original.parameters()) - stem


def test_nasbench201_has_the_parameters_of_the_benchmark() -> None:
    """Its skeleton without cells has 0.073306 million for CIFAR-10, as Dong & Yang's cells of skips."""
    parameters = GrowableNASBench201(16, 5, BatchNorm()).blueprint((3, 32, 32), 10).parameters
    assert sum(size for name, size in parameters.items() if "cell" not in name) == 73306
    # a 3x3 and a 1x1 convolution without bias, each with a batch norm
    assert parameters["stage2_cell4"] == 32 * 32 * (9 + 1) + 2 * 2 * 32
    assert len(parameters) == 1 + 15 + 2 + 1


def test_perceptron_by_hand() -> None:
    blueprint = GrowablePerceptron([4, 6]).blueprint((3, 8, 8), 5)
    assert blueprint.parameters == {"layer1": 3 * 64 * 4 + 4, "layer2": 4 * 6 + 6, "head": 6 * 5 + 5}


class TestMobileNetV3Small:
    """Compares the network with torchvision's."""

    @staticmethod
    def ours(width: float = 1.0) -> nn.Module:
        return GrowableMobileNetV3Small(width, (2, 2, 2, 2, 2), BatchNorm()).blueprint((3, 64, 64), 1000).build()

    @pytest.mark.parametrize("width", [1.0, 0.75])
    def test_has_its_tensors_and_macs(self, width: float) -> None:
        with torch.device("meta"):
            reference = torchvision.models.mobilenet_v3_small(width_mult=width)
            ours = self.ours(width)
        assert [p.shape for p in ours.parameters()] == [p.shape for p in reference.parameters()]
        assert count_macs(ours, (3, 224, 224)) == count_macs(reference, (3, 224, 224))

    def test_computes_what_it_computes(self) -> None:
        with isolated(0, "weights"):
            reference, ours = torchvision.models.mobilenet_v3_small(dropout=0.0), self.ours()
        for module in reference.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eps = 1e-5  # torchvision's is 1e-3
                nn.init.constant_(module.bias, 0.3)  # so that no activation is near zero
        state = zip(ours.state_dict(), reference.state_dict().values(), strict=True)
        ours.load_state_dict(dict(state))
        x = torch.randn(8, 3, 64, 64, generator=generator(0, "images"))
        with torch.no_grad():
            torch.testing.assert_close(ours(x), reference(x), rtol=1e-3, atol=1e-4)  # batch statistics
            assert ours(x).std() > 0.01


test_settings_and_inputs_that_are_refused = refusals(
    (lambda: GrowableResNet18(0), "width"),
    (lambda: GrowableViT(dim=10, heads=4), "heads"),
    (lambda: GrowableMobileNetV3Small().blueprint((8, 8), 5), "input_shape"),
    (lambda: GrowableViT().blueprint((3, 8, 10), 5), "patch_size"),
    (lambda: GrowableResNet18(12, norm=GroupNorm(8)).blueprint((3, 8, 8), 5), "multiple of 8"),
)
