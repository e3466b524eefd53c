"""Shakespeare's roles as TensorFlow Federated publishes them, which FedorAS trains on (appendix E).

The paper names LEAF as the source and counts 715 clients in Table 3, those of TensorFlow Federated, but 1,129 in the
appendix, those of LEAF before small ones are left out. This is the former; ``LeafText`` reads the latter.
"""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from typing_extensions import override

from lit_fednas.data.examples import Examples
from lit_fednas.data.sources.base import DataSource, Split
from lit_fednas.data.sources.tokens import PAD, SHAKESPEARE, windows_of_all
from lit_fednas.data.tasks import NextToken, Task
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import PositiveInt, checked


@checked("data.source")
class ShakespeareRoles(DataSource):
    """Characters of 715 speaking roles, with a column ``role``, in 90 tokens.

    The folder holds ``shakespeare_train.h5`` and ``shakespeare_test.h5``, in which ``examples/<PLAY_ROLE>/snippets``
    are byte strings. Each snippet becomes ``<bos>``, its characters and ``<eos>``, and is cut into windows, one after
    the other; targets are the inputs shifted by one, and ``<pad>``, which fills the last window up, is not counted.
    (TensorFlow Federated cuts every ``length + 1`` tokens, so that one target in so many is never predicted.)

    Args:
        root: The folder.
        length: Tokens per window; 80 as in McMahan et al. (2017).

    Example:
        >>> source = ShakespeareRoles("shakespeare-roles")
        >>> source.num_classes, source.class_names[-3:]
        (90, ('<oov>', '<bos>', '<eos>'))
    """

    class_names = SHAKESPEARE.names
    num_classes = len(class_names)
    input_dtype = torch.int64

    def __init__(self, root: str | Path, length: PositiveInt = 80) -> None:
        self.root = Path(root).expanduser()
        self.input_shape = (length,)

    @cached_property
    def task(self) -> Task:
        """The next character."""
        return NextToken(self.num_classes, PAD)

    @override
    def load(self, split: Split) -> Examples | None:
        if split == "val":
            return None
        snippets = _read(self.root / f"shakespeare_{split}.h5")
        inputs, targets, rows = windows_of_all([_encoded(text) for _, text in snippets], self.input_shape[0])
        roles = np.array([role for role, _ in snippets])
        return Examples(torch.from_numpy(inputs), torch.from_numpy(targets), {"role": roles[rows]})


def _encoded(snippet: bytes) -> np.ndarray:
    ends = SHAKESPEARE.numbers["<bos>"], SHAKESPEARE.numbers["<eos>"]
    text = SHAKESPEARE.encoded(snippet.decode("utf-8", errors="replace"))
    return np.concatenate([ends[:1], text, ends[1:]])


def _read(path: Path) -> list[tuple[str, bytes]]:
    """Returns the role and the text of each snippet."""
    try:
        import h5py  # an extra
    except ImportError as error:
        raise ConfigError("data.source: ShakespeareRoles needs h5py; pip install 'lit-fednas[text]'") from error
    if not path.is_file():
        raise DataError(f"data.source.root: {path} is missing; unpack TensorFlow Federated's Shakespeare there")
    try:
        with h5py.File(path) as file:
            snippets = {role: group["snippets"][()] for role, group in file["examples"].items()}
    except (OSError, KeyError, AttributeError, TypeError) as error:
        raise DataError(f"data.source.root: {path} has no examples/<role>/snippets ({error}); replace it") from error
    if not (pairs := [(role, bytes(text)) for role, texts in snippets.items() for text in texts]):
        raise DataError(f"data.source.root: {path} has no snippets; replace it")
    return pairs
