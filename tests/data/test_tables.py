"""Files of tables, read as they are written, or refused in one line that names the file."""

import datetime
import os
import re
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lit_fednas.data import ArrayFiles, Classification, Examples, Regression
from lit_fednas.errors import ConfigError, DataError
from tests.data.files import load


def read(path: Path, **settings: Any) -> Examples:
    return load(ArrayFiles({"train": str(path)}, **{"client": "site", **settings}))


@pytest.mark.parametrize(
    ("content", "fault"),
    [
        (b"", "has no rows; give a header and one per example"),
        (b"x,site,target\n", "has no rows"),
        (b"x;site;target\n1;a;0\n", "has one column, 'x;site;target'; separate cells by commas, not ';'"),
        (b"x,site,target\n1,a,0\n1,a,0,9\n", r"cannot be read \(4 cells in row 1, but 3 columns; is a quote missing"),
        (b"x,site,target\n\n1,a,0\n\n1,a\n", r"cannot be read \(2 cells in row 1"),
        (b'x,site,target\n1,"a,0\n2,b,1\n', r"cannot be read \(line 3: unexpected end of data; is a quote missing"),
        (b'x,site,target\n1,"a,0\n2,b",1\n', "has a line break in 'site', row 0"),
        (b'x,site,target\n1,"a"b,0\n', r"cannot be read \(line 2: "),
        (b"x,site,target,target\n1,a,0,1\n", "has 2 columns 'target'"),
        ("x,site,target\n1,süd,0\n".encode("latin-1"), "cannot be read .*utf-8.*; correct or replace"),
        ("x,site,target\n1,a,0\n".encode("utf-16"), r"cannot be read \(it has zero bytes, .* UTF-8"),
        (b"x,site,target\n1,,0\n", "no value of 'site' in row 0"),
        (b"x,site,target\n1,7,0\n1,NA,0\n", "no value of 'site' in row 1"),
        (b"x,site,target\nNA,a,0\n", "no value of 'x' in row 0"),
        (b"x,site,target\nTrue,a,0\n,a,0\n", "no value of 'x' in row 1"),
        (b"x,site,target\n1e39,a,0\n", r"inputs: 'x' of .* is 1e\+39 in row 0, too large for a number"),
        (b"x,site,target\n1,a,0\n9007199254740993,a,0\n", "inputs: 'x' of .* is 9007199254740993 in row 1, too large"),
        (b"x,site,target\n1,a,1.5\n1,a,NA\n", "no value of 'target' in row 1"),
        (b"x,site,target\n1,a,0.5\n1,a,1e400\n", "target: 'target' of .* is 1e400 in row 1, too large"),
        (b"x,site,target\n1,a,20231105\n", "would be 20,231,106 classes of 1 examples; .*Regression for numbers"),
    ],
)
def test_faults_of_csv_are_named(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes(content)
    with pytest.raises(DataError, match=rf"^data\.source\.\w+: [^\n]*a\.csv[^\n]*{fault}|^data\.source\.{fault}"):
        read(path)


@pytest.mark.parametrize(
    ("content", "inputs", "sites", "targets"),
    [
        ("\ufeffx,site,target\r\n1,a,0\r\n2,b,1\r\n", [1, 2], ["a", "b"], [0, 1]),
        ('x,site,target\n1,"a, b",0\n\n2,"say ""x""",1', [1, 2], ["a, b", 'say "x"'], [0, 1]),
        ("x,site,target\n1,NA,0\n2,null,1\n", [1, 2], ["NA", "null"], [0, 1]),
        ("x,site,target\n1,7,NA\n2,10,EU\n", [1, 2], [7, 10], [1, 0]),
        ("x,site,target\n1,9007199254740993,0\n2,9007199254740992,1\n", [1, 2], [2**53 + 1, 2**53], [0, 1]),
        ("x,site,target\nTrue,1.0,1\nFalse,1,0\n", [1, 0], ["1.0", "1"], [1, 0]),
        ("x,site,target\n1,a,True\n2,b,False\n", [1, 2], ["a", "b"], [1, 0]),
        ("x,site,target\n1,a,0\n2,b,10\n3,a,2\n", [1, 2, 3], ["a", "b", "a"], [0, 10, 2]),
        ('x , site,target\n1, a,cat\n2,a\t," cat"\n3,b,dog\n', [1, 2, 3], ["a", "a", "b"], [0, 0, 1]),
    ],
)
def test_csv_is_read_as_it_is_written(tmp_path: Path, content: str, inputs: Any, sites: Any, targets: Any) -> None:
    path = tmp_path / "a.CSV"
    path.write_text(content, encoding="utf-8", newline="")
    train = read(path)
    assert train.inputs.flatten().tolist() == inputs
    assert train.columns["site"].tolist() == sites
    assert train.targets.tolist() == targets


def test_a_pair_of_quotes_over_two_rows_is_refused_in_unused_columns(tmp_path: Path) -> None:
    """A text of several lines is accepted if none of its lines can end or begin a row."""
    for columns in ("note,x,site,target", "x,site,note,target", "x,site,target,note"):
        lines = [columns]
        for number, note in enumerate(['"open', 'closed"', "none", '"one line, or\ntwo, or\nthree"']):
            values = {"note": note, "x": str(number), "site": "a", "target": "0"}
            lines.append(",".join(values[name] for name in columns.split(",")))
        path = tmp_path / "a.csv"
        path.write_text("\n".join(lines[:1] + lines[3:]))
        assert read(path, inputs=["x"]).inputs.flatten().tolist() == [2, 3]
        path.write_text("\n".join(lines))
        with pytest.raises(DataError, match=r"a\.csv has a line break in 'note', row 0, and would lose a row; remove"):
            read(path, inputs=["x"])
    path.write_text('x,site,target,note\n1,a,0,"one\ntwo, three, four, five"\n2,a,1,none\n')  # commas of text
    assert read(path, inputs=["x"]).inputs.flatten().tolist() == [1, 2]


def test_a_named_index_of_parquet_is_a_column(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"x": [1.0, 2.0], "target": [0, 1]})
    for index in (pd.Index(["b", "a"], name="site"), pd.RangeIndex(2, name="site"), pd.Index(["b", "a"])):
        frame.set_axis(index).to_parquet(tmp_path / "a.parquet")
        if index.name:
            assert read(tmp_path / "a.parquet").columns["site"].tolist() == [*index]
        assert read(tmp_path / "a.parquet", client=index.name).inputs.tolist() == [[1], [2]]


