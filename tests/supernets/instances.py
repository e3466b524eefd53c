"""One small instance, or several, of every supernet: what the contract's tests run over.

A new supernet needs a line in ``INSTANCES``; a test fails as long as it has none.
"""

from __future__ import annotations

import functools
import inspect
import pkgutil
import tempfile
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lit_fednas.supernets
from lit_fednas.errors import ConfigError
from lit_fednas.finetune.finetuning import TierNetwork
from lit_fednas.parts import described
from lit_fednas.records.models import write_suite
from lit_fednas.rng import generator, isolated
from lit_fednas.supernets import (
    BaseNetworks,
    BatchNorm,
    CellSupernet,
    EarlyExitResNet,
    ElasticMLP,
    ElasticResNet,
    ElasticTCN,
    ElasticTransformer,
    FamilyNetwork,
    GenotypeNetwork,
    GroupNorm,
    GrowableCNN,
    GrowableFamily,
    GrowableNASBench201,
    GrowableResNet18,
    GrowableViT,
    GrownModel,
    ModelSuite,
    NoNorm,
    Norm,
    PathCNN,
    PathRNN,
    PlainNetwork,
    PrunedSequence,
    Region,
    ResNet18,
    SearchSpace,
    SeparateExits,
    SeparateNetworks,
    SeparateWidths,
    SlicedCNN,
    SlicedConvNet,
    SlicedMobileNet,
    SlicedResNet,
    SlicedSmallCNN,
    SmallCNN,
    Supernet,
    WidthSupernet,
)
from lit_fednas.supernets.growing.growth import plan, to_plain
from tests.supernets.sequences import propose

HIDDEN = 6


class RollingSpace(SearchSpace[tuple[int, int]]):
    """Pairs of (first unit, units): a window on the hidden layer that goes round its end."""

    choices = (range(HIDDEN), range(HIDDEN - 1))

    def decode(self, genes: Sequence[int]) -> tuple[int, int]:
        start, units = genes[0], genes[1] + 2
        return (0, units) if units == HIDDEN else (start, units)

    def encode(self, arch: tuple[int, int]) -> tuple[int, ...]:
        return (arch[0], arch[1] - 2)

    @property
    def smallest(self) -> tuple[int, int]:
        return (0, 2)

    @property
    def largest(self) -> tuple[int, int]:
        return (0, HIDDEN)

    @property
    def size(self) -> int:
        return HIDDEN * (HIDDEN - 2) + 1

    def parse(self, text: object) -> tuple[int, int]:
        try:
            start, units = (int(part) for part in str(text).strip("()").split(","))
        except ValueError:
            raise ConfigError(f"architecture: {text!r} cannot be read") from None
        return (start, units)


class RollingNet(Supernet):
    """Two hidden layers of the same window: regions that are no slices, in one dimension and in two."""

    def __init__(self) -> None:
        super().__init__((3,), 4)
        self.space = RollingSpace()
        self.network = self.build((0, HIDDEN))
        self.register_buffer("age", torch.arange(HIDDEN))

    def build(self, arch: tuple[int, int]) -> nn.Module:
        units = arch[1]
        network = nn.Sequential(nn.Linear(3, units), nn.Tanh(), nn.Linear(units, units), nn.Tanh(), nn.Linear(units, 4))
        network.register_buffer("age", torch.zeros(units, dtype=torch.int64))
        return network

    def index(self, arch: tuple[int, int]) -> dict[str, Region]:
        window = (torch.arange(arch[1]) + arch[0]) % HIDDEN
        return {
            "0.weight": Region("network.0.weight", (window, slice(None))),
            "0.bias": Region("network.0.bias", (window,)),
            "2.weight": Region("network.2.weight", (window[:, None], window[None, :])),
            "2.bias": Region("network.2.bias", (window,)),
            "4.weight": Region("network.4.weight", (slice(None), window)),
            "4.bias": Region("network.4.bias"),
            "age": Region("network.age", (window,)),
        }


