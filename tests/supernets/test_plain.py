import pytest
import torch
from jsonargparse import ArgumentParser
from torch import Tensor, nn
from torch.nn import functional
from torchvision.models.resnet import BasicBlock, ResNet

from lit_fednas.errors import ConfigError
from lit_fednas.supernets import (
    BatchNorm,
    FamilyNetwork,
    GroupNorm,
    PlainNetwork,
    ResNet18,
    SlicedCNN,
    SmallCNN,
    Supernet,
)

# 3x3 convolutions 3 -> 32 and 32 -> 64, a linear layer of 64 channels of 14x14, one of 128
SMALL_CNN_PARAMETERS = (3 * 9 + 1) * 32 + (32 * 9 + 1) * 64 + (64 * 14 * 14 + 1) * 128 + (128 + 1) * 10


def count(net: Supernet) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def resnet18_parameters(classes: int) -> int:
    """Convolutions have no bias; each norm has a scale and a shift per channel."""
    total = 3 * 9 * 64 + 2 * 64
    for before, out in ((64, 64), (64, 128), (128, 256), (256, 512)):
        total += before * out * 9 + 3 * out * out * 9 + 4 * 2 * out
        total += before * out + 2 * out if before != out else 0
    return total + (512 + 1) * classes


def test_small_cnn_has_the_parameters_counted_by_hand() -> None:
    assert count(SmallCNN()) == SMALL_CNN_PARAMETERS == 1_626_442
    assert SmallCNN().cost("whole").parameters == SMALL_CNN_PARAMETERS


def test_small_cnn_is_the_papers_network_for_emnist() -> None:
    assert count(SmallCNN((1, 28, 28), 62)) == 1_206_590


def test_resnet18_has_the_parameters_counted_by_hand() -> None:
    assert count(ResNet18()) == resnet18_parameters(10) == 11_173_962
    assert count(ResNet18(num_classes=100)) == resnet18_parameters(100)


def small_cnn_reference(weights: list[Tensor], x: Tensor) -> Tensor:
    """The network in evaluation, layer by layer."""
    x = functional.relu(functional.conv2d(x, weights[0], weights[1]))
    x = functional.relu(functional.conv2d(x, weights[2], weights[3]))
    x = functional.max_pool2d(x, 2).flatten(1)
    x = functional.relu(functional.linear(x, weights[4], weights[5]))
    return functional.linear(x, weights[6], weights[7])


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 28, 28), (2, 7, 9)])
def test_small_cnn_computes_what_its_layers_say(shape: tuple[int, int, int]) -> None:
    net = SmallCNN(shape, 5).eval()
    x = torch.randn(4, *shape)
    expected = small_cnn_reference([p.detach() for p in net.parameters()], x)
    torch.testing.assert_close(net(x), expected)


def test_small_cnn_drops_out_in_training_only() -> None:
    net, x = SmallCNN((1, 8, 8), 3), torch.randn(4, 1, 8, 8)
    assert not torch.equal(net.train()(x), net(x))
    assert torch.equal(net.eval()(x), net(x))
    assert [layer.p for layer in net.network.modules() if isinstance(layer, nn.Dropout)] == [0.25, 0.5]


@pytest.mark.parametrize("norm", [GroupNorm(16), BatchNorm()], ids=["group", "batch"])
def test_resnet18_computes_what_torchvisions_does(norm: GroupNorm | BatchNorm) -> None:
    net = ResNet18(norm=norm, num_classes=7).train()
    reference = ResNet(BasicBlock, [2, 2, 2, 2], num_classes=7, norm_layer=norm)
    reference.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    reference.maxpool = nn.Identity()
    own = list(net.network.state_dict().values())
    names = list(reference.state_dict())
    reference.load_state_dict({name: own[place] for place, name in enumerate(names)})
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(net(x), reference(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("net", [SmallCNN((1, 8, 8), 3), ResNet18((1, 8, 8), 3, width=8)], ids=["cnn", "resnet"])
def test_a_subnet_is_the_whole_network_with_weights_of_its_own(net: PlainNetwork) -> None:
    net = net.eval()
    subnet = net.subnet("whole")
    x = torch.randn(2, 1, 8, 8)
    torch.testing.assert_close(subnet(x), net(x))
    assert {region.index for region in net.index("whole").values()} == {None}
    with torch.no_grad():
        next(subnet.parameters()).zero_()
    assert bool(next(net.parameters()).any())


def test_resnet18_has_the_width_asked_for() -> None:
    assert count(ResNet18(width=16)) < count(ResNet18()) / 12
    with pytest.raises(ConfigError, match=r"norm\.group_size: 8 does not divide"):
        ResNet18(width=12)
    with pytest.raises(ConfigError, match=r"supernet\.width: 0"):
        ResNet18(width=0)


def test_small_cnn_refuses_images_that_vanish() -> None:
    with pytest.raises(ConfigError, match=r"supernet\.input_shape: 5x32"):
        SmallCNN((3, 5, 32))


# jsonargparse 4.49 renames instantiate_classes, and the oldest that the project allows has the old name only
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_both_can_be_written_as_config() -> None:
    parser = ArgumentParser()
    parser.add_subclass_arguments(Supernet, "supernet")
    values = {"input_shape": [1, 8, 8], "num_classes": 3}
    norm = {"class_path": "lit_fednas.supernets.GroupNorm", "init_args": {"group_size": 4}}
    for name, extra in (("SmallCNN", {}), ("ResNet18", {"width": 4, "norm": norm})):
        config = {"class_path": f"lit_fednas.supernets.{name}", "init_args": {**values, **extra}}
        net = parser.instantiate_classes(parser.parse_object({"supernet": config})).supernet
        assert net(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


@pytest.mark.parametrize("norm", [None, GroupNorm(2)])
@pytest.mark.parametrize("share", [1.0, 0.75, 0.5, 0.1])
def test_a_width_multiplier_within_a_share_of_the_macs(norm: GroupNorm | None, share: float) -> None:
    """The largest of a thousand ratios; MACs by hand: 3x3 convolutions on 8x8 and 4x4 pixels, five classes."""

    def macs(first: int, second: int) -> int:
        return 9 * 3 * first * 64 + 9 * first * second * 16 + second * 5

    multiple = 1 if norm is None else 2
    widths = [[multiple * -(-units * step // (1000 * multiple)) for units in (10, 24)] for step in range(1, 1001)]
    expected = [width for width in widths if macs(*width) <= share * macs(10, 24)][-1]
    net = FamilyNetwork((3, 8, 8), 5, SlicedCNN((10, 24), norm), macs=share)
    assert [net.network.get_submodule(f"layer{place}.conv").out_channels for place in (0, 1)] == expected
    assert net.macs("whole") == macs(*expected)


def test_a_share_that_no_network_is_within() -> None:
    with pytest.raises(ConfigError, match=r"supernet.macs: 0.01 is less than the smallest network has, 0.0.*give more"):
        FamilyNetwork((3, 8, 8), 5, SlicedCNN((10, 24)), macs=0.01)
