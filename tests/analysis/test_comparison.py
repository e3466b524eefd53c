"""Comparisons against values by hand, and against brute force."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from lit_fednas import cli
from lit_fednas.analysis import Run
from lit_fednas.analysis.comparison import (
    best_within,
    compared,
    comparison_rows,
    comparison_table,
    least_spent,
    read_methods,
    read_tiers,
    target_rows,
    target_table,
    tiers_of,
)
from lit_fednas.analysis.networks import COLUMNS, Result, history, methods_of, networks
from lit_fednas.analysis.runs import SPENT
from lit_fednas.cli import main
from lit_fednas.errors import DataError, FedNASError
from lit_fednas.records import FinetuneFiles, SearchFiles
from lit_fednas.records.files import replace_json
from lit_fednas.records.run import SUITE_FILE, append_round
from tests.analysis.made_runs import ROW, SETTINGS, made_run, made_sequence
from tests.analysis.test_fairness import write

SMALL, LARGE = "val/small/accuracy", "val/large/accuracy"
SUBNETS = {"small": 10, "large": 40}


def searched(
    run: Run, name: str, rows: Mapping[str, tuple], tested: Mapping[str, float] = {}, **settings: object
) -> Run:
    """Writes a search: accuracy and MACs by architecture, and the test accuracies of the tiers' architectures."""
    files = SearchFiles(run.folder / name)
    tiers = [{"name": "t", "at_most": {"macs": 40}}]
    files.write_settings({**SETTINGS, "tiers": tiers, "method": {"class": "A"}, "client": None, **settings})
    costs = {"parameters": 2, "bytes": 8}
    numbered = enumerate(rows.items())
    table = [{**ROW, "number": n, "arch": a, "accuracy": x, "macs": m, **costs} for n, (a, (x, m)) in numbered]
    files.write("evaluations", table)
    files.write("tiers", [{**ROW, "tier": f"t-{a}", "arch": a, "test_accuracy": x} for a, x in tested.items()])
    return run


def tuned(run: Run, name: str, initial: str, rows: Mapping[str, tuple[float, float, int]]) -> Run:
    """Writes a fine-tuning: validation accuracy, test accuracy and MACs of training by architecture."""
    files = FinetuneFiles(run.folder / name)
    files.write_settings({**SETTINGS, "initial": initial, "search": "search"})
    costs = {"rounds": 3, "bytes_down": 100, "bytes_up": 50, "macs_per_example": 7, "bytes": 8}
    table = [
        {**ROW, "tier": f"t{n}", "arch": arch, "val_accuracy": val, "test_accuracy": test, "macs": macs, **costs}
        for n, (arch, (val, test, macs)) in enumerate(rows.items())
    ]
    files.write("candidates", table)
    return run


