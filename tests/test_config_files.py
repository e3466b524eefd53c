"""The configurations of the package, by name, from any folder."""

from __future__ import annotations

from pathlib import Path

import pytest

import lit_fednas
from lit_fednas.cli import main
from lit_fednas.config_files import find, names, read_yaml

CONFIGS = Path(lit_fednas.__file__).parents[1] / "configs"
DIGITS = "superfed/digits.yaml"


@pytest.fixture(autouse=True)
def empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("words", [["--config", DIGITS], ["-c", f"configs/{DIGITS}"], [f"--config={DIGITS}"]], ids=str)
def test_a_configuration_is_found_by_its_name(capsys, words):
    assert main(["partition", *words, "--output", "shown"]) == 0
    assert Path("shown/partition.png").stat().st_size > 5000
    header, *clients = Path("shown/partition.csv").read_text().splitlines()
    assert header.startswith("client,size,")
    assert len(clients) == 10
    assert "of 10 classes" in capsys.readouterr().out


def test_a_file_of_the_working_directory_comes_first(refused):
    assert find(DIGITS) == CONFIGS / DIGITS
    Path(DIGITS).parent.mkdir()
    Path(DIGITS).write_text("mine: true")
    assert find(DIGITS) == Path(DIGITS)
    assert "mine" in refused("partition", "--config", DIGITS)
    text = "{data: {num_clients: 0}}"  # this text is not a name
    assert "num_clients: 0" in refused("partition", "--config", f"configs/{DIGITS}", "--config", text)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("superfed/digts.yaml", f"did you mean {DIGITS}"),
        ("xyzzy", "config: xyzzy is neither a file nor in the package; (lit-fednas configs"),
    ],
)
def test_an_unknown_name_is_an_error_with_the_closest(refused, name, message):
    assert message in refused("fit", "--config", name)


@pytest.mark.parametrize(
    ("words", "text", "message"),
    [
        ("compare x --tiers", "a: &a [*a]", "cannot be read: maximum recursion depth"),
        ("study", "[" * 10_000, "cannot be read: maximum recursion depth"),
        ("fit --config", "data: {}\ndata: {}", "cannot be read: 'data' is duplicated in the mapping from line 1"),
        ("compare x --tiers", "a: \xff", "is not UTF-8 text ('utf-8' codec"),
        ("compare x --tiers", "# nothing", "is empty, or holds only comments; write"),
        ("fit --config", "", "is empty, or holds only comments; write"),
        ("fit --config", "a:\n  b: 1:30", "1:30 in line 2 is read as 90; quote it if it is text ('1:30'), or write 90"),
        ("study", "seeds: [010]", "010 in line 1 is read as 8; quote it if it is text ('010'), or write 8"),
        ("compare x --tiers", "1:00.5: {macs: 2}", "1:00.5 in line 1 is read as 60.5"),
        ("fit --config", "on: {macs: 2}", "on in line 1 is read as true; quote it if it is text ('on')"),
        ("study", "arms: {~: {}}", "~ in line 1 is read as null; quote it if it is text ('~')"),
    ],
    ids=lambda value: value[:20],
)
def test_files_that_are_no_configuration_are_refused(refused, words, text, message):
    Path("x.yaml").write_text(text, encoding="latin-1")
    assert refused(*words.split(), "x.yaml").startswith(f"lit-fednas: x.yaml: {message}")


def test_usual_numbers_and_quoted_names_are_read_and_options_are_checked(refused):
    Path("x.yaml").write_text("{a: 0.5, b: 0, c: 1_000, e: '010', f: 00:12:00, g: 0x1F, 1: yes, 'no': 2}")
    expected = {"a": 0.5, "b": 0, "c": 1000, "e": "010", "f": "00:12:00", "g": 31, 1: True, "no": 2}
    assert read_yaml("x.yaml") == expected
    assert "010 in line 1 is read as 8" in refused("partition", "--config", DIGITS, "--config", "{data: {seed: 010}}")


def test_all_are_listed_with_their_summary(capsys):
    everything = {path.relative_to(CONFIGS).as_posix(): path for path in CONFIGS.rglob("*.yaml")}
    assert main(["configs"]) == 0
    lines = capsys.readouterr().out.splitlines()
    middle = lines.index("all:")
    assert lines[0] == "begin with:"
    parts = lines[1:middle], lines[middle + 1 :]
    begin, listed = ([line.split()[0] for line in part if line[2:3] not in ("", " ")] for part in parts)
    assert begin[0] == "recommended/digit_pairs.yaml"
    assert len(begin) == 3
    assert listed == sorted(everything) == names()
    for name, path in everything.items():
        assert path.read_text().startswith("# "), name


def test_a_word_selects(capsys, refused):
    assert main(["configs", "FedHeN"]) == 0
    output = capsys.readouterr().out.split()
    assert "fedhen/digits.yaml" in output
    assert DIGITS not in output
    assert "no configuration contains 'xyzzy'" in refused("configs", "xyzzy")


def test_one_is_shown_and_copied_under_its_name(capsys, refused):
    assert main(["configs", DIGITS]) == 0
    assert capsys.readouterr().out == (CONFIGS / DIGITS).read_text()
    assert main(["configs", f"configs/{DIGITS}", "--output", "."]) == 0
    assert [path for path in Path().rglob("*") if path.is_file()] == [Path(DIGITS)]
    assert Path(DIGITS).read_bytes() == (CONFIGS / DIGITS).read_bytes()
    line = refused("configs", "superfed", "--output", ".")
    assert f"output: {DIGITS} exists; delete it, or give another folder" in line
    assert len(list(Path().rglob("*.yaml"))) == 1
