"""FedorAS' Table 7 and Fig. 4, and FedTrans' Fig. 6, against values by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lit_fednas.analysis import fairness_table
from lit_fednas.analysis.clients import fairness_chart, read_client_scores
from lit_fednas.errors import DataError
from lit_fednas.records import ALL_TIERS
from lit_fednas.records.run import CLIENTS_FILE, write_client_scores
from tests.analysis.made_runs import SETTINGS

FIGURES = ["runs", "clients", "mean", "deviation", "worst"]


def write(folder: Path, accuracies: dict[str, list[float]]) -> Path:
    """Writes clients in the order of the tiers; a client's loss is 1 minus its accuracy."""
    folder.mkdir(parents=True, exist_ok=True)
    clients = [(tier, accuracy) for tier, values in accuracies.items() for accuracy in values]
    rows = [(client, tier, 10, accuracy, round(1 - accuracy, 6)) for client, (tier, accuracy) in enumerate(clients)]
    columns = ("client", "tier", "num_examples", "accuracy", "loss")
    write_client_scores(folder, [dict(zip(columns, row, strict=True)) for row in rows])
    return folder


@pytest.fixture
def first_run(tmp_path: Path) -> Path:
    return write(tmp_path / "one" / "search", {"tier2": [0.8, 0.6], "tier10": [0.9], "tier1": [0.2, 0.4, 0.6]})


@pytest.fixture
def second_run(tmp_path: Path) -> Path:
    return write(tmp_path / "two" / "search", {"tier2": [0.6, 0.6], "tier10": [0.7], "tier1": [0.4, 0.1, 0.1]})


def test_one_run_by_hand(first_run: Path, tmp_path: Path) -> None:
    table = fairness_table({"a": [first_run]}).set_index("tier")
    assert table.index.tolist() == [ALL_TIERS, "tier1", "tier2", "tier10"]  # tiers sort by number, not as text
    squares = sum((accuracy - 3.5 / 6) ** 2 for accuracy in (0.8, 0.6, 0.9, 0.2, 0.4, 0.6))
    assert table.loc[ALL_TIERS, FIGURES].tolist() == pytest.approx([1, 6, 3.5 / 6, (squares / 6) ** 0.5, 0.2])
    assert table.loc["tier1", FIGURES].tolist() == pytest.approx([1, 3, 0.4, (0.08 / 3) ** 0.5, 0.2])
    assert table.loc["tier10", FIGURES].tolist() == pytest.approx([1, 1, 0.9, 0.0, 0.9])
    folder = write(tmp_path / "search", {"large": [0.5], "small": [0.4], "else": [0.1]})
    settings = SETTINGS | {"tiers": [{"name": name, "at_most": {}} for name in ("small", "middle", "large")]}
    (folder / "settings.json").write_text(json.dumps(settings))  # has the tiers in order
    assert fairness_table({"a": [folder]})["tier"].tolist() == [ALL_TIERS, "small", "large", "else"]


def test_figures_of_each_run_are_averaged(first_run: Path, second_run: Path, tmp_path: Path) -> None:
    table = fairness_table({"both": [first_run, second_run], "second": [second_run]}).set_index(["name", "tier"])
    assert table.loc[("both", "tier2"), FIGURES].tolist() == pytest.approx([2, 2, 0.65, 0.05, 0.6])  # 0.1 and 0
    assert table.loc[("both", ALL_TIERS), "worst"] == pytest.approx((0.2 + 0.1) / 2)
    assert table.loc[("second", "tier10"), FIGURES].tolist() == pytest.approx([1, 1, 0.7, 0, 0.7])
    # the second run has no client in tier10
    table = fairness_table({"a": [first_run, write(tmp_path / "other", {"tier1": [0.5]})]}).set_index("tier")
    assert table.loc["tier10", ["runs", "mean"]].tolist() == [1, 0.9]
    assert table.loc["tier1", ["runs", "clients", "mean"]].tolist() == pytest.approx([2, 2, 0.45])


def test_clients_of_the_same_rank_are_averaged(first_run: Path, second_run: Path, tmp_path: Path) -> None:
    pairs = zip([0.2, 0.4, 0.6, 0.6, 0.8, 0.9], [0.1, 0.1, 0.4, 0.6, 0.6, 0.7], strict=True)
    axes = fairness_chart({"ours": [first_run, second_run], "rand-init": [second_run]}).figure.axes[0]
    lines = {line.get_label(): line for line in axes.get_lines()}
    assert lines["ours"].get_xdata().tolist() == [1, 2, 3, 4, 5, 6]
    assert lines["ours"].get_ydata() == pytest.approx([50 * sum(pair) for pair in pairs])
    assert lines["rand-init"].get_ydata() == pytest.approx([10, 10, 40, 60, 60, 70])
    with pytest.raises(DataError, match="different numbers of clients"):
        fairness_chart({"a": [first_run, write(tmp_path / "less", {"t": [0.1]})]})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "is missing; set data.client_test"),
        ("client,tier,num_examples,accuracy,loss\n0,a,1,x,1\n", "is damaged .*could not convert string to float: 'x'"),
        ("client,tier,num_examples,loss\n0,a,1,1\n", "is damaged .*has no column accuracy"),
        ("client,tier,num_examples,accuracy,loss\n", "holds no client"),
        ("client,tier,num_examples,accuracy,loss\n0,a,1,1,1\n0,a,1,0,1\n", "client 0 is duplicated"),
    ],
)
def test_missing_and_broken_files(tmp_path: Path, text: str | None, message: str) -> None:
    if text is not None:
        (tmp_path / CLIENTS_FILE).write_text(text)
    with pytest.raises(DataError, match=message):
        read_client_scores(tmp_path)