def test_searched_and_evaluated_networks_are_merged(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", {SMALL: [0.1, 0.2]}, subnets=SUBNETS)  # both have a validation accuracy of 0.5
    (run.folder / "subnets-test.csv").write_text(
        "subnet,arch,split,accuracy,loss,macs,parameters,bytes\nx,small,test,0.4,1,10,1,4\n"
    )
    searched(run, "search", {"small": (0.6, 10), "new": (0.7, 20), "large": (0.55, 40)}, {"new": 0.65})
    searched(run, "client3", {"other": (0.99, 20)}, client=3)
    searched(run, "asked", {"asked": (0.98, 20)}, federated={"rounds": 4})
    table = networks(Result(run)).set_index("arch")
    # "small" was tested after the run; "large" was not, so its metrics are the search's
    assert table["val"].to_dict() == {"new": 0.7, "large": 0.55, "small": 0.5}
    assert table["test"].dropna().to_dict() == {"new": 0.65, "small": 0.4}
    assert table["macs"].to_dict() == {"new": 20, "large": 40, "small": 10}
    assert set(table["rounds"]) == {2}
    assert set(table["spent_macs"]) == {200}
    assert set(table["spent_bytes"]) == {2000 + 800}
    assert networks(Result(run, "client3"))["arch"].tolist() == ["other"]
    assert networks(Result(run, "asked"))["val"].tolist() == [0.98]


def test_a_metric_is_shown_with_the_training_of_its_weights(tmp_path: Path, capsys) -> None:
    """Searches follow rounds 2 and 4 of 100 MACs each; ``gone`` belongs to rounds that were trained again."""
    run = made_run(tmp_path / "a", {SMALL: [0.1] * 4}, weights="abcd")
    head = "subnet,arch,split,accuracy,loss,macs,parameters,bytes,weights\n"
    (run.folder / "subnets-val.csv").write_text(f"{head}x,small,val,0.5,1,10,1,4,d\n")
    (run.folder / "subnets-test.csv").write_text(f"{head}x,small,test,0.9,1,10,1,4,b\n")
    tiers = [{"name": name, "at_most": {"macs": limit}} for name, limit in (("s", 10), ("l", 40))]
    searched(run, "search", {"small": (0.6, 10), "large": (0.55, 40)}, {"large": 0.5}, weights="b", tiers=tiers)
    searched(run, "search-2", {"small": (0.4, 10), "large": (0.7, 40)}, {"large": 0.65}, weights="d", tiers=tiers)
    searched(run, "gone", {"large": (0.99, 40)}, {"large": 0.99}, weights="x", tiers=tiers)
    table = networks(Result(run))
    columns = ["arch", "val", "rounds", "spent_macs"]
    assert table["test"].dropna().to_dict() == {0: 0.65, 1: 0.5, 2: 0.9}
    assert sorted(table[columns].to_numpy().tolist()) == [
        ["large", 0.55, 2, 200],
        ["large", 0.7, 4, 400],
        ["small", 0.4, 4, 400],
        ["small", 0.6, 2, 200],
    ]
    assert main(["compare", str(run.folder)]) == 0
    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()[3:5]]
    # tier, validation, test, and rounds of the best by validation
    best = {row[0]: (row[2], row[3], row[8]) for row in rows}
    assert best == {"s": ("60.0", "90.0", "2"), "l": ("70.0", "65.0", "4")}
    assert f"{run.folder / 'gone'} belongs to weights that the run no longer has" in printed
    assert main(["runs", str(run.folder.parent)]) == 0
    assert "s 90.0%, l 65.0% (test accuracy)" in capsys.readouterr().out


def test_a_pruned_model_costs_the_training_until_its_selection(tmp_path: Path) -> None:
    """Models are selected after rounds 1, 4 and 8 (from 0) of 50 MACs and 40 bytes; the initial one is free."""
    run = made_sequence(tmp_path / "a")
    searched(run, "search", {f"model: {n}": (0.5, macs) for n, macs in enumerate((1000, 750, 600, 400))})
    table = networks(Result(run))
    assert table["rounds"].tolist() == [0, 2, 5, 9]
    assert table["spent_macs"].tolist() == [0, 100, 250, 450]
    assert table["spent_bytes"].tolist() == [0, 80, 200, 360]


