"""One or several small instances of every supernet, for the contract's tests.

A new supernet needs a line in ``INSTANCES``; without it a test fails. Tests in other folders of parts that work with
any supernet run over ``SPACES``: one instance of each kind.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from torch import Tensor

from lit_fednas.parts import described
from lit_fednas.records.files import replace_json
from lit_fednas.records.run import SUITE_FILE
from lit_fednas.supernets import (
    BaseNetworks,
    BatchNorm,
    CellSupernet,
    EarlyExitResNet,
    ElasticMLP,
    ElasticTCN,
    ElasticTransformer,
    FamilyNetwork,
    GenotypeNetwork,
    GroupNorm,
    GrowableCNN,
    GrowableFamily,
    GrowableResNet18,
    GrowableViT,
    GrownModel,
    ModelSuite,
    PathCNN,
    PathRNN,
    PrunedSequence,
    ResNet18,
    SeparateExits,
    SeparateNetworks,
    SeparateWidths,
    SlicedCNN,
    SlicedLSTM,
    SlicedMobileNet,
    SlicedResNet,
    SlicedTransformer,
    SmallCNN,
    Supernet,
    WidthSupernet,
)
from lit_fednas.supernets.growing.growth import plan, to_plain
from lit_fednas.testing import networks
from lit_fednas.testing.networks import HIDDEN, elastic
from tests.supernets.sequences import propose


def roll(zeros: dict[str, Tensor], arch: tuple[int, int], w: dict[str, Tensor]) -> None:
    """Copies a window's weights to their positions, one element at a time."""
    start, units = arch
    for i in range(units):
        target = (start + i) % HIDDEN
        zeros["network.0.weight"][target] = w["0.weight"][i]
        zeros["network.0.bias"][target] = w["0.bias"][i]
        zeros["network.2.bias"][target] = w["2.bias"][i]
        zeros["network.classifier.weight"][:, target] = w["classifier.weight"][:, i]
        zeros["network.age"][target] = w["age"][i]
        for k in range(units):
            zeros["network.2.weight"][target, (start + k) % HIDDEN] = w["2.weight"][i, k]
    zeros["network.classifier.bias"][:] = w["classifier.bias"]


def pruned() -> PrunedSequence:
    """Two models, and candidates for a third."""
    net = PrunedSequence((3, 8, 8), 5, SlicedMobileNet(1.0, (4, 6), (1, 2)))
    propose(net)
    net.select("conv1")
    propose(net)
    return net


def suite(family: GrowableFamily, *cells: str) -> ModelSuite:
    """Three models, each larger than the previous one: ``cells`` are widened, then deepened."""
    net = ModelSuite((3, 8, 8), 5, family)
    for number in (1, 2):
        net.add(number - 1, plan(net.models[-1].blueprint, cells, number), seed=0, round=number)
    return net


def rows_of(suite: ModelSuite) -> list[dict[str, object]]:
    """The models of ``suite.json``."""
    costs = {"round": None, "macs": 0, "parameters": 0, "bytes": 0}
    return [
        {
            "number": number,
            "parent": model.parent,
            "cells": str(model.blueprint),
            "steps": to_plain(model.steps),
            **costs,
        }
        for number, model in enumerate(suite.models)
    ]


def grown_network() -> FamilyNetwork:
    """The second model of a run, from its record."""
    family = GrowableCNN([4, 4], BatchNorm())
    suite = ModelSuite((3, 8, 8), 5, family)
    suite.add(0, plan(suite.models[0].blueprint, ["conv2"], 1), seed=0)
    rows = rows_of(suite)
    with tempfile.TemporaryDirectory() as folder:
        replace_json(Path(folder) / SUITE_FILE, {"models": rows, "family": described(family)})
        return FamilyNetwork((3, 8, 8), 5, GrownModel(folder))


#: Shape of an image and number of classes.
IMAGES = (3, 8, 8), 5

