"""Text as windows of tokens, with the next tokens as targets: plain files, and Shakespeare's roles.

FedorAS trains on Shakespeare (appendix E). The paper names LEAF as the source. Its Table 3 counts 715 clients, as in
TensorFlow Federated (:class:`ShakespeareRoles`); its appendix counts 1,129, as in LEAF with the small clients.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from typing_extensions import override

from lit_fednas.data.examples import Examples
from lit_fednas.data.sources.base import SPLITS, DataSource, Split, kind_of, reading, require_separate
from lit_fednas.data.tasks import NextToken, Task
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import NonNegativeInt, PositiveInt, checked

#: The number of the padding token.
PAD = 0

#: The tokens of each client.
Clients = dict[str, Sequence[str]]


@dataclass(frozen=True)
class Vocabulary:
    """The number of each token: padding is 0, tokens start at 1, special tokens follow them, ``<oov>`` first."""

    tokens: tuple[str, ...]
    specials: tuple[str, ...] = ("<oov>",)

    @cached_property
    def numbers(self) -> dict[str, int]:
        """The number of each token."""
        return {name: number for number, name in enumerate(self.names)}

    @property
    def names(self) -> tuple[str, ...]:
        """All tokens, in the order of their numbers."""
        return ("<pad>", *self.tokens, *self.specials)

    def encoded(self, text: Iterable[str]) -> np.ndarray:
        """Returns the number of each token, int64; a string's tokens are its characters."""
        oov = self.numbers["<oov>"]
        return np.fromiter((self.numbers.get(token, oov) for token in text), dtype=np.int64)


#: The 86 characters of TensorFlow Federated's Shakespeare; with four special tokens, FedorAS' 90 (appendix E).
SHAKESPEARE = Vocabulary(
    tuple("dhlptx@DHLPTX $(,048cgkoswCGKOSW[_#'/37;?bfjnrvzBFJNRVZ\"&*.26:\naeimquyAEIMQUY]!%)-159\r"),
    ("<oov>", "<bos>", "<eos>"),
)


class TextSource(DataSource):
    """A source with tokens as inputs and the next tokens as targets."""

    input_dtype = torch.int64

    @cached_property
    def task(self) -> Task:
        """The prediction of the next token."""
        return NextToken(self.num_classes, PAD)