NAMES: dict[str, tuple[Any, list[str] | str]] = {
    "category": (pd.Categorical(["b", "a"]), ["b", "a"]),
    "whole-category": (pd.Categorical([7, 10]), ["7", "10"]),
    "date": ([datetime.date(2020, 1, 2), datetime.date(2020, 1, 3)], ["2020-01-02", "2020-01-03"]),
    "time": (pd.to_datetime(["2020-01-02", "2020-01-03"]), ["2020-01-02", "2020-01-03"]),
    "nan": ([1.0, np.nan], "no value of 'site' in row 1"),
    "empty": (["", "a"], "no value of 'site' in row 0"),
    "missing-category": (pd.Categorical([None, "a"]), "no value of 'site' in row 0"),
    "list": ([[1], [2]], "no column 'site'"),
    "struct": ([{"a": 1}, {"a": 2}], "no column 'site'"),
}
NUMBERS: dict[str, tuple[Any, list[float] | str]] = {
    "decimal": ([Decimal("1.5"), Decimal("2")], [1.5, 2]),
    "half": (np.array([1, 2], dtype=np.float16), [1, 2]),
    "nullable": (pd.array([True, False], dtype="boolean"), [1, 0]),
    "whole-category": (pd.Categorical([7, 10]), [7, 10]),
    "missing-decimal": ([Decimal("1.5"), None], "no value of 'x' in row 1"),
    "large": ([2**60, 1], "'x' of .* is 1152921504606846976 in row 0, too large"),
    "date": ([datetime.date(2020, 1, 2)] * 2, "x of .* are not numbers; name them as categorical"),
    "text": (["1", "2"], [1, 2]),
    "list": ([[1], [2]], "no column beside target and client"),
    "bytes": ([b"a", b"b"], "no column beside target and client"),
}


