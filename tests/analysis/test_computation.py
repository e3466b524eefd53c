"""Methods at equal computation, worked out by hand."""

from __future__ import annotations

from pathlib import Path

import pytest

from lit_fednas.analysis.comparisons import computation_markdown, computation_table, least_total, levels_by_cost
from lit_fednas.analysis.methods import curves_figure
from lit_fednas.errors import DataError
from tests.analysis.made_runs import made_run, unpadded


def accuracies(small: list, large: list, prefix: str = "") -> dict:
    return {f"val/{prefix}large/accuracy": large, f"val/{prefix}small/accuracy": small}


@pytest.fixture
def methods(tmp_path: Path) -> dict:
    """A spends 100 a round and B 300; B's subnets have other names."""
    ours = {"large": 20, "small": 10}
    return {
        "A": [
            made_run(tmp_path / "a0", accuracies([0.1, 0.2, 0.3, 0.4], [0.2, 0.3, 0.4, 0.5]), 100, 0, ours),
            made_run(tmp_path / "a1", accuracies([0.3, 0.4, 0.5, 0.6], [0.4, 0.5, 0.6, 0.7]), 100, 1, ours),
        ],
        "B": [
            made_run(
                tmp_path / "b0",
                accuracies([0.5, None, 0.7], [0.6, None, 0.8], "w-"),
                300,
                subnets={"w-large": 9, "w-small": 3},
            )
        ],
    }


def test_levels_are_matched_in_the_order_of_their_macs(methods: dict) -> None:
    levels = levels_by_cost(methods)
    assert list(levels) == ["small", "large"]
    assert levels["large"] == {"A": "val/large/accuracy", "B": "val/w-large/accuracy"}
    assert levels["small"] == {"A": "val/small/accuracy", "B": "val/w-small/accuracy"}


@pytest.mark.parametrize(
    ("macs", "rounds", "small", "spent"),
    [
        (400, [4, 4, 1], [0.4, 0.6, 0.5], [400, 400, 300]),  # all of A; B's second round would be too much
        (300, [3, 3, 1], [0.3, 0.5, 0.5], [300, 300, 300]),  # at most: the budget itself is within
        (899, [4, 4, 1], [0.4, 0.6, 0.5], [400, 400, 300]),  # B's round 2 was not validated
        (900, [4, 4, 3], [0.4, 0.6, 0.7], [400, 400, 900]),
    ],
)
def test_the_last_validation_within_the_budget(
    methods: dict, macs: int, rounds: list, small: list, spent: list
) -> None:
    table = computation_table(methods, levels_by_cost(methods), macs)
    assert table["rounds"].tolist() == rounds
    assert table["small"].tolist() == small
    assert table["large"].tolist() == pytest.approx([accuracy + 0.1 for accuracy in small])
    assert table["macs"].tolist() == spent
    assert table["bytes_down"].tolist() == [10 * macs for macs in spent]
    assert table["bytes_up"].tolist() == [4 * macs for macs in spent]
    assert table["total_macs"].tolist() == [400, 400, 900]


def test_the_budget_is_the_least_that_a_run_has_spent(methods: dict) -> None:
    assert least_total(methods) == 400


def test_the_markdown(methods: dict) -> None:
    table = computation_table(methods, levels_by_cost(methods), 400)
    assert unpadded(computation_markdown(table, 400)).splitlines() == [
        "| method | seeds | small (%) | large (%) | rounds | MACs | bytes down | bytes up |",
        "|:---|---:|---:|---:|---:|---:|---:|---:|",
        "| A | 2 | 50.0 (40.0 to 60.0) | 60.0 (50.0 to 70.0) | 4 | 400 | 4 kB | 1.6 kB |",
        "| B | 1 | 50.0 | 60.0 | 1 | 300 | 3 kB | 1.2 kB |",
    ]
    more = computation_markdown(computation_table(methods, levels_by_cost(methods), 401), 401)
    assert "Ended before the budget of 401 MACs: A " in more
    assert "B b0" not in more


def test_a_validation_has_all_levels(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", accuracies([0.1, 0.2, None], [0.3, 0.4, 0.5]))
    levels = {name: {"A": f"val/{name}/accuracy"} for name in ("small", "large")}
    table = computation_table({"A": [run]}, levels, 300)
    assert table[["rounds", "small", "large"]].values.tolist() == [[2, 0.2, 0.4]]


def test_what_cannot_be_compared_is_told(methods: dict, tmp_path: Path) -> None:
    levels = levels_by_cost(methods)
    with pytest.raises(DataError, match=r"b0: had spent 300 MACs by its first validation"):
        computation_table(methods, levels, 299)
    uncounted = made_run(tmp_path / "u", accuracies([0.1], [0.2]), macs=None)
    with pytest.raises(DataError, match="count no MACs"):
        least_total({"A": [uncounted]})
    with pytest.raises(DataError, match=r"has no subnets-val\.csv"):
        levels_by_cost({"A": [uncounted]})
    one = made_run(tmp_path / "one", accuracies([0.1], [0.2]), subnets={"small": 1})
    with pytest.raises(DataError, match="C: evaluated 1 subnets, A 2"):
        levels_by_cost({**methods, "C": [one]})
    with pytest.raises(DataError, match="A: its runs evaluated different subnets"):
        levels_by_cost({"A": [*methods["A"], one]})


def test_the_figure_shows_what_was_reached_until_each_cost(tmp_path: Path) -> None:
    metric = {"A": "val/small/accuracy", "B": "val/small/accuracy"}
    methods = {
        "A": [
            made_run(tmp_path / "a", accuracies([0.1, 0.2, 0.3], [0.5] * 3), 100),
            made_run(tmp_path / "b", accuracies([0.2, 0.8], [0.5] * 2), 120),
        ],
        "B": [made_run(tmp_path / "c", accuracies([0.3], [0.5]), 150)],
    }
    figure = curves_figure(methods, {"small": metric}, 200)
    (axes,) = figure.axes
    mean, other, budget = axes.get_lines()
    assert axes.get_title() == "small"
    assert list(mean.get_xdata()) == [120, 200, 240]  # from where both have one to where the first ends
    assert list(mean.get_ydata()) == pytest.approx([15, 20, 50])  # (10+20)/2, (20+20)/2, (20+80)/2
    assert mean.get_drawstyle() == "steps-post"
    assert (list(other.get_xdata()), list(other.get_ydata())) == ([150], [30])
    assert set(budget.get_xdata()) == {200}
    (band,) = axes.collections
    assert {round(y, 6) for y in band.get_paths()[0].vertices[:, 1]} == {10, 20, 80}


def test_many_levels_are_drawn_in_rows_of_three(tmp_path: Path) -> None:
    names = [f"w{n}" for n in range(5)]
    run = made_run(tmp_path / "a", {f"val/{name}/accuracy": [0.1, 0.2] for name in names})
    figure = curves_figure({"A": [run]}, {name: {"A": f"val/{name}/accuracy"} for name in names}, 100)
    assert [axes.get_title() for axes in figure.axes] == names
    assert figure.get_size_inches().tolist() == pytest.approx([3 * 3.6, 2 * 3.0])
