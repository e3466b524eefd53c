"""Text as tokens: vocabularies, and windows of a sequence whose targets are the next tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

#: The 86 characters of TensorFlow Federated's Shakespeare; with four special tokens, FedorAS' 90 (appendix E).
SHAKESPEARE_CHARACTERS = "dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"

#: The number of the token that fills windows up.
PAD = 0


@dataclass(frozen=True)
class Vocabulary:
    """The number of each token: padding is 0, tokens begin with 1, special tokens follow them.

    Args:
        tokens: Characters or words, each once.
        specials: What follows them; ``<oov>`` is first and stands for all that is not in ``tokens``.

    Example:
        >>> words = Vocabulary(("a", "b"))
        >>> words.names, words.encoded("abc").tolist()
        (('<pad>', 'a', 'b', '<oov>'), [1, 2, 3])
    """

    tokens: tuple[str, ...]
    specials: tuple[str, ...] = ("<oov>",)
    numbers: dict[str, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "numbers", {name: number for number, name in enumerate(self.names)})

    @property
    def names(self) -> tuple[str, ...]:
        """All tokens, in the order of their numbers."""
        return ("<pad>", *self.tokens, *self.specials)

    def encoded(self, text: Iterable[str]) -> np.ndarray:
        """Returns the number of each token, int64; tokens of a string are its characters."""
        oov = self.numbers["<oov>"]
        return np.fromiter((self.numbers.get(token, oov) for token in text), dtype=np.int64)


SHAKESPEARE = Vocabulary(tuple(SHAKESPEARE_CHARACTERS), ("<oov>", "<bos>", "<eos>"))


def windows(tokens: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """Cuts a sequence into windows, one after the other, so that each token but the first is a target once.

    Args:
        tokens: int64 ``[T]``.
        length: Tokens per window; the last window is filled up with padding.

    Returns:
        Inputs and targets, int64 ``[windows, length]``; none of a sequence of fewer than two tokens.

    Example:
        >>> inputs, targets = windows(np.array([1, 2, 3, 4]), 2)
        >>> inputs.tolist(), targets.tolist()
        ([[1, 2], [3, 0]], [[2, 3], [4, 0]])
    """
    steps = max(0, len(tokens) - 1)
    count = -(-steps // length)
    cut = np.full((2, count * length), PAD, dtype=np.int64)
    cut[0, :steps] = tokens[:-1]
    cut[1, :steps] = tokens[1:]
    inputs, targets = cut.reshape(2, count, length)
    return inputs, targets


def windows_of_all(sequences: Sequence[np.ndarray], length: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Cuts several sequences into windows."""
    empty = np.empty((0, length), dtype=np.int64)
    pairs = [(empty, empty), *(windows(one, length) for one in sequences)]
    inputs, targets = (np.concatenate(parts) for parts in zip(*pairs, strict=True))
    return inputs, targets, np.repeat(np.arange(len(sequences)), [len(one) for one, _ in pairs[1:]])