def test_a_fine_tuning_includes_the_costs_of_its_weights(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", {SMALL: [0.1, 0.2]}, subnets=SUBNETS)  # 200 MACs, 2800 bytes
    rows = {"a": (0.6, 0.5, 30), "b": (0.7, 0.6, 50)}
    tuned_networks = networks(Result(tuned(run, "after", "supernet", rows), "after"))
    assert tuned_networks["val"].tolist() == [0.6, 0.7]
    assert tuned_networks["macs"].tolist() == [7, 7]
    assert tuned_networks[["rounds", "spent_macs", "spent_bytes"]].iloc[0].tolist() == [2 + 6, 200 + 80, 2800 + 300]
    scratch = networks(Result(tuned(run, "scratch", "random", rows), "scratch"))
    assert scratch[["rounds", "spent_macs", "spent_bytes"]].iloc[1].tolist() == [6, 80, 300]
    assert set(networks(Result(run))["arch"]) == {"small", "large"}  # other weights


COSTS = {"parameters": 1, "bytes": 4, "steps": []}


def test_a_round_has_only_networks_that_existed(tmp_path: Path) -> None:
    """The run grows and has not ended; suite.json holds the costs."""
    run = made_run(tmp_path / "a", {"val/model0/accuracy": [0.1, 0.2], "val/model1/accuracy": [None, 0.6]})
    models = [{"number": n, "parent": None, "round": None, "macs": 10 * (n + 1), **COSTS} for n in (0, 1)]
    replace_json(run.folder / SUITE_FILE, {"models": models})
    table = history(Result(run))
    assert table[["rounds", "arch", "val", "macs", "spent_macs"]].to_numpy().tolist() == [
        [1, "model: 0", 0.1, 10, 100],
        [2, "model: 0", 0.2, 10, 200],
        [2, "model: 1", 0.6, 20, 200],
    ]
    assert table["test"].isna().all()


def test_a_run_without_networks_is_refused(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", {SMALL: [0.1]})
    with pytest.raises(DataError, match="has evaluated no network; let the run end, or search it"):
        networks(Result(run))


@pytest.mark.parametrize("higher", [True, False])
def test_the_best_within_limits_equals_brute_force(higher: bool) -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        size = int(rng.integers(1, 8))
        table = pd.DataFrame(rng.integers(1, 6, (size, len(COLUMNS))).astype(float), columns=list(COLUMNS))
        table = table.mask(rng.random(table.shape) < 0.15)  # unknown
        limits = {"macs": float(rng.integers(1, 6)), "memory_bytes": float(rng.integers(2, 10))}
        fitting = [
            row
            for row in table.to_dict("records")
            if row["macs"] <= limits["macs"]  # never of NaN
            and row["bytes"] + row["activation_bytes"] <= limits["memory_bytes"]
            and not math.isnan(row["val"])
        ]
        table.attrs["higher"] = higher
        best_row = best_within(table.assign(method="m", result="r"), limits)
        assert len(best_row) == bool(fitting)
        if fitting:
            best = min(fitting, key=lambda row: (-row["val"] if higher else row["val"], row["macs"]))
            assert best_row[["val", "macs"]].iloc[0].tolist() == [best["val"], best["macs"]]


@pytest.fixture
def methods(tmp_path: Path) -> dict[str, list[Result]]:
    """Method A has a small and a large network with two seeds; B a large one with one seed, at four times the cost."""
    values = {
        "A0": {SMALL: [0.1, 0.3, 0.4, 0.5], LARGE: [0.2, 0.5, 0.6, 0.8]},
        "A1": {SMALL: [0.1, 0.2, 0.3, 0.3], LARGE: [0.1, 0.4, 0.7, 0.6]},
    }
    runs = [
        made_run(tmp_path / "A" / name, metrics, seed=n, subnets=SUBNETS)
        for n, (name, metrics) in enumerate(values.items())
    ]
    for run, small, large in zip(runs, (0.5, 0.3), (0.8, 0.6), strict=True):
        searched(
            run, "search", {"small": (small, 10), "large": (large, 40)}, {"small": small - 0.1, "large": large - 0.1}
        )
    other = made_run(tmp_path / "B" / "B0", {LARGE: [0.3, 0.9]}, macs=400, seed=0, subnets={"large": 40})
    searched(other, "search", {"large": (0.9, 40)}, {"large": 0.85})
    return methods_of({"A": runs, "B": [other]})


TIERS = {"s": {"macs": 10.0}, "l": {"macs": 40.0}}


def test_a_row_per_tier_method_and_seed(methods: dict) -> None:
    table = comparison_table(methods, TIERS)
    assert table[["tier", "method", "seed"]].to_numpy().tolist() == [
        *(["s", "A", 0], ["s", "A", 1], ["s", "B", 0]),
        *(["l", "A", 0], ["l", "A", 1], ["l", "B", 0]),
    ]
    assert table["arch"].fillna("-").tolist() == ["small", "small", "-", "large", "large", "large"]
    np.testing.assert_allclose(table["test"], [0.4, 0.2, np.nan, 0.7, 0.5, 0.85])
    np.testing.assert_allclose(table["spent_macs"], [400, 400, np.nan, 400, 400, 800])
    text = comparison_rows(table).text().splitlines()
    assert "40.0 (30.0 to 50.0)" in text[1]
    assert text[-1] == "No network within the tier: B (s)."


def test_at_equal_computation_the_last_validation_within_it_counts(methods: dict) -> None:
    assert least_spent(methods, "macs") == 400
    table = comparison_table(methods, TIERS, budget={"macs": 400.0, "rounds": 3.0})[:2]
    assert table["val"].tolist() == [0.4, 0.3]
    assert table["spent_macs"].tolist() == [300, 300]
    assert table["test"].isna().all()
    at_budget = comparison_table(methods, {"l": TIERS["l"]}, budget={"macs": 400.0})
    assert at_budget["val"].tolist() == [0.8, 0.6, 0.3]
    assert at_budget["rounds"].tolist() == [4, 4, 1]
    with pytest.raises(
        DataError, match=r"macs: B \(B/B0\) had spent 400 by its first validation, and the budget is 399; give more"
    ):
        comparison_table(methods, TIERS, budget={"macs": 399.0})


def test_budgets_that_do_not_overlap_name_a_remedy(tmp_path: Path) -> None:
    """The short run ends after 400 MACs, four rounds of the long run, which validates after eight."""
    long = made_run(tmp_path / "long", {LARGE: [*[None] * 7, 0.9]}, seed=0, subnets=SUBNETS)
    short = made_run(tmp_path / "short", {LARGE: [None, 0.9]}, macs=200, seed=0, subnets=SUBNETS)
    methods = methods_of({"L": [long], "S": [short]})
    remedy = r"validate every 4 rounds \(check_val_every_n_rounds of trainer or finetune\), or train S 2 times as long"
    with pytest.raises(
        DataError, match=f"macs: L .* had spent 800 by its first validation, and the budget is 400; {remedy}$"
    ):
        compared(methods, TIERS, macs="equal")


def test_networks_that_are_trained_alone(tmp_path: Path, methods: dict) -> None:
    """Their curves are those of training side by side, fronts have lines, and rows name tiers with the same network."""
    run = methods["A"][0].run
    files = tuned(run, "alone", "random", {"a": (0.6, 0.5, 30), "b": (0.7, 0.6, 50)})
    made_run(files.folder / "alone" / "runs" / "t0-0", {"val/network/accuracy": [0.3, None, None]})
    table = history(Result(run, "alone"))
    # after one of three rounds; the total is six rounds, 80 MACs and 300 bytes
    moments = [["a", 2, 80 / 3, 100, 0.3], ["a", 6, 80, 300, 0.6], ["b", 6, 80, 300, 0.7]]
    for row, moment in zip(table[["arch", *SPENT, "val"]].to_numpy().tolist(), moments, strict=True):
        assert row == [moment[0], *map(pytest.approx, moment[1:])]
    comparison = compared({**methods, "alone": [Result(run, "alone")]}, TIERS)
    head, *rows = comparison.text().splitlines()[2:9]
    assert head.split()[:2] + head.split()[-1:] == ["tier", "method", "network"]
    assert [row.split()[:3] for row in rows if "*" in row] == [["s", "alone", "*"], ["l", "B", "*"]]
    assert [row.split()[:2] for row in rows if row.endswith("as in s")] == [["l", "alone"]]
    assert "* The best of its tier, by test accuracy." in comparison.text()
    figure = comparison.figure()
    front, *panels = figure.axes
    assert [line.get_ydata()[0] for line in front.lines if line.get_linestyle() == ":"] == [60.0]
    assert [[line.get_label() for line in axes.lines] for axes in panels] == [["A", "alone"], ["A", "B", "alone"]]


def test_targets_by_hand(methods: dict) -> None:
    """The large network of A reaches 0.7 in rounds 4 and 3, and then falls; B needs two rounds of 400 MACs."""
    table = target_table(methods, TIERS, [0.7])
    large = table[table["tier"] == "l"]
    assert large["rounds"].tolist() == [4, 3, 2]
    assert large["spent_macs"].tolist() == [400, 300, 800]
    assert large["reached"].tolist() == [True] * 3
    assert target_table(methods, {"l": TIERS["l"]}, [0.5])["rounds"].tolist() == [2, 3, 2]  # the first, not the last
    small = table[table["tier"] == "s"]
    assert small["reached"].tolist() == [False] * 3
    np.testing.assert_allclose(small["rounds"], [4, 4, np.nan])  # a lower bound; nothing fits
    assert "3.5 (3 to 4)" in target_rows(table).text().splitlines()[3]


def test_a_metric_that_falls(methods: dict) -> None:
    for results in methods.values():
        for result in results:
            files = SearchFiles(result.folder / "search")
            rows = [{**row, "loss": 1 - row["accuracy"] + (row["macs"] == 40)} for row in files.rows("evaluations")]
            files.write("evaluations", rows)
    table = comparison_table(methods, {"l": TIERS["l"]}, metric="loss")
    assert table["arch"].tolist() == ["small", "small", "large"]


def test_clients_scores_are_a_table_if_there_are_any(methods: dict) -> None:
    scores = {0: [0.2, 0.4, 0.6, 0.8], 1: [0.5, 0.5, 0.5, 0.5]}
    for result in methods["A"]:
        write(result.folder if result.seed else result.folder / "search", {"*": scores[result.seed]})
    table = compared(methods, TIERS).tables["clients"]
    assert set(table.frame["name"]) == {"A"}
    line = table.text().splitlines()[1].split()
    # means of both seeds: deviation sqrt(0.05) and 0, worst 0.2 and 0.5, quartiles 0.35 and 0.65
    assert line == ["A", "2", "4", "50.0", f"{100 * math.sqrt(0.05) / 2:.1f}", "35.0", "15.0"]
    assert "clients" not in compared({"B": methods["B"]}, TIERS).tables


def test_methods_are_found_by_patterns(tmp_path: Path, methods: dict) -> None:
    root = str(tmp_path)
    names = {"A": ["A/A0", "A/A1"], "B": ["B/B0"]}
    for words, expected in (
        ([root], names),
        ([f"{root}/?/*"], names),
        ([f"ours={root}/A/A0,{root}/A/A1", f"theirs={root}/B"], {"ours": names["A"], "theirs": names["B"]}),
        ([f"x={root}/A/*/search"], {"x": ["A/A0/search", "A/A1/search"]}),
    ):
        matches = {label: [result.name for result in results] for label, results in read_methods(words).items()}
        assert matches == expected
    for words, message in (
        ([f"{root}/nothing"], f"{root}/nothing: matches no run"),
        ([f"x={root}/A/A0,{root}/B/B0"], r"x: .*A0 and .*B0 have the same seed 0; give one"),
    ):
        with pytest.raises(DataError, match=message):
            read_methods(words)


def test_copies_and_runs_of_other_tasks_are_excluded_with_a_line(tmp_path: Path, methods: dict) -> None:
    """A's seeds have 80 and 60 %, with a copy of the first 73.3 on average; a run of text is not comparable."""
    first, _ = methods["A"]
    copy = Path(shutil.copytree(first.run.folder, tmp_path / "A" / "copied"))
    text = made_run(tmp_path / "C" / "C0", {LARGE: [0.9, 0.99]}, seed=0, subnets=SUBNETS)
    names = {"A": list("ab"), "C": list("abc"), "B": list("ab")}
    tasks = {"A": "Classification", "C": "NextToken", "B": "Classification"}
    all_methods = methods_of({"A": [*methods["A"], copy], "C": [text], "B": methods["B"]})
    for method, results in all_methods.items():
        for result in results:
            record = {"task": tasks[method], "class_names": names[method], "metrics": {"accuracy": True}}
            (result.run.folder / "inputs.json").write_text(json.dumps(record))
    all_methods = methods_of({method: [result.folder for result in results] for method, results in all_methods.items()})
    comparison = compared(all_methods, {"l": TIERS["l"]})
    lines = comparison.text().splitlines()
    assert lines[-2:] == [
        f"left out: A: {copy} is a copy of {first.run.folder}",
        f"left out: C: {text.folder} measures NextToken of 3: a, b, c, and {first.run.folder} "
        "Classification of 2: a, b",
    ]
    assert "70.0 (60.0 to 80.0)" in next(line for line in lines if " A " in line)
    assert list(comparison.methods) == ["A", "B"]
    comparison.write(tmp_path / "out")
    assert f"{copy} is a copy of" in (tmp_path / "out" / "compare.html").read_text()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{}", "holds no limits; write"),
        ("small: {macs: -1}", "small.macs: -1 is not a number above 0"),
        ("a: b: c", "cannot be read"),
    ],
)
def test_tiers_that_cannot_be_used(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "tiers.yaml").write_text(content)
    with pytest.raises(FedNASError, match=message):
        read_tiers(tmp_path / "tiers.yaml")


