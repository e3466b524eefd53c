"""Traces of devices: distributions against samples, files against what was written into them."""

from __future__ import annotations

import numpy as np
import pytest

from lit_fednas.errors import ConfigError, DataError
from lit_fednas.tiers import CSVTrace, SyntheticTrace


def rng() -> np.random.Generator:
    return np.random.default_rng(0)


def test_quantiles_are_those_of_samples():
    trace = SyntheticTrace(median=3e9, spread=8.0)
    speeds = np.sort(trace.speeds(200_000, rng()))
    assert trace.quantile(0.5) == pytest.approx(3e9)
    for share in (0.01, 0.05, 0.3, 0.5, 0.9, 0.95, 0.99):
        below = np.searchsorted(speeds, trace.quantile(share)) / len(speeds)
        assert below == pytest.approx(share, abs=5 * (share * (1 - share) / len(speeds)) ** 0.5)
    assert np.quantile(speeds, 0.95) / np.quantile(speeds, 0.05) == pytest.approx(8.0, rel=0.03)


def test_the_tail_is_heavy():
    """A few fast devices lift the mean far above the median; in logarithms the two are one."""
    speeds = SyntheticTrace().speeds(100_000, rng())
    assert speeds.min() > 0
    assert speeds.mean() > 1.2 * np.median(speeds)
    assert np.log(speeds).mean() == pytest.approx(np.log(np.median(speeds)), abs=0.02)


def test_the_whole_distribution_has_no_end():
    trace = SyntheticTrace()
    assert trace.quantile(0.9) < trace.quantile(0.999) == trace.quantile(1.0) < float("inf")


@pytest.mark.parametrize("settings", [{"median": 0.0}, {"median": -1.0}, {"spread": 1.0}, {"spread": 0.5}])
def test_distributions_that_are_none(settings):
    (name,) = settings
    with pytest.raises(ConfigError, match=rf"trace.{name}: {settings[name]} must be above {'01'[name == 'spread']}"):
        SyntheticTrace(**settings)


@pytest.fixture
def written(tmp_path):
    def write(text: str | bytes):
        path = tmp_path / "trace.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    return write


def test_a_measured_trace(written):
    trace = CSVTrace(written("id,macs_per_second\na,1e9\nb,3e9\nc,5e9\n"))
    assert [trace.quantile(share) for share in (0.0, 0.25, 0.5, 1.0)] == [1e9, 2e9, 3e9, 5e9]
    speeds = trace.speeds(9000, rng())
    assert speeds.shape == (9000,)
    for speed in (1e9, 3e9, 5e9):  # with replacement, all alike
        assert (speeds == speed).sum() == pytest.approx(3000, abs=5 * (9000 * 2 / 9) ** 0.5)


def test_times_are_the_other_way_round(written):
    trace = CSVTrace(written("ms,id\n4,a\n8,b\n20,c\n"), "ms", milliseconds=True)
    assert [trace.quantile(share) for share in (0.0, 0.5, 1.0)] == [50.0, 125.0, 250.0]  # per second
    plain = CSVTrace(written("ms,id\n4,a\n8,b\n20,c\n"), "ms")
    assert [plain.quantile(share) for share in (0.0, 0.5, 1.0)] == [4.0, 8.0, 20.0]


def test_a_file_that_is_missing(tmp_path):
    with pytest.raises(DataError, match=r"trace.path: .*nowhere.csv cannot be read \(No such file or directory\)"):
        CSVTrace(tmp_path / "nowhere.csv").quantile(0.5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("id,speed\na,1\n", "has no 'macs_per_second'; it has id, speed"),
        ("id,speed\na,1,2,3\n", "has no 'macs_per_second'; it has id, speed"),  # more values than names
        ("macs_per_second\n", "has no 'macs_per_second'; it has no rows"),
        ("", "has no 'macs_per_second'; it has no rows"),
    ],
)
def test_a_column_that_is_missing(written, text, words):
    with pytest.raises(DataError, match=rf"trace.column: .*trace.csv {words}"):
        CSVTrace(written(text)).speeds(1, rng())


@pytest.mark.parametrize("value", ["fast", "", "0", "-3", "nan", "inf"])
@pytest.mark.parametrize("milliseconds", [False, True])
def test_a_bad_value_is_told_with_its_line(written, value, milliseconds):
    path = written(f"id,macs_per_second\na,1e9\nb,{value}\nc,2e9\n")
    with pytest.raises(DataError, match=rf"trace.csv, line 3: macs_per_second is '{value}'; give a positive numb"):
        CSVTrace(path, milliseconds=milliseconds).quantile(0.5)


def test_a_short_row_has_no_value(written):
    with pytest.raises(DataError, match=r"line 2: macs_per_second is None; give a positive number"):
        CSVTrace(written("id,macs_per_second\na\n")).quantile(0.5)


def test_empty_lines_are_counted_and_passed_over(written):
    assert CSVTrace(written("macs_per_second\n\n5\n\n7\n")).quantile(0.5) == 6.0
    with pytest.raises(DataError, match="line 5: macs_per_second is 'x'"):
        CSVTrace(written("macs_per_second\n\n5\n\nx\n")).quantile(0.5)


def test_a_file_that_is_no_text(written):
    with pytest.raises(DataError, match=r"trace.path: .*trace.csv is not a CSV file in UTF-8"):
        CSVTrace(written(b"macs_per_second\n\xff\xfe\n")).quantile(0.5)
