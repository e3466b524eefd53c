"""FedorAS' convolutional supernet (App. E.3, Fig. 7): paths of operators.

CNN-L for CIFAR-10 and CIFAR-100: a 3x3 stem of 64 channels; four stages of four searchable layers at 64, 96, 144
and 216 channels, each followed by a fixed reduction (the text says three); global average pooling and a linear
classifier. With all nine operators there are 9^16 = 1.85 * 10^15 paths, the sum of Table 8's counts. The wider network
of App. J.1 has six stages. The paper does not name its strides; strides 2, 2, 1, 1, 1, 2 with depthwise separable
convolutions on the residual links give its operations.

CNN-S for keyword spotting (SpeechCommands, 1x40x51): a stem of 16 channels; stages of 1, 1, 2 and 2 layers with 11
operators, the 1,771,561 paths of Table 8. Further choices follow from Table 8: a stem of stride 2, four reductions that
halve the size and double the channels, pooling before the convolution. Then the most expensive path has 20.00 million
operations (20.0), and the tiers end at 4.97, 7.55 and 10.13 million (5.0, 7.5, 10.1).

A norm and ReLU follow every convolution. The text does not define the depthwise-separable block: here the depthwise
convolution multiplies the channels by e and the pointwise one restores them. Tier boundaries are then half a percent
below Table 8 (two percent above it with a pointwise expansion).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import pairwise
from typing import Annotated, Literal

from torch import nn
from torchvision.ops import Conv2dNormActivation, SqueezeExcitation
from typing_extensions import override

from lit_fednas.errors import ConfigError
from lit_fednas.ranges import Filled, PositiveInt, Range, checked
from lit_fednas.supernets.families import check_image
from lit_fednas.supernets.layers import BatchNorm, Norm, Residual, pooled_classifier, sequential
from lit_fednas.supernets.paths.supernet import Operators, PathNetwork, PathSupernet, in_order


def convolution(
    inputs: int, outputs: int, kernel: int, norm: Norm, stride: int = 1, groups: int = 1
) -> Conv2dNormActivation:
    """Builds a convolution without bias that keeps the size (except for its stride), a norm and ReLU."""
    return Conv2dNormActivation(inputs, outputs, kernel, stride, groups=groups, norm_layer=norm)


def separable(channels: int, expansion: float, norm: Norm, kernel: int = 3) -> nn.Module:
    """Builds a depthwise convolution that multiplies the channels, and a pointwise one back, with a residual."""
    middle = int(channels * expansion)
    depthwise = convolution(channels, middle, kernel, norm, groups=min(channels, middle))
    return Residual(nn.Sequential(depthwise, convolution(middle, channels, 1, norm)))


def mobile(channels: int, kernel: int, expansion: float, norm: Norm) -> nn.Module:
    """Builds a residual convolution that multiplies the channels, squeeze-and-excitation and a 1x1 one back."""
    middle = int(channels * expansion)
    wide = convolution(channels, middle, kernel, norm)
    return Residual(nn.Sequential(wide, SqueezeExcitation(middle, middle), convolution(middle, channels, 1, norm)))


#: All candidates; ``e05`` is an expansion of 0.5, ``mb3`` is a MobileNet-like block of kernel 3.
OPERATORS: dict[str, Callable[[int, Norm], nn.Module]] = {
    "conv1": lambda channels, norm: convolution(channels, channels, 1, norm),
    "sep_e05": lambda channels, norm: separable(channels, 0.5, norm),
    "sep_e1": lambda channels, norm: separable(channels, 1, norm),
    "sep_e2": lambda channels, norm: separable(channels, 2, norm),
    "mb1_e2": lambda channels, norm: mobile(channels, 1, 2, norm),
    "mb3_e05": lambda channels, norm: mobile(channels, 3, 0.5, norm),
    "mb3_e1": lambda channels, norm: mobile(channels, 3, 1, norm),
    "mb3_e2": lambda channels, norm: mobile(channels, 3, 2, norm),
    "id": lambda channels, norm: nn.Identity(),
    "conv3": lambda channels, norm: convolution(channels, channels, 3, norm),
    "sep1_e2": lambda channels, norm: separable(channels, 2, norm, kernel=1),
}

#: The nine candidates for CIFAR; keyword spotting has ``conv3`` and ``sep1_e2`` as well.
CIFAR_OPERATORS = tuple(name for name in OPERATORS if name not in ("conv3", "sep1_e2"))


def reduction(inputs: int, outputs: int, stride: int, norm: Norm, separable_link: bool = False) -> Residual:
    """Returns the fixed block after a stage for CIFAR: more channels at half the size (App. E.3)."""

    def block() -> nn.Sequential:
        return sequential(
            depthwise=convolution(inputs, inputs, 3, norm, stride, groups=inputs),
            pointwise=convolution(inputs, outputs, 1, norm),
        )

    return Residual(block(), block() if separable_link else convolution(inputs, outputs, stride, norm, stride))


#: The fixed blocks after a stage, by inputs, outputs, stride and norm; keyword spotting has the last one.
REDUCTIONS: dict[str, Callable[[int, int, int, Norm], nn.Module]] = {
    "residual": reduction,
    "separable": partial(reduction, separable_link=True),
    "pooled": lambda inputs, outputs, stride, norm: sequential(
        pool=nn.AvgPool2d(3, stride, padding=1), pointwise=convolution(inputs, outputs, 1, norm)
    ),
}


@checked("supernet")
class PathCNN(PathSupernet):
    """FedorAS' CNN: every searchable layer has one of several operators (App. E.3).

    An architecture is a path, or a subspace with several operators in a layer; a call then names the path to run.

    Args:
        input_shape: Channels, height and width of an image.
        num_classes: Number of classes.
        width: Channels of the stem and the first stage.
        stage_layers: Searchable layers per stage.
        strides: Stride of the reduction after each stage, 1 or 2.
        operators: The candidates of every layer, among ``conv1``, ``sep_e05``, ``sep_e1``, ``sep_e2``, ``mb1_e2``,
            ``mb3_e05``, ``mb3_e1``, ``mb3_e2``, ``id`` (the default), ``conv3``, ``sep1_e2``.
        norm: Normalisation layer.
        reduction: The fixed block after a stage: a depthwise separable convolution with a convolution (``residual``)
            or a depthwise separable one (``separable``, also for odd sides) on its residual link; or ``pooled``, an
            average pooling and a 1x1 convolution (also for odd sides).
        growth: Ratio of a stage's channels to the previous stage's.
        stem_stride: Stride of the stem, 1 or 2.

    Example:
        >>> import torch
        >>> net = PathCNN((3, 8, 8), 10, width=8, stage_layers=[1, 1], strides=[2, 2], operators=["sep_e1", "id"])
        >>> net(torch.zeros(2, 3, 8, 8), net.space.parse("sep_e1 id")).shape
        torch.Size([2, 10])
    """

    def __init__(
        self,
        input_shape: Iterable[int] = (3, 32, 32),
        num_classes: int = 10,
        width: int = 64,
        stage_layers: Sequence[PositiveInt] = (4, 4, 4, 4),
        strides: Sequence[Literal[1, 2]] = (2, 2, 2, 2),
        operators: Annotated[Sequence[str], Filled] = CIFAR_OPERATORS,
        norm: Norm = BatchNorm(),
        reduction: Literal["residual", "separable", "pooled"] = "residual",
        growth: Annotated[float, Range(at_least=1)] = 1.5,
        stem_stride: Literal[1, 2] = 1,
    ) -> None:
        super().__init__(input_shape, num_classes)
        check_image(self, self.input_shape)
        if not 0 < sum(stage_layers) <= 1000 or len(strides) != len(stage_layers):
            raise ConfigError(
                f"supernet.stage_layers: {list(stage_layers)} must be as many numbers as strides {list(strides)}, with "
                f"a sum from 1 to 1000"
            )
        factor, sides = stem_stride * 2 ** strides.count(2), list(self.input_shape[1:])
        if reduction == "residual" and any(side % factor for side in sides):  # kernels 2 and 3 round differently
            raise ConfigError(
                f"supernet.strides: {list(strides)} cannot halve {sides} pixels evenly; use fewer 2s, a "
                f"data.source.image_size that is a multiple of {factor}, or supernet.reduction: separable"
            )
        self.operators = in_order(operators, OPERATORS)
        self.widths = [width]
        for _ in stage_layers:
            self.widths.append(int(growth * self.widths[-1]))
        if width < 2 or any(channels % 2 for channels in self.widths[:-1]):
            raise ConfigError(
                f"supernet.width: {width} gives stages of {self.widths[:-1]} channels, which must be even; choose a "
                f"multiple of {2 ** len(stage_layers)}"
            )
        self.stage_layers = list(stage_layers)
        self.strides = list(strides)
        self.reduction = reduction
        self.norm = norm
        self.stem_stride = stem_stride
        self.set_candidates([self.operators] * sum(stage_layers))

    @override
    def build(self, arch: Operators) -> PathNetwork:
        layers: list[nn.ModuleDict] = []
        reductions: dict[int, nn.Module] = {}
        for count, stride, (width, wider) in zip(self.stage_layers, self.strides, pairwise(self.widths), strict=True):
            for names in arch.layers[len(layers) : len(layers) + count]:
                layers.append(nn.ModuleDict({name: OPERATORS[name](width, self.norm) for name in names}))
            reductions[len(layers) - 1] = REDUCTIONS[self.reduction](width, wider, stride, self.norm)
        stem = convolution(self.input_shape[0], self.widths[0], 3, self.norm, self.stem_stride)
        head = sequential(**pooled_classifier(self.widths[-1], self.num_classes))
        return PathNetwork(stem, layers, reductions, head)
