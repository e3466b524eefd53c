"""Files: names that folders may have, texts in tables, outputs that are replaced, links that others have planted."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from lit_fednas.errors import ConfigError
from lit_fednas.records import SearchFiles
from lit_fednas.records.files import (
    MARK,
    check_folder_name,
    check_folder_names,
    check_output,
    replace_table,
    replace_text,
    replacing,
)
from tests.analysis.made_runs import ROW

REFUSED = ["", ".", "..", "a/b", "a\\b", "/a", "~", "-a", " a", "a ", "a.", "a\n", "a\0b", "a:b", '"a"', "*", "\udcff"]
REFUSED += ["checkpoints", "Checkpoints", "wandb", "study.csv", "Compare.html", "subnets-val.csv"]
REFUSED += ["a" * 201, "ü" * 101]
ALLOWED = ["a", "+1", "search", "tier 1", "A, large", "x=0.5,file=a.csv", "überall", "a" * 200, "ft-0.5", "console"]


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_name_a_folder_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"^search.name: .{2,99} cannot name a folder; use up to 200 letters"):
        check_folder_name("search.name", name)


def test_names_of_folders_beside_each_other_differ_in_more_than_case() -> None:
    check_folder_names("tiers", ALLOWED)
    for second in ("Tier 1", "tier 1"):
        with pytest.raises(ConfigError, match=f"^tiers: 'tier 1' and '{second}' are one folder, at least on some"):
            check_folder_names("tiers", ["a", "tier 1", "b", second])


TEXTS = ["=1+1", "+1+1", "-1+1", "@x", "\tx", "'=1", "''=1", "'a", "a=1", "-", "NA", "null", "nan", "+1", "007"]


def test_no_text_is_a_formula_and_all_are_read_as_they_were(tmp_path: Path) -> None:
    """Also in the names of columns, and in rows that are added to a table."""
    files = SearchFiles(tmp_path)
    rows = [{**ROW, "tier": text, "generation": 1, "hypervolume": -0.5} for text in TEXTS]
    files.write("history", rows[:5])
    files.append("history", rows[5:])
    assert [row["tier"] for row in files.rows("history")] == TEXTS
    assert {row["hypervolume"] for row in files.rows("history")} == {-0.5}
    replace_table(tmp_path / "columns.csv", TEXTS, [])
    cells = [cell for path in tmp_path.glob("*.csv") for row in csv.reader(path.open(newline="")) for cell in row]
    assert [cell for cell in cells if cell[:1] in "=+-@\t\r" and cell not in ("", "-1", "-0.5", "+1")] == []


def test_a_link_that_others_have_planted_is_not_followed(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.write_text("theirs")
    for name in (".mine.part", "mine"):
        (tmp_path / name).symlink_to(target)
        replace_text(tmp_path / "mine", "ours")
        assert (target.read_text(), (tmp_path / "mine").read_text()) == ("theirs", "ours")
        (tmp_path / "mine").unlink()


def test_of_two_processes_that_write_a_file_the_later_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "mine"
    first, second = replacing(path), replacing(path)
    first.__enter__().write(b"first")
    file = second.__enter__()
    file.write(b"sec")
    first.__exit__(None, None, None)
    assert not path.exists()
    file.write(b"ond")
    second.__exit__(None, None, None)
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"mine": b"second"}


def test_an_output_of_another_origin_is_not_replaced(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    check_output(first, second)
    second.write_text("a thesis")
    with pytest.raises(ConfigError, match=r"^output: .*second exists and is not from this command; move it, or add "):
        check_output(first, second)
    check_output(first, second, overwrite=True)
    first.write_bytes(b"<!--" + MARK)
    check_output(first, second)
    with pytest.raises(ConfigError, match="is not a file"):
        check_output(tmp_path, overwrite=True)
