"""Sources of text, from small files to windows of tokens."""

from pathlib import Path

import pytest
import torch

from lit_fednas.data import DataSource, Examples, TextFiles
from lit_fednas.errors import ConfigError, DataError


def load(source: DataSource, split: str = "train") -> Examples:
    examples = source.load(split)  # type: ignore[arg-type]
    assert examples is not None
    assert examples.inputs.dtype == examples.targets.dtype == source.input_dtype == torch.int64
    return examples


def read(source: DataSource, rows: torch.Tensor) -> list[str]:
    """Tokens as text, without the padding."""
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
        assert (source.task.num_outputs, source.task.units(train.targets).tolist()) == (7, [3, 2, 2])  # type: ignore[attr-defined]
        source.task.check(train.targets)
        assert source.load("val") is source.load("test") is None
        assert read(TextFiles(str(folder / "?.txt"), length=9), load(TextFiles(str(folder), length=9)).inputs) == [
            "abaca",
            "aa",
        ]

    def test_shares_are_the_end_of_each_text_and_do_not_overlap(self, folder: Path) -> None:
        source = TextFiles(str(folder / "a.txt"), length=9, val=1 / 3, test=1 / 3)
        (folder / "a.txt").write_text("abcdefghi")
        parts = [load(source, split) for split in ("train", "val", "test")]
        assert source.class_names == ("<pad>", "a", "b", "c", "<oov>")
        assert [part.inputs[0].tolist()[:3] for part in parts] == [[1, 2, 0], [4, 4, 0], [4, 4, 0]]

    def test_words_of_several_paths(self, tmp_path: Path) -> None:
        """As Penn Treebank is laid out; the end of a line is a word."""
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

    def test_faults_are_named(self, folder: Path) -> None:
        with pytest.raises(DataError, match=r"data\.source\.files: .*none is not a file"):
            load(TextFiles(str(folder / "none")))
        with pytest.raises(DataError, match=r"data\.source\.val: .*none is not a file"):
            load(TextFiles(str(folder), val=str(folder / "none")))
        with pytest.raises(DataError, match=r"clients: a\.txt begins with 'abacad', which is no role"):
            load(TextFiles(str(folder), clients="role"))
        (folder / "b.txt").write_bytes("süd".encode("latin-1"))
        with pytest.raises(DataError, match=r"b\.txt cannot be read"):
            load(TextFiles(str(folder)))
        (folder / "a.txt").write_text("a")
        with pytest.raises(DataError, match="train has no client with two characters"):
            load(TextFiles(str(folder / "a.txt")))
        for bad in ({"val": 0.5, "test": 0.5}, {"val": -0.1}, {"length": 0}, {"clients": "line"}, {"level": "line"}):
            with pytest.raises(ConfigError):
                TextFiles("x", **bad)  # type: ignore[arg-type]
