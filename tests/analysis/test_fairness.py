"""FedorAS' Table 7 and Fig. 4, and FedTrans' Fig. 6, from figures worked out by hand."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from lit_fednas.analysis.clients import (
    client_boxes,
    fairness_figure,
    fairness_table,
    fairness_text,
    ordered_scores,
    read_client_scores,
)
from lit_fednas.errors import DataError
from lit_fednas.records import ALL_TIERS
from lit_fednas.records.run import CLIENTS_FILE, write_client_scores

FIGURES = ["runs", "clients", "mean", "deviation", "worst"]


def write(folder: Path, accuracies: dict[str, list[float]]) -> Path:
    """Clients in the order of the tiers; a client's loss is 1 less its accuracy."""
    folder.mkdir(parents=True)
    every = [(tier, accuracy) for tier, of_tier in accuracies.items() for accuracy in of_tier]
    rows = [(client, tier, 10, accuracy, round(1 - accuracy, 6)) for client, (tier, accuracy) in enumerate(every)]
    columns = ("client", "tier", "num_examples", "accuracy", "loss")
    write_client_scores(folder, [dict(zip(columns, row, strict=True)) for row in rows])
    return folder


@pytest.fixture
def one(tmp_path: Path) -> Path:
    return write(tmp_path / "one" / "search", {"tier2": [0.8, 0.6], "tier10": [0.9], "tier1": [0.2, 0.4, 0.6]})


@pytest.fixture
def two(tmp_path: Path) -> Path:
    return write(tmp_path / "two" / "search", {"tier2": [0.6, 0.6], "tier10": [0.7], "tier1": [0.4, 0.1, 0.1]})


@pytest.fixture
def groups(tmp_path: Path) -> dict[str, list[Path]]:
    first = write(tmp_path / "first", {"a": [0.1, 0.2, 0.3, 0.4, 0.9]})
    second = write(tmp_path / "second", {"a": [0.5, 0.6], "b": [0.7, 0.8]})
    third = write(tmp_path / "third", {"*": [0.5, 0.5, 0.6]})
    return {"ours": [first, second], "theirs": [third]}


def test_one_run_by_hand(one: Path, tmp_path: Path) -> None:
    table = fairness_table({"a": [one]}).set_index("tier")
    assert table.index.tolist() == [ALL_TIERS, "tier1", "tier2", "tier10"]  # by number, not as text
    squares = sum((accuracy - 3.5 / 6) ** 2 for accuracy in (0.8, 0.6, 0.9, 0.2, 0.4, 0.6))
    assert table.loc[ALL_TIERS, FIGURES].tolist() == pytest.approx([1, 6, 3.5 / 6, (squares / 6) ** 0.5, 0.2])
    assert table.loc["tier1", FIGURES].tolist() == pytest.approx([1, 3, 0.4, (0.08 / 3) ** 0.5, 0.2])
    assert table.loc["tier10", FIGURES].tolist() == pytest.approx([1, 1, 0.9, 0.0, 0.9])
    folder = write(tmp_path / "search", {"large": [0.5], "small": [0.4], "else": [0.1]})
    settings = {"tiers": [{"name": name} for name in ("small", "middle", "large")]}
    (folder / "settings.json").write_text(json.dumps(settings))  # has the tiers in order
    assert fairness_table({"a": [folder]})["tier"].tolist() == [ALL_TIERS, "small", "large", "else"]


def test_figures_of_each_run_are_averaged(one: Path, two: Path, groups: dict, tmp_path: Path) -> None:
    table = fairness_table({"both": [one, two], "second": [two]}).set_index(["name", "tier"])
    assert table.loc[("both", "tier2"), FIGURES].tolist() == pytest.approx([2, 2, 0.65, 0.05, 0.6])  # 0.1 and 0
    assert table.loc[("both", ALL_TIERS), "worst"] == pytest.approx((0.2 + 0.1) / 2)
    assert table.loc[("second", "tier10"), FIGURES].tolist() == pytest.approx([1, 1, 0.7, 0, 0.7])
    # a tier that a run has no client in
    table = fairness_table({"a": [one, write(tmp_path / "other", {"tier1": [0.5]})]}).set_index("tier")
    assert table.loc["tier10", ["runs", "mean"]].tolist() == [1, 0.9]
    assert table.loc["tier1", ["runs", "clients", "mean"]].tolist() == pytest.approx([2, 2, 0.45])
    # quartiles 0.2 and 0.4; 0.575 and 0.725
    table = fairness_table({"ours": groups["ours"]}).set_index("tier")[["runs", "clients", "mean", "iqr", "worst"]]
    assert table.loc["*"].tolist() == pytest.approx([2, 4.5, (0.38 + 0.65) / 2, (0.2 + 0.15) / 2, 0.3])