def test_a_limit_on_an_unrecorded_cost_is_refused(methods: dict) -> None:
    with pytest.raises(DataError, match=r"tiers: operations is not recorded of networks; give limits .* on macs, "):
        comparison_table(methods, {"t": {"macs": 40, "operations": 9}})


def test_tiers_come_from_the_searches_if_these_agree(methods: dict) -> None:
    assert tiers_of(methods) == {"t": {"macs": 40}}
    searched(methods["B"][0].run, "again", {}, tiers=[{"name": "u", "at_most": {"macs": 50}}])
    assert tiers_of(methods) == {"t": {"macs": 40}, "u": {"macs": 50}}
    searched(methods["B"][0].run, "other", {}, tiers=[{"name": "t", "at_most": {"macs": 50}}])
    assert tiers_of(methods) == {"*": {}}


def test_the_command_writes_what_it_prints(
    tmp_path: Path, methods: dict, capsys: pytest.CaptureFixture[str], refused: Any
) -> None:
    (tmp_path / "tiers.yaml").write_text("search: {tiers: {init_args: {budgets: {s: {macs: 1e1}, l: {macs: 40}}}}}")
    out = tmp_path / "out"
    words = ["compare", f"{tmp_path}/A", f"{tmp_path}/B", "--tiers", str(tmp_path / "tiers.yaml")]
    assert cli.main([*words, "--targets", "0.5", "0.7", "--output", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "No network within the tier: B (s)." in printed
    assert cli.main([*words, "--output", str(out), "--targets", "0.5", "0.7"]) == 0  # replaces the command's files
    (out / "compare.html").write_text("mine")
    assert "exists and is not from this command; move it" in refused(*words, "--output", str(out))
    assert (out / "compare.html").read_text() == "mine"

    table = pd.read_csv(out / "compare.csv")
    np.testing.assert_allclose(table["val"].dropna(), [0.5, 0.3, 0.8, 0.6, 0.9])
    assert len(pd.read_csv(out / "targets.csv")) == 2 * 2 * 3
    curves = pd.read_csv(out / "curves.csv").query("seed == 0 and arch == 'small'")
    assert curves[["method", "rounds", "spent_macs", "val"]].to_numpy().tolist() == [
        ["A", 1, 100, 0.1],
        ["A", 2, 200, 0.3],
        ["A", 3, 300, 0.4],
        ["A", 4, 400, 0.5],
    ]
    assert cli.main([*words, "--macs", "equal"]) == 0
    assert "Networks at the last validation within 400 MACs of all clients' training" in capsys.readouterr().out


def test_rounds_without_clients_cost_nothing(tmp_path: Path) -> None:
    run = made_run(tmp_path / "a", {SMALL: [0.1]}, subnets=SUBNETS)
    append_round(run.folder, {"round": 1, "metrics": {SMALL: 0.2}, "clients": []})
    assert history(Result(Run(run.folder)))["spent_macs"].tolist() == [100, 100]
