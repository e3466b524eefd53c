"""FedorAS' convolutional supernet (App. E.3, Fig. 7): paths of operators.

CNN-L for CIFAR-10 and CIFAR-100: a 3x3 stem of 64 channels; four stages of four searchable layers at 64, 96, 144
and 216 channels, each followed by a fixed reduction (four, where the text says three); global average pooling and
a linear classifier. With all nine operators there are 9^16 = 1.85 * 10^15 paths, the sum of Table 8's counts. The
wider network of App. J.1 has six stages. Which of its reductions keep the size, the paper does not say; its operations
are those of strides 2, 2, 1, 1, 1, 2 with depthwise separable convolutions on the residual links.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor, nn
from typing_extensions import override

from lit_fednas.costs import count_macs, count_operations, count_parameters, sent_bytes
from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets.families import check_image
from lit_fednas.supernets.labels import ALL, OWN, LabelSets
from lit_fednas.supernets.norms import BatchNorm, Norm
from lit_fednas.supernets.paths.operators import OPERATORS, convolution, reduction
from lit_fednas.supernets.paths.space import Operators, PathCosts, PathSpace
from lit_fednas.supernets.paths.supernet import PathNetwork, PathSupernet

_GROWTH = 1.5

Counter = Callable[[nn.Module, tuple[int, ...]], int]

_COUNTERS: dict[str, Counter] = {
    "macs": count_macs,
    "operations": count_operations,
    "parameters": lambda module, _: count_parameters(module),
    "bytes": lambda module, _: sent_bytes(module),
}


@checked("supernet")
class PathCNN(PathSupernet):
    """FedorAS' CNN: per searchable layer one of several operators (App. E.3).

    An architecture is a path, or a subspace (several operators in a layer), whose network is given the path to run.

    Args:
        input_shape: Channels, height and width of an image.
        num_classes: Classes.
        width: Channels of the stem and the first stage; later stages have 1.5 times those of the one before.
        stage_layers: Searchable layers per stage.
        strides: Per stage the stride of the reduction after it, 1 or 2.
        operators: The candidates of every layer, among ``conv1``, ``sep_e05``, ``sep_e1``, ``sep_e2``, ``mb1_e2``,
            ``mb3_e05``, ``mb3_e1``, ``mb3_e2``, ``id``.
        norm: Normalisation layer.
        label_sets: Label sets beside the data's own classes, each with its own classifier: for each class
            its label in the set (App. H).
        link: The convolution on a reduction's residual link: of kernel 2 where it halves the size, or 1
            (``dense``), or depthwise 3x3 and pointwise (``separable``), which takes maps of odd sides, too.

    Raises:
        ConfigError: A number is out of range, an operator is unknown, or a label set is not valid.

    Example:
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
        operators: Sequence[str] = tuple(OPERATORS),
        norm: Norm = BatchNorm(),
        label_sets: dict[str, list[int]] | None = None,
        link: Literal["dense", "separable"] = "dense",
    ) -> None:
        super().__init__(input_shape, num_classes)
        self.label_sets = LabelSets(self.num_classes, label_sets)
        check_image(self, self.input_shape)
        if not stage_layers or len(strides) != len(stage_layers):
            raise ConfigError(
                f"supernet.stage_layers: {list(stage_layers)} must be at least one number, and strides "
                f"{list(strides)} must be as many"
            )
        factor, sides = 2 ** strides.count(2), list(self.input_shape[1:])
        if link == "dense" and any(side % factor for side in sides):  # kernels 2 and 3 round differently
            raise ConfigError(
                f"supernet.strides: {list(strides)} cannot halve {sides} pixels evenly; give fewer 2s, or set "
                f"data.source.image_size to a multiple of {factor}, or supernet.link to separable"
            )
        self.operators = [name for name in OPERATORS if name in operators]
        if not operators or len(self.operators) != len(operators):
            raise ConfigError(
                f"supernet.operators: {list(operators)} must be distinct and among {', '.join(OPERATORS)}"
            )
        self.widths = [width]
        for _ in stage_layers:
            self.widths.append(int(_GROWTH * self.widths[-1]))
        if width < 2 or any(one % 2 for one in self.widths[:-1]):
            raise ConfigError(
                f"supernet.width: {width} gives stages of {self.widths[:-1]} channels, which must be even; "
                f"choose a multiple of {2 ** len(stage_layers)}"
            )
        self.stage_layers = list(stage_layers)
        self.strides = list(strides)
        self.link = link
        self.norm = norm
        self._path_costs: dict[str, PathCosts] = {}
        candidates = [self.operators] * sum(stage_layers)
        self.space = PathSpace(candidates, self._operator_costs(count_macs), self.label_sets.names)
        self.network = self.build(self.space.superset)

    @override
    def build(self, arch: Operators) -> nn.Module:
        layers: list[nn.ModuleDict] = []
        reductions: dict[int, nn.Module] = {}
        for count, stride, (width, wider) in zip(self.stage_layers, self.strides, pairwise(self.widths), strict=True):
            for names in arch.layers[len(layers) : len(layers) + count]:
                layers.append(nn.ModuleDict({name: OPERATORS[name](width, self.norm) for name in names}))
            reductions[len(layers) - 1] = reduction(width, wider, stride, self.norm, self.link == "separable")
        stem = convolution(self.input_shape[0], self.widths[0], 3, self.norm)
        sets = self.label_sets.names if arch.labels == ALL else [arch.labels]
        return PathNetwork(stem, layers, reductions, {name: self._head(name) for name in sets})

    @override
    def targets(self, arch: Operators, classes: Tensor) -> Tensor:
        return self.label_sets.targets(arch.labels, classes)

    @override
    def path_costs(self, cost: str) -> PathCosts:
        if cost not in self._path_costs:
            self._path_costs[cost] = self._count(_COUNTERS[cost])
        return self._path_costs[cost]

    def _head(self, labels: str) -> nn.Module:
        classifier = nn.Linear(self.widths[-1], self.label_sets.size(labels))
        return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), classifier)

    def _shapes(self) -> list[tuple[int, int, int]]:
        """Returns the shapes of the feature maps in every stage, and after the last reduction."""
        _, height, width = self.input_shape
        shapes = [(self.widths[0], height, width)]
        for stride, channels in zip(self.strides, self.widths[1:], strict=True):
            height, width = -(-height // stride), -(-width // stride)
            shapes.append((channels, height, width))
        return shapes

    def _count(self, count: Counter) -> PathCosts:
        """Returns a cost of the operators, and of the stem, the reductions and the head together."""
        layers, path = self._operator_costs(count), self.space.smallest
        with torch.device("meta"):
            whole = count(self.build(path), self.input_shape)
            heads = {name: count(self._head(name), self._shapes()[-1]) for name in self.label_sets.names}
        own = PathCosts(self.space, layers, 0).of(path)
        extra = {name: head - heads[OWN] for name, head in heads.items()}
        extra[ALL] = sum(heads.values()) - heads[OWN]
        return PathCosts(self.space, layers, whole - own, extra)

    def _operator_costs(self, count: Counter) -> list[list[int]]:
        """Returns a cost per layer and candidate."""
        costs: list[list[int]] = []
        for shape, layers in zip(self._shapes(), self.stage_layers, strict=False):
            with torch.device("meta"):
                built = [OPERATORS[name](shape[0], self.norm) for name in self.operators]
            costs += [[count(module, shape) for module in built]] * layers
        return costs