INSTANCES: dict[str, Callable[[], Supernet]] = {
    "bases": lambda: BaseNetworks(*IMAGES, SlicedCNN((4, 6), norm=BatchNorm()), count=3),
    "cells": lambda: CellSupernet(*IMAGES, width=2, cells=3, nodes=1),
    "elastic": elastic,
    "elastic-groupnorm": lambda: elastic(GroupNorm(4)),
    **networks.SMALL,
    "elastic-narrow": lambda: elastic(ratios=[0.25, 0.5], divisor=8),  # both ratios give 8 of the first 16 channels
    "elastic-widths": lambda: elastic(stem_width=8, ratios=[0.5, 1.0], width_multipliers=[0.5, 1.0]),
    # few enough architectures to count all; stem and a stage both have 8 channels
    "elastic-widths-alone": lambda: elastic(stem_width=8, depths=[0], width_multipliers=[0.5, 1.0]),
    "elastic-mlp": lambda: ElasticMLP((3, 4), 5, dim=8, depths=[0, 1], ratios=[0.25, 0.5, 2]),
    "elastic-tcn": lambda: ElasticTCN((6,), 7, channels=10, depths=[0, 2], ratios=[0.2, 0.5, 1.0]),
    "elastic-tcn-dropout": lambda: ElasticTCN((6,), 7, 8, depths=[0, 1], dropout=0.2, embedding_dropout=0.1),
    "elastic-transformer": lambda: ElasticTransformer(*IMAGES, dim=8, depths=[0, 1], heads=[1, 2]),
    "elastic-transformer-text": lambda: ElasticTransformer((6,), 7, dim=8, depths=[0, 1], heads=[1, 2, 4]),
    "elastic-transformer-pooled": lambda: ElasticTransformer((6,), 5, dim=8, heads=[2], vocabulary=9, pooled=True),
    "early-exit": lambda: EarlyExitResNet(*IMAGES, width=4, norm=GroupNorm(2), blocks=[1, 1, 1], exits=[1, 3]),
    "early-exit-own-heads": lambda: EarlyExitResNet(
        *IMAGES, width=4, norm=GroupNorm(2), blocks=[1, 1], exits=[1, 2], early_heads=False
    ),
    "early-exit-batchnorm": lambda: EarlyExitResNet(
        *IMAGES, width=4, norm=BatchNorm(), blocks=[1, 1, 1], exits=[1, 2, 3]
    ),
    "genotype": lambda: GenotypeNetwork(
        *IMAGES, "normal sep_conv_3x3~0+skip_connect~1 reduce skip_connect~0+max_pool_3x3~1", width=4, cells=3
    ),
    "grown-network": grown_network,
    "path-cnn": lambda: PathCNN(*IMAGES, width=8, stage_layers=[2, 1], strides=[2, 1]),
    "path-rnn": lambda: PathRNN((7,), 9, embedding=4, width=6),
    "pruned-sequence-of-several": pruned,
    "pruned-text": lambda: PrunedSequence((6,), 7, SlicedTransformer(8, 1, 2, 12)),
    "resnet18": lambda: ResNet18(*IMAGES, width=8),
    "separate-exits": lambda: SeparateExits(
        *IMAGES, width=4, norm=BatchNorm(), blocks=[1, 1], exits=[1, 2], early_heads=False
    ),
    "separate-widths": lambda: SeparateWidths(*IMAGES, family=SlicedCNN((4, 6)), widths=[1, 0.5]),
    "separate-tokens": lambda: SeparateNetworks(
        (6,), 7, lambda *shape: ElasticTCN(*shape, channels=4, depths=[0], ratios=[0.5, 1.0])
    ),
    "suite-resnet": lambda: suite(GrowableResNet18(4, [1, 1], GroupNorm(2)), "stem", "stage2_block1"),
    "suite-vit": lambda: suite(GrowableViT(dim=8, heads=2, depth=1), "layer1"),
    "smallcnn": lambda: SmallCNN((1, 8, 8), 5),
    "widths-cnn": lambda: WidthSupernet(*IMAGES, SlicedCNN((6, 10), BatchNorm()), widths=[1, 0.5, 0.3], scaler=True),
    "widths-lstm": lambda: WidthSupernet((6,), 7, SlicedLSTM((6, 4), embedding=3), widths=[1, 0.5]),
    "widths-mobilenet": lambda: WidthSupernet(
        *IMAGES, SlicedMobileNet(0.5, (8, 12, 14), (1, 2, 1)), widths=[1, 0.5], scaler=True
    ),
    "widths-resnet": lambda: WidthSupernet(*IMAGES, SlicedResNet((4, 8), (1, 2), BatchNorm()), widths=[0.25, 1, 0.5]),
    "widths-text": lambda: WidthSupernet((6,), 7, SlicedTransformer(8, 1, 2, 12), widths=[1, 0.5]),
    "widths-transformer": lambda: WidthSupernet(*IMAGES, GrowableViT(dim=12, heads=3, depth=2), widths=[1, 0.5, 1 / 3]),
}

#: One instance of each kind.
SPACES = (
    *("elastic-batchnorm", "elastic-transformer-text", "path-cnn", "cells", "early-exit-batchnorm"),
    *("widths-cnn", "bases", "suite-resnet", "pruned-sequence-of-several"),
)

#: Instances that are slow or similar to others; the contract tests them among the slow tests.
VARIANTS = (
    *("cells", "elastic", "elastic-groupnorm", "elastic-narrow", "elastic-tcn-dropout", "elastic-transformer"),
    *("elastic-transformer-pooled", "early-exit", "early-exit-own-heads", "path-cnn", "separate-tokens", "suite-vit"),
    *("widths-resnet", "widths-transformer"),
)


def instance(name: str) -> Supernet:
    """Builds an instance."""
    return networks.build_net(name, INSTANCES[name])


def kept_instance(name: str) -> Supernet:
    """Returns an instance that is built once, for tests that do not change it."""
    return networks.cached_net(name, INSTANCES[name])