def roll(zeros: dict[str, Tensor], arch: tuple[int, int], w: dict[str, Tensor]) -> None:
    """Puts a window's weights into their place, one element at a time."""
    start, units = arch
    for i in range(units):
        place = (start + i) % HIDDEN
        zeros["network.0.weight"][place] = w["0.weight"][i]
        zeros["network.0.bias"][place] = w["0.bias"][i]
        zeros["network.2.bias"][place] = w["2.bias"][i]
        zeros["network.4.weight"][:, place] = w["4.weight"][:, i]
        zeros["network.age"][place] = w["age"][i]
        for k in range(units):
            zeros["network.2.weight"][place, (start + k) % HIDDEN] = w["2.weight"][i, k]
    zeros["network.4.bias"][:] = w["4.bias"]


def elastic(norm: Norm | None = None, **settings: object) -> ElasticResNet:
    """An elastic network of two stages; with the divisor 4 all its ratios differ in width."""
    return ElasticResNet(
        **{  # type: ignore[arg-type]
            "input_shape": (3, 8, 8),
            "num_classes": 5,
            "stem_width": 4,
            "stage_widths": [16, 32],
            "depths": [0, 1],
            "ratios": [0.25, 0.5, 1.0],
            "divisor": 4,
            "norm": norm or BatchNorm(affine=False, running_statistics=False),
            **settings,
        }
    )


def plain() -> PlainNetwork:
    """A network of one architecture with parameters, buffers and a frozen tensor."""
    network = nn.Sequential(nn.Conv2d(2, 6, 3, groups=2), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(96, 3))
    network[4].bias.requires_grad_(False)
    return PlainNetwork(network, (2, 6, 6), 3)


def pruned() -> PrunedSequence:
    """Two models, and candidates for a third."""
    net = PrunedSequence((3, 8, 8), 5, SlicedMobileNet(1.0, (4, 6), (1, 2)))
    propose(net)
    net.select("conv1")
    propose(net)
    return net


def suite(family: GrowableFamily, *cells: str) -> ModelSuite:
    """Three models, each larger than the one before: these cells are widened, then deepened."""
    net = ModelSuite((3, 8, 8), 5, family)
    for number in (1, 2):
        net.add(number - 1, plan(net.models[-1].blueprint, cells, number), seed=0, round=number)
    return net


def tier_network() -> TierNetwork:
    """A path, taken out of its supernet to be fine-tuned."""
    net = PathCNN((3, 8, 8), 5, 8, [1, 1], [2, 2], ["conv1", "sep_e1", "id"])
    arch = net.space.parse("sep_e1 conv1")
    return TierNetwork(net, arch, net.subnet(arch))


def grown_network() -> FamilyNetwork:
    """The second model of a run, from its record."""
    family = GrowableCNN([4, 4], BatchNorm())
    suite = ModelSuite((3, 8, 8), 5, family)
    suite.add(0, plan(suite.models[0].blueprint, ["conv2"], 1), seed=0)
    rows = [
        {"parent": model.parent, "cells": str(model.blueprint), "steps": to_plain(model.steps)}
        for model in suite.models
    ]
    with tempfile.TemporaryDirectory() as folder:
        write_suite(Path(folder), rows, complete=False, family=described(family))
        return FamilyNetwork((3, 8, 8), 5, GrownModel(folder))


