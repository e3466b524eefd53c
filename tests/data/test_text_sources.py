"""Sources of text, from small files to windows of tokens."""

import os
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from lit_fednas.data import DataSource, ShakespeareRoles, TextFiles
from lit_fednas.errors import ConfigError, DataError
from tests.data.files import load, roles


def read(source: DataSource, rows: torch.Tensor) -> list[str]:
    """Returns tokens as text, without the padding."""
    return ["".join(source.class_names[int(number)] for number in row if number) for row in rows]


class TestTextFiles:
    @pytest.fixture
    def folder(self, tmp_path: Path) -> Path:
        (tmp_path / "a.txt").write_text("abacad")
        (tmp_path / "b.txt").write_text("aaz")
        (tmp_path / "note.md").write_text("left out")
        return tmp_path

    def test_targets_are_the_next_characters(self, folder: Path) -> None:
        source = TextFiles(str(folder), length=3)
        train = load(source)
        assert source.class_names == ("<pad>", "a", "b", "c", "d", "z", "<oov>")
        assert train.inputs.tolist() == [[1, 2, 1], [3, 1, 0], [1, 1, 0]]
        assert train.targets.tolist() == [[2, 1, 3], [1, 4, 0], [1, 5, 0]]
        assert train.columns["client"].tolist() == ["a.txt", "a.txt", "b.txt"]
        assert (source.task.num_outputs, source.task.count(train.targets).tolist()) == (7, [3, 2, 2])  # type: ignore[attr-defined]
        source.task.check(train.targets)
        assert source.load("val") is source.load("test") is None
        pattern, whole = TextFiles(str(folder / "?.txt"), length=9), TextFiles(str(folder), length=9)
        assert read(pattern, load(whole).inputs) == ["abaca", "aa"]

    def test_omissions_are_counted(self, folder: Path) -> None:
        (folder / "c.txt").write_text("a")
        (folder / "plays").mkdir()
        (folder / ".d.txt").write_text("abc")
        source = TextFiles(str(folder))
        load(source)
        short = {"clients with fewer than two characters": 1}
        assert source.left_out["train"] == {".md": 1, "folders": 1, "hidden": 1, **short}

    def test_shares_are_the_end_of_each_text_and_do_not_overlap(self, folder: Path) -> None:
        (folder / "a.txt").write_text("abccabbca")
        source = TextFiles(str(folder / "a.txt"), length=9, val=1 / 3, test=1 / 3)
        texts = {"train": ("ab", "bc"), "val": ("ca", "ab"), "test": ("bc", "ca")}
        for split, (inputs, targets) in texts.items():
            part = load(source, split)
            assert (read(source, part.inputs), read(source, part.targets)) == ([inputs], [targets])

    def test_words_of_several_paths(self, tmp_path: Path) -> None:
        """The format is that of Penn Treebank; the end of a line is a word."""
        (tmp_path / "train.txt").write_text(" the cat sat \n the cat \n")
        (tmp_path / "valid.txt").write_text("the dog sat\n")
        settings = {"clients": "blocks", "block": 4, "level": "words", "length": 2, "vocabulary_size": 3}
        source = TextFiles(str(tmp_path / "train.txt"), val=str(tmp_path / "valid.txt"), **settings)  # type: ignore[arg-type]
        assert source.class_names == ("<pad>", "\n", "cat", "the", "<oov>")
        train = load(source)
        assert train.inputs.tolist() == [[3, 2], [4, 0], [3, 2]]
        assert train.targets.tolist() == [[2, 4], [1, 0], [2, 1]]
        assert train.columns["client"].tolist() == ["000000", "000000", "000001"]
        assert load(source, "val").inputs.tolist() == [[3, 4], [4, 0]]

    def test_context_is_not_predicted_again(self, tmp_path: Path) -> None:
        """Each token after the first is the target of one window, with three tokens of context in later windows."""
        for count in (2, 3, 6, 7, 8, 9, 23):
            text = "abcdefghijklmnopqrstuvwxyz"[:count]
            (tmp_path / "a.txt").write_text(text)
            source = TextFiles(str(tmp_path / "a.txt"), length=5, context=3)
            train = load(source)
            assert "".join(read(source, train.targets)) == text[1:]
            targets = [[source.class_names[token] for token in row] for row in train.targets]
            for number, row in enumerate(targets):
                inputs = [source.class_names[token] for token in train.inputs[number]]
                for position, token in enumerate(row):
                    if token != "<pad>":
                        assert inputs[: position + 1] == list(text[: text.index(token)][-position - 1 :])
                        assert number == 0 or position >= 3

    def test_roles(self, tmp_path: Path) -> None:
        play = "First Citizen:\nSpeak.\n\nAll:\nAy, sir:\nno.\n\nFirst Citizen:\nOn\n\nwe go.\n"
        (tmp_path / "play.txt").write_text(play)
        source = TextFiles(str(tmp_path / "play.txt"), clients="role")
        train = load(source)
        assert train.columns["client"].tolist() == ["First Citizen", "All"]
        assert read(source, train.targets) == ["peak.\nOn\nwe go.\n", "y, sir:\nno.\n"]
        (tmp_path / "other.txt").write_text("All:\nYes.\n")
        clients = load(TextFiles(str(tmp_path), clients="role")).columns["client"]
        assert set(clients) == {"other.txt/All", "play.txt/All", "play.txt/First Citizen"}

    @pytest.mark.parametrize(
        ("settings", "message"),
        [
            ({"files": "none"}, r"data\.source\.files: none is not a file"),
            ({"clients": "role"}, r"clients: a\.txt begins with 'abacad', not with a role"),
            ({"files": "latin"}, r"c\.txt cannot be read .*utf-8.*save it as text in UTF-8"),
            ({"files": "zero.bin"}, r"zero\.bin cannot be read \(it has zero bytes\)"),
            ({"files": "pipe"}, r"pipe cannot be read \(it is neither a file nor a folder\)"),
            ({"files": "gone"}, r"gone is a broken link"),
            ({"files": "zero.txt"}, r"zero\.txt is not a file and matches no files"),
            ({"files": "empty"}, "train has no client with two characters"),
            ({"files": "a.txt", "test": "?.txt"}, r"a\.txt is in both train and test"),
            ({"val": 0.5, "test": 0.5}, "val"),
            ({"level": "line"}, "level"),
            ({"context": 80}, r"context: 80 of 80 tokens leaves no target; give less"),
        ],
    )
    def test_faults_are_named(
        self, folder: Path, settings: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(folder)
        (folder / "latin").mkdir()
        (folder / "latin" / "c.txt").write_bytes("süd".encode("latin-1"))
        (folder / "zero.bin").write_bytes(b"ab\0c")
        (folder / "empty").write_bytes(b"")
        (folder / "gone").symlink_to("nowhere")
        os.mkfifo(folder / "pipe")
        with pytest.raises((ConfigError, DataError), match=message):
            load(TextFiles(**{"files": ".", **settings}))


class TestShakespeareRoles:
    @pytest.fixture
    def root(self, tmp_path: Path) -> Path:
        return roles(tmp_path)

    def test_windows_of_each_snippet(self, root: Path) -> None:
        source = ShakespeareRoles(root, length=4)
        assert (source.num_classes, len(set(source.class_names)), source.input_shape) == (90, 90, (4,))
        train = load(source)
        pad, oov, bos, eos = 0, 87, 88, 89
        assert train.columns["role"].tolist() == ["PLAY_A", "PLAY_B", "PLAY_B", "PLAY_B"]
        assert train.inputs.tolist() == [[bos, 86, pad, pad], [bos, 1, 2, oov], [1, pad, pad, pad], [bos, 3, pad, pad]]
        assert train.targets.tolist() == [[86, eos, pad, pad], [1, 2, oov, 1], [eos, pad, pad, pad], [3, eos, pad, pad]]
        assert load(source, "test").targets.tolist() == [[eos, pad, pad, pad]]
        assert source.load("val") is None
        source.task.check(train.targets)
        assert source.task.count(train.targets).tolist() == [2, 4, 1, 2]  # type: ignore[attr-defined]

    def test_faults_are_named(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (root / "shakespeare_test.h5").unlink()
        with pytest.raises(DataError, match=r"data\.source\.root: .*test\.h5 is missing"):
            load(ShakespeareRoles(root), "test")
        for snippets in (np.array([65, 70]), np.array([[b"a"], [b"b"]])):
            with h5py.File(root / "shakespeare_test.h5", "w") as file:
                file["examples/PLAY_B/snippets"] = snippets
            with pytest.raises(
                DataError, match=r"test\.h5 .*snippets of PLAY_B are not a list of texts, but (int64|\|S1)"
            ):
                load(ShakespeareRoles(root), "test")
        monkeypatch.setitem(sys.modules, "h5py", None)
        with pytest.raises(ConfigError, match=r"needs h5py; pip install 'lit-fednas\[text\]'"):
            load(ShakespeareRoles(root))
