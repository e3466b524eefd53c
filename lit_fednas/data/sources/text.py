"""Plain text, as windows of characters or words whose targets are the next ones."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cached_property
from glob import glob
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from typing_extensions import override

from lit_fednas.data.examples import Examples
from lit_fednas.data.sources.base import DataSource, Split
from lit_fednas.data.sources.tokens import PAD, Vocabulary, windows_of_all
from lit_fednas.data.tasks import NextToken, Task
from lit_fednas.errors import ConfigError, DataError
from lit_fednas.ranges import PositiveInt, checked

#: The tokens of each client.
Clients = dict[str, Sequence[str]]


@checked("data.source")
class TextFiles(DataSource):
    """Text files, with a column ``client``: the file, the speaking role, or the block that a window is cut from.

    Each client's text is cut into windows, one after the other; a window's targets are its inputs shifted by one
    token, and the last window of a client is filled up with ``<pad>``, which is not counted. A client whose part of
    a split has fewer than two tokens has no windows there. The vocabulary is that of the training part: the most
    frequent tokens, then ``<oov>``, which stands for all others.

    Penn Treebank's files are ``TextFiles("ptb.train.txt", val="ptb.valid.txt", test="ptb.test.txt",
    level="words", clients="blocks")``.

    Args:
        files: A text file, a folder (all ``*.txt`` in it), or a glob pattern such as ``plays/*.txt``; UTF-8.
        clients: ``file``: each file is a client, named by its path below the folder that all share. ``role``: a line
            ``Name:`` begins a speech of that role, which ends with an empty line; what follows until the next such
            line is still that role's. The names themselves are not part of the text. Roles of several files are
            clients of their own. ``blocks``: contiguous blocks of ``block`` tokens of the files one after the other.
        level: What a token is: ``characters``, or ``words``, between which there is white space; the end of a
            line is a word of its own.
        length: Tokens per window.
        block: Tokens per block.
        vocabulary_size: At most so many different tokens are kept, beside ``<pad>`` and ``<oov>``.
        val: Where the validation split is: as ``files``, or the share of each client's text that it is, before that
            of ``test``; 0 for none.
        test: As ``val``; a share is the end of each client's text.

    Raises:
        ConfigError: A setting is out of range.

    Example:
        >>> TextFiles("shakespeare.txt", clients="role", test=0.1).input_shape
        (80,)
    """

    input_dtype = torch.int64

    def __init__(
        self,
        files: str,
        clients: Literal["file", "role", "blocks"] = "file",
        level: Literal["characters", "words"] = "characters",
        length: PositiveInt = 80,
        block: PositiveInt = 10_000,
        vocabulary_size: PositiveInt = 10_000,
        val: float | str = 0.0,
        test: float | str = 0.0,
    ) -> None:
        self.input_shape = (length,)
        self.clients = clients
        self.level = level
        self.block = block
        self.vocabulary_size = vocabulary_size
        self.files = {"train": files, "val": val, "test": test}
        shares = [one for one in (val, test) if not isinstance(one, str)]
        if not all(0 <= share < 1 for share in shares) or sum(shares) >= 1:
            raise ConfigError(
                f"data.source.val, test: {val} and {test} are no shares that leave training text; give less"
            )

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """The most frequent tokens of the training part, the most frequent first."""
        counts: Counter[str] = Counter()
        for tokens in self._parts()["train"].values():
            counts.update(tokens)
        ranked = sorted(counts, key=lambda token: (-counts[token], token))
        return Vocabulary(tuple(ranked[: self.vocabulary_size]))

    @cached_property
    def class_names(self) -> tuple[str, ...]:
        """The tokens, in the order of their numbers."""
        return self.vocabulary.names

    @cached_property
    def num_classes(self) -> int:  # type: ignore[override]
        """The size of the vocabulary, with ``<pad>`` and ``<oov>``."""
        return len(self.class_names)

    @cached_property
    def task(self) -> Task:
        """The next token."""
        return NextToken(self.num_classes, PAD)

    @override
    def load(self, split: Split) -> Examples | None:
        if not self.files[split]:
            return None
        part = self._parts()[split]
        names = list(part)
        sequences = [self.vocabulary.encoded(part[name]) for name in names]
        inputs, targets, rows = windows_of_all(sequences, self.input_shape[0])
        if not len(inputs):
            raise DataError(f"data.source: {split} has no client with two {self.level}; give more text")
        return Examples(torch.from_numpy(inputs), torch.from_numpy(targets), {"client": np.array(names)[rows]})

    def _parts(self) -> dict[Split, Clients]:
        """Reads the tokens of each client, by split."""
        parts: dict[Split, Clients] = {}
        assert isinstance(self.files["train"], str)
        train = self._clients(self.files["train"], "files")
        sizes = {client: len(tokens) for client, tokens in train.items()}
        for split in ("test", "val"):  # from the end of each text
            given = self.files[split]
            if isinstance(given, str):
                parts[split] = self._clients(given, split)
            elif given:
                cuts = {client: len(tokens) - round(given * sizes[client]) for client, tokens in train.items()}
                parts[split] = {client: tokens[cuts[client] :] for client, tokens in train.items()}
                train = {client: tokens[: cuts[client]] for client, tokens in train.items()}
        return {"train": train, **parts}

    def _clients(self, files: str, setting: str) -> Clients:
        """Reads files, and returns the tokens of each client."""
        texts = dict(_read(files, setting))
        if self.clients == "role":
            texts = {
                f"{name}/{role}" if len(texts) > 1 else role: speeches
                for name, text in texts.items()
                for role, speeches in _roles(text, name).items()
            }
        tokens: Clients = {name: self._tokens(text) for name, text in texts.items()}
        if self.clients != "blocks":
            return tokens
        joined = [token for one in tokens.values() for token in one]
        starts = range(0, len(joined), self.block)
        return {f"{number:06d}": joined[start : start + self.block] for number, start in enumerate(starts)}

    def _tokens(self, text: str) -> Sequence[str]:
        return text if self.level == "characters" else re.findall(r"\n|\S+", text)


def _read(files: str, setting: str) -> Iterator[tuple[str, str]]:
    """Yields the name and the text of each file, in the order of their names."""
    place = Path(files).expanduser()
    pattern = place / "*.txt" if place.is_dir() else place
    paths = [Path(path) for path in sorted(glob(str(pattern), recursive=True)) if Path(path).is_file()]
    if not paths:
        raise DataError(f"data.source.{setting}: {pattern} is not a file and matches none; correct the path")
    shared = Path(os.path.commonpath([path.parent for path in paths]))
    for path in paths:
        try:
            yield path.relative_to(shared).as_posix(), path.read_text(encoding="utf-8-sig")
        except (OSError, UnicodeDecodeError) as error:
            raise DataError(f"data.source.{setting}: {path} cannot be read ({error}); save it as UTF-8") from error


def _roles(text: str, name: str) -> dict[str, str]:
    r"""Returns the speeches of each role, one after the other.

    Raises:
        DataError: The text does not begin with a line ``Name:``.

    Example:
        >>> _roles("A:\nYes.\n\nB:\nNo.\nNo!\n\nA:\nWhy?\n", "play.txt")
        {'A': 'Yes.\nWhy?\n', 'B': 'No.\nNo!\n'}
    """
    speeches: dict[str, list[str]] = {}
    role = ""
    for part in re.split(r"\n\s*\n", text.strip()):
        first, _, rest = part.partition("\n")
        if first.rstrip().endswith(":"):
            role, part = first.rstrip()[:-1], rest
        elif not role:
            raise DataError(f"data.source.clients: {name} begins with {first!r}, not with a role; write 'Name:'")
        speeches.setdefault(role, []).append(f"{part}\n" if part else "")
    return {role: "".join(parts) for role, parts in speeches.items()}