@checked("data.source")
@dataclass(eq=False)
class TextFiles(TextSource):
    """Text files, with a column ``client``: the file, the speaking role, or the block of a window.

    Each client's text is cut into consecutive windows. A window's targets are its inputs shifted by one token. The
    last window of a client is filled up with ``<pad>``, which does not count as a target. A client with fewer than two
    tokens in a split has no windows there. The vocabulary holds the most frequent tokens of the training split, then
    ``<oov>``, which replaces all others.

    Penn Treebank's files are ``TextFiles("ptb.train.txt", val="ptb.valid.txt", test="ptb.test.txt",
    level="words", clients="blocks", context=40)``.

    Args:
        files: A text file, a folder (all ``*.txt`` in it), or a glob pattern such as ``plays/*.txt``; UTF-8.
        clients: ``file``: each file is a client, named by its path below the files' common folder. ``role``: each
            role of each file is a client; a line ``Name:``, at the start or after an empty line, begins the text of
            that role and does not belong to it. ``blocks``: each ``block`` tokens of the joined files are a client.
        level: The kind of tokens: ``characters``, or ``words``, separated by white space; the end of a line is a word.
        length: Tokens per window.
        context: Number of tokens that consecutive windows share, which have no targets in the later window; 0 predicts
            the first tokens of a window without context. Bai et al. and SuperFed use 40 for Penn Treebank.
        block: Tokens per block.
        vocabulary_size: Maximum number of different tokens, beside ``<pad>`` and ``<oov>``.
        val: The validation split: files as in ``files``, or a share of each client's text, just before the share of
            ``test``; 0 for no split.
        test: The test split: files as in ``files``, or a share of each client's text, at its end; 0 for no split.
    """

    files: str
    clients: Literal["file", "role", "blocks"] = "file"
    level: Literal["characters", "words"] = "characters"
    length: PositiveInt = 80
    context: NonNegativeInt = 0
    block: PositiveInt = 10_000
    vocabulary_size: PositiveInt = 10_000
    val: float | str = 0.0
    test: float | str = 0.0

    def __post_init__(self) -> None:
        if self.context >= self.length:
            raise ConfigError(
                f"data.source.context: {self.context} of {self.length} tokens leaves no target; give less"
            )
        self.input_shape = (self.length,)
        shares = [share for share in (self.val, self.test) if not isinstance(share, str)]
        if not all(0 <= share < 1 for share in shares) or sum(shares) >= 1:
            raise ConfigError(f"data.source.val, test: {self.val} and {self.test} leave no training text; give less")

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The most frequent tokens of the training split, in order of frequency."""
        counts: Counter[str] = Counter()
        for tokens in self._parts()["train"].values():
            counts.update(tokens)
        ranked = sorted(counts, key=lambda token: (-counts[token], token))
        return Vocabulary(tuple(ranked[: self.vocabulary_size]))

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The tokens, in the order of their numbers."""
        return self.vocabulary.names

    @override
    def load(self, split: Split) -> Examples | None:
        if not getattr(self, _setting(split)):
            return None
        part = self._parts()[split]
        sequences = [self.vocabulary.encoded(tokens) for tokens in part.values()]
        num_short = sum(len(tokens) < 2 for tokens in part.values())
        self.left_out[split][f"clients with fewer than two {self.level}"] = num_short
        self.left_out[split] = +self.left_out[split]
        examples = window_examples(sequences, self.input_shape[0], "client", list(part), self.context)
        if not len(examples):
            raise DataError(f"data.source: {split} has no client with two {self.level}; give more text")
        return examples

    def _parts(self) -> dict[Split, Clients]:
        """Reads the tokens of each client, by split."""
        parts: dict[Split, Clients] = {}
        settings = {split: getattr(self, _setting(split)) for split in SPLITS}
        files = {split: setting for split, setting in settings.items() if isinstance(setting, str)}
        require_separate({split: _text_files(setting, _setting(split))[0] for split, setting in files.items()})
        train = self._clients("train", self.files)
        sizes = {client: len(tokens) for client, tokens in train.items()}
        splits: tuple[Split, ...] = ("test", "val")
        for split in splits:  # shares are cut from the end of each text
            if split in files:
                parts[split] = self._clients(split, files[split])
            elif share := settings[split]:
                cuts = {client: len(tokens) - round(share * sizes[client]) for client, tokens in train.items()}
                parts[split] = {client: tokens[cuts[client] :] for client, tokens in train.items()}
                train = {client: tokens[: cuts[client]] for client, tokens in train.items()}
        return {"train": train, **parts}

    def _clients(self, split: Split, files: str) -> Clients:
        """Reads files, and returns the tokens of each client."""
        paths, self.left_out[split] = _text_files(files, _setting(split))
        texts = _read_texts(paths, _setting(split))
        if self.clients == "role":
            texts = {
                f"{name}/{role}" if len(texts) > 1 else role: speeches
                for name, text in texts.items()
                for role, speeches in _roles(text, name).items()
            }
        tokens: Clients = dict(texts)
        if self.level == "words":
            tokens = {name: re.findall(r"\n|\S+", text) for name, text in texts.items()}
        if self.clients != "blocks":
            return tokens
        joined = [token for text in tokens.values() for token in text]
        starts = range(0, len(joined), self.block)
        return {f"{number:06d}": joined[start : start + self.block] for number, start in enumerate(starts)}


@checked("data.source")
class ShakespeareRoles(TextSource):
    """Characters of 715 speaking roles, with a column ``role``, in 90 tokens.

    The folder holds ``shakespeare_train.h5`` and ``shakespeare_test.h5`` of TensorFlow Federated, in which
    ``examples/<PLAY_ROLE>/snippets`` are byte strings. Each snippet becomes ``<bos>``, its characters and ``<eos>``,
    and is cut into windows as in :class:`TextFiles`. (TensorFlow Federated cuts every ``length + 1`` tokens, and so
    never predicts the first token after a cut.)

    Args:
        root: The folder of the two files.
        length: Tokens per window; 80 as in McMahan et al. (2017).
    """

    class_names = SHAKESPEARE.names

    def __init__(self, root: str | Path, length: PositiveInt = 80) -> None:
        self.root = Path(root).expanduser()
        self.input_shape = (length,)

    @override
    def load(self, split: Split) -> Examples | None:
        if split == "val":
            return None
        snippets = _read_snippets(self.root / f"shakespeare_{split}.h5")
        begin, end = SHAKESPEARE.numbers["<bos>"], SHAKESPEARE.numbers["<eos>"]
        texts = [SHAKESPEARE.encoded(snippet.decode("utf-8", errors="replace")) for _, snippet in snippets]
        sequences = [np.concatenate([[begin], text, [end]]) for text in texts]
        return window_examples(sequences, self.input_shape[0], "role", [role for role, _ in snippets])