INSTANCES: dict[str, Callable[[], Supernet]] = {
    "bases": lambda: BaseNetworks((3, 8, 8), 5, SlicedCNN((4, 6), norm=BatchNorm()), count=3),
    "bases-one": lambda: BaseNetworks((3, 8, 8), 5, SlicedCNN((4, 8), norm=GroupNorm(2)), count=1),
    "cells": lambda: CellSupernet((3, 8, 8), 5, width=2, cells=3, nodes=2),
    "elastic": elastic,
    "elastic-groupnorm": lambda: elastic(GroupNorm(4)),
    "elastic-batchnorm": lambda: elastic(BatchNorm()),
    "elastic-no-norm": lambda: elastic(NoNorm(), he_init=False, relu_before_sum=True),
    "elastic-narrow": lambda: elastic(ratios=[0.25, 0.5], divisor=8),  # both are 8 of the first stage's 16 channels
    "elastic-mlp": lambda: ElasticMLP((3, 4), 5, dim=8, depths=[0, 1], ratios=[0.25, 0.5, 2]),
    "elastic-tcn": lambda: ElasticTCN((6,), 7, channels=10, depths=[0, 2], ratios=[0.2, 0.5, 1.0]),
    "elastic-tcn-untied": lambda: ElasticTCN(
        (6,), 7, 8, embedding=4, depths=[0, 1], tied=False, dropout=0.2, embedding_dropout=0.1
    ),
    "elastic-transformer": lambda: ElasticTransformer((3, 8, 8), 5, dim=8, depths=[0, 1], heads=[1, 2]),
    "elastic-transformer-text": lambda: ElasticTransformer((6,), 7, dim=8, depths=[0, 1], heads=[1, 2, 4]),
    "elastic-transformer-pooled": lambda: ElasticTransformer((6,), 5, dim=8, heads=[2], vocabulary=9, pooled=True),
    "early-exit": lambda: EarlyExitResNet((3, 8, 8), 5, width=4, norm=GroupNorm(2), blocks=[1, 1, 1], exits=[1, 3]),
    "early-exit-own-heads": lambda: EarlyExitResNet(
        (3, 8, 8), 5, width=4, norm=GroupNorm(2), blocks=[1, 1], exits=[1, 2], early_heads=False
    ),
    "early-exit-batchnorm": lambda: EarlyExitResNet(
        (3, 8, 8), 5, width=4, norm=BatchNorm(), blocks=[1, 1, 1], exits=[1, 2, 3]
    ),
    "genotype": lambda: GenotypeNetwork(
        (3, 8, 8), 5, "normal sep_conv_3x3~0+skip_connect~1 reduce skip_connect~0+max_pool_3x3~1", width=4, cells=3
    ),
    "grown-network": grown_network,
    "path-cnn": lambda: PathCNN((3, 8, 8), 5, width=8, stage_layers=[2, 1], strides=[2, 1]),
    "path-cnn-groupnorm": lambda: PathCNN(
        (3, 8, 8), 5, 8, [1, 1], [2, 2], ["conv1", "sep_e1", "mb3_e2"], norm=GroupNorm(2)
    ),
    "path-cnn-labels": lambda: PathCNN(
        (3, 8, 8), 6, 8, [1, 1], [2, 2], ["sep_e1", "id"], label_sets={"pairs": [0, 0, 1, 1, 2, 2]}
    ),
    "path-cnn-pooled": lambda: PathCNN(
        (1, 10, 13), 5, 8, [1, 2], [2, 2], ["sep1_e2", "conv3"], reduction="pooled", growth=2, stem_stride=2
    ),
    "path-rnn": lambda: PathRNN((7,), 9, embedding=4, width=6),
    "plain": plain,
    "pruned-sequence": lambda: PrunedSequence((3, 8, 8), 5, SlicedMobileNet(1.0, (4, 6), (1, 2))),
    "pruned-sequence-of-several": pruned,
    "resnet18": lambda: ResNet18((3, 8, 8), 5, width=8),
    "rolling": RollingNet,
    "separate-exits": lambda: SeparateExits(
        (3, 8, 8), 5, width=4, norm=BatchNorm(), blocks=[1, 1], exits=[1, 2], early_heads=False
    ),
    "separate-widths": lambda: SeparateWidths((3, 8, 8), 5, family=SlicedCNN((4, 6)), widths=[1, 0.5]),
    "separate-elastic": lambda: SeparateNetworks(
        (3, 8, 8), 5, lambda *shape: elastic(norm=GroupNorm(4)), ["largest", "smallest"]
    ),
    "separate-tokens": lambda: SeparateNetworks(
        (6,), 7, lambda *shape: ElasticTCN(*shape, channels=4, depths=[0], ratios=[0.5, 1.0]), ["largest", "smallest"]
    ),
    "suite-nasbench201": lambda: suite(GrowableNASBench201(4, norm=BatchNorm()), "stage1_cell1"),
    "suite-resnet": lambda: suite(GrowableResNet18(4, [1, 1], GroupNorm(2)), "stem", "stage2_block1"),
    "suite-vit": lambda: suite(GrowableViT(dim=8, heads=2, depth=1), "layer1"),
    "tier-network": tier_network,
    "smallcnn": lambda: SmallCNN((1, 8, 8), 5),
    "widths-cnn": lambda: WidthSupernet(
        (3, 8, 8), 5, SlicedCNN((6, 10), BatchNorm()), widths=[1, 0.5, 0.3], scaler=True
    ),
    "widths-cnn-groupnorm": lambda: WidthSupernet((3, 8, 8), 5, SlicedCNN((8, 16), GroupNorm(4)), widths=[1, 0.25]),
    "widths-convnet": lambda: WidthSupernet(
        (3, 8, 8), 5, SlicedConvNet((4, 6, 4), pools=(1, 3)), widths=[1, 0.5], scaler=True
    ),
    "widths-mobilenet": lambda: WidthSupernet(
        (3, 8, 8), 5, SlicedMobileNet(0.5, (8, 12, 14), (1, 2, 1)), widths=[1, 0.5], scaler=True
    ),
    "widths-resnet": lambda: WidthSupernet(
        (3, 8, 8), 5, SlicedResNet((4, 8), (1, 2), BatchNorm()), widths=[0.25, 1, 0.5]
    ),
    "widths-smallcnn": lambda: WidthSupernet((1, 8, 8), 5, SlicedSmallCNN((4, 6), 10), widths=[1, 0.5], scaler=True),
    "widths-transformer": lambda: WidthSupernet(
        (3, 8, 8), 5, GrowableViT(dim=12, heads=3, depth=2), widths=[1, 0.5, 1 / 3]
    ),
}


