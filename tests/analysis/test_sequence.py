"""How a network was pruned: tables, figures and costs of runs that can be worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure

from lit_fednas.analysis.runs import Run
from lit_fednas.analysis.sequence import (
    architecture_differences,
    architectures_figure,
    candidates_figure,
    differences_markdown,
    kept_units,
    model_within,
    multiplied,
    sequence_of,
    sequence_table,
)
from lit_fednas.analysis.sequence_methods import (
    accuracy_figure,
    change,
    cost_figure,
    cost_markdown,
    cost_table,
    sequence_accuracies,
    split_methods,
)
from lit_fednas.analysis.style import GREY, PALETTE, look
from lit_fednas.errors import DataError
from lit_fednas.records import SEQUENCE_FILE, write_client_scores, write_sequence
from tests.analysis.made_runs import made_run, unpadded
from tests.analysis.made_sequences import Steps, by_clients, finetuned, made_sequence, searched

#: Another seed, and another method: conv1 and conv2 are pruned.
OTHER: Steps = [
    ("", (8, 16, 20), 1000, 0.75),
    ("conv1", (6, 16, 20), 740, 0.6),
    ("conv2", (6, 8, 20), 480, None),
]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    return made_sequence(tmp_path / "ours" / "version_0")


def lines(figure: Figure, panel: int = 0) -> dict[str, np.ndarray]:
    return {
        str(line.get_label()): line.get_xydata()
        for line in figure.axes[panel].get_lines()
        if not str(line.get_label()).startswith("_")
    }


# ---- the table ------------------------------------------------------------------------------------------------


def test_costs_are_cumulated_per_client_without_the_initial_models(run: Run) -> None:
    """Iteration t costs t MB up of all ten clients, ten times as many down, and 1000 MACs per byte up."""
    table = sequence_table(run)
    assert table["up_mb"].tolist() == pytest.approx([0, 0.1, 0.3, 0.6])
    assert table["down_mb"].tolist() == pytest.approx([0, 1, 3, 6])
    assert table["client_macs"].tolist() == pytest.approx([0, 1e8, 3e8, 6e8])


def test_the_models(run: Run) -> None:
    table = sequence_table(run)
    assert table["number"].tolist() == [0, 1, 2, 3]
    assert table["round"].tolist() == [pd.NA, 1, 4, 8]
    assert table["unit"].tolist() == ["", "conv2", "fc", "conv2"]
    assert table["budget"].tolist()[1:] == [770, 620, 420]
    assert np.isnan(table["budget"][0])
    assert table["share"].tolist() == [1, 0.75, 0.6, 0.4]
    assert table["macs"].tolist() == [1000, 750, 600, 400]
    assert table["parameters"].tolist() == [100, 75, 60, 40]
    assert table["accuracy"].tolist() == [0.75, 0.7, 0.5, 0.625]
    assert table["rounds"].tolist() == [0, 2, 3, 4]
    assert table["candidates"].tolist() == [0, 2, 2, 2]


def test_shares_are_of_the_resource_that_budgets_limit(run: Run) -> None:
    sequence = {**sequence_of(run), "resource": "bytes", "initial": 400}
    for model in sequence["models"]:
        model["resource"] = model["bytes"]
    write_sequence(run.folder, sequence)
    assert sequence_table(run)["share"].tolist() == [1, 0.75, 0.6, 0.4]
    sequence["models"][3]["resource"] = 80
    write_sequence(run.folder, sequence)
    assert sequence_table(run)["share"].tolist() == [1, 0.75, 0.6, 0.2]
    assert sequence_accuracies(run)["share"].tolist() == [1, 0.75, 0.6, 0.4]  # always of MACs


@pytest.mark.parametrize(("share", "number"), [(1.0, 0), (0.99, 1), (0.75, 1), (0.7499, 2), (0.4, 3), (0.39, None)])
def test_the_first_model_within_a_share(run: Run, share: float, number: int | None) -> None:
    model = model_within(run, share)
    assert (None if model is None else model["number"]) == number


def test_a_share_is_met_in_spite_of_rounding(tmp_path: Path) -> None:
    steps: Steps = [("", (8, 16, 20), 10, 0.5), ("fc", (8, 16, 10), 1, 0.5)]
    assert 1 / 10 > 1 - 0.9
    model = model_within(made_sequence(tmp_path, steps), 1 - 0.9)
    assert model is not None
    assert model["number"] == 1


def test_without_a_sequence(tmp_path: Path) -> None:
    run = made_run(tmp_path / "run", {"val/x/accuracy": [0.1]})
    with pytest.raises(DataError, match=r"sequence\.json: is missing; only runs with .*PruneByBudgets"):
        sequence_table(run)


# ---- candidates (Fig. 3) --------------------------------------------------------------------------------------


def test_candidates_of_the_first_and_the_last_iteration(run: Run) -> None:
    figure = candidates_figure(run)
    assert [axes.get_title() for axes in figure.axes] == ["iteration 1, 75%", "iteration 3, 40%"]
    other, won = figure.axes[1].get_lines()
    assert won.get_label() == "conv2 (selected)"
    assert (won.get_color(), won.get_linestyle()) == (PALETTE[1], "--")
    assert won.get_xdata().tolist() == [1, 2, 3, 4]
    assert won.get_ydata().tolist() == [0.625] * 4
    assert other.get_xydata().tolist() == [[1, 0.25]]
    assert (other.get_color(), other.get_marker()) == (GREY, "x")


def test_an_untested_round_is_a_gap_and_one_that_stayed_has_no_cross(run: Run) -> None:
    sequence = sequence_of(run)
    won, other = sequence["models"][2]["candidates"]
    won["accuracies"] = [0.3, None, 0.5]
    other.update(accuracies=[0.1, 0.2, 0.3], dropped=None)
    write_sequence(run.folder, sequence)
    (axes,) = candidates_figure(run, [2]).axes
    heights = axes.get_lines()[1].get_ydata()
    assert heights[[0, 2]].tolist() == [0.3, 0.5]
    assert np.isnan(heights[1])
    assert axes.get_lines()[0].get_marker() == "."


def test_iterations_that_there_are_not(run: Run, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no iteration 4; choose from 1 to 3"):
        candidates_figure(run, [1, 4])
    with pytest.raises(DataError, match="no iteration has ended"):
        candidates_figure(made_sequence(tmp_path / "young", OTHER[:1]))


# ---- architectures (Fig. 5) -----------------------------------------------------------------------------------


def test_what_is_left_of_the_layers(run: Run) -> None:
    kept = kept_units(run)
    assert list(kept.index) == ["conv1", "conv2", "fc"]
    assert kept.to_dict("list") == {0: [8, 16, 20], 1: [8, 12, 20], 2: [8, 12, 10], 3: [8, 4, 10]}


def test_a_unit_of_several_groups_is_several_layers(tmp_path: Path) -> None:
    run = made_sequence(tmp_path, units={"conv2": ["conv2.out"], "rest": ["fc.out", "conv1.out"]})
    assert list(kept_units(run).index) == ["conv2", "fc.out", "conv1.out"]
    assert kept_units(run)[3].tolist() == [4, 10, 8]


def test_a_multiplier_rounds_up_but_not_for_floating_point() -> None:
    initial = pd.Series([10, 11, 100])
    assert multiplied(initial, 0.7).tolist() == [7, 8, 70]  # 0.7 * 10 is 7.000000000000001 or so
    assert multiplied(initial, 0.55).tolist() == [6, 7, 55]
    assert multiplied(initial, 1.0).tolist() == [10, 11, 100]


def test_differences_by_hand(run: Run, tmp_path: Path) -> None:
    """At 60%: (8, 12, 10) and (6, 8, 20) of (8, 16, 20): kept 1, 3/4, 1/2 and 3/4, 1/2, 1."""
    other = made_sequence(tmp_path / "other", OTHER)
    far = made_sequence(tmp_path / "far", [OTHER[0], ("fc", (8, 16, 5), 500, 0.1)])  # kept 1, 1, 1/4
    methods = {"ours": [run], "other": [other, far]}
    table = architecture_differences(methods, 0.6, multiplier=0.5)
    between = (0.25 + 0.25 + 0.5) / 3
    others = {"far": (0 + 0.25 + 0.25) / 3, "pair": (0.25 + 0.5 + 0.75) / 3}
    assert table.loc["ours", "other"] == pytest.approx((between + others["far"]) / 2)
    assert table.loc["other", "ours"] == pytest.approx(table.loc["ours", "other"])
    assert table.loc["other", "other"] == pytest.approx(others["pair"])
    assert np.isnan(table.loc["ours", "ours"])
    assert table.loc["ours", "multiplier 0.5"] == pytest.approx((0.5 + 0.25 + 0) / 3)
    text = unpadded(differences_markdown(table)).splitlines()
    assert text[2] == "| ours | – | 0.250 | 0.250 |"
    assert text[3] == "| other | 0.250 | 0.500 | 0.333 |"


def test_a_method_that_has_not_got_so_far_is_left_out(run: Run, tmp_path: Path) -> None:
    methods = {"ours": [run], "other": [made_sequence(tmp_path / "other", OTHER)]}
    assert architecture_differences(methods, 0.45).isna().all(axis=None)
    assert list(lines(architectures_figure(methods, 0.45))) == ["initial", "ours"]
    with pytest.raises(DataError, match="no run has got to 30%; choose a greater share"):
        architectures_figure(methods, 0.3)


def test_the_architectures_drawn(run: Run, tmp_path: Path) -> None:
    methods = {"ours": [run], "other": [made_sequence(tmp_path / "other", OTHER)]}
    figure = architectures_figure(methods, 0.5, multiplier=0.7)
    assert {name: line[:, 1].tolist() for name, line in lines(figure).items()} == {
        "initial": [8, 16, 20],
        "ours": [8, 4, 10],
        "other": [6, 8, 20],
        "multiplier 0.7": [6, 12, 14],
    }
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["conv1", "conv2", "fc"]


def test_other_networks_cannot_be_compared(run: Run, tmp_path: Path) -> None:
    other = made_sequence(tmp_path / "other", units={"conv1": ["conv1.out"], "fc": ["fc.out"]})
    for compare in (architecture_differences, architectures_figure):
        with pytest.raises(DataError, match=r"other layers \(conv1, fc; conv1, conv2, fc\)|other layers \(conv1"):
            compare({"ours": [run], "other": [other]}, 0.5)


# ---- accuracies (Figs. 4 and 8) -------------------------------------------------------------------------------


def test_accuracies_from_all_files(run: Run) -> None:
    """Fine-tuning's own come first, then those of the search's tiers, of its evaluations, of the run itself."""
    finetuned(run, {"m": (1, 0.8, 0.78), "s": (3, 0.7, 0.68)})
    searched(run, {"m": (1, 0.6), "s": (3, 0.5)}, {2: 0.44, 3: 0.9})
    head = "subnet,arch,split,accuracy,loss,macs,parameters,bytes\n"
    (run.folder / "subnets-val.csv").write_text(head + "a,model: 2,val,0.1,1,1,1,1\nb,model: 0,val,0.2,1,1,1,1\n")
    (run.folder / "subnets-test.csv").write_text(head + "a,model: 1,test,0.1,1,1,1,1\nb,model: 0,test,0.3,1,1,1,1\n")
    table = sequence_accuracies(run)
    nan = float("nan")
    assert table["number"].tolist() == [0, 1, 2, 3]
    assert table["tier"].tolist() == ["", "m", "", "s"]
    assert table["decides"].tolist() == [0.75, 0.7, 0.5, 0.625]
    assert table[["clients_before", "clients_after"]].isna().all(axis=None)
    np.testing.assert_array_equal(table["val_before"], [0.2, 0.4, 0.44, 0.35])
    np.testing.assert_array_equal(table["val_after"], [nan, 0.8, nan, 0.7])
    np.testing.assert_array_equal(table["test_before"], [0.3, 0.6, nan, 0.5])
    np.testing.assert_array_equal(table["test_after"], [nan, 0.78, nan, 0.68])


def test_a_model_of_two_tiers_has_two_rows_and_other_names_of_finetunings_are_found(run: Run) -> None:
    finetuned(run, {"m": (1, 0.8, 0.78), "s": (1, 0.9, 0.6)}, name="again")
    assert sequence_accuracies(run)["tier"].tolist() == [""] * 4
    table = sequence_accuracies(run, "again")
    assert list(zip(table["number"], table["tier"], strict=True)) == [
        (0, ""),
        (1, "m"),
        (1, "s"),
        (2, ""),
        (3, ""),
    ]


def test_accuracies_of_seeds_meet_by_tier(tmp_path: Path) -> None:
    """Seed 0's tier s is model 3 at 40%, seed 1's is model 2 at 60%."""
    one = searched(finetuned(made_sequence(tmp_path / "0"), {"s": (3, 0.7, 0.6)}), {"s": (3, 0.4)}, {})
    two = searched(finetuned(made_sequence(tmp_path / "1"), {"s": (2, 0.7, 0.8)}), {"s": (2, 0.5)}, {})
    figure = accuracy_figure({"ours": [one, two]})
    after, before = (line for line in figure.axes[1].get_lines())
    assert after.get_xydata().tolist() == [[0.5, pytest.approx(0.7)]]
    assert before.get_xydata().tolist() == [[0.5, pytest.approx(0.45)]]
    assert (after.get_linestyle(), before.get_linestyle()) == ("-", "--")
    band = figure.axes[1].collections[0].get_paths()[0].vertices[:, 1]
    assert (band.min(), band.max()) == (0.6, 0.8)


def test_accuracies_of_clients_are_means_over_seeds(tmp_path: Path) -> None:
    methods = {"ours": [made_sequence(tmp_path / "0", OTHER), made_sequence(tmp_path / "1")]}
    figure = accuracy_figure(methods)
    assert len(figure.axes) == 1
    expected = [[0.4, 0.625], [0.6, 0.5], [0.745, 0.65], [1.0, 0.75]]  # model 2 of one seed was not by_clients
    np.testing.assert_allclose(lines(figure)["ours"], expected)


def test_a_model_of_two_tiers_counts_once_among_the_clients(tmp_path: Path) -> None:
    """Model 1 has 0.7 in one seed, whose two tiers it is, and 0.6 in the other."""
    one = finetuned(made_sequence(tmp_path / "0"), {"m": (1, 0.8, 0.78), "s": (1, 0.9, 0.6)})
    figure = accuracy_figure({"ours": [one, made_sequence(tmp_path / "1", OTHER)]})
    assert lines(figure)["ours"][2].tolist() == pytest.approx([0.745, 0.65])


def test_validation_data_stand_in_for_test_data(run: Run) -> None:
    figure = accuracy_figure({"ours": [finetuned(run, {"s": (3, 0.7, None)})]})
    assert figure.axes[1].get_ylabel() == "accuracy on server's validation data"
    assert [line.get_ydata().tolist() for line in figure.axes[1].get_lines()] == [[0.7], [0.35]]


def test_the_clients_own_tests_come_first(run: Run, tmp_path: Path) -> None:
    """All models before fine-tuning, two after it, whatever the server says."""
    by_clients(finetuned(run, {"s": (3, 0.7, 0.68)}), {0: (0.9, None), 1: (0.8, 0.85), 2: (0.3, None), 3: (0.4, 0.6)})
    table = sequence_accuracies(run)
    nan = float("nan")
    np.testing.assert_array_equal(table["clients_before"], [0.9, 0.8, 0.3, 0.4])
    np.testing.assert_array_equal(table["clients_after"], [nan, 0.85, nan, 0.6])
    assert table["test_after"].tolist()[3] == 0.68
    figure = accuracy_figure({"ours": [run]})
    assert figure.axes[1].get_ylabel() == "accuracy on clients' own test data"
    after, before = figure.axes[1].get_lines()
    assert after.get_xydata().tolist() == [[0.4, 0.6], [0.75, 0.85]]
    assert before.get_ydata().tolist() == [0.4, 0.3, 0.8, 0.9]
    costs = cost_table({"ours": [run]}, [0.75, 0.6, 0.4])
    assert costs["decides"].tolist() == [0.7, 0.5, 0.625]
    assert costs["before"].tolist() == [0.8, 0.3, 0.4]
    np.testing.assert_array_equal(costs["after"], [0.85, nan, 0.6])
    np.testing.assert_array_equal(costs["server"], [nan, nan, 0.68])


def test_a_width_is_drawn_with_what_its_clients_tested(run: Run, tmp_path: Path) -> None:
    """6 of 8 examples are right, at half of the 1,000 MACs."""
    widths = made_run(tmp_path / "widths", {"val/x/accuracy": [0.1]})
    methods = {"ours": [by_clients(run, {0: (0.9, None)})], "widths": [widths]}
    with pytest.raises(DataError, match=r"clients\.csv: is missing"):
        accuracy_figure(methods)
    head = "subnet,arch,split,accuracy,loss,macs,parameters,bytes\n"
    (widths.folder / "subnets-val.csv").write_text(head + "a,w: 1,val,0.1,1,1000,1,1\nb,w: 0.7,val,0.2,1,500,1,1\n")
    rows = [
        {"client": c, "tier": "*", "num_examples": n, "accuracy": x, "loss": 1} for c, n, x in ((0, 2, 0), (1, 6, 1))
    ]
    write_client_scores(widths.folder, [{**row, "arch": "w: 0.7"} for row in rows], ["arch"])
    assert lines(accuracy_figure(methods), 1)["widths"].tolist() == [[0.5, 0.75]]
    for archs, fault in ((("w: 0.7", "w: 1"), "has clients with w: 0.7 and w: 1"), (("x", "x"), "not evaluated x")):
        mixed = [{**row, "arch": arch} for row, arch in zip(rows, archs, strict=True)]
        write_client_scores(widths.folder, mixed, ["arch"])
        with pytest.raises(DataError, match=fault):
            accuracy_figure(methods)


def test_a_method_of_widths_is_drawn_with_what_it_evaluated(run: Run, tmp_path: Path) -> None:
    widths = made_run(tmp_path / "widths", {"val/x/accuracy": [0.1]})
    methods = {"ours": [finetuned(run, {"s": (3, 0.7, 0.68)})], "widths": [widths]}
    with pytest.raises(DataError, match=r"neither sequence\.json nor subnets-test\.csv"):
        accuracy_figure(methods)
    rows = "w1,w1,test,0.8,1,500,1,1\nw5,w5,test,0.3,1,250,1,1\n"
    (widths.folder / "subnets-test.csv").write_text("subnet,arch,split,accuracy,loss,macs,parameters,bytes\n" + rows)
    figure = accuracy_figure(methods)
    assert lines(figure, 1)["widths"].tolist() == [[0.25, 0.3], [0.5, 0.8]]
    assert list(lines(figure)) == ["ours"]
    assert split_methods(methods) == ({"ours": methods["ours"]}, {"widths": [widths]})
    with pytest.raises(DataError, match=r"mixed: .*widths has no sequence\.json"):
        split_methods({"mixed": [run, widths]})
    with pytest.raises(DataError, match=r"no run has a sequence\.json"):
        split_methods({"widths": [widths]})


# ---- costs (Fig. 6, Tables 3 and 4) ---------------------------------------------------------------------------


@pytest.fixture
def methods(run: Run, tmp_path: Path) -> dict[str, list[Run]]:
    second = made_sequence(tmp_path / "ours" / "version_1", OTHER, cost=2_000_000)
    return {"ours": [run, second], "dear": [made_sequence(tmp_path / "dear", clients=5)]}


def test_costs_at_shares(methods: dict[str, list[Run]]) -> None:
    table = cost_table(methods, [0.5, 0.75])
    assert table["share"].tolist() == [0.75] * 3 + [0.5] * 3
    assert table["method"].tolist() == ["ours", "ours", "dear"] * 2
    assert table["number"].tolist() == [1, 1, 1, 3, 2, 3]
    assert table["reached"].tolist() == [0.75, 0.74, 0.75, 0.4, 0.48, 0.4]
    assert table["up_mb"].tolist() == pytest.approx([0.1, 0.2, 0.2, 0.6, 0.6, 1.2])
    assert table["client_macs"].tolist() == pytest.approx([1e8, 2e8, 2e8, 6e8, 6e8, 1.2e9])
    assert table["decides"].tolist()[:4] == [0.7, 0.6, 0.7, 0.625]
    assert table[["before", "after", "server"]].isna().all(axis=None)


def test_the_fine_tuned_model_of_a_share(run: Run) -> None:
    """This model; else the largest within the share and beyond the next; of two trainings the better validated."""
    finetuned(run, {"a": (1, 0.8, 0.7), "b": (1, 0.9, 0.6), "c": (2, 0.5, 0.55), "d": (3, 0.5, 0.4)})
    table = cost_table({"ours": [run]}, [0.9, 0.75, 0.5, 0.3])
    assert table["server"].tolist()[:3] == [0.6, 0.6, 0.4]
    finetuned(run, {"c": (2, 0.5, 0.55), "d": (3, 0.5, 0.4)})
    table = cost_table({"ours": [run]}, [0.75, 0.5])
    assert table["tuned"].tolist() == [2, 3]
    assert table["server"].tolist() == [0.55, 0.4]
    assert cost_table({"ours": [run]}, [0.75])["tuned"].tolist() == [2]
    finetuned(run, {"d": (3, 0.5, 0.4)})
    assert np.isnan(cost_table({"ours": [run]}, [0.75, 0.5])["server"][0])
    assert cost_table({"ours": [run]}, [0.75])["tuned"].tolist() == [3]


def test_costs_as_markdown(methods: dict[str, list[Run]]) -> None:
    by_clients(finetuned(methods["dear"][0], {"s": (3, 0.7, 0.68)}), {1: (0.5, None), 3: (0.25, 0.375)})
    text = unpadded(cost_markdown(cost_table(methods, [0.75, 0.45]))).splitlines()
    head = "| share | method | seeds | test (%) | test, fine-tuned (%) | server's test, fine-tuned (%) | clients"
    assert text[0] == head + " (decides) (%) | uplink per client (MB) | Δ | MACs per client | Δ |"
    ours = "– | – | – | 65.0 (60.0 to 70.0) | 0.15 (0.1 to 0.2) | 0% | 150 M (100 M to 200 M) | 0% |"
    assert text[2] == f"| 75% | ours | 2 | {ours}"
    assert text[3] == "| 75% | dear | 1 | 50.0 | – | – | 70.0 | 0.2 | +33% | 200 M | +33% |"
    assert text[4] == "| 45% | ours | 1 of 2 | – | – | – | 62.5 | 0.6 | 0% | 600 M | 0% |"
    assert text[5] == "| 45% | dear | 1 | 25.0 | 37.5 | 68.0 | 62.5 | 1.2 | +100% | 1.2 G | +100% |"
    text = unpadded(cost_markdown(cost_table(methods, [0.5]))).splitlines()
    assert text[2] == "| 50% | ours | 2 | – | – | – | – | 0.6 | 0% | 600 M | 0% |"  # one was not by_clients
    text = unpadded(
        cost_markdown(cost_table({"ours": [methods["ours"][1]], "dear": methods["dear"]}, [0.45]))
    ).splitlines()
    assert text[2] == "| 45% | ours | 0 of 1 | – | – | – | – | – | – | – | – |"
    assert text[3] == "| 45% | dear | 1 | 25.0 | 37.5 | 68.0 | 62.5 | 1.2 | – | 1.2 G | – |"


def test_changes_in_words() -> None:
    """Table 3: 12.8 of 59.7 MB is -79%; Fig. 6: 277 times."""
    assert [change(x) for x in (12.8 / 59.7, 140.7 / 70.3, 277.4, 9.99, 1.001)] == [
        *("-79%", "+100%", "×277", "+899%", "0%")
    ]


def test_cost_bars(methods: dict[str, list[Run]]) -> None:
    figure = cost_figure(cost_table(methods, [0.75, 0.45, 0.3]))
    for axes, heights in zip(figure.axes, ([0.15, 0.6, 0.2, 1.2], [1.5e8, 6e8, 2e8, 1.2e9]), strict=True):
        bars = [bar for container in axes.containers for bar in container]
        assert [bar.get_height() for bar in bars] == pytest.approx(heights)
        assert axes.get_yscale() == "log"
        assert [text.get_text() for text in axes.texts] == ["×1.3", "×2.0"]
        assert [text.get_text() for text in axes.get_xticklabels()] == ["75%", "45%", "30%"]
        (whisker,) = axes.get_lines()  # of the one method with two seeds
        assert whisker.get_ydata() == pytest.approx([heights[0] / 1.5, heights[0] / 0.75])
    assert figure.axes[0].containers[1][0].get_facecolor()[:3] == pytest.approx(
        tuple(int(look(1)["color"][at : at + 2], 16) / 255 for at in (1, 3, 5))
    )


@pytest.mark.parametrize("share", [0.0, 1.0, 1.5, -0.1])
def test_shares_out_of_range(run: Run, share: float) -> None:
    with pytest.raises(DataError, match=r"--shares: .* above 0 and below 1"):
        cost_table({"ours": [run]}, [0.5, share])


def test_the_made_run_is_as_its_record_says(run: Run) -> None:
    written = json.loads((run.folder / SEQUENCE_FILE).read_text())
    assert len(run.rounds) == 1 + written["models"][-1]["round"]