def windows(tokens: np.ndarray, length: int, context: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Returns inputs and targets of windows, the last one padded, int64 ``[windows, length]``; see TextFiles."""
    steps, stride = max(0, len(tokens) - 1), length - context
    count = 1 + max(0, -(-(steps - length) // stride)) if steps else 0
    cut = np.full((2, max(0, count - 1) * stride + length), PAD, dtype=np.int64)
    cut[0, :steps] = tokens[:-1]
    cut[1, :steps] = tokens[1:]
    inputs, targets = cut[:, np.arange(count)[:, None] * stride + np.arange(length)]
    targets[1:, :context] = PAD
    return inputs, targets


def window_examples(
    sequences: Sequence[np.ndarray], length: int, column: str, names: Sequence[str], context: int = 0
) -> Examples:
    """Returns the windows of several sequences, with their sequence's name in a column."""
    empty = np.empty((0, length), dtype=np.int64)
    pairs = [windows(tokens, length, context) for tokens in sequences]
    inputs, targets = (np.concatenate(parts) for parts in zip((empty, empty), *pairs, strict=True))
    rows = np.repeat(np.arange(len(sequences)), [len(inputs) for inputs, _ in pairs])
    return Examples(torch.from_numpy(inputs), torch.from_numpy(targets), {column: np.array(names)[rows]})


def _setting(split: str) -> str:
    return "files" if split == "train" else split


def _text_files(files: str, setting: str) -> tuple[list[Path], Counter[str]]:
    """Returns the sorted files of a name, folder or pattern, and counts a folder's omissions by reason."""
    root = Path(files).expanduser()
    pattern = root / "*.txt" if root.is_dir() else root
    paths = [Path(path) for path in sorted(glob(str(pattern), recursive=True)) if not Path(path).is_dir()]
    if not paths:
        raise DataError(f"data.source.{setting}: {pattern} is not a file and matches no files; correct the path")
    others = {*root.iterdir()}.difference(paths) if root.is_dir() else set()
    return paths, Counter("folders" if path.is_dir() else kind_of(path.name) for path in others)


def _read_texts(paths: Sequence[Path], setting: str) -> dict[str, str]:
    """Returns the text of each file, by its name below the common folder."""
    shared = Path(os.path.commonpath([path.parent for path in paths]))
    texts = {}
    for path in paths:
        with reading(path, f"data.source.{setting}", "save it as text in UTF-8, or remove it"):
            texts[path.relative_to(shared).as_posix()] = text = path.read_text(encoding="utf-8-sig")
            if "\0" in text:
                raise ValueError("it has zero bytes")
    return texts


def _roles(text: str, name: str) -> dict[str, str]:
    """Returns the joined speeches of each role."""
    speeches: dict[str, list[str]] = {}
    role = ""
    for part in re.split(r"\n\s*\n", text.strip()):
        first, _, rest = part.partition("\n")
        if first.rstrip()[:-1].strip() and first.rstrip().endswith(":"):
            role, part = first.rstrip()[:-1], rest
        elif not role:
            raise DataError(f"data.source.clients: {name} begins with {first!r}, not with a role; write 'Name:'")
        speeches.setdefault(role, []).append(f"{part}\n" if part else "")
    return {role: "".join(parts) for role, parts in speeches.items()}


def _read_snippets(path: Path) -> list[tuple[str, bytes]]:
    """Returns the role and the text of each snippet."""
    try:
        import h5py  # an extra
    except ImportError as error:
        raise ConfigError("data.source: ShakespeareRoles needs h5py; pip install 'lit-fednas[text]'") from error
    with (
        reading(path, "data.source.root", "it must hold examples/<role>/snippets; replace it"),
        h5py.File(path) as file,
    ):
        snippets = {role: group["snippets"][()] for role, group in file["examples"].items()}
        if other := [role for role, texts in snippets.items() if np.ndim(texts) != 1 or texts.dtype.kind not in "SO"]:
            raise ValueError(f"the snippets of {other[0]} are not a list of texts, but {snippets[other[0]].dtype}")
        if not (pairs := [(role, bytes(text)) for role, texts in snippets.items() for text in texts]):
            raise ValueError("it has no snippets")
    return pairs
