"""Traces of devices: distributions against samples, files against their content."""

from __future__ import annotations

import numpy as np
import pytest

from lit_fednas.errors import DataError
from lit_fednas.tiers import CSVTrace


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def write_trace(tmp_path):
    def write(text: str):
        path = tmp_path / "trace.csv"
        path.write_text(text)
        return path

    return write


def test_a_measured_trace(write_trace):
    trace = CSVTrace(write_trace("id,macs_per_second\na,1e9\n\nb,3e9\nc,5e9\n"))  # empty lines are ignored
    assert [trace.quantile(share) for share in (0.0, 0.25, 0.5, 1.0)] == [1e9, 2e9, 3e9, 5e9]
    speeds = trace.speeds(9000, rng())
    assert speeds.shape == (9000,)
    for speed in (1e9, 3e9, 5e9):  # devices are drawn uniformly with replacement
        assert (speeds == speed).sum() == pytest.approx(3000, abs=5 * (9000 * 2 / 9) ** 0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,speed\na,1\n", "trace.column: .*trace.csv has no column 'macs_per_second'; name one of: id, speed"),
        ("", "trace.path: .*trace.csv has no rows"),
        ("macs_per_second\n\n5\n\nx\n", "trace.csv holds text in place of numbers, 'x' in row 1"),
        *(
            (f"id,macs_per_second\na,1e9\nb,{value}\n", f"trace.csv {fault} row 1")
            for value, fault in (
                ("-3", "is -3 in"),
                ("nan", "has no value of 'macs_per_second' in"),
                ("inf", "is inf in"),
            )
        ),
    ],
)
def test_faults_of_a_file_are_named(write_trace, text, words):
    with pytest.raises(DataError, match=words):
        CSVTrace(write_trace(text)).speeds(1, rng())


def test_a_missing_file_is_refused():
    with pytest.raises(DataError, match=r"trace.path: nowhere.csv is missing"):
        CSVTrace("nowhere.csv").quantile(0.5)


@pytest.mark.parametrize("suffix", ["zip", "gz", "xz", "tar", "zst"])
def test_a_name_does_not_decide_how_a_file_is_read(tmp_path, suffix):
    path = tmp_path / f"trace.csv.{suffix}"
    path.write_text("macs_per_second\n5\n")
    assert CSVTrace(path).quantile(0.5) == 5