@pytest.mark.parametrize(
    ("column", "values", "expected"),
    [
        *(pytest.param("site", *case, id=f"site-{name}") for name, case in NAMES.items()),
        *(pytest.param("x", *case, id=f"x-{name}") for name, case in NUMBERS.items()),
    ],
)
def test_types_of_parquet(tmp_path: Path, column: str, values: Any, expected: Any) -> None:
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame({"x": [1.0, 2.0], "site": ["a", "b"], "target": [0, 1]})
    frame[column] = values
    frame.to_parquet(tmp_path / "a.parquet")
    if isinstance(expected, str):
        with pytest.raises(DataError, match=rf"^data\.source\.(files|inputs|client): [^\n]*{expected}"):
            read(tmp_path / "a.parquet")
        return
    train = read(tmp_path / "a.parquet")
    values = train.inputs.flatten().tolist() if column == "x" else train.columns["site"].astype(str).tolist()
    assert values == expected


def test_paths_that_are_no_tables_are_refused(tmp_path: Path) -> None:
    (tmp_path / "folder.csv").mkdir()
    os.mkfifo(tmp_path / "pipe.csv")
    (tmp_path / "link.csv").symlink_to("gone.csv")
    (tmp_path / "words.parquet").write_bytes(b"no table")
    for name, fault in (
        ("folder.csv", "Is a directory"),
        ("pipe.csv", "neither a file nor a folder"),
        ("link.csv", "broken link"),
        ("x.csv", "mis"),
        ("words.parquet", "cannot be read"),
    ):
        with pytest.raises(DataError, match=rf"data\.source.*: .*{name} .*{fault}"):
            read(tmp_path / name)


def test_classes_are_few_unless_they_are_configured(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    lines = ["x,target\n", *(f"{row},name{row}\n" for row in range(101))]
    path.write_text("".join(lines[:-1]))
    assert ArrayFiles({"train": str(path)}).num_classes == 100
    path.write_text("".join(lines))
    with pytest.raises(DataError, match=r"target: .* would be 101 classes of 101 examples"):
        _ = ArrayFiles({"train": str(path)}).num_classes
    assert ArrayFiles({"train": str(path)}, task=Classification(101)).num_classes == 101
    path.write_text("x,target\n" + "".join(f"{row},{row % 102}\n" for row in range(1020)))
    assert ArrayFiles({"train": str(path)}).num_classes == 102
    path.write_text("x,target\n1,20231105\n2,20231106\n")
    assert read(path, client=None, task=Regression(1)).targets.flatten().tolist() == [
        20231104,
        20231106,
    ]  # float32


def test_a_categorical_input_has_few_values(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x,site,target\n" + "".join(f"id{row},a,0\n" for row in range(10_001)))
    with pytest.raises(DataError, match=r"categorical: 'x' of .*a\.csv has 10,001 values; leave it out"):
        read(tmp_path / "a.csv", categorical=["x"])


@pytest.mark.parametrize(
    ("settings", "fault"),
    [
        ({"inputs": ["x", "x"]}, r"inputs: 'x' is listed twice"),
        ({"target": ["x", "target", "x"]}, r"target: 'x' is listed twice"),
        ({"target": "cost"}, r"target: .*no column 'cost'; name one of: x, site, target"),
    ],
)
def test_columns_exist_and_are_listed_once(tmp_path: Path, settings: dict[str, Any], fault: str) -> None:
    (tmp_path / "a.csv").write_text("x,site,target\n1,a,0\n")
    with pytest.raises((ConfigError, DataError), match=re.escape("data.source.") + fault):
        read(tmp_path / "a.csv", **settings)
