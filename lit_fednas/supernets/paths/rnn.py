"""FedorAS' recurrent supernet for Shakespeare (App. E.3, Fig. 7): the next character at every position.

An embedding of 8 numbers per character, two stages of an operator and a searchable skip connection that read the same
input and whose outputs are added, and a linear classifier of every position. With all operators there are 6 * 7 * 7 *
8 = 2,352 paths (Table 8 lists 2,349), and on 80 characters the most expensive one has 33.78 million operations (Table
8: 33.8). Within the tiers' limits of Table 8 there are 285, 603, 784, 463 and 217 paths (Table 8: 316, 577, 787, 473
and 196).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
from torch import nn
from typing_extensions import override

from lit_fednas.costs import count_macs
from lit_fednas.errors import ConfigError
from lit_fednas.ranges import PositiveInt, checked
from lit_fednas.supernets.paths.recurrent import OPERATORS
from lit_fednas.supernets.paths.space import Operators, PathSpace
from lit_fednas.supernets.paths.supernet import Counter, PathNetwork, PathSupernet

_STAGES = 2


@checked("supernet")
class PathRNN(PathSupernet):
    """FedorAS' RNN: operator and skip connection of two stages, each one of several (App. E.3).

    An architecture names four operators: those of the first stage and its skip connection, then of the second.

    Args:
        input_shape: Positions of an example.
        num_classes: Tokens of the vocabulary, which are both input and prediction.
        embedding: Numbers per token that the first stage reads.
        width: Numbers per position that both stages return.
        operators: The candidates, among ``lstm``, ``gru``, ``ligru``, ``qrnn``, ``linear``, ``conv5``, ``id`` (in the
            second stage alone, as the first changes the width) and ``zero`` (in skip connections alone).

    Raises:
        ConfigError: A number is out of range, inputs are not sequences, an operator is unknown, or a layer has none.

    Example:
        >>> net = PathRNN((12,), 90, width=16)
        >>> tokens = torch.randint(90, (2, 12))
        >>> net(tokens, net.space.parse("gru zero linear id")).shape
        torch.Size([2, 12, 90])
    """

    input_dtype = torch.int64

    def __init__(
        self,
        input_shape: Iterable[int] = (80,),
        num_classes: int = 90,
        embedding: PositiveInt = 8,
        width: PositiveInt = 128,
        operators: Sequence[str] = tuple(OPERATORS),
    ) -> None:
        super().__init__(input_shape, num_classes)
        if len(self.input_shape) != 1:
            raise ConfigError(
                f"supernet.input_shape: {list(self.input_shape)} must be one number of positions for "
                f"{type(self).__name__}; choose a source of sequences of tokens"
            )
        if len(set(operators)) < len(operators) or not set(operators) <= set(OPERATORS):
            raise ConfigError(
                f"supernet.operators: {list(operators)} must be distinct and among {', '.join(OPERATORS)}"
            )
        every = [name for name in OPERATORS if name in operators and name not in ("id", "zero")]
        if not every:
            raise ConfigError(
                f"supernet.operators: {list(operators)} leave nothing that widens the embedding; add one that is "
                f"neither id nor zero"
            )
        self.embedding = embedding
        self.width = width
        identity, zero = ([name] if name in operators else [] for name in ("id", "zero"))
        self.candidates = [every, every + zero, every + identity, every + identity + zero]
        self._inputs = [embedding, embedding, width, width]
        self.head_shape = (*self.input_shape, width)
        self.space = PathSpace(self.candidates, self.operator_costs(count_macs))
        self.network = self.build(self.space.superset)

    @override
    def build(self, arch: Operators) -> nn.Module:
        layers = [
            nn.ModuleDict({name: OPERATORS[name](inputs, self.width) for name in names})
            for inputs, names in zip(self._inputs, arch.layers, strict=True)
        ]
        stem = nn.Embedding(self.num_classes, self.embedding)
        heads = {arch.labels: self.head(arch.labels)}
        return PathNetwork(stem, layers, {}, heads, parallel=len(layers) // _STAGES)

    @override
    def head(self, labels: str) -> nn.Module:
        return nn.Linear(self.width, self.label_sets.size(labels))

    @override
    def operator_costs(self, count: Counter) -> list[list[int]]:
        counted: dict[int, dict[str, int]] = {}
        for inputs in {*self._inputs}:
            shape = (*self.input_shape, inputs)
            with torch.device("meta"):
                built = {name: OPERATORS[name](inputs, self.width) for name in self.candidates[-1]}
            counted[inputs] = {name: count(module, shape) for name, module in built.items()}
        layers = zip(self._inputs, self.candidates, strict=True)
        return [[counted[inputs][name] for name in names] for inputs, names in layers]