#: Their kinds are there without them; what is parametrized by :func:`names` runs them among the slow tests.
VARIANTS = (
    *("bases-one", "elastic-groupnorm", "elastic-narrow", "elastic-tcn-untied", "elastic-transformer-pooled"),
    *("early-exit", "path-cnn", "path-cnn-groupnorm", "path-cnn-pooled"),
    *("pruned-sequence", "separate-elastic", "suite-nasbench201", "suite-vit"),
    *("widths-cnn-groupnorm", "widths-convnet", "widths-resnet", "widths-smallcnn", "widths-transformer"),
)


def names() -> list[Any]:
    """The instances' names, as parameters of tests."""
    return [pytest.param(name, marks=pytest.mark.slow) if name in VARIANTS else name for name in sorted(INSTANCES)]


def instance(name: str) -> Supernet:
    """Builds an instance with weights that depend on nothing but its name; buffers are no zeros and ones."""
    with isolated(0, name):
        net = INSTANCES[name]()
        draws = generator(1, name)
        for buffer in net.buffers():
            if buffer.is_floating_point():
                buffer.copy_(0.5 + torch.rand(buffer.shape, generator=draws))
            else:
                buffer.copy_(torch.randint(1, 9, buffer.shape, generator=draws))
    return net


#: An instance that is built once, for tests that leave it as it is.
kept_instance = functools.cache(instance)


def batch(net: Supernet, size: int = 4, seed: int = 0) -> Tensor:
    """Draws a batch of inputs; tokens are so low that one and two can be added."""
    shape, draws = (size, *net.input_shape), generator(seed, "inputs")
    if net.input_dtype == torch.int64:
        return torch.randint(net.num_classes - 2, shape, generator=draws)
    return torch.randn(shape, generator=draws)


def concrete_supernets() -> set[type[Supernet]]:
    """All classes of the library that can be instantiated."""
    for module in pkgutil.walk_packages(lit_fednas.supernets.__path__, "lit_fednas.supernets."):
        import_module(module.name)
    found: set[type[Supernet]] = set()
    todo: list[type[Supernet]] = [Supernet]
    while todo:
        for kind in todo.pop().__subclasses__():
            todo.append(kind)
            if kind.__module__.startswith("lit_fednas.") and not inspect.isabstract(kind):
                found.add(kind)
    return found
