import pytest
import torch
from torch import nn
from torch.nn import functional
from torchvision.models.resnet import BasicBlock, ResNet

from lit_fednas.supernets import (
    BatchNorm,
    FamilyNetwork,
    GroupNorm,
    ResNet18,
    SlicedCNN,
    SmallCNN,
    Supernet,
)
from tests.support import refusals


def count(net: Supernet) -> int:
    return sum(parameter.numel() for parameter in net.parameters())


def test_parameters_counted_by_hand() -> None:
    # 3x3 convolutions 3 -> 32 and 32 -> 64, a linear layer of 64 channels of 14x14, one of 128
    small = (3 * 9 + 1) * 32 + (32 * 9 + 1) * 64 + (64 * 14 * 14 + 1) * 128 + (128 + 1) * 10
    assert count(SmallCNN()) == small == 1_626_442
    assert count(SmallCNN((1, 28, 28), 62)) == 1_206_590, "the paper's network for EMNIST"
    assert count(ResNet18()) == 11_173_962


@pytest.mark.parametrize("shape", [(1, 28, 28), (2, 7, 9)])
def test_small_cnn_computes_what_its_layers_say(shape: tuple[int, int, int]) -> None:
    net, x = SmallCNN(shape, 5).eval(), torch.randn(4, *shape)
    w = list(net.parameters())
    y = functional.relu(functional.conv2d(functional.relu(functional.conv2d(x, w[0], w[1])), w[2], w[3]))
    y = functional.relu(functional.linear(functional.max_pool2d(y, 2).flatten(1), w[4], w[5]))
    torch.testing.assert_close(net(x), functional.linear(y, w[6], w[7]))


@pytest.mark.parametrize("norm", [GroupNorm(16), BatchNorm()], ids=["group", "batch"])
def test_resnet18_computes_what_torchvisions_does(norm: GroupNorm | BatchNorm) -> None:
    net = ResNet18(norm=norm, num_classes=7).train()
    reference = ResNet(BasicBlock, [2, 2, 2, 2], num_classes=7, norm_layer=norm)
    reference.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    reference.maxpool = nn.Identity()
    tensors = list(net.network.state_dict().values())
    names = list(reference.state_dict())
    reference.load_state_dict({name: tensors[index] for index, name in enumerate(names)})
    x = torch.randn(2, 3, 32, 32)
    torch.testing.assert_close(net(x), reference(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("norm", "share"), [(GroupNorm(2), 0.75), (None, 0.5)])
def test_a_width_multiplier_within_a_share_of_the_macs(norm: GroupNorm | None, share: float) -> None:
    """The ratio is the largest; MACs by hand: 3x3 convolutions on 8x8 and 4x4 pixels, five classes."""

    def macs(first: int, second: int) -> int:
        return 9 * 3 * first * 64 + 9 * first * second * 16 + second * 5

    multiple = 1 if norm is None else 2
    widths = [[multiple * -(-units * step // (1000 * multiple)) for units in (10, 24)] for step in range(1, 1001)]
    expected = [width for width in widths if macs(*width) <= share * macs(10, 24)][-1]
    net = FamilyNetwork((3, 8, 8), 5, SlicedCNN((10, 24), norm), macs=share)
    assert [net.network.get_submodule(f"layer{number}.conv").out_channels for number in (0, 1)] == expected
    assert net.macs("whole") == macs(*expected)


test_settings_that_cannot_work = refusals(
    (
        lambda: FamilyNetwork((3, 8, 8), 5, SlicedCNN((10, 24)), macs=0.01),
        "supernet.macs: 0.01 is below .*raise it",
    ),
    (lambda: ResNet18(width=12), r"norm\.group_size: 8 does not divide"),
    (lambda: SmallCNN((3, 5, 32)), r"supernet\.input_shape: 5x32"),
)