def test_as_text(one: Path, tmp_path: Path) -> None:
    other = write(tmp_path / "other", {"tier1": [0.5]})
    lines = fairness_text(fairness_table({"a": [one], "b": [other]})).splitlines()
    cells = [re.split("  +", line) for line in lines]
    assert cells[0] == ["name", "runs", "clients", "all tiers", "tier1", "tier2", "tier10", "worst"]
    figures = ["58.33 ± 23.39", "40.00 ± 16.33", "70.00 ± 10.00", "90.00 ± 0.00", "20.00"]
    assert cells[1] == ["a", "1", "6", *figures]
    assert cells[2] == ["b", "1", "1", "50.00 ± 0.00", "50.00 ± 0.00", "–", "–", "50.00"]


def test_clients_of_the_same_place_are_averaged(one: Path, two: Path, tmp_path: Path) -> None:
    scores = ordered_scores({"a": [one, two]})
    pairs = zip([0.2, 0.4, 0.6, 0.6, 0.8, 0.9], [0.1, 0.1, 0.4, 0.6, 0.6, 0.7], strict=True)
    assert scores["mean"].tolist() == pytest.approx([sum(pair) / 2 for pair in pairs])
    assert scores["rank"].tolist() == [1, 2, 3, 4, 5, 6]
    with pytest.raises(DataError, match="different numbers of clients"):
        ordered_scores({"a": [one, write(tmp_path / "less", {"t": [0.1]})]})
    assert ordered_scores({"a": [one]})["deviation"].isna().all()
    axes = fairness_figure({"ours": [one, two], "rand-init": [two]}).axes[0]
    lines = {line.get_label(): line.get_ydata() for line in axes.get_lines()}
    assert list(lines) == ["ours", "rand-init"]
    assert lines["rand-init"] == pytest.approx([10, 10, 40, 60, 60, 70])
    (band,) = axes.collections  # of one run there is none
    ends = band.get_paths()[0].vertices[:, 1]
    assert ends.max() == pytest.approx(100 * (0.8 + 0.1 * 2**0.5))
    assert ends.min() == pytest.approx(100 * (0.25 - 0.15 * 2**0.5))  # the second: 0.4 and 0.1


def test_boxes_by_hand(groups: dict, tmp_path: Path) -> None:
    (axes,) = client_boxes(groups).axes
    assert [text.get_text() for text in axes.get_xticklabels()] == ["ours", "theirs"]
    heights = axes.patches[0].get_path().vertices[:, 1]
    assert (heights.min(), heights.max()) == pytest.approx((30, 70))  # of all runs' clients
    lines = [set(np.round(line.get_ydata(), 6)) for line in axes.lines if np.allclose(line.get_xdata(), 0, atol=0.4)]
    assert all(ends in lines for ends in ({50.0}, {10.0, 30.0}, {70.0, 90.0}))  # the median, and whiskers to the ends
    theirs = [line.get_ydata().tolist() for line in axes.lines if line.get_marker() == "D"][1]
    assert theirs == pytest.approx([160 / 3])  # the mean, where it is not the median
    (axes,) = client_boxes({f"a long name {number}": groups["ours"] for number in range(4)}).axes
    assert {text.get_rotation() for text in axes.get_xticklabels()} == {25}
    (axes,) = client_boxes({"x": [write(tmp_path / "beyond", {"a": [0.5, 0.5, 0.51, 0.52, 0.52, 0.99]})]}).axes
    assert [line.get_ydata().tolist() for line in axes.lines if line.get_marker() == "."] == [[99.0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is damaged"),
        ("client,tier,num_examples,accuracy,loss\n", "holds no client"),
        ("client,tier,num_examples,loss\n0,a,1,1\n", "no column 'accuracy'"),
        ("client,tier,num_examples,accuracy,loss\n0,a,1,x,1\n", "accuracy has a cell"),
        ("client,tier,num_examples,accuracy,loss\n0,a,1,1,1\n0,a,1,1,1\n", "client 0 is duplicated"),
    ],
)
def test_broken_files(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / CLIENTS_FILE).write_text(text)
    with pytest.raises(DataError, match=message):
        read_client_scores(tmp_path)


@pytest.mark.parametrize("read", [fairness_table, client_boxes])
def test_missing_files(tmp_path: Path, read: Callable[[dict], object]) -> None:
    with pytest.raises(DataError, match="is missing; clients need test data"):
        read({"a": [tmp_path]})
    with pytest.raises(DataError, match="b: has no folder"):
        read({"b": []})


def test_names_and_numbers_as_they_stand(tmp_path: Path) -> None:
    """A tier called NA is a tier, and a loss that is none is none."""
    text = "client,tier,num_examples,accuracy,loss\n3,NA,7,0.25,nan\n1,007,5,1.0,0.5\n"
    (tmp_path / CLIENTS_FILE).write_text(text)
    table = read_client_scores(tmp_path)
    assert table["tier"].tolist() == ["NA", "007"]
    assert table["client"].tolist() == [3, 1]
    assert np.isnan(table["loss"][0])
    assert table["loss"][1] == 0.5
